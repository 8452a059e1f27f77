// A consumer: its state, its pending events, its actions, its settings, its figures over time and its runs.

import { html } from "../vendor/preact.js";
import { Fold } from "../parts.js";
import { Stamp, duration, isSameSecond } from "../time.js";
import { visible } from "../text.js";
import { api } from "./api.js";
import { Actions, commandsOf } from "./actions.js";
import { Charts } from "./charts.js";
import { AsCommand } from "./command.js";
import { usePages } from "./pages.js";
import { For, NUMBER, Why, Word, count, exitText, outcomeText, whatToDo, wordOf } from "./words.js";
import * as address from "../address.js";

/** Notes that repeat what the page shows anyway. */
const SAID = /^(`thread resume|the next push)/;

const URGENCY = ["stalled", "waiting", "running", "paused"];

/** Errors first, then what is pending, then what runs. */
export function byNeed(a, b) {
  const rank = (consumer) => {
    const n = URGENCY.indexOf(consumer.state);
    if (needs(consumer)) return n === 0 ? 0 : 0.5;
    return n >= 0 ? n : consumer.pending > 0 ? 1.5 : 9;
  };
  return rank(a) - rank(b) || (a.name < b.name ? -1 : 1);
}

/** The pending events of a consumer. */
function waiting(thread, { cursor, filter }) {
  const wanted = filter?.trim() ? ` AND (${filter}\n)` : "";
  return address.eventsAddress(thread.id, { filter: `id > ${cursor}${wanted}` });
}

/** Whether somebody has to do something about it. */
export const needs = ({ state, untaken_since: untaken, dead, filter_errors: errors }) =>
  state === "stalled" || Boolean(untaken) || dead > 0 || errors > 0;

/** Why it is in its state, what it has in hand, and what one can do. `alone`: on its own page. */
export function Body({ thread, consumer, alone = false }) {
  const { name, dead, last_run: last, run, cursor, filter_errors: errors, last_filter_error_id: failed } = consumer;
  const here = address.look(thread.id, "c", name);
  const todo = whatToDo(consumer);
  const shown = run?.id ?? last?.id;
  const eventLink = (event) => html`<a class="figure" href=${address.eventsAddress(thread.id, { event })}>${
    NUMBER.format(event)}</a>`;
  return html`
    <p class="why">${alone && html`<${Word} state=${wordOf(thread, consumer)} />`}<${Why} consumer=${consumer} alone=${!alone} /></p>
    ${todo && html`<p class="todo">${todo}</p>`}
    ${consumer.notes?.filter((note) => !SAID.test(note)).map((note) => html`<p class="todo">${visible(note)}</p>`)}
    <p class="facts"><${Pending} thread=${thread} consumer=${consumer} />
      ${" "}· cursor ${cursor > 0 ? eventLink(cursor) : html`<span class="figure">0</span>`}${
      dead > 0 && html` · <a class="failure" href=${address.deadAddress(thread.id, { consumer: name })}>${
        count(dead, "dead letter")}</a>`}${
      errors > 0 && html` · its filter failed on ${count(errors, "event")}${
        failed && html`, the last ${eventLink(failed)}`}`}<${Places} consumer=${consumer} /></p>
    <p class="buttons"><${Actions} thread=${thread} consumer=${consumer} />
      ${shown && html`<a class="button" href=${address.look(thread.id, "c", name, shown)}>${
        run?.id ? "Show the run" : "Show the last run"}</a>`}
      ${!alone && html`<a class="button" href=${here}>All runs</a>`}</p>
    <${AsCommand} lines=${commandsOf(thread, consumer)} />`;
}

/** The places of a pool, and the keys that wait. */
function Places({ consumer: { in_hand: hand, settings: { concurrency } } }) {
  if (!hand) return null;
  const { in_flight: busy, waiting, keys, is_full: isFull } = hand;
  return html`${concurrency && ` · ${NUMBER.format(busy)} of ${count(concurrency, "place")} taken`}${
    waiting > 0 && ` · ${count(waiting, "event")} ${waiting === 1 ? "waits" : "wait"} to be tried again`}${
    keys.length > 0 && html`, which holds back ${keys.map((key, n) => html`${n > 0 && ", "}<code>${
      visible(key)}</code>`)}`}${
    isFull && html` · <span class="failure">nothing new starts: too many wait</span>`}`;
}

/** `brief`: the number alone. */
export function Pending({ thread, consumer, brief = false }) {
  const { pending, pending_is_exact: exact, oldest_pending_at: oldest } = consumer;
  if (!pending) return "nothing waits";
  const few = exact === false ? "at least " : "";
  if (brief) return html`<a href=${waiting(thread, consumer)}>${few}${NUMBER.format(pending)}</a>`;
  return html`<a href=${waiting(thread, consumer)}>${few}${count(pending, "event")}</a> ${pending === 1 ? "waits" : "wait"}${
    oldest && html`, the oldest for <${For} time=${oldest} />`}`;
}

export function ConsumerPage({ thread, route }) {
  const consumer = thread.consumers_state?.find(({ name }) => name === route.consumer);
  const { params } = route;
  return html`<div class="page">
    ${consumer ? html`<section class=${`consumer ${consumer.state}`} aria-label=${visible(consumer.name)}>
        <h1>${visible(consumer.name)}</h1><${Body} thread=${thread} consumer=${consumer} alone=${true} /></section>
      <${Settings} consumer=${consumer} /><${Charts} thread=${thread} only=${consumer.name} />`
      : html`<h1>${visible(route.consumer)}</h1><p class="verdict">It is not subscribed (any more). What it did is below.</p>`}
    <h2>Runs</h2>
    <${Runs} key=${JSON.stringify(params)} thread=${thread} name=${route.consumer} consumer=${consumer} params=${params} />
  </div>`;
}

function Settings({ consumer }) {
  const { command = "(none)", filter = "(none: every event)", settings, runs_succeeded: good, runs_failed: bad } = consumer;
  const { deliver, concurrency, key, batch_size: batch, max_attempts: attempts, stall_after: stall, probe_ms: probe, idle_ms: idle, backoff_ms: backoff, timeout_ms: timeout, cwd, env = [], clear_env: clear } = settings;
  const ways = { stdin: `on stdin, at most ${batch} a run`, ndjson: `as lines to a handler that is kept, at most ${batch} at a time`, wake: "when it pops them" };
  const all = [["command", command], ["filter", filter], ["events come", ways[deliver]], ["at once", concurrency && count(concurrency, "run")], ["in order by", key],
    ["attempts", `${attempts ?? "no limit"}${!(attempts <= 1) && backoff?.length ? `, with pauses of ${backoff.slice(0, attempts && attempts - 1).map((ms) => duration(ms)).join(", ")}` : ""}`],
    ["stalls after", stall && `${count(stall, "dead letter")} in a row`], ["tries again when stalled", probe && `after ${duration(probe)}`], ["time limit", timeout && duration(timeout)], ["kept without work", idle && duration(idle)], ["directory", cwd],
    ["environment", [...env, clear ? "and little else" : ""].filter(Boolean).join(", ")], ["runs", `${count(good, "success", "successes")}, ${count(bad, "failure")}`]];
  return html`<${Fold} class="settings" summary="Settings" open=${true}>
    <dl class="fields">${all.filter(([, value]) => value).map(([key, value]) => html`<dt>${key}</dt><dd><code>${visible(value)}</code></dd>`)}</dl>
  <//>`;
}

