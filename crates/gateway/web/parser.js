// How Markdown is read: markdown-it, with task lists, footnotes and formulas, and limits that no text exceeds.

import footnotes from "./vendor/markdown-it-footnote.js";
import MarkdownIt from "./vendor/markdown-it.js";
import { formulas } from "./formulas.js";

// No HTML, and no deep nesting, which would take long.
export const parser = new MarkdownIt({ html: false, linkify: true, maxNesting: 20 });
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false });
// The renderer decides which links are allowed.
parser.validateLink = () => true;
parser.normalizeLink = (url) => url;
parser.normalizeLinkText = (text) => text;

parser.use(formulas).use(notesInPlace);

/** The maximum number of characters of a piece of text whose inline marks are parsed at once. */
export const MOST = 2000;

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
    if (type !== "inline" || tokens[n - 2].type !== "list_item_open" || tokens[n - 1].type !== "paragraph_open")
      continue;
    const box = /^\[([ xX])\]\s+(?=\S)/.exec(content);
    // It may also be a link.
    if (!box || children[0].type !== "text" || !/^\[[ xX]\]/.test(children[0].content)) continue;
    children[0].content = children[0].content.slice(3).trimStart();
    tokens[n - 2].meta = { done: box[1] !== " " };
  }
});

/** Where to cut before `at`: after a space, unless that is before `least`. */
export function spaceBefore(text, at, least) {
  const space = text.lastIndexOf(" ", at - 1);
  return space > least ? space + 1 : at;
}

/** Footnotes stay where they are written, under their own labels: they are not numbered and moved to the end, which
 * would change what was read while the rest is still being written. */
export function notesInPlace(markdown) {
  markdown.use(footnotes).inline.ruler.disable("footnote_inline");
  markdown.core.ruler.disable("footnote_tail");
  const { ruler } = markdown.block;
  const rule = ruler.getRules("").find(({ name }) => name === "footnote_def");
  ruler.at(
    "footnote_def",
    (state, line, ...others) => {
      const { length } = state.tokens;
      if (!rule(state, line, ...others)) return false;
      // The original does not say which lines they are.
      if (state.tokens.length > length) state.tokens[length].map = [line, state.line];
      return true;
    },
    { alt: ["paragraph", "reference"] },
  );
}
