// Growing Markdown, as blocks: the text so far is parsed by markdown-it and cut where a top-level block begins. All but
// the last block are done; only the last one is parsed again when text is added. At any moment, the result equals that
// of parsing the whole text so far at once.
//
// The start of a block is final when its first line is complete and there is no link definition directly before it,
// which may still become something else. A definition may come after its use: then the blocks that use it are parsed
// again.
//
// Very large blocks are cut inside, so that the work for an addition does not grow with the text.

import MarkdownIt from "./vendor/markdown-it.js";

// No HTML, and no deep nesting, which would take long.
export const parser = new MarkdownIt({ html: false, linkify: true, maxNesting: 20 });
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false });
// The renderer decides which links are allowed.
parser.validateLink = () => true;
parser.normalizeLink = (url) => url;
parser.normalizeLinkText = (text) => text;

/** The maximum number of characters of a piece: of text, of a list or table, of any other block, and of code, which is
 * parsed quickly. A block is cut into pieces when it has twice as many. */
const MOST = 2000, MOST_ROWS = 4000, MOST_OTHER = 10_000, MOST_CODE = 20_000;

/** How many characters are searched for finished blocks: a few first. */
const WINDOWS = [MOST_ROWS, MOST_OTHER, MOST_CODE].map((most) => 2 * most);

const inline = parser.inline.parse;

/** Inline marks are parsed in pieces, because some texts would take very long. */
parser.inline.parse = function (text, ...others) {
  for (let from = 0; from < text.length;) {
    const to = text.length - from > 2 * MOST ? spaceBefore(text, from + MOST, from + MOST / 2) : text.length;
    inline.call(this, text.slice(from, to), ...others);
    from = to;
  }
};

/** A list item that begins with a box is a task: `meta.done` says whether it is ticked. */
parser.core.ruler.after("inline", "tasks", ({ tokens }) => {
  for (let n = 2; n < tokens.length; n++) {
    const { type, content, children } = tokens[n];
    if (type !== "inline" || tokens[n - 2].type !== "list_item_open" || tokens[n - 1].type !== "paragraph_open") continue;
    const box = /^\[([ xX])\]\s+(?=\S)/.exec(content);
    // It may also be a link.
    if (!box || children[0].type !== "text" || !/^\[[ xX]\]/.test(children[0].content)) continue;
    children[0].content = children[0].content.slice(3).trimStart();
    tokens[n - 2].meta = { done: box[1] !== " " };
  }
});

/** Where to cut before `at`: after a space, unless that is before `least`. */
function spaceBefore(text, at, least) {
  const space = text.lastIndexOf(" ", at - 1);
  return space > least ? space + 1 : at;
}

function lineBefore(text, at) {
  return text.lastIndexOf("\n", at - 1) + 1 || at;
}

/** The block tokens of a text, without inline content. Link definitions are added to `references`. */
function outline(text, references = {}) {
  const tokens = [];
  parser.block.parse(text, parser, { references }, tokens);
  return tokens;
}

const DEFINITION = "reference_definition";

const begins = ({ level, nesting }) => level === 0 && nesting >= 0;

/** The offsets of lines, for line numbers that only grow. */
function lineFinder(text) {
  let line = 0, at = 0;
  return (wanted) => {
    for (; line < wanted; line++) at = text.indexOf("\n", at) + 1 || text.length;
    return at;
  };
}

/** The complete lines at the beginning of a text, at most `most` characters, with their tokens. */
function lines(text, most) {
  const all = text.slice(0, most), whole = all.slice(0, all.lastIndexOf("\n") + 1);
  return { all: whole, tokens: outline(whole) };
}

/** The final starts of top-level blocks, except the first one. */
function cutsOf({ all, tokens }) {
  const offset = lineFinder(all), cuts = [];
  let before = null;
  for (const token of tokens.filter(begins)) {
    const line = token.map[0], mayGoOn = before?.type === DEFINITION && before.map[1] === line;
    if (before && !mayGoOn) cuts.push(offset(line));
    before = token;
  }
  return cuts;
}

/** Where a block that is too large is cut, and the prefix that makes the rest a block of the same kind. Null if it
 * is not cut. */
