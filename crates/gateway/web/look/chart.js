// A chart of values in periods of equal length, with axes. One sees the values of a period by pointing at it, or by the
// arrow keys, opens it by a click or Enter, and chooses a range by dragging, or by Shift and the arrow keys. A finger
// points by its first tap on a period, and opens it by the second.

import { html, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import { locale, t } from "../language.js";

const CLOCK = new Intl.DateTimeFormat(locale, { hour: "2-digit", minute: "2-digit" });
const DAY = new Intl.DateTimeFormat(locale, { weekday: "short", day: "numeric" });
const BOTH = new Intl.DateTimeFormat(locale, { weekday: "short", hour: "2-digit", minute: "2-digit" });

/** The units of the picture: the width of the part with the values, and its height. */
const WIDE = 1000, HIGH = 100;

export const totals = (values) => values.reduce((sum, n) => sum + (n ?? 0), 0);

/** The next round number. */
function round(n) {
  const unit = 10 ** Math.floor(Math.log10(n));
  return unit * [1, 2, 4, 6, 8, 10].find((times) => times * unit >= n);
}

/** `series`: each with a `name`, its `values` (null where nothing is known), a `kind` and a `class`. `onRange` and `onOpen`
 * take a range `[from, to]`, as `range` is, in milliseconds. */
export function Chart({ label, series, begin, step, format, note, range, onRange, onOpen }) {
  const [pointed, setAt] = useState(null);
  const [drag, setDrag] = useState(null);
  const anchor = useRef(null), before = useRef(null);
  useLayoutEffect(() => { if (!range) anchor.current = null; }, [!range]);
  const n = series[0].values.length, end = begin + n * step;
  const at = pointed === null ? null : Math.min(pointed, n - 1);
  const most = round(Math.max(2, ...series.flatMap(({ values }) => values.map((value) => value ?? 0))));
  const x = (place) => (place / n) * WIDE, y = (value) => HIGH - (value / most) * HIGH;
  const time = n * step > 86_400_000 ? BOTH : CLOCK;
  const placeOf = (event) => {
    const { left, width } = event.currentTarget.getBoundingClientRect();
    return Math.min(n - 0.001, Math.max(0, ((event.clientX - left) / width) * n));
  };
  const down = (event) => {
    if (event.button !== 0) return;
    event.currentTarget.setPointerCapture(event.pointerId);
    before.current = at;
    setDrag([placeOf(event), placeOf(event)]);
  };
  const move = (event) => {
    setAt(Math.floor(placeOf(event)));
    if (drag) setDrag([drag[0], placeOf(event)]);
  };
  const part = (first, last) => [begin + first * step, begin + last * step];
  const isTouch = (event) => event.pointerType === "touch";
  const up = (event) => {
    setDrag(null);
    if (!drag) return;
    anchor.current = null;
    const [first, last] = [Math.min(...drag), Math.max(...drag)], place = Math.floor(drag[0]);
    if (last - first < 0.5 && isTouch(event) && before.current !== place) setAt(place);
    else if (last - first < 0.5) onOpen(part(place, place + 1));
    else onRange(part(Math.floor(first), Math.ceil(last)));
  };
  const go = (to, chooses) => {
    setAt(to);
    anchor.current = chooses ? anchor.current ?? at ?? to : null;
    if (chooses) onRange(part(Math.min(anchor.current, to), Math.max(anchor.current, to) + 1));
  };
  const key = (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1, Home: -n, End: n }[event.key];
    if (by) go(Math.min(n - 1, Math.max(0, (at ?? n) + by)), event.shiftKey);
    else if (event.key === "Enter" && at !== null) onOpen(part(at, at + 1));
    else return;
    event.preventDefault();
  };
  const inChart = (ms) => Math.min(n, Math.max(0, (ms - begin) / step));
  const chosen = drag ? [...drag].sort((a, b) => a - b) : range?.[1] > begin && range.map(inChart);
  const wide = chosen && Math.max(1, x(chosen[1]) - x(chosen[0]));
  const named = (place) => `${time.format(begin + place * step)}–${time.format(begin + (place + 1) * step)}: ${
    series.map(({ name, values }) => `${name} ${values[place] === null ? "?" : format(values[place])}`).join(", ")}`;
  const days = n * step > 2 * 86_400_000 ? DAY : CLOCK;
  return html`<figure class="chart">
    <figcaption>${label} <span class="legend">${series.map(({ name, class: kind = "came" }) => html`<span key=${name}>
      <span class=${`key ${kind}`} aria-hidden="true"></span> ${name}</span>`)}</span></figcaption>
    <div class="scale" aria-hidden="true">${[1, 0.5, 0].map((part) => html`<span key=${part}>${
      format(part * most)}</span>`)}</div>
    <svg viewBox=${`0 0 ${WIDE} ${HIGH}`} preserveAspectRatio="none" tabindex="0" role="slider" aria-label=${label}
      aria-valuemin="0" aria-valuemax=${n - 1} aria-valuenow=${at ?? n - 1} aria-valuetext=${named(at ?? n - 1)}
      onKeyDown=${key} onPointerDown=${down} onPointerMove=${move} onPointerUp=${up}
      onPointerCancel=${() => setDrag(null)} onPointerLeave=${(event) => isTouch(event) || setAt(null)}>
      ${[0, HIGH / 2, HIGH].map((at) => html`<${Line} key=${at} name="grid" from=${[0, at]} to=${[WIDE, at]} />`)}
      ${chosen && html`<rect class="chosen" x=${x(chosen[0])} width=${wide} y="0" height=${HIGH} />`}
      ${series.map(({ name, values, kind, class: color = "came" }) => html`<g key=${name} class=${color}>${
        SHAPES[kind](values, x, y)}</g>`)}
      ${at !== null && html`<${Line} name="cross" from=${[x(at + 0.5), 0]} to=${[x(at + 0.5), HIGH]} />`}
    </svg>
    <div class="axis" aria-hidden="true">${[0, 0.25, 0.5, 0.75].map((part) => html`<span key=${part}>${
      days.format(begin + part * (end - begin))}</span>`)}<span>${t("now")}</span></div>
    <p class="values">${at === null ? note : html`<span aria-hidden="true">${named(at)}</span>`}</p>
  </figure>`;
}

