// A consumer: its state, its pending events, its actions, its settings, its figures over time and its runs.

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { t } from "../language.js";
import { Fold } from "../parts.js";
import { Stamp, duration, isSameSecond } from "../time.js";
import { visible } from "../text.js";
import { api } from "./api.js";
import { Actions, commandsOf } from "./actions.js";
import { Charts, eventsIn } from "./charts.js";
import { AsCommand } from "./command.js";
import { usePages } from "./pages.js";
import { For, NUMBER, Why, Word, exitText, outcomeText, whatToDo, wordOf } from "./words.js";
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

/** Whether somebody has to do something about it: what `thread info --check` says. */
export const needs = ({ problems }) => problems.length > 0;

/** What is wrong that its state, its numbers and its notes do not say. */
const ALSO_WRONG = { failing: t("every_attempt_of_the_last_hour_has_failed") };

/** Why it is in its state, what it has in hand, and what one can do. `alone`: on its own page. */
export function Body({ thread, consumer, alone = false }) {
  const { name, dead, last_run: last, run, cursor, filter_errors: errors, last_filter_error_id: failed } = consumer;
  const here = address.look(thread.id, "c", name);
  const todo = whatToDo(consumer), wrong = consumer.problems.map(({ check }) => ALSO_WRONG[check]).filter(Boolean);
  const shown = run?.id ?? last?.id;
  // The buttons have a key, or they would be others when a line comes before them, and forget what became of a resume.
  const eventLink = (event) => html`<a class="figure" href=${address.eventsAddress(thread.id, { event })}>${
    NUMBER.format(event)}</a>`;
  return html`
    <p class="why">${alone && html`<${Word} state=${wordOf(thread, consumer)} />`}<${Why} consumer=${consumer} alone=${!alone} /></p>
    ${wrong.map((why) => html`<p key=${why} class="failure">${why}</p>`)}
    ${todo && html`<p class="todo">${todo}</p>`}
    ${consumer.notes?.filter((note) => !SAID.test(note)).map((note) => html`<p class="todo">${visible(note)}</p>`)}
    <p class="facts"><${Pending} thread=${thread} consumer=${consumer} />
      ${" "}· ${t("cursor")} ${cursor > 0 ? eventLink(cursor) : html`<span class="figure">0</span>`}${
      dead > 0 && html` · <a class="failure" href=${address.deadAddress(thread.id, { consumer: name })}>${
        t("n_dead_letters", { n: dead })}</a>`}${
      errors > 0 && html` · ${t("its_filter_failed_on_n_events", { n: errors })}${
        failed && html`, ${t("the_last_event", { event: eventLink(failed) })}`}`}<${Places} consumer=${consumer} /></p>
    <p key="buttons" class="buttons"><${Actions} thread=${thread} consumer=${consumer} />
      ${shown && html`<a class="button" href=${address.look(thread.id, "c", name, shown)}>${
        run?.id ? t("show_the_run") : t("show_the_last_run")}</a>`}
      ${!alone && html`<a class="button" href=${here}>${t("all_runs")}</a>`}</p>
    <${AsCommand} lines=${commandsOf(thread, consumer)} />`;
}

/** The places of a pool, and the keys that wait. */
function Places({ consumer: { in_hand: hand, settings: { concurrency } } }) {
  if (!hand) return null;
  const { in_flight: busy, waiting, keys, is_full: isFull } = hand;
  return html`${concurrency && ` · ${t("busy_of_n_places_taken", { busy, n: concurrency })}`}${
    waiting > 0 && ` · ${t("n_events_wait_to_be_tried_again", { n: waiting })}`}${
    keys.length > 0 && html`, ${t("which_holds_back_keys", { keys: keys.map((key, n) => html`${n > 0 && ", "}<code>${
      visible(key)}</code>`) })}`}${
    isFull && html` · <span class="failure">${t("nothing_new_starts_too_many_wait")}</span>`}`;
}

