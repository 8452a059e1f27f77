// The number of events over time, in a line of the list.

import { html } from "../vendor/preact.js";
import { t } from "../language.js";

/** The shape alone, with the numbers for screen readers. */
export function Spark({ rate = [] }) {
  const most = Math.max(1, ...rate), all = rate.reduce((sum, n) => sum + n, 0);
  return html`<svg class="spark" role="img" aria-label=${t("n_events_in_the_last_30_minutes", { n: all })} viewBox="0 0 30 8" preserveAspectRatio="none">
    <title>${t("n_events_in_the_last_30_minutes", { n: all })}</title>
    ${rate.map((n, at) => n > 0 && html`<rect key=${at} x=${at + 0.1} width="0.8" y=${8 - height(n, most, 8)} height=${height(n, most, 8)} />`)}
    <rect class="floor" x="0" y="7.8" width="30" height="0.2" />
  </svg>`;
}

/** A bar that is not zero is visible, however small it is compared with the largest. */
const height = (n, most, full) => Math.max((n / most) * full, full / 12);
