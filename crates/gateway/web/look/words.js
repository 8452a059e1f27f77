// States in plain words: what, since when, why, and what to do.

import { html } from "../vendor/preact.js";
import { Ago, Stamp, duration, useClock } from "../time.js";
import { visible } from "../text.js";

export const NUMBER = new Intl.NumberFormat();

export function count(n, one, many = `${one}s`) {
  return `${NUMBER.format(n)} ${n === 1 ? one : many}`;
}

/** An agent's program that has answered and is kept running. */
export const OPEN = "open, idle";

export const wordOf = (thread, { name, state }) => (thread.agent_is_idle && name === "agent" && state === "running" ? OPEN : state);

/** A symbol for each state, next to its word. */
const MARKS = { stalled: "■", waiting: "◔", running: "▶", paused: "‖", idle: "○", [OPEN]: "○", pending: "◔" };

export function Word({ state }) {
  return html`<strong class=${`state ${state}`}><span aria-hidden="true">${MARKS[state] ?? "·"}</span> ${visible(state)}</strong>`;
}

/** How a run failed, in a few words: "exit 1: no price for anvil". */
export function failure({ exit, outcome, said }) {
  return [exitText(exit) || outcomeText(outcome), visible(said ?? "")].filter(Boolean).join(": ");
}

export const outcomeText = (outcome) => (outcome === "dead" ? "dead letter" : visible(outcome.replaceAll("_", " ")));

export function exitText(exit) {
  if (exit === undefined || exit === null) return "";
  return /^\d+$/.test(exit) ? `exit ${exit}` : visible(exit);
}

/** How long since, counting. */
export function For({ time }) {
  const at = Date.parse(time);
  useClock(Date.now() - at < 120_000 ? 1000 : 10_000);
  return at >= 0 ? html`<span class="figure" title=${new Date(at).toLocaleString()}>${duration(Math.max(0, Date.now() - at))}</span>` : null;
}

/** The result after a resume, and whether it is bad: `before` is the last run before that. */
export function cameOf({ state, last_run: last, dead_to_retry: again }, before) {
  if (state === "running" || again > 0) return ["it runs …", false];
  if (!last || last.id === before) return ["it is being started …", false];
  return last.outcome === "succeeded" ? ["it ran, and succeeded", false] : [`it ran, and failed again: ${failure(last)}`, true];
}

/** The same for `n` retried dead letters, each in a run of its own: `before` is the consumer before that. */
export function cameOfSeveral(consumer, before, n) {
  const good = consumer.runs_succeeded - before.runs_succeeded, bad = consumer.runs_failed - before.runs_failed;
  const ran = good + bad, isUnderWay = consumer.state === "running" || consumer.dead_to_retry > 0;
  if (n === 1 || !ran) return cameOf(consumer, before.last_run?.id);
  const why = consumer.last_run.outcome === "succeeded" ? "" : `: ${failure(consumer.last_run)}`;
  // Other runs may be among them.
  const all = ran > n ? `${NUMBER.format(ran)} runs since` : ran < n ? `${NUMBER.format(ran)} of ${NUMBER.format(n)} ran` : n === 2 ? "both ran" : `all ${NUMBER.format(n)} ran`;
  const each = ran === 2 ? "both " : ran === 1 ? "" : "all ";
  const text = bad === 0 ? `${all}, ${each}succeeded` : good === 0 ? `${all}, ${each}failed again${why}`
    : `${all}: ${NUMBER.format(good)} succeeded, ${NUMBER.format(bad)} failed again${why}`;
  return [isUnderWay ? `${text} …` : text, bad > 0];
}

/** The time until then. */
function Until({ time }) {
  useClock(1000);
  const left = Date.parse(time) - Date.now();
  return left > 0 ? html`in <span class="figure">${duration(left)}</span>` : "now";
}

const isStopped = ({ reason }) => /^stopped/.test(reason ?? "");

/** Why a consumer is in its state; `alone` if the word for that does not stand before it. */
export function Why({ consumer, alone = false }) {
  const [dot, colon] = alone ? ["", ""] : [" · ", ": "];
  const { state, since, reason, attempt, next_try: next, last_run: last, run } = consumer;
  const failed = last?.outcome && last.outcome !== "succeeded" ? failure(last) : "";
  switch (state) {
    case "stalled": return html`${since && html` since <${Stamp} time=${since} /> (<${For} time=${since} />)`}:
      ${" "}${visible(reason ?? "given up")}${failed && !isStopped(consumer) && html`, <span class="failure">${failed}</span>`}`;
    case "waiting": return html`${failed ? html` after attempt ${attempt}: <span class="failure">${failed}</span>` : ""}
      ${next && html` · next try <${Until} time=${next} />`}${reason && ` · ${visible(reason)}`}`;
    case "running": return html`${dot}run began <${For} time=${run?.started_at ?? since} /> ago${run?.attempt > 1 ? `, attempt ${run.attempt}` : ""}${consumer.paused ? ", and none follows: it is paused" : ""}`;
    case "paused": return html`${colon}it is not started until it is resumed${failed && html` · its last run failed, <span class="failure">${failed}</span>`}`;
    default: if (!consumer.command) return html`${colon}it reads by itself, with <code>thread pop</code>${
      consumer.untaken_since && html` · <span class="failure">not taken for <${For} time=${consumer.untaken_since} /></span>`}`;
      return last && html`${dot}last run <${Ago} time=${last.ended_at ?? last.started_at} />, ${failed ? html`<span class="failure">${failed}</span>` : outcomeText(last.outcome)}`;
  }
}

/** What the user can do about it. */
export function whatToDo(consumer) {
  const { state, reason, pending } = consumer;
  if (state === "stalled" && isStopped(consumer)) return "It was stopped. Resume starts it again, and so does the next matching event.";
  if (state === "stalled" && /cannot be run/.test(reason ?? "")) return "Its command does not start: see its run, install what is missing, then resume.";
  if (state === "stalled") return "It has given up on its pending events. See its last run's output, fix the cause, then resume. (The next matching event also starts it once more.)";
  if (state === "waiting" && reason === "interrupted") return "Nothing attends to its wait. Resume, or the next event, starts it again.";
  if (state === "waiting") return "It tries again by itself. Resume tries now.";
  if (consumer.untaken_since) return "It has no handler: a program must pop its events, or someone must unsubscribe it.";
  if (state === "idle" && pending > 0 && consumer.command) return "Nothing starts it by itself: resume does, and so does the next event.";
  return "";
}
