// How a thread and its consumers have done in the last time: what came, what was handled, what failed, what waited, and
// how long runs took.

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { t } from "../language.js";
import { Stamp, duration } from "../time.js";
import { visible } from "../text.js";
import { api, get } from "./api.js";
import { byNeed } from "./consumer.js";
import { Chart, totals } from "./chart.js";
import { Compared } from "./compared.js";
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

/** What the address says of charts: how far back, and the part of that time that was chosen, or null. */
function read({ span, from, to }) {
  const range = [Date.parse(from), Date.parse(to)];
  return { span: SPANS.some(([known]) => known === span) ? span : "1h", range: range[0] < range[1] ? range : null };
}

/** `only`: the consumer that it is about; else `params` choose one. `onDrawn()`: when all of it is there; `onOpen()`: when
 * the runs of a time are asked for. */
export function Charts({ thread, params, only, onDrawn, onOpen }) {
  const { span, range } = read(params);
  const { series, error } = useSeries(thread, span);
  const names = [...thread.consumers_state].sort(byNeed).map(({ name }) => name);
  const name = only ?? (names.includes(params.consumer) ? params.consumer : names[0]);
  const here = (more) => only ? address.runsAddress(thread.id, only, { ...params, ...more })
    : address.chartsAddress(thread.id, { ...params, span, ...more });
  const part = ([from, to]) => ({ span, from: iso(from), to: iso(to) });
  const choose = (range) => address.replace(here(range ? part(range) : { from: null, to: null }));
  // The way back leads to the charts as they are.
  const open = (range) => {
    onOpen?.();
    if (!only) address.replace(here({ consumer: name, ...part(range) }));
    address.go(name ? address.runsAddress(thread.id, name, { ...(only && params), ...part(range) }) : eventsIn(thread, ...range));
  };
  const head = useRef(), isDrawn = Boolean(series);
  useEffect(() => {
    if (!isDrawn) return;
    if (!only && params.span) head.current.scrollIntoView();
    onDrawn?.();
  }, [isDrawn]);
  const button = ([value, words]) => html`<button type="button" key=${value} aria-pressed=${span === value}
    onClick=${() => address.go(here({ span: value, from: null, to: null }))}>${words}</button>`;
  return html`<h2 ref=${head}>${t("over_time")}</h2>
    <div class="bar"><div class="choice" role="group" aria-label=${t("how_far_back")}>${SPANS.map(button)}</div></div>
    ${error && html`<p class="error" role="alert">${error}</p>`}
    ${series && !only && names.length > 1 && html`<${Compared} series=${series} range=${range} chosen=${name}
      to=${(consumer) => here({ consumer })} />`}
    ${series && html`<${Three} thread=${thread} series=${series} name=${name} range=${range} onRange=${choose} onOpen=${open} />
      ${range && !only && html`<${Range} thread=${thread} name=${name} range=${range}
        runs=${address.runsAddress(thread.id, name, part(range))} onAll=${() => choose(null)} />`}`}`;
}

/** The part of the time that was chosen, and what there is in it. */
function Range({ thread, name, range: [from, to], runs, onAll }) {
  return html`<p class="chosen-range" role="status">
    <strong>${t("from_to_to", { from: html`<${Stamp} time=${from} />`, to: html`<${Stamp} time=${to} />` })}</strong>
    <a href=${eventsIn(thread, from, to)}>${t("its_events")}</a>
    ${name && html`<a href=${runs}>${t("runs_of_who", { who: visible(name) })}</a>`}
    <button type="button" onClick=${onAll}>${t("any_time_2")}</button></p>`;
}

/** The charts of one consumer, and of all events. */
function Three({ thread, series, name, range, onRange, onOpen }) {
  const { from, step_ms: step, arrived, consumers } = series;
  const begin = Date.parse(from), own = consumers.find((one) => one.name === name), who = visible(name ?? "");
  const itself = thread.consumers_state.find((one) => one.name === name);
  const shared = { begin, step, range, onRange, onOpen };
  const flow = [{ name: t("came"), values: arrived, kind: "bars" }];
  if (own) {
    flow.push({ name: t("handled_by_who", { who }), values: own.handled, kind: "line", class: "handled" });
    flow.push({ name: t("failed_2"), values: own.failed, kind: "thin", class: "failed" });
  }
  const took = own?.p50_ms.some((ms) => ms !== null)
    && [{ name: t("half_took_less"), values: own.p50_ms, kind: "dots", class: "p50" },
      { name: t("_95_took_less"), values: own.p95_ms, kind: "dots", class: "p95" }];
  const came = totals(arrived), end = begin + arrived.length * step;
  return html`<div class="charts">
      <${Chart} ...${shared} label=${t("events")} series=${flow} format=${NUMBER.format} />
      ${own && itself && html`<${Waited} ...${shared} arrived=${arrived} own=${own} consumer=${itself}
        last=${thread.last_event_id ?? 0} who=${who} />`}
      ${took && html`<${Chart} ...${shared} label=${t("how_long_runs_of_who_took", { who })} series=${took}
        format=${duration} />`}
    </div>
    <p class="hint">${came === 0 ? t("no_event_came_in_that_time") : t("events_came_in_that_time",
      { events: html`<a href=${eventsIn(thread, begin, end)}>${t("n_events", { n: came })}</a>` })}
      ${" "}${t("a_click_or_enter_shows_the_runs_of_that")}</p>`;
}

/** How many events waited; of a consumer with a filter, why that is not known. */
function Waited({ arrived, own, consumer, last, who, ...shared }) {
  const label = t("waiting_for_who", { who });
  if (!own.wants_all) {
    const { pending } = consumer;
    return html`<div class="chart"><p class="unknown"><strong>${label}</strong> ${t("with_a_filter_it_is_not_known_how_many")}
      ${" "}${pending > 0 ? t("now_waiting", { waiting: t("n_events_wait", { n: pending }) }) : t("now_nothing_waits")}</p></div>`;
  }
  const waits = [{ name: t("waited"), values: backlog(arrived, own, consumer.pending, last), kind: "area", class: "waited" }];
  return html`<${Chart} ...${shared} label=${label} series=${waits} format=${NUMBER.format}
    note=${t("counted_back_from_what_waits_now")} />`;
}

const iso = (ms) => new Date(ms).toISOString();

/** The events that came between two times, in milliseconds. */
export function eventsIn(thread, from, to) {
  return address.eventsAddress(thread.id, { filter: `created_at >= '${iso(from)}' AND created_at < '${iso(to)}'` });
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