const OUTCOMES = [
  "succeeded", "failed", "dead", "timed_out", "stopped", "deferred", "interrupted", "unknown", "running",
];

/** `params`: only those with an `outcome`, the `longest` first, or those that began between `from` and `to`. */
function Runs({ thread, name, consumer, params: { outcome, longest, from, to } }) {
  const url = (before) => api([thread.id, "consumers", name, "runs"],
    { before: before ?? (to && Date.parse(to) * 1000), limit: longest ? 200 : 50, outcome, longest });
  const version = [consumer?.run?.id, consumer?.last_run?.id, consumer?.last_run?.outcome].join();
  const { items, next, error, older, loading } = usePages(url, "runs", version);
  const all = items?.filter(({ started_at: began }) => !from || Date.parse(began) >= Date.parse(from));
  const isAtEnd = next === null || all?.length < items?.length;
  const show = (more) => address.go(address.runsAddress(thread.id, name, { outcome, longest, from, to, ...more }));
  const near = (n) => [all[n - 1], all[n + 1]].filter(Boolean);
  const isTwice = (n) => near(n).some((other) => isSameSecond(other.started_at, all[n].started_at));
  const option = (word) => html`<option key=${word} value=${word}>${outcomeText(word)}</option>`;
  const sorted = (value, words) => html`<button type="button" aria-pressed=${Boolean(longest) === Boolean(value)}
    onClick=${() => show({ longest: value })}>${words}</button>`;
  return html`
    <div class="bar which"><label>Outcome ${" "}
        <select value=${outcome ?? ""} onChange=${({ target }) => show({ outcome: target.value })}>
          <option value="">any</option>${OUTCOMES.map(option)}</select></label>
      <div class="choice" role="group" aria-label="Sorted by">${sorted(null, "newest")}${sorted(true, "longest")}</div>
      ${from && html`<span>from <${Stamp} time=${from} /> to <${Stamp} time=${to} />
        ${" "}<button type="button" onClick=${() => show({ from: null, to: null })}>Any time</button></span>`}</div>
    ${error && html`<p class="error" role="alert">${error}</p>`}
    ${all?.length === 0 && html`<p class="hint">${outcome || from ? "None of those that are kept." : "It has not run yet."}</p>`}
    <ol class="runs rows">${all?.map((run, n) => html`<li key=${run.id}>
      <${RunRow} thread=${thread} name=${name} run=${run} exact=${isTwice(n)} /></li>`)}</ol>
    ${!isAtEnd && items && html`<p><button type="button" disabled=${loading} onClick=${older}>Older runs</button></p>`}`;
}

function RunRow({ thread, name, run, exact }) {
  const { id, started_at: began, duration_ms: took, attempt, events, outcome, first_event: first, last_event: last } = run;
  const isWrong = !["succeeded", "running"].includes(outcome);
  const which = first && last ? (first === last ? `event ${first}` : `events ${first} to ${last}`) : events ? count(events, "event") : "";
  return html`<a class="row" href=${address.look(thread.id, "c", name, id)}>
    <span><${Stamp} time=${began} exact=${exact} /></span>
    <span class="figure">${took >= 0 ? duration(took) : ""}</span>
    <span class=${isWrong ? "failure" : ""}>${outcomeText(outcome)}${isWrong && exitText(run.exit) && `, ${exitText(run.exit)}`}</span>
    <span>${[which, attempt > 1 && `attempt ${attempt}`].filter(Boolean).join(" · ")}</span>
  </a>`;
}