/** `brief`: the number alone. */
export function Pending({ thread, consumer, brief = false }) {
  const { pending, pending_is_exact: exact, oldest_pending_at: oldest } = consumer;
  if (!pending) return t("nothing_waits");
  const few = exact === false ? `${t("at_least")} ` : "";
  if (brief) return html`<a href=${waiting(thread, consumer)}>${few}${NUMBER.format(pending)}</a>`;
  return html`<a href=${waiting(thread, consumer)}>${few}${t("n_events_wait", { n: pending })}</a>${
    oldest && html`, ${t("the_oldest_for_time", { time: html`<${For} time=${oldest} />` })}`}`;
}

export function ConsumerPage({ thread, route }) {
  const consumer = thread.consumers_state?.find(({ name }) => name === route.consumer);
  const { params } = route, { outcome, longest, from, to } = params;
  const [isDrawn, setDrawn] = useState(false);
  // Who asks for the runs of a time wants to see these.
  const isAsked = useRef(Boolean(from));
  return html`<div class="page">
    ${consumer ? html`<section class=${`consumer ${consumer.state}${needs(consumer) ? " needed" : ""}`} aria-label=${visible(consumer.name)}>
        <h1>${visible(consumer.name)}</h1><${Body} thread=${thread} consumer=${consumer} alone=${true} /></section>
      <${Settings} consumer=${consumer} />
      <${Charts} thread=${thread} only=${consumer.name} params=${params} onDrawn=${() => setDrawn(true)}
        onOpen=${() => { isAsked.current = true; }} />`
      : html`<h1>${visible(route.consumer)}</h1><p class="verdict">${t("it_is_not_subscribed_any_more_what_it")}</p>`}
    <${Runs} key=${[outcome, longest, from, to].join()} thread=${thread} name=${route.consumer} consumer=${consumer}
      params=${params} isBelow=${isDrawn || !consumer} isAsked=${isAsked} />
  </div>`;
}

function Settings({ consumer }) {
  const { command = t("none"), filter = t("none_every_event"), settings, runs_succeeded: good, runs_failed: bad } = consumer;
  const { deliver, concurrency, key, batch_size: batch, max_attempts: attempts, stall_after: stall, probe_ms: probe, idle_ms: idle, backoff_ms: backoff, timeout_ms: timeout, cwd, env = [], clear_env: clear } = settings;
  const ways = {
    stdin: t("on_stdin_at_most_n_a_run", { n: batch }), wake: t("when_it_pops_them"),
    ndjson: t("as_lines_to_a_handler_that_is_kept_at", { n: batch }),
  };
  const pauses = !(attempts <= 1) && backoff?.length
    ? `, ${t("with_pauses_of_times", { times: backoff.slice(0, attempts && attempts - 1).map((ms) => duration(ms)).join(", ") })}` : "";
  const all = [[t("command_2"), command], [t("filter"), filter], [t("events_come"), ways[deliver]],
    [t("at_once"), concurrency && t("n_runs", { n: concurrency })], [t("in_order_by"), key],
    [t("attempts"), `${attempts ?? t("no_limit")}${pauses}`],
    [t("stalls_after"), stall && t("n_dead_letters_in_a_row", { n: stall })],
    [t("tries_again_when_stalled"), probe && t("after_time", { time: duration(probe) })],
    [t("time_limit"), timeout && duration(timeout)], [t("kept_without_work"), idle && duration(idle)],
    [t("directory"), cwd],
    [t("environment"), [...env, clear ? t("and_little_else") : ""].filter(Boolean).join(", ")],
    [t("runs_2"), `${t("n_successes", { n: good })}, ${t("n_failures", { n: bad })}`]];
  return html`<${Fold} class="settings" summary=${t("settings")} open=${true}>
    <dl class="fields">${all.filter(([, value]) => value).map(([key, value]) => html`<dt>${key}</dt><dd><code>${visible(value)}</code></dd>`)}</dl>
  <//>`;
}

const OUTCOMES = [
  "succeeded", "failed", "dead", "timed_out", "stopped", "deferred", "interrupted", "unknown", "running",
];