function Line({ name, from, to }) {
  return html`<line class=${name} x1=${from[0]} y1=${from[1]} x2=${to[0]} y2=${to[1]} />`;
}

/** Each kind of picture. What is not known is left out. */
const SHAPES = {
  bars: (values, x, y) => bars(values, x, y, 0.8),
  thin: (values, x, y) => bars(values, x, y, 0.3),
  line: (values, x, y) => html`<path class="line" d=${path(values, x, y)} />`,
  area: (values, x, y) => {
    const first = values.findIndex((value) => value !== null);
    if (first < 0) return null;
    const line = path(values, x, y);
    const below = `L${x(values.length - 0.5)} ${HIGH} L${x(first + 0.5)} ${HIGH} Z`;
    return html`<path class="area" d=${`${line} ${below}`} /><path class="line" d=${line} />`;
  },
  dots: (values, x, y) => values.map((value, n) => value !== null && html`<rect key=${n} x=${x(n + 0.15)}
    width=${x(0.7)} y=${Math.max(0, y(value) - 2)} height="4" />`),
};

/** A bar that is not zero is visible, however small it is. */
function bars(values, x, y, wide) {
  return values.map((value, n) => value > 0 && html`<rect key=${n} x=${x(n + (1 - wide) / 2)} width=${x(wide)}
    y=${Math.min(y(value), HIGH - 2)} height=${Math.max(2, HIGH - y(value))} />`);
}

function path(values, x, y) {
  let is = false;
  return values.map((value, n) => {
    if (value === null) { is = false; return ""; }
    const step = `${is ? "L" : "M"}${x(n + 0.5).toFixed(1)} ${y(value).toFixed(1)}`;
    is = true;
    return step;
  }).join(" ");
}
