// Growing Markdown, as blocks: the text so far is parsed by markdown-it and cut where a top-level block begins. All but
// the last block are done; only the last one is parsed again when text is added. At any moment, the result equals that
// of parsing the whole text so far at once.
//
// The start of a block is final when its first line is complete and there is no link definition directly before it,
// which may still become something else. A definition may come after its use: then the blocks that use it are parsed
// again.
//
// Very large blocks are cut inside, so that the work for an addition does not grow with the text.

import { MOST, parser, spaceBefore } from "./parser.js";

/** The maximum number of characters of a piece: of a list or table, of code, whose colours take time, and of any other
 * block. A block is cut into pieces when it has twice as many. */
const MOST_ROWS = 4000, MOST_CODE = 5000, MOST_OTHER = 10_000;

/** How many characters are searched for finished blocks: a few first. */
const WINDOWS = [MOST_ROWS, MOST_CODE, MOST_OTHER].map((most) => 2 * most);

function lineBefore(text, at) {
  return text.lastIndexOf("\n", at - 1) + 1 || at;
}

/** What a text may refer to: the destinations of links, and notes, as the parser keeps them. */
const environment = (references = {}, notes = {}) => ({ references, footnotes: { refs: notes } });

/** The block tokens of a text, without inline content. What it defines is added to the environment. */
function outline(text, env = environment()) {
  const tokens = [];
  parser.block.parse(text, parser, env, tokens);
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
      return isOver(MOST_CODE) ? { ...at(lineBefore(text, MOST_CODE), line(first.map[0])), isCode: true } : null;
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

/** A text that is cut into blocks while it grows: `blocks` are done, each a `text` with a `version`, and `goesOn` if it
 * is the rest of the code before it; `tail` may still change. They are up to date after `settle()`. */
export class Blocks {
  constructor(text = "") {
    this.pieces = [];
    this.blocks = [];
    this.tail = "";
    /** Whether the tail is the rest of the code before it. */
    this.goesOn = false;
    /** What finished blocks define, and all that is defined. */
    this.defined = environment();
    this.known = environment();
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
    this.goesOn = Boolean(inside.isCode);
    return true;
  }

  /** Ends a block before the character `at` of the tail. */
  close(at) {
    const block = { text: this.tail.slice(0, at), version: 0, goesOn: this.goesOn };
    this.goesOn = false;
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
    const { references, footnotes } = this.defined, before = labelsIn(this.known);
    const own = environment(Object.create(references), { ...footnotes.refs });
    if (tailDefines) outline(this.tail, own);
    this.known = environment({ ...references, ...own.references }, own.footnotes.refs);
    const now = labelsIn(this.known);
    for (const label of new Set([...before.keys(), ...now.keys()])) {
      if (before.get(label) === now.get(label)) continue;
      for (const block of this.users.get(label) ?? []) block.version++;
    }
  }

  /** The tokens of a block, or of the tail. */
  parse(text) {
    const { references, footnotes } = this.known;
    return parser.parse(text, environment(Object.create(references), { ...footnotes.refs }));
  }
}

/** What each label stands for. */
function labelsIn({ references, footnotes }) {
  const links = Object.entries(references).map(([label, { href, title }]) => [label, `${href} ${title}`]);
  const notes = Object.keys(footnotes.refs).map((key) => [parser.utils.normalizeReference(`^${key.slice(1)}`), "a note"]);
  return new Map([...links, ...notes]);
}
