// How a thread and its consumers have done in the last time: what came, what was handled, what failed, what waited, and
// how long runs took.

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { t } from "../language.js";
import { Stamp, duration } from "../time.js";
import { visible } from "../text.js";
import { api, get } from "./api.js";
import { byNeed } from "./consumer.js";
import { Chart, totals } from "./chart.js";
import { NUMBER } from "./words.js";
import * as address from "../address.js";

const SPANS = [["15m", t("_15_minutes")], ["1h", t("_1_hour")], ["1d", t("_1_day")], ["7d", t("_7_days")],
  ["30d", t("_30_days")]];

/** How often the figures are read again while something happens, at most, in milliseconds. */
const AGAIN = 5000;

/** The figures of a span, read again when the thread has changed. */
function useSeries(thread, span) {
  const [{ series, error }, setFound] = useState({});
  const read = useRef({ at: 0, span: null });
  useEffect(() => {
    const gone = new AbortController();
    const wait = read.current.span === span ? read.current.at + AGAIN - Date.now() : 0;
    const timer = setTimeout(() => {
      read.current = { at: Date.now(), span };
      get(api([thread.id, "series"], { span }), gone.signal).then((series) => setFound({ series: { ...series, span } }),
        (error) => { if (error.name !== "AbortError") setFound(({ series }) => ({ series, error: error.message })); });
    }, Math.max(0, wait));
    return () => { clearTimeout(timer); gone.abort(); };
  }, [thread, span]);
  return { series, error };
}

/** `only`: the consumer that it is about; else one can be chosen. */
export function Charts({ thread, only }) {
  const [span, setSpan] = useState("1h");
  const [chosen, setChosen] = useState(null);
  const [range, setRange] = useState(null);
  const { series, error } = useSeries(thread, span);
  const names = [...thread.consumers_state].sort(byNeed).map(({ name }) => name);
  const name = only ?? (names.includes(chosen) ? chosen : names[0]);
  const choose = (value) => { setSpan(value); setRange(null); };
  const button = ([value, words]) => html`<button type="button" key=${value} aria-pressed=${span === value}
    onClick=${() => choose(value)}>${words}</button>`;
  const option = (name) => html`<option key=${name} value=${name}>${visible(name)}</option>`;
  return html`<h2>${t("over_time")}</h2>
    <div class="bar"><div class="choice" role="group" aria-label=${t("how_far_back")}>${SPANS.map(button)}</div>
      ${!only && names.length > 1 && html`<label>${t("consumer")} ${" "}
        <select value=${name} onChange=${(event) => setChosen(event.target.value)}>
          ${names.map(option)}</select></label>`}</div>
    ${error && html`<p class="error" role="alert">${error}</p>`}
    ${series && html`<${Three} thread=${thread} series=${series} name=${name} range=${range} onRange=${setRange} />`}`;
}

/** The charts of one consumer, and of all events. */
function Three({ thread, series, name, range, onRange }) {
  const { from, step_ms: step, arrived, consumers } = series;
  const begin = Date.parse(from), own = consumers.find((one) => one.name === name), who = visible(name ?? "");
  const pending = thread.consumers_state.find((one) => one.name === name)?.pending;
  const shared = { begin, step, range, onRange };
  const flow = [{ name: t("came"), values: arrived, kind: "bars" }];
  if (own) {
    flow.push({ name: t("handled_by_who", { who }), values: own.handled, kind: "line", class: "handled" });
    flow.push({ name: t("failed_2"), values: own.failed, kind: "thin", class: "failed" });
  }
  const waits = own?.wants_all && pending >= 0
    && [{ name: t("waited"), values: backlog(arrived, own, pending, thread.last_event_id ?? 0), kind: "area", class: "waited" }];
  const took = own?.p50_ms.some((ms) => ms !== null)
    && [{ name: t("half_took_less"), values: own.p50_ms, kind: "dots", class: "p50" },
      { name: t("_95_took_less"), values: own.p95_ms, kind: "dots", class: "p95" }];
  const came = totals(arrived), end = begin + arrived.length * step;
  return html`<div class="charts">
      <${Chart} ...${shared} label=${t("events")} series=${flow} format=${NUMBER.format} />
      ${waits && html`<${Chart} ...${shared} label=${t("waiting_for_who", { who })} series=${waits} format=${NUMBER.format} />`}
      ${took && html`<${Chart} ...${shared} label=${t("how_long_runs_of_who_took", { who })} series=${took}
        format=${duration} />`}
    </div>
    <p class="hint">${came === 0 ? t("no_event_came_in_that_time") : t("events_came_in_that_time",
      { events: html`<a href=${eventsIn(thread, begin, end)}>${t("n_events", { n: came })}</a>` })}
      ${" "}${t("drag_over_a_chart_to_choose_a_part_of")}</p>
    ${range && html`<p class="chosen-range" role="status">
      <strong>${t("from_to_to",
        { from: html`<${Stamp} time=${range[0]} />`, to: html`<${Stamp} time=${range[1]} />` })}</strong>
      <a href=${eventsIn(thread, ...range)}>${t("its_events")}</a>
      ${own && html`<a href=${runsIn(thread, name, ...range)}>${t("runs_of_who", { who })}</a>`}
      <button type="button" onClick=${() => onRange(null)}>${t("any_time_2")}</button></p>`}`;
}

const iso = (ms) => new Date(ms).toISOString();

function eventsIn(thread, from, to) {
  return address.eventsAddress(thread.id, { filter: `created_at >= '${iso(from)}' AND created_at < '${iso(to)}'` });
}

function runsIn(thread, name, from, to) {
  return address.runsAddress(thread.id, name, { from: iso(from), to: iso(to) });
}

/** How many events waited at the end of each period, counted back from now by what came and what was handled or given up.
 * An event that is handled once more, as a dead letter, did not wait: so there are at most those that had come. */
function backlog(arrived, { handled, dead }, pending, last) {
  const waits = arrived.map(() => null);
  let [now, come] = [pending, last];
  for (let n = arrived.length - 1; n >= 0; n--) {
    now = Math.min(Math.max(0, now), come);
    waits[n] = now;
    now += handled[n] + dead[n] - arrived[n];
    come = Math.max(0, come - arrived[n]);
  }
  return waits;
}
