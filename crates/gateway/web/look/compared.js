// What each consumer has done in the time of the charts, so that one sees which of them to look at.

import { html, useState } from "../vendor/preact.js";
import { t } from "../language.js";
import { duration } from "../time.js";
import { visible } from "../text.js";
import { totals } from "./chart.js";
import { NUMBER } from "./words.js";

/** How many are listed at first. */
const FEW = 6;

/** `range`: only in this part of the time. `to(name)`: the address that shows a consumer in the charts. */
export function Compared({ series, range, chosen, to }) {
  const [all, setAll] = useState(false);
  const rows = series.consumers.map((one) => figures(one, series, range))
    .sort((a, b) => b.failed - a.failed || b.handled - a.handled || (a.name < b.name ? -1 : 1));
  const shown = all ? rows : rows.filter(({ name }, n) => n < FEW || name === chosen);
  const head = ([name, about]) => html`<th key=${name} scope="col" title=${about}>${name}</th>`;
  const row = ({ name, handled, failed, dead, p95 }) => html`<tr key=${name}>
    <th scope="row"><a href=${to(name)} aria-current=${name === chosen ? "true" : null}>${visible(name)}</a></th>
    <td>${number(handled)}</td><td class="failure">${number(failed)}</td><td class="failure">${number(dead)}</td>
    <td>${p95 !== null && duration(p95)}</td></tr>`;
  return html`<div class="compared"><table>
      <thead><tr>${COLUMNS.map(head)}</tr></thead><tbody>${shown.map(row)}</tbody></table>
    ${shown.length < rows.length && html`<button type="button" onClick=${() => setAll(true)}>${t("show_more")}</button>`}</div>`;
}

const COLUMNS = [[t("consumer")], [t("handled")], [t("failed_3")], [t("dead_letters")],
  ["p95", t("in_the_slowest_part_95_of_100_runs_took")]];

const number = (n) => (n > 0 ? NUMBER.format(n) : "");

/** Of the periods that lie in the range, at least in part. */
function figures({ name, handled, failed, dead, p95_ms: p95 }, { from, step_ms: step }, range) {
  const begin = Date.parse(from);
  const [first, end] = range ? range.map((ms) => (ms - begin) / step) : [0, handled.length];
  const those = (values) => values.filter((_, n) => n + 1 > first && n < end);
  const slowest = Math.max(...those(p95).map((ms) => ms ?? -1));
  return { name, handled: totals(those(handled)), failed: totals(those(failed)), dead: totals(those(dead)),
    p95: slowest >= 0 ? slowest : null };
}
