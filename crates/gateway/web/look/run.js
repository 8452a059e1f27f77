// A run: its result, what became of what it was given, and what it printed.

import { html, useEffect, useState } from "../vendor/preact.js";
import { t } from "../language.js";
import { Do, Fold, Plain } from "../parts.js";
import { Ago, Stamp, duration } from "../time.js";
import { beginning, bytesText, visible } from "../text.js";
import { api, get, post } from "./api.js";
import { AsCommand, command } from "./command.js";
import { Trace } from "./trace.js";
import { exitText } from "./words.js";
import * as address from "../address.js";

/** How many events a run was given are listed at first, and how many more on request. */
const FEW = 10, MORE = 50;

export function RunPage({ thread, route }) {
  const { consumer, run: id } = route;
  const [{ run, error }, setFound] = useState({});
  // While it is running, any new event in the thread may belong to it.
  const isOver = run && run.outcome !== "running";
  const about = isOver ? "" : thread;
  useEffect(() => {
    const gone = new AbortController();
    get(api([thread.id, "consumers", consumer, "runs", id]), gone.signal).then((run) => setFound({ run }),
      (error) => { if (error.name !== "AbortError") setFound(({ run }) => ({ run, error: error.message })); });
    return () => gone.abort();
  }, [about, id]);
  return html`<div class="page">
    <h1>${t("run_of_name",
      { name: html`<a href=${address.runsAddress(thread.id, consumer, route.params)}>${visible(consumer)}</a>` })}</h1>
    ${error && html`<p class="error" role="alert">${error}</p>`}
    ${run && html`<${Whole} thread=${thread} consumer=${consumer} run=${run} />`}
  </div>`;
}

const OUTCOMES = {
  succeeded: t("it_succeeded"), failed: t("it_failed"), dead: t("it_failed_what_it_was_given_is_a_dead"),
  timed_out: t("it_took_too_long_and_was_ended"), stopped: t("it_was_stopped"), deferred: t("it_could_not_work_then"),
  interrupted: t("it_was_interrupted_by_a_shutdown"), unknown: t("nobody_knows_how_it_ended_its"),
  running: t("it_has_been_running"),
};

/** An agent that waits for the next message. */
const IDLE = t("it_has_answered_and_is_kept_open_for_a");

function Whole({ thread, consumer, run }) {
  const { outcome, exit, started_at: began, ended_at: ended, duration_ms: took, attempt, events } = run;
  const { output, output_truncated: cut, output_bytes: bytes, handled = [], stored = [] } = run;
  const isWrong = !["succeeded", "running"].includes(outcome);
  const itself = thread.consumers_state.find(({ name }) => name === consumer);
  const asks = outcome === "running" && /^the agent asks/.test(thread.attention ?? "");
  const isIdle = outcome === "running" && consumer === "agent" && thread.agent_is_idle;
  const resume = async () => {
    await post(api([thread.id, "consumers", consumer, "resume"]));
    address.go(address.look(thread.id, "c", consumer));
  };
  return html`
    <p class=${isWrong ? "verdict wrong" : "verdict"}>${isIdle ? IDLE : OUTCOMES[outcome] ?? visible(outcome)}${
      isWrong && exitText(exit) && ` (${exitText(exit)})`}${
      took >= 0 && ` ${outcome === "running" ? t("for_time", { time: duration(took) }) : t("after_time", { time: duration(took) })}`}.</p>
    <p class="facts">${ended && took >= 1000
      ? t("from_from_to_to_2", { from: html`<${Stamp} time=${began} />`, to: html`<${Stamp} time=${ended} />` })
      : t("from_from", { from: html`<${Stamp} time=${began} />` })} · <${Ago} time=${began} /> · ${
      t("attempt_n", { n: attempt })}${events > 0 && html` · ${t("events_on_stdin",
        { events: html`<a href=${given(thread, run)}>${t("n_events", { n: events })}</a>` })}`}</p>
    ${asks && html`<p><a href=${address.sessionAddress(thread.id)}>${t("it_asks_for_permission_answer_it")}</a></p>`}
    ${isWrong && !thread.read_only && itself?.state === "stalled" && itself.last_run?.id === run.id && html`<p>
      <${Do} class="primary" title=${command(thread, "resume", consumer)} action=${resume}>${t("resume_name", { name: visible(consumer) })}<//></p>`}
    <${Handled} thread=${thread} consumer=${consumer} events=${handled} all=${events}
      none=${itself && itself.settings.deliver !== "wake" ? t("nothing_on_stdin") : t("it_takes_its_events_itself")} />
    <h2>${t("what_it_printed")}</h2>
    ${cut && html`<p class="hint">${t("the_end_of_size_2", { size: bytesText(bytes) })}</p>`}
    ${output ? html`<${Plain} text=${visible(output)} label=${t("output")} />`
      : html`<p class="hint">${output === undefined && outcome !== "running" ? t("its_log_is_not_kept_any_more") : t("nothing")}</p>`}
    ${stored.length > 0 && html`<${Fold} class="stored" summary=${
      t("stored_during_the_run_by_it_and_by", { n: stored.length })}>
      ${() => html`<${Events} thread=${thread} events=${stored} />`}<//>`}
    <${AsCommand} lines=${[command(thread, "logs", consumer), `${command(thread, "info", consumer)} --runs`]} />`;
}

function given(thread, { first_event: first, last_event: last }) {
  const which = first === last ? { event: first } : { filter: `id >= ${first} AND id <= ${last}` };
  return address.eventsAddress(thread.id, which);
}

/** What it was given, or has answered: each with what became of it. */
function Handled({ thread, consumer, events, all, none }) {
  const [shown, setShown] = useState(FEW);
  const n = Math.max(events.length, all ?? 0), isOne = n === 1;
  return html`<h2>${n > 1 ? t("what_it_was_given_n_events", { n }) : t("what_it_was_given")}</h2>
    ${!events.length && html`<p class="hint">${none}</p>`}
    <div class="handled">${events.slice(0, shown).map(({ id, created_at: at, content }, place) => html`<${Fold} key=${id}
        open=${isOne || (consumer === "agent" && place === 0)} summary=${html`<span class="figure">${id}</span>
          ${" "}<${Stamp} time=${at} /> <span class="text">${visible(beginning(content, 160))}</span>`}>
      ${() => html`<${Trace} thread=${thread.id} event=${id} version=${thread} only=${consumer} />`}<//>`)}</div>
    ${events.length > shown && html`<p><button type="button" onClick=${() => setShown(shown + MORE)}>
      ${t("show_more_of_n_events", { n: events.length })}</button></p>`}`;
}

function Events({ thread, events }) {
  return html`<ol class="brief rows">${events.map(({ id, created_at: at, type, subtype, content }) => html`<li key=${id}>
    <a class="row" href=${address.eventsAddress(thread.id, { event: id })}>
    <span class="figure">${id}</span><${Stamp} time=${at} /><span>${visible(subtype ?? type)}</span><span class="text">${visible(beginning(content, 160))}</span></a></li>`)}</ol>`;
}