/** `params`: only those with an `outcome`, the `longest` first, or those that were under way between `from` and `to`.
 * `isBelow`: what stands above it has its height; `isAsked.current`: then it is to be seen. */
function Runs({ thread, name, consumer, params, isBelow, isAsked }) {
  const { outcome, longest, from, to } = params;
  const url = (before) => api([thread.id, "consumers", name, "runs"],
    { before: before ?? (to && Date.parse(to) * 1000), from, limit: longest ? 200 : 50, outcome, longest });
  const version = [consumer?.run?.id, consumer?.last_run?.id, consumer?.last_run?.outcome].join();
  const { items: all, next, error, older, loading } = usePages(url, "runs", version);
  const head = useRef(), isRead = Boolean(all || error);
  useEffect(() => {
    if (!isAsked.current || !isRead || !isBelow) return;
    isAsked.current = false;
    head.current.scrollIntoView();
    head.current.focus({ preventScroll: true });
  }, [isRead, isBelow]);
  const show = (more) => address.go(address.runsAddress(thread.id, name, { ...params, ...more }));
  const near = (n) => [all[n - 1], all[n + 1]].filter(Boolean);
  const isTwice = (n) => near(n).some((other) => isSameSecond(other.started_at, all[n].started_at));
  const option = (word) => html`<option key=${word} value=${word}>${outcomeText(word)}</option>`;
  const sorted = (value, words) => html`<button type="button" aria-pressed=${Boolean(longest) === Boolean(value)}
    onClick=${() => show({ longest: value })}>${words}</button>`;
  return html`<h2 ref=${head} tabindex="-1">${t("runs")}</h2>
    <div class="bar which"><label>${t("outcome")} ${" "}
        <select value=${outcome ?? ""} onChange=${({ target }) => show({ outcome: target.value })}>
          <option value="">${t("any")}</option>${OUTCOMES.map(option)}</select></label>
      <div class="choice" role="group" aria-label=${t("sorted_by")}>${sorted(null, t("newest"))}${sorted(true, t("longest"))}</div>
      ${from && html`<span>${t("from_from_to_to",
        { from: html`<${Stamp} time=${from} />`, to: html`<${Stamp} time=${to} />` })}
        ${" "}<a href=${eventsIn(thread, Date.parse(from), Date.parse(to))}>${t("its_events")}</a>
        ${" "}<button type="button" onClick=${() => show({ from: null, to: null })}>${t("any_time_2")}</button></span>`}</div>
    ${error && html`<p class="error" role="alert">${error}</p>`}
    ${all?.length === 0 && html`<p class="hint">${outcome || from ? t("none_of_those_that_are_kept") : t("it_has_not_run_yet")}</p>`}
    <ol class="runs rows">${all?.map((run, n) => html`<li key=${run.id}>
      <${RunRow} thread=${thread} name=${name} run=${run} params=${params} exact=${isTwice(n)} /></li>`)}</ol>
    ${next !== null && html`<p><button type="button" disabled=${loading} onClick=${older}>${t("older_runs")}</button></p>`}`;
}

function RunRow({ thread, name, run, params, exact }) {
  const { id, started_at: began, duration_ms: took, attempt, events, outcome, first_event: first, last_event: last } = run;
  const isWrong = !["succeeded", "running"].includes(outcome);
  const which = first && last ? (first === last ? t("event_id_2", { id: String(first) })
    : t("events_first_to_last", { first: String(first), last: String(last) })) : events ? t("n_events", { n: events }) : "";
  return html`<a class="row" href=${address.runAddress(thread.id, name, id, params)}>
    <span><${Stamp} time=${began} exact=${exact} /></span>
    <span class="figure">${took >= 0 ? duration(took) : ""}</span>
    <span class=${isWrong ? "failure" : ""}>${outcomeText(outcome)}${isWrong && exitText(run.exit) && `, ${exitText(run.exit)}`}</span>
    <span>${[which, attempt > 1 && t("attempt_n", { n: attempt })].filter(Boolean).join(" · ")}</span>
  </a>`;
}
