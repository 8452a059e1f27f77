// Renders Markdown as elements. No text is ever used as HTML: the parser's tokens are turned into elements one by one,
// tags are shown as text, and images are links.

import { Component, h, html, useEffect, useRef, useState } from "./vendor/preact.js";
import { t } from "./language.js";
import { Blocks } from "./blocks.js";
import { Code } from "./code.js";
import { Formula } from "./formula.js";
import { linkUrl, visible } from "./text.js";

/** How many characters are rendered per frame, and how many are removed. */
const STEP = 2000, STEP_BACK = 8000;

/** Whether it is so long that it cannot be removed from the page at once. */
export function isLong(source) {
  const { blocks } = source.settle();
  return grown(blocks, blocks.length, true, STEP_BACK) > 0;
}

class Block extends Component {
  shouldComponentUpdate(next) {
    return next.text !== this.props.text || next.version !== this.props.version || next.goesOn !== this.props.goesOn;
  }

  render({ of, text, goesOn }) {
    return html`<div class=${goesOn ? "block goes-on" : "block"}>${elements(of.parse(text))}</div>`;
  }
}

/** The end of the range of blocks from `at` with `step` characters, which are rendered or removed in one frame. */
function grown(blocks, at, isBack, step = STEP) {
  for (let made = 0; made < step && (isBack ? at > 0 : at < blocks.length);) made += blocks[isBack ? --at : at++].text.length;
  return at;
}

/** A text, or `Blocks` that grow; `version` changes when they have grown. Of a long one only a few blocks are
 * rendered per frame, the last ones first, so that the page stays responsive. With `onGone` they are removed in the
 * same way, and it is called at the end. */
export function Markdown({ text, source, onGone }) {
  const kept = useRef(null);
  if (!source && kept.current?.text !== text) kept.current = { text, blocks: new Blocks(text) };
  const all = (source ?? kept.current.blocks).settle();
  const { length } = all.blocks;
  const range = useRef({ from: grown(all.blocks, length, true), to: length }).current;
  // The former tail stays in view as a block.
  range.to = range.isAtEnd && !onGone ? grown(all.blocks, range.to, false) : Math.min(range.to, length);
  range.isAtEnd = range.to === length;
  const [, redraw] = useState(0);
  const waits = onGone || range.from > 0 || range.to < length;
  useEffect(() => {
    if (!waits) return;
    const frame = requestAnimationFrame(() => {
      const left = onGone && grown(all.blocks, range.to, true, STEP_BACK);
      if (onGone && left <= range.from) return onGone();
      // From the end, so that the rest does not move.
      if (onGone) range.to = left;
      else if (range.to < length) range.to = grown(all.blocks, range.to, false);
      else range.from = grown(all.blocks, range.from, true);
      redraw((n) => n + 1);
    });
    return () => cancelAnimationFrame(frame);
  });
  const { from, to } = range;
  return html`<div class="markdown">
    ${all.blocks.slice(from, to).map(({ text, version, goesOn }, n) => html`
      <${Block} key=${from + n} of=${all} text=${text} version=${version} goesOn=${goesOn} />`)}
    ${to === length && all.tail && html`
      <${Block} key=${length} of=${all} text=${all.tail} version=${0} goesOn=${all.goesOn} />`}
  </div>`;
}

/** The elements of a list of tokens, which open and close each other. */
export function elements(tokens) {
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

const PLAIN = new Set(["p", "ul", "li", "blockquote", "thead", "tbody", "tr", "strong", "em", "s"]);

function element(token, children) {
  if (token.hidden) return children;
  const { tag } = token;
  if (token.type === "footnote_reference_open") return note(token.meta.label, children);
  if (tag === "li" && token.meta) return task(token.meta, children);
  if (PLAIN.has(tag)) return h(tag, null, children);
  if (tag === "a") return link(token.attrGet("href") ?? "", children, token.markup === "linkify" || token.markup === "autolink");
  if (tag === "ol") return h("ol", { start: Number(token.attrGet("start") ?? 1) }, children);
  if (tag === "th") return h("th", { scope: "col", class: aligned(token) }, children);
  if (tag === "td") return h("td", { class: aligned(token) }, children);
  if (tag === "table") return html`<div class="table" tabIndex="0"><table>${children}</table></div>`;
  if (/^h[1-6]$/.test(tag)) {
    // One level down: the page has headings of its own above these.
    const level = Math.min(Number(tag[1]) + 1, 6);
    return html`<div class=${`heading ${tag}`} role="heading" aria-level=${level}>${children}</div>`;
  }
  return children;
}

const aligned = (token) => /^text-align:(\w+)$/.exec(token.attrGet("style") ?? "")?.[1] ?? null;

/** A task of a list. */
function task({ done }, children) {
  const box = html`<span class="box" role="img" aria-label=${done ? t("done") : t("to_do")}>${done ? "☑" : "☐"}</span>`;
  return html`<li class="task">${box} ${children}</li>`;
}

/** A footnote, where it is written. */
function note(label, children) {
  return html`<div class="note-text" data-note=${label} tabIndex="-1">
    <span class="note-label">${label}</span><div>${children}</div></div>`;
}

const noteMark = ({ label }) => html`<sup><button type="button" class="note-mark" aria-label=${t("note_label", { label })}
  onClick=${toNote}>${label}</button></sup>`;

/** A formula; one without its end is still text. */
function formula({ content, markup, meta }) {
  if (meta?.isWhole === false) return html`<p>${content}</p>`;
  return html`<${Formula} text=${content} isBlock=${markup !== "$" && markup !== "\\("} />`;
}

/** Brings the footnote of a mark into view. */
function toNote({ currentTarget: mark }) {
  const notes = mark.closest(".markdown").querySelectorAll(".note-text");
  const note = [...notes].find((note) => note.dataset.note === mark.textContent);
  note?.scrollIntoView({ block: "nearest" });
  note?.focus({ preventScroll: true });
}

/** The text of tokens without their marks. */
function plainText(tokens) {
  const text = ({ type, content, children }) => {
    if (type === "softbreak" || type === "hardbreak") return " ";
    return children?.length ? plainText(children) : content;
  };
  return tokens.map(text).join("");
}

function single(token) {
  switch (token.type) {
    case "inline": return elements(token.children);
    case "code_block": return html`<${Code} text=${token.content} />`;
    case "fence": return html`<${Code} text=${token.content} info=${token.info} />`;
    case "formula": case "formula_block": return formula(token);
    case "footnote_ref": return noteMark(token.meta);
    case "code_inline": return html`<code>${token.content}</code>`;
    case "hr": return html`<hr />`;
    case "hardbreak": return html`<br />`;
    case "softbreak": return "\n";
    case "image": return link(token.attrGet("src") ?? "", `image: ${plainText(token.children) || "without a name"}`);
    default: return token.content;
  }
}

/** A link shows its host. */
function link(href, label, saysWhere) {
  const url = linkUrl(href);
  if (!url) return html`<span>${label}<span class="leads-to"> (${visible(href)})</span></span>`;
  return html`<a href=${url.href} title=${url.href} target="_blank" rel="noopener noreferrer">${label}</a>${
    !saysWhere && html`<span class="leads-to"> (${url.host || url.pathname})</span>`}`;
}
