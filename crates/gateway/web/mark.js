// Marks search hits without changing the elements, which are rendered again and again.

/** How long a hit may still move because elements before it are being rendered. */
const SETTLES = 1500;

const marks = globalThis.CSS?.highlights;

let leave = () => {};

export function unmark() {
  leave();
  marks?.delete("found");
}

/** Marks all occurrences of a text in an element of the box that scrolls, and brings one into view: the first in
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

/** The ranges in which a text occurs. */
function rangesOf(element, text) {
  const words = text.trim().replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&").replace(/\s+/g, "\\s+");
  const pattern = new RegExp(words, "giu"), nodes = document.createTreeWalker(element, NodeFilter.SHOW_TEXT), ranges = [];
  while (nodes.nextNode()) {
    for (const { index, 0: found } of nodes.currentNode.data.matchAll(pattern)) {
      const range = document.createRange();
      range.setStart(nodes.currentNode, index);
      range.setEnd(nodes.currentNode, index + found.length);
      ranges.push(range);
    }
  }
  return ranges;
}
