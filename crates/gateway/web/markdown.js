// Markdown as elements. No text ever becomes HTML: the parser's tokens are turned into elements one by one, tags
// are shown as they are written, and images are links.
//
// A text that grows is cut into blocks; only the last one is parsed again when something is added, and a block
// has a largest size, so the work for an addition does not grow with the text.

import { Component, h, html, useEffect, useRef, useState } from "./vendor/preact.js";
import MarkdownIt from "./vendor/markdown-it.js";
import { linkUrl, visible } from "./text.js";

/** The most characters of a block, and of one that is code, which is parsed in no time. */
const MOST = 2000, MOST_CODE = 20_000;

// No HTML, and no nesting that would take long.
const parser = new MarkdownIt({ html: false, linkify: true, maxNesting: 20 });
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false });
// What is a link is decided below.
parser.validateLink = () => true;
parser.normalizeLink = (url) => url;
parser.normalizeLinkText = (text) => text;

/** How many characters are made for one picture, and how many blocks are taken away. */
const STEP = 2000, STEP_BACK = 20;

/** A text that is cut into blocks while it grows. `blocks` are done, `tail` may still change. */
export class Blocks {
  constructor(text = "") {
    this.pieces = [];
    this.blocks = [];
    this.tail = "";
    this.scanned = 0;
    this.fence = null;
    this.blank = false;
    this.add(text);
  }

  add(text) {
    if (!text) return;
    this.pieces.push(text);
    this.tail += text;
    while (text.includes("\n")) {
      const end = this.tail.indexOf("\n", this.scanned);
      if (end < 0) break;
      this.line(this.tail.slice(this.scanned, end), end + 1);
    }
    while (this.tail.length > (this.fence ? 2 * MOST_CODE : 2 * MOST)) {
      const space = this.tail.lastIndexOf(" ", MOST);
      this.close(space > MOST / 2 ? space + 1 : MOST);
    }
  }

  /** Whether it is so long that it cannot be taken out of the page at once. */
  isLong() {
    return this.blocks.length > STEP_BACK;
  }

  /** All of the text. */
  whole() {
    return this.pieces.join("");
  }

