// A consumer: its state, its pending events, its actions, its settings and its runs.

import { html } from "../vendor/preact.js";
import { Fold } from "../parts.js";
import { Stamp, duration, isSameSecond } from "../time.js";
import { visible } from "../text.js";
import { api } from "./api.js";
import { Actions, commandsOf } from "./actions.js";
import { AsCommand } from "./command.js";
import { usePages } from "./pages.js";
import { For, NUMBER, Why, Word, count, exitText, outcomeText, whatToDo, wordOf } from "./words.js";
import * as address from "../address.js";

/** Notes that repeat what the page shows anyway. */
const SAID = /^(`thread resume|the next push)/;

const URGENCY = ["stalled", "waiting", "running", "paused"];

/** Errors first, then what is pending, then what runs. */
export function byNeed(a, b) {
  const rank = ({ state, pending, untaken_since: untaken }) => { if (untaken) return 0.5; const n = URGENCY.indexOf(state); return n >= 0 ? n : pending > 0 ? 1.5 : 9; };
  return rank(a) - rank(b) || (a.name < b.name ? -1 : 1);
}

/** The pending events of a consumer. */
function waiting(thread, { cursor, filter }) {
  const wanted = filter?.trim() ? ` AND (${filter}\n)` : "";
  return address.eventsAddress(thread.id, { filter: `id > ${cursor}${wanted}` });
}

export function Card({ thread, consumer, alone = false }) {
  const { name, state, dead, last_run: last, run } = consumer;
  const here = address.look(thread.id, "c", name);
  const todo = whatToDo(consumer);
  const shown = run?.id ?? last?.id;
  const label = run?.id ? "Show the run" : "Show the last run";
  return html`<section class=${`consumer ${state}`} aria-label=${visible(name)}>
    ${alone ? html`<h1>${visible(name)}</h1>` : html`<h2><a class="row" href=${here}>${visible(name)}</a></h2>`}
    <p class="why"><${Word} state=${wordOf(thread, consumer)} /><${Why} consumer=${consumer} /></p>
    ${todo && html`<p class="todo">${todo}</p>`}
    ${consumer.notes?.filter((note) => !SAID.test(note)).map((note) => html`<p class="todo">${visible(note)}</p>`)}
    <p class="facts"><${Pending} thread=${thread} consumer=${consumer} /> · cursor ${consumer.cursor > 0
        ? html`<a class="figure" href=${address.eventsAddress(thread.id, { event: consumer.cursor })}>${NUMBER.format(consumer.cursor)}</a>` : html`<span class="figure">0</span>`}${
      dead > 0 && html` · <a class="failure" href=${address.deadAddress(thread.id, { consumer: name })}>${count(dead, "dead letter")}</a>`}${
      consumer.filter_errors > 0 && html` · its filter failed on ${count(consumer.filter_errors, "event")}${consumer.last_filter_error_id
        && html`, the last <a href=${address.eventsAddress(thread.id, { event: consumer.last_filter_error_id })}>${consumer.last_filter_error_id}</a>`}`}</p>
    <p class="buttons"><${Actions} thread=${thread} consumer=${consumer} />
      ${shown && html`<a class="button" href=${address.look(thread.id, "c", name, shown)}>${label}</a>`}
      ${!alone && html`<a class="button" href=${here}>All runs</a>`}</p>
    <${AsCommand} lines=${commandsOf(thread, consumer)} />
  </section>`;
}

function Pending({ thread, consumer }) {
  const { pending, pending_is_exact: exact, oldest_pending_at: oldest } = consumer;
  if (!pending) return "nothing waits";
  return html`<a href=${waiting(thread, consumer)}>${exact === false ? "at least " : ""}${count(pending, "event")}</a> ${pending === 1 ? "waits" : "wait"}${
    oldest && html`, the oldest for <${For} time=${oldest} />`}`;
}

export function ConsumerPage({ thread, route }) {
  const consumer = thread.consumers_state?.find(({ name }) => name === route.consumer);
  return html`<div class="page">
    ${consumer ? html`<${Card} thread=${thread} consumer=${consumer} alone=${true} /><${Settings} consumer=${consumer} />`
      : html`<h1>${visible(route.consumer)}</h1><p class="verdict">It is not subscribed (any more). What it did is below.</p>`}
    <h2>Runs</h2>
    <${Runs} thread=${thread} name=${route.consumer} consumer=${consumer} />
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

function Runs({ thread, name, consumer }) {
  const url = (before) => api([thread.id, "consumers", name, "runs"], { before, limit: 50 });
  const { items, next, error, older, loading } = usePages(url, "runs", [consumer?.run?.id, consumer?.last_run?.id, consumer?.last_run?.outcome].join());
  return html`
    ${error && html`<p class="error" role="alert">${error}</p>`}
    ${items && items.length === 0 && html`<p class="hint">It has not run yet.</p>`}
    <ol class="runs rows">${items?.map((run, n) => html`<li key=${run.id}><${RunRow} thread=${thread} name=${name} run=${run}
      exact=${[items[n - 1], items[n + 1]].some((other) => other && isSameSecond(other.started_at, run.started_at))} /></li>`)}</ol>
    ${next !== null && items && html`<p><button type="button" disabled=${loading} onClick=${older}>Older runs</button></p>`}`;
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
