// A virtual list: only the rows near the view are elements, however long it is. All rows have the same height.

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { oncePerFrame } from "../frame.js";

/** How many rows are rendered beyond each end of the view, and how many rows before the end the next page is read. */
const BEYOND = 6, NEAR = 60;

/** `added`: how many rows were ever added before the first; the view does not move. `onTop(is)`: whether the view
 * is at the beginning. */
export function Rows({ items, row, added, label, onEnd, onTop }) {
  const box = useRef(), list = useRef(), height = useRef(36), before = useRef(added);
  const [[first, last], setSpan] = useState([0, 2 * BEYOND]);
  const place = useRef();
  place.current = () => {
    if (!box.current) return;
    const { scrollTop, clientHeight } = box.current;
    const top = Math.floor(scrollTop / height.current), bottom = Math.ceil((scrollTop + clientHeight) / height.current);
    onTop(scrollTop < height.current / 2);
    if (bottom + NEAR > items.length) onEnd();
    // In steps, so that most scrolling renders no rows.
    const step = BEYOND / 2, from = Math.max(0, Math.floor(top / step) * step - BEYOND), to = Math.ceil(bottom / step) * step + BEYOND;
    if (from !== first || to !== last) setSpan([from, to]);
  };
  // Rows are rendered once per frame, also when a page comes during scrolling.
  const look = useMemo(() => oncePerFrame(() => place.current()), []);
  useLayoutEffect(() => {
    // On a phone the list is hidden while an event is shown, and has no height.
    height.current = list.current.firstElementChild?.offsetHeight || height.current;
    const more = added - before.current;
    before.current = added;
    if (more > 0 && box.current.scrollTop >= height.current / 2) box.current.scrollTop += more * height.current;
    look();
  });
  useEffect(() => {
    const watch = new ResizeObserver(() => setSpan((span) => [...span]));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  const end = Math.min(last, items.length), start = Math.min(first, end);
  return html`<div class="list-box" ref=${box} onScroll=${look} role="region" aria-label=${label} tabIndex="0">
    <div class="gap" style=${{ height: `${start * height.current}px` }}></div>
    <ol class="rows" ref=${list} start=${start + 1}>${items.slice(start, end).map(row)}</ol>
    <div class="gap" style=${{ height: `${(items.length - end) * height.current}px` }}></div>
  </div>`;
}
