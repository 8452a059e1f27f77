// Formulas in Markdown: $…$ and \(…\) in a line; $$…$$ and \[…\] as a block of their own. Sums of money and variables
// of a shell are no formulas.

const BLOCKS = [
  ["$$", "$$"],
  ["\\[", "\\]"],
];

const isSpace = (code) => code === 0x20 || code === 0x0a || code === 0x09 || Number.isNaN(code);
const isWord = (text) => /^[\p{L}\p{N}_]/u.test(text);

/** A plugin of markdown-it: makes tokens `formula` and `formula_block`. The latter's `meta.isWhole` says whether its end
 * is there. */
export function formulas(markdown) {
  markdown.inline.ruler.before("escape", "formula", inline);
  markdown.block.ruler.before("fence", "formula_block", block, {
    alt: ["paragraph", "reference", "blockquote", "list"],
  });
  markdown.renderer.rules.formula = ({ [0]: token }) => token.content;
  markdown.renderer.rules.formula_block = markdown.renderer.rules.formula;
}

function inline(state, silent) {
  const { src, pos, posMax } = state;
  const found =
    src[pos] === "$"
      ? dollars(src, pos, posMax)
      : src.startsWith("\\(", pos)
        ? between(src, pos, posMax, "\\(", "\\)")
        : src.startsWith("\\[", pos)
          ? between(src, pos, posMax, "\\[", "\\]")
          : null;
  if (!found) return false;
  if (!silent) {
    const token = state.push("formula", "", 0);
    token.content = found.text.trim();
    token.markup = found.markup;
  }
  state.pos = found.end;
  return true;
}

function between(src, pos, max, open, close) {
  const at = src.indexOf(close, pos + open.length);
  if (at < 0 || at + close.length > max) return null;
  const text = src.slice(pos + open.length, at);
  return text.trim() ? { text, end: at + close.length, markup: open } : null;
}

function dollars(src, pos, max) {
  if (src.startsWith("$$", pos)) return between(src, pos, max, "$$", "$$");
  // As Pandoc does, and no word may be directly before or after it.
  if (isSpace(src.charCodeAt(pos + 1)) || (pos > 0 && isWord(src[pos - 1]))) return null;
  for (let at = pos + 1; (at = src.indexOf("$", at)) > 0 && at < max; at++) {
    if (src[at - 1] === "\\") continue;
    if (isSpace(src.charCodeAt(at - 1)) || isWord(src.slice(at + 1, at + 3)) || src[at + 1] === "$") return null;
    return { text: src.slice(pos + 1, at), end: at + 1, markup: "$" };
  }
  return null;
}

/** A block begins with a line whose formula is not followed by anything else, and ends at the latest before an empty
 * line. */
function block(state, start, end, silent) {
  const lineAt = (line) => state.src.slice(state.bMarks[line] + state.tShift[line], state.eMarks[line]).trimEnd();
  if (state.sCount[start] - state.blkIndent >= 4) return false;
  const first = lineAt(start),
    kind = BLOCKS.find(([open]) => first.startsWith(open));
  if (!kind) return false;
  const [open, close] = kind,
    inLine = first.indexOf(close, open.length);
  // A link in brackets, or text after the end: this is a paragraph.
  if (inLine >= 0 ? inLine + close.length !== first.length || inLine === open.length : first !== open) return false;
  if (silent) return true;
  const lines = [first.slice(open.length)];
  let line = start + 1,
    isWhole = inLine >= 0;
  while (!isWhole && line < end && !state.isEmpty(line) && state.sCount[line] >= state.blkIndent) {
    lines.push(lineAt(line++));
    isWhole = lines.at(-1).endsWith(close);
  }
  const text = lines.join("\n");
  const token = state.push("formula_block", "", 0);
  token.block = true;
  token.content = isWhole ? text.slice(0, -close.length).trim() : text.trim();
  token.markup = open;
  token.map = [start, line];
  token.meta = { isWhole };
  state.line = line;
  return true;
}
