// The number of events over time: bars, each of which links to its events.

import { html } from "../vendor/preact.js";
import { NUMBER, count } from "./words.js";
import * as address from "../address.js";

const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });

/** In a line of the list: the shape alone, with the numbers for screen readers. */
export function Spark({ rate = [] }) {
  const most = Math.max(1, ...rate), all = rate.reduce((sum, n) => sum + n, 0);
  return html`<svg class="spark" role="img" aria-label=${`${count(all, "event")} in the last 30 minutes`} viewBox="0 0 30 8" preserveAspectRatio="none">
    <title>${count(all, "event")} in the last 30 minutes</title>
    ${rate.map((n, at) => n > 0 && html`<rect key=${at} x=${at + 0.1} width="0.8" y=${8 - height(n, most, 8)} height=${height(n, most, 8)} />`)}
    <rect class="floor" x="0" y="7.8" width="30" height="0.2" />
  </svg>`;
}

/** A bar that is not zero is visible, however small it is compared with the largest. */
const height = (n, most, full) => Math.max((n / most) * full, full / 12);

function between(from, to) {
  return `created_at >= '${new Date(from).toISOString()}' AND created_at < '${new Date(to).toISOString()}'`;
}

/** `step`: how long a bar is, in milliseconds; the last one is the current minute or hour. */
export function Plot({ thread, counts = [], step, label, now = Date.now() }) {
  const wide = counts.length, most = Math.max(1, ...counts), all = counts.reduce((sum, n) => sum + n, 0);
  const end = (Math.floor(now / step) + 1) * step, begin = end - wide * step;
  const to = (from, until) => address.eventsAddress(thread.id, { filter: between(from, until) });
  const unit = step === 60_000 ? "minute" : "hour";
  return html`<figure class="plot">
    <svg viewBox=${`0 0 ${wide} 20`} preserveAspectRatio="none" role="group" aria-label=${label}>
      ${counts.map((n, at) => {
        const from = begin + at * step;
        return n > 0 && html`<a key=${from} href=${to(from, from + step)} tabindex="-1" aria-hidden="true">
          <title>${count(n, "event")}, ${CLOCK.format(from)} to ${CLOCK.format(from + step)}</title>
          <rect class="touch" x=${at} y="0" width="1" height="20" />
          <rect x=${at + 0.1} width="0.8" y=${20 - height(n, most, 20)} height=${height(n, most, 20)} /></a>`;
      })}
      <rect class="floor" x="0" y="19.8" width=${wide} height="0.2" />
    </svg>
    <div class="axis" aria-hidden="true">${[begin, (begin + end) / 2].map((at) => html`<span>${CLOCK.format(at)}</span>`)}<span>now</span></div>
    <figcaption><a href=${to(begin, end)}>${count(all, "event")}</a> in ${label}${all > 0 ? `, at most ${NUMBER.format(most)} in one ${unit}` : ""}</figcaption>
  </figure>`;
}