  line(line, end) {
    const mark = /^ {0,3}(`{3,}|~{3,})(.*)$/.exec(line);
    if (this.fence) {
      const closes = mark && mark[1][0] === this.fence[0] && mark[1].length >= this.fence.length && !mark[2].trim();
      if (closes) this.fence = null;
      if (closes || end > MOST_CODE) return this.close(end);
    } else if (!line.trim()) {
      this.blank = true;
    } else {
      const continues = /^(\s|[-+*>]\s|\d+[.)]\s)/.test(line) && /^\s*([-+*>]|\d+[.)])\s/.test(this.tail);
      if ((this.blank && !continues) || (mark && this.scanned) || this.scanned > MOST) {
        this.close(this.scanned);
        end = line.length + 1;
      }
      this.blank = false;
      if (mark && !(mark[1][0] === "`" && mark[2].includes("`"))) {
        this.fence = mark[1];
        this.language = mark[2].trim();
      }
    }
    this.scanned = end;
  }

  /** Ends a block before the character `at` of the tail. */
  close(at) {
    if (at > 0) this.blocks.push(this.tail.slice(0, at));
    this.tail = this.tail.slice(at);
    if (this.fence && at > 0) this.tail = `${this.fence}${this.language}\n${this.tail}`;
    this.scanned = 0;
    this.blank = false;
    // The opening line that was put there is no text that may open or close anything.
    if (this.fence && at > 0) this.scanned = this.fence.length + this.language.length + 1;
  }
}

class Block extends Component {
  shouldComponentUpdate(next) {
    return next.text !== this.props.text;
  }

  render({ text }) {
    return html`<div class="block">${rendered(text)}</div>`;
  }
}

function rendered(text) {
  return elements(parser.parse(text, {}));
}

/** Where a range of blocks ends that grows from `at` for one picture. */
function grown(blocks, at, isBack) {
  for (let made = 0; made < STEP && (isBack ? at > 0 : at < blocks.length);) made += blocks[isBack ? --at : at++].length;
  return at;
}

/** A text, or `Blocks` that grow; `version` changes when they have grown. Of a long one only a few blocks are
 * made for each picture, the last ones first, so that the page can be used meanwhile. With `onGone` they are taken
 * away in the same manner, and it is called at the end. */
export function Markdown({ text, source, onGone }) {
  const kept = useRef(null);
  if (!source && kept.current?.text !== text) kept.current = { text, blocks: new Blocks(text) };
  const all = source ?? kept.current.blocks;
  const { length } = all.blocks;
  const range = useRef({ from: grown(all.blocks, length, true), to: length }).current;
  range.to = Math.min(range.to, length);
  const [, redraw] = useState(0);
  const waits = onGone || range.from > 0 || range.to < length;
  useEffect(() => {
    if (!waits) return;
    const frame = requestAnimationFrame(() => {
      if (onGone && range.to - range.from <= STEP_BACK) return onGone();
      // From the end: what remains need not be moved.
      if (onGone) range.to -= STEP_BACK;
      else if (range.to < length) range.to = grown(all.blocks, range.to, false);
      else range.from = grown(all.blocks, range.from, true);
      redraw((n) => n + 1);
    });
    return () => cancelAnimationFrame(frame);
  });
  const { from, to } = range;
  return html`<div class="markdown">
    ${all.blocks.slice(from, to).map((block, n) => html`<${Block} key=${from + n} text=${block} />`)}
    ${to === length && all.tail && html`<${Block} key=${length} text=${all.tail} />`}
  </div>`;
}

/** The elements of a list of tokens, which open and close each other. */
function elements(tokens) {
  const stack = [{ children: [] }];
  for (const token of tokens) {
    if (token.nesting > 0) {
      stack.push({ open: token, children: [] });
    } else if (token.nesting < 0) {
      const { open, children } = stack.pop();
      stack[stack.length - 1].children.push(open ? element(open, children) : children);
    } else {
      stack[stack.length - 1].children.push(single(token));
    }
  }
  return stack[0].children;
}

const PLAIN = new Set(["p", "ul", "li", "blockquote", "thead", "tbody", "tr", "td", "strong", "em", "s"]);

function element(token, children) {
  if (token.hidden) return children;
  const { tag } = token;
  if (PLAIN.has(tag)) return h(tag, null, children);
  if (tag === "a") return link(token.attrGet("href") ?? "", children, token.markup === "linkify" || token.markup === "autolink");
  if (tag === "ol") return h("ol", { start: Number(token.attrGet("start") ?? 1) }, children);
  if (tag === "th") return h("th", { scope: "col" }, children);
  if (tag === "table") return html`<div class="table" tabIndex="0"><table>${children}</table></div>`;
  if (/^h[1-6]$/.test(tag)) {
    // The page has headings of its own above these.
    const level = Math.min(Number(tag[1]) + 1, 6);
    return html`<div class=${`heading ${tag}`} role="heading" aria-level=${level}>${children}</div>`;
  }
  return children;
}

function single(token) {
  switch (token.type) {
    case "inline": return elements(token.children);
    case "code_block": case "fence": return html`<pre tabIndex="0"><code>${token.content}</code></pre>`;
    case "code_inline": return html`<code>${token.content}</code>`;
    case "hr": return html`<hr />`;
    case "hardbreak": return html`<br />`;
    case "softbreak": return "\n";
    case "image": return link(token.attrGet("src") ?? "", `image: ${token.content || "without a name"}`);
    default: return token.content;
  }
}

/** A link says where it leads. */
function link(href, label, saysWhere) {
  const url = linkUrl(href);
  if (!url) return html`<span>${label}<span class="leads-to"> (${visible(href)})</span></span>`;
  return html`<a href=${url.href} title=${url.href} target="_blank" rel="noopener noreferrer">${label}</a>${
    !saysWhere && html`<span class="leads-to"> (${url.host || url.pathname})</span>`}`;
}
