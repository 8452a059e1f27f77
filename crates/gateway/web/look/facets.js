// The most frequent values of the events in a list, by which it is narrowed down with a click.

import { html, useMemo } from "../vendor/preact.js";
import { t } from "../language.js";
import { beginning, visible } from "../text.js";
import { Stamp } from "../time.js";
import { NUMBER } from "./words.js";
import * as address from "../address.js";

const FIELDS = ["type", "subtype", "source"];

/** How many of the newest events are counted, and how many values of a field are shown. */
const COUNTED = 1000, SHOWN = 6;

const AGES = [["15 min", 900_000], ["1 h", 3_600_000], [t("_1_day"), 86_400_000]];

const CLAUSE = String.raw`(?:(?:type|subtype|source) = '(?:[^']|'')*'|created_at >= '[^']*')`;
const LAST = new RegExp(String.raw`(?:^| AND )(${CLAUSE})$`);

const clauseOf = (field, value) => `${field} = '${String(value).replaceAll("'", "''")}'`;

/** A filter, as what was typed and the values that were clicked. */
function parts(filter) {
  const clauses = [];
  let rest = filter;
  for (let found; (found = LAST.exec(rest)); rest = rest.slice(0, found.index)) clauses.unshift(found[1]);
  return { rest, clauses };
}

/** Whether a condition is one pair of brackets, or one comparison that has no OR in it. */
function isOne(condition) {
  let depth = 0, isText = false;
  for (let n = 0; n < condition.length; n++) {
    if (condition[n] === "'") isText = !isText;
    else if (!isText) depth += condition[n] === "(" ? 1 : condition[n] === ")" ? -1 : 0;
    if (depth <= 0 && n < condition.length - 1) return /^content LIKE '(?:[^']|'')*' ESCAPE '\\'$/.test(condition);
  }
  return true;
}

/** The filter of both. */
function joined({ rest, clauses }) {
  const first = rest && clauses.length && !isOne(rest) ? `(${rest})` : rest;
  return [first, ...clauses].filter(Boolean).join(" AND ");
}

export function Facets({ thread, filter, items }) {
  const counts = useMemo(() => counted(items), [items]);
  const { rest, clauses } = parts(filter);
  const go = (clauses) => address.go(address.eventsAddress(thread, { filter: joined({ rest, clauses }) }));
  const since = clauses.find((clause) => clause.startsWith("created_at"));
  const others = clauses.filter((clause) => clause !== since);
  const last = ([name, ms]) => html`<button type="button" key=${name} onClick=${() =>
    go([...others, `created_at >= '${new Date(Date.now() - ms).toISOString()}'`])}>${name}</button>`;
  return html`<div class="facets" role="group" aria-label=${t("narrow_down")}>
    ${FIELDS.map((field) => html`<${Facet} key=${field} field=${field} counts=${counts[field]} clauses=${clauses}
      go=${go} />`)}
    <span class="facet"><span class="hint">${t("last_span")}</span>${AGES.map(last)}
      ${since && html`<button type="button" aria-pressed="true" onClick=${() => go(others)}>
        ${t("since_time", { time: html`<${Stamp} time=${/'([^']*)'/.exec(since)[1]} />` })} ✕</button>`}</span>
  </div>`;
}

function Facet({ field, counts, clauses, go }) {
  const has = (value) => clauses.includes(clauseOf(field, value));
  const values = counts.filter(([value], n) => n < SHOWN || has(value));
  if (values.length < 2 && !values.some(([value]) => has(value))) return null;
  const turn = (value) => {
    const clause = clauseOf(field, value);
    go(has(value) ? clauses.filter((one) => one !== clause) : [...clauses, clause]);
  };
  return html`<span class="facet"><span class="hint">${field}</span>
    ${values.map(([value, n]) => html`<button type="button" key=${value} aria-pressed=${has(value)}
      title=${visible(value)} onClick=${() => turn(value)}>
      ${visible(beginning(value, 32))} <span class="figure">${NUMBER.format(n)}</span></button>`)}
  </span>`;
}

/** The values of each field with how often they are there, the most frequent first. */
function counted(items) {
  const all = {};
  for (const field of FIELDS) {
    const counts = new Map();
    for (const { values: { [field]: value } } of items.slice(0, COUNTED)) {
      if (value) counts.set(value, (counts.get(value) ?? 0) + 1);
    }
    all[field] = [...counts].sort(([, a], [, b]) => b - a);
  }
  return all;
}