function cutInside(text, { all, tokens }) {
  const first = tokens.find(begins), offset = lineFinder(all), isOver = (most) => text.length > 2 * most;
  const line = (n) => all.slice(offset(n), offset(n + 1)), at = (at, again = "") => ({ at, again });
  switch (first?.type) {
    case "fence":
      return isOver(MOST_CODE) ? at(lineBefore(text, MOST_CODE), line(first.map[0])) : null;
    case "bullet_list_open": case "ordered_list_open": {
      const items = tokens.filter(({ type, level }) => type === "list_item_open" && level === 1).slice(1).map(({ map }) => offset(map[0]));
      if (isOver(MOST_ROWS) && items.length) return at(items.findLast((item) => item <= MOST_ROWS) ?? items[0]);
      return isOver(MOST_OTHER) ? at(lineBefore(text, MOST_OTHER)) : null;
    }
    case "table_open":
      return isOver(MOST_ROWS) ? at(lineBefore(text, MOST_ROWS), line(first.map[0]) + line(first.map[0] + 1)) : null;
    case "blockquote_open": case "code_block":
      return isOver(MOST_OTHER) ? at(lineBefore(text, MOST_OTHER)) : null;
    case DEFINITION:
      return isOver(MOST) ? at(lineBefore(text, MOST)) : null;
    default:
      return isOver(MOST) ? at(spaceBefore(text, MOST, MOST / 2)) : null;
  }
}

/** The labels that a text may use. */
function labelsOf(text) {
  const labels = new Set();
  if (!text.includes("[")) return labels;
  for (const { type, content } of outline(text)) {
    if (type !== "inline") continue;
    for (const [, label] of content.matchAll(/\[((?:[^[\]\\]|\\[^])+)\]/g)) labels.add(parser.utils.normalizeReference(label));
  }
  return labels;
}

/** A text that is cut into blocks while it grows: `blocks` are done, each a `text` with a `version`; `tail` may still
 * change. They are up to date after `settle()`. */
export class Blocks {
  constructor(text = "") {
    this.pieces = [];
    this.blocks = [];
    this.tail = "";
    /** Link definitions in finished blocks, and all of them. */
    this.defined = {};
    this.references = {};
    /** Which blocks may use a definition, by its label. */
    this.users = new Map();
    this.hasLines = this.defines = this.isSettled = false;
    this.add(text);
  }

  add(text) {
    if (!text) return;
    this.pieces.push(text);
    // The second character of a CRLF may be still to come.
    const all = (this.held ?? "") + text;
    this.held = all.endsWith("\r") ? "\r" : "";
    this.tail += all.slice(0, all.length - this.held.length).replace(/\r\n?/g, "\n").replaceAll("\0", "\ufffd");
    this.hasLines ||= text.includes("\n") || this.tail.length - this.tail.lastIndexOf("\n") > 2 * MOST;
    this.isSettled = false;
  }

  /** The whole text. */
  whole() {
    return this.pieces.join("");
  }

  settle() {
    if (this.isSettled) return this;
    this.isSettled = true;
    while (this.hasLines) this.hasLines = WINDOWS.some((most, n) => (n === 0 || this.tail.length > WINDOWS[n - 1]) && this.cut(most));
    this.define();
    return this;
  }

  /** Ends the finished blocks in the first `most` characters of the tail. */
  cut(most) {
    const found = lines(this.tail, most), cuts = cutsOf(found);
    cuts.forEach((at, n) => this.close(at - (cuts[n - 1] ?? 0)));
    if (cuts.length) return true;
    const inside = cutInside(this.tail, found);
    if (!inside) return false;
    this.close(inside.at);
    this.tail = inside.again + this.tail;
    return true;
  }

  /** Ends a block before the character `at` of the tail. */
  close(at) {
    const block = { text: this.tail.slice(0, at), version: 0 };
    this.tail = this.tail.slice(at);
    this.blocks.push(block);
    for (const label of labelsOf(block.text)) {
      if (!this.users.has(label)) this.users.set(label, []);
      this.users.get(label).push(block);
    }
    if (!block.text.includes("]:")) return;
    outline(block.text, this.defined);
    this.defines = true;
  }

  /** Finds new definitions, and the blocks that use them. */
  define() {
    const tailDefines = this.tail.includes("]:");
    if (!tailDefines && !this.defines) return;
    this.defines = tailDefines;
    const own = Object.create(this.defined), before = this.references;
    if (tailDefines) outline(this.tail, own);
    this.references = { ...this.defined, ...own };
    const is = (references, label) => Object.hasOwn(references, label) && `${references[label].href} ${references[label].title}`;
    for (const label of new Set([...Object.keys(before), ...Object.keys(this.references)])) {
      if (is(before, label) === is(this.references, label)) continue;
      for (const block of this.users.get(label) ?? []) block.version++;
    }
  }

  /** The tokens of a block, or of the tail. */
  parse(text) {
    return parser.parse(text, { references: Object.create(this.references) });
  }
}
