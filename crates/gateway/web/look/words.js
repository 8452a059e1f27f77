// States in plain words: what, since when, why, and what to do.

import { html } from "../vendor/preact.js";
import { locale, t } from "../language.js";
import { Ago, Stamp, duration, useClock } from "../time.js";
import { visible } from "../text.js";

export const NUMBER = new Intl.NumberFormat(locale);

/** An agent's program that has answered and is kept running. */
export const OPEN = t("open_idle");

/** One that has nothing to do, but has not done what it had to. */
const FAILED = t("idle_its_last_run_failed");

const FAILURES = new Set(["failed", "dead", "timed_out", "unknown"]);

const hasFailed = ({ state, last_run: last }) => state === "idle" && FAILURES.has(last?.outcome);

export function wordOf(thread, consumer) {
  const { name, state } = consumer;
  if (thread.agent_is_idle && name === "agent" && state === "running") return OPEN;
  return hasFailed(consumer) ? FAILED : state;
}

/** A symbol for each state, next to its word. */
const MARKS = { stalled: "■", waiting: "◔", running: "▶", paused: "‖", idle: "○", [OPEN]: "○", [FAILED]: "■", pending: "◔" };

const STATES = {
  stalled: t("stalled"), waiting: t("waiting"), running: t("running"), paused: t("paused"), idle: t("idle"),
};

export function Word({ state }) {
  return html`<strong class=${`state ${state}`}><span aria-hidden="true">${MARKS[state] ?? "·"}</span> ${
    STATES[state] ?? visible(state)}</strong>`;
}

/** How a run failed, in a few words: "exit 1: no price for anvil". */
export function failure({ exit, outcome, said }) {
  return [exitText(exit) || outcomeText(outcome), visible(said ?? "")].filter(Boolean).join(": ");
}

const OUTCOMES = {
  succeeded: t("succeeded"), failed: t("failed_2"), dead: t("dead_letter_2"), timed_out: t("timed_out"), stopped: t("stopped"),
  deferred: t("deferred"), interrupted: t("interrupted"), unknown: t("unknown"), running: t("running"),
};

export const outcomeText = (outcome) => OUTCOMES[outcome] ?? visible(outcome.replaceAll("_", " "));

export function exitText(exit) {
  if (exit === undefined || exit === null) return "";
  return /^\d+$/.test(exit) ? t("exit_code", { code: String(exit) }) : visible(exit);
}

/** How long since, counting. */
export function For({ time }) {
  const at = Date.parse(time);
  useClock(Date.now() - at < 120_000 ? 1000 : 10_000);
  return at >= 0 ? html`<span class="figure" title=${new Date(at).toLocaleString(locale)}>${duration(Math.max(0, Date.now() - at))}</span>` : null;
}

/** The result after a resume, and whether it is bad: `before` is the last run before that. */
export function cameOf({ state, last_run: last, dead_to_retry: again }, before) {
  if (state === "running" || again > 0) return [t("it_runs"), false];
  if (!last || last.id === before) return [t("it_is_being_started"), false];
  return last.outcome === "succeeded" ? [t("it_ran_and_succeeded"), false]
    : [t("it_ran_and_failed_again_why", { why: failure(last) }), true];
}

/** The same for `n` retried dead letters, each in a run of its own: `before` is the consumer before that. */
export function cameOfSeveral(consumer, before, n) {
  const good = consumer.runs_succeeded - before.runs_succeeded, bad = consumer.runs_failed - before.runs_failed;
  const ran = good + bad, isUnderWay = consumer.state === "running" || consumer.dead_to_retry > 0;
  if (n === 1 || !ran) return cameOf(consumer, before.last_run?.id);
  const why = consumer.last_run.outcome === "succeeded" ? "" : `: ${failure(consumer.last_run)}`;
  // Other runs may be among them.
  const all = ran > n ? t("n_runs_since", { n: ran }) : ran < n ? t("n_of_all_ran", { n: ran, all: n })
    : n === 2 ? t("both_ran") : t("all_n_ran", { n });
  const text = bad === 0 ? t("ran_and_succeeded", { ran: all }) : good === 0 ? `${t("ran_and_failed_again", { ran: all })}${why}`
    : `${t("ran_good_succeeded_bad_failed_again", { ran: all, good, bad })}${why}`;
  return [isUnderWay ? `${text} …` : text, bad > 0];
}

