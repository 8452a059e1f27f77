// Marks search hits without changing the elements, which are rendered again and again.

import { termsOf } from "./text.js";

/** How long a hit may still move because elements before it are being rendered. */
const SETTLES = 1500;

const marks = globalThis.CSS?.highlights;

let leave = () => {};

export function unmark() {
  leave();
  marks?.delete("found");
}

/** Marks all occurrences of what is searched for in an element of the box that scrolls, and brings one into view: the first in
 * `within`, if there is one. It stays in view while the page is still being rendered, until the reader does something. */
export function mark(box, element, within, text, onScroll) {
  unmark();
  const until = performance.now() + SETTLES;
  let isLeft = false, frame;
  leave = () => {
    isLeft = true;
    cancelAnimationFrame(frame);
    for (const what of ["wheel", "pointerdown", "keydown"]) removeEventListener(what, leave, true);
  };
  for (const what of ["wheel", "pointerdown", "keydown"]) addEventListener(what, leave, true);
  const look = () => {
    if (isLeft || !element.isConnected) return;
    const ranges = rangesOf(element, text), inside = element.querySelector(within);
    if (marks && globalThis.Highlight) marks.set("found", new Highlight(...ranges));
    const first = ranges.find((range) => inside?.contains(range.startContainer)) ?? ranges[0];
    const outer = box.getBoundingClientRect(), inner = (first ?? element).getBoundingClientRect();
    const isSeen = inner.top >= outer.top && inner.bottom <= outer.bottom;
    if (first && !isSeen) box.scrollTop += inner.top - outer.top - box.clientHeight / 3;
    onScroll();
    if (performance.now() < until) frame = requestAnimationFrame(look);
    else leave();
  };
  frame = requestAnimationFrame(look);
}

/** What begins a text of its own. */
const BLOCKS = "pre, p, li, td, th, dt, dd, summary, div";

/** The ranges in which terms occur. They may go over several elements in a line, such as the parts of code. */
function rangesOf(element, text) {
  const terms = termsOf(text).map((term) => term.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&").replace(/\s+/g, "\\s+"));
  if (!terms.length) return [];
  const pattern = new RegExp(terms.join("|"), "giu"), walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  const nodes = [];
  let all = "", block = null;
  while (walker.nextNode()) {
    const node = walker.currentNode, own = node.parentElement.closest(BLOCKS);
    if (own !== block) all += "\n";
    block = own;
    nodes.push({ node, from: all.length });
    all += node.data;
  }
  const place = (at) => {
    const { node, from } = nodes.findLast(({ from }) => from <= at) ?? nodes[0];
    return [node, Math.min(at - from, node.data.length)];
  };
  return [...all.matchAll(pattern)].map(({ index, 0: found }) => {
    const range = document.createRange();
    range.setStart(...place(index));
    const [node, offset] = place(index + found.length - 1);
    range.setEnd(node, offset + 1);
    return range;
  });
}