/** The time until then. */
function Until({ time }) {
  useClock(1000);
  const left = Date.parse(time) - Date.now();
  return left > 0 ? t("in_time", { time: html`<span class="figure">${duration(left)}</span>` }) : t("now");
}

const isStopped = ({ reason }) => /^stopped/.test(reason ?? "");

/** Why a consumer is in its state; `alone` if the word for that does not stand before it. */
export function Why({ consumer, alone = false }) {
  const [dot, colon] = alone ? ["", ""] : [" · ", ": "];
  const { state, since, reason, attempt, next_try: next, last_run: last, run } = consumer;
  const failed = last?.outcome && last.outcome !== "succeeded" ? failure(last) : "";
  switch (state) {
    case "stalled": return html`${since && html` ${t("since_time", { time: html`<${Stamp} time=${since} />` })} (<${For} time=${since} />)`}:
      ${" "}${visible(reason ?? t("given_up"))}${failed && !isStopped(consumer) && html`, <span class="failure">${failed}</span>`}`;
    case "waiting": return html`${failed ? html` ${t("after_attempt_n_why", { n: attempt, why: html`<span class="failure">${failed}</span>` })}` : ""}
      ${next && html` · ${t("next_try_time", { time: html`<${Until} time=${next} />` })}`}${reason && ` · ${visible(reason)}`}`;
    case "running": return html`${dot}${t("run_began_time_ago", { time: html`<${For} time=${run?.started_at ?? since} />` })}${
      run?.attempt > 1 ? `, ${t("attempt_n", { n: run.attempt })}` : ""}${
      consumer.paused ? `, ${t("and_none_follows_it_is_paused")}` : ""}`;
    case "paused": return html`${colon}${t("it_is_not_started_until_it_is_resumed")}${
      failed && html` · ${t("its_last_run_failed_why", { why: html`<span class="failure">${failed}</span>` })}`}`;
    default: if (!consumer.command) return html`${colon}${t("it_reads_by_itself_with_command", { command: html`<code>thread pop</code>` })}${
      consumer.untaken_since && html` · <span class="failure">${t("not_taken_for_time", { time: html`<${For} time=${consumer.untaken_since} />` })}</span>`}`;
      return last && html`${dot}${t("last_run_time", { time: html`<${Ago} time=${last.ended_at ?? last.started_at} />` })}, ${failed ? html`<span class="failure">${failed}</span>` : outcomeText(last.outcome)}`;
  }
}

/** What the user can do about it. */
export function whatToDo(consumer) {
  const { state, reason, pending } = consumer;
  if (state === "stalled" && isStopped(consumer)) return t("it_was_stopped_resume_starts_it_again");
  if (state === "stalled" && /cannot be run/.test(reason ?? "")) return t("its_command_does_not_start_see_its_run");
  if (state === "stalled") return t("it_has_given_up_on_its_pending_events");
  if (state === "waiting" && reason === "interrupted") return t("nothing_attends_to_its_wait_resume_or");
  if (state === "waiting") return t("it_tries_again_by_itself_resume_tries");
  if (consumer.untaken_since) return t("it_has_no_handler_a_program_must_pop");
  if (state === "idle" && consumer.last_run?.outcome === "dead" && consumer.dead > 0) return t("it_gave_up_on_its_last_event_which_is_a");
  if (state === "idle" && pending > 0 && consumer.command) return t("nothing_starts_it_by_itself_resume_does");
  return "";
}
