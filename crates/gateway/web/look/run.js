// A run: its result, its timeline, its output, and its events.

import { html, useEffect, useState } from "../vendor/preact.js";
import { Plain } from "../parts.js";
import { Ago, Stamp, duration } from "../time.js";
import { beginning, bytesText, visible } from "../text.js";
import { api, get, post } from "./api.js";
import { AsCommand, command } from "./command.js";
import { Do } from "../parts.js";
import { Timeline, isIdle } from "./timeline.js";
import { count, exitText } from "./words.js";
import * as address from "../address.js";

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
    <h1>Run of <a href=${address.look(thread.id, "c", consumer)}>${visible(consumer)}</a></h1>
    ${error && html`<p class="error" role="alert">${error}</p>`}
    ${run && html`<${Whole} thread=${thread} consumer=${consumer} run=${run} />`}
  </div>`;
}

const OUTCOMES = { succeeded: "It succeeded", failed: "It failed", dead: "It failed: what it was given is a dead letter now", timed_out: "It took too long, and was ended",
  stopped: "It was stopped", deferred: "It could not work then", interrupted: "It was interrupted by a shutdown", unknown: "Nobody knows how it ended: its supervisor was killed", running: "It has been running" };

function Whole({ thread, consumer, run }) {
  const { outcome, exit, started_at: began, ended_at: ended, duration_ms: took, attempt, output, output_truncated: cut, output_bytes: bytes, timeline = [], handled = [], meanwhile = [] } = run;
  const isWrong = !["succeeded", "running"].includes(outcome);
  const itself = thread.consumers_state.find(({ name }) => name === consumer);
  const asks = outcome === "running" && /^the agent asks/.test(thread.attention ?? "");
  return html`
    <p class=${isWrong ? "verdict wrong" : "verdict"}>${isIdle(run) ? "It has answered, and is kept open for a next message: it has been there" : OUTCOMES[outcome] ?? visible(outcome)}${isWrong && exitText(exit) && ` (${exitText(exit)})`}${
      took >= 0 && ` ${outcome === "running" ? "for" : "after"} ${duration(took)}`}.</p>
    <p class="facts">From <${Stamp} time=${began} />${ended && took >= 1000 && html` to <${Stamp} time=${ended} />`} · <${Ago} time=${began} /> · attempt ${attempt}${
      run.events > 0 && html` · <a href=${given(thread, run)}>${count(run.events, "event")}</a> on stdin`}</p>
    ${asks && html`<p><a href=${address.sessionAddress(thread.id)}>It asks for permission: answer it</a></p>`}
    ${isWrong && !thread.read_only && itself?.state === "stalled" && itself.last_run?.id === run.id && html`<p class="buttons">
      <${Do} class="primary" title=${command(thread, "resume", consumer)} action=${() => post(api([thread.id, "consumers", consumer, "resume"])).then(() => address.go(address.look(thread.id, "c", consumer)))}>Resume ${visible(consumer)}<//></p>`}
    <h2>Where its time went</h2>
    <${Timeline} thread=${thread} run=${run} spans=${timeline} />
    ${run.timeline_truncated && html`<p class="hint">There is more: the events below have the rest.</p>`}
    <h2>What it printed</h2>
    ${cut && html`<p class="hint">The end of ${bytesText(bytes)}.</p>`}
    ${output ? html`<${Plain} text=${visible(output)} label="Output" />` : html`<p class="hint">${output === undefined && outcome !== "running" ? "Its log is not kept any more." : "Nothing."}</p>`}
    <${Events} thread=${thread} events=${handled} title="What it was given" none=${itself && itself.settings.deliver !== "wake" ? "Nothing on stdin." : "It takes its events itself, one after the other."} />
    <${Events} thread=${thread} events=${meanwhile} title="Stored during the run, by it and by others" none="Nothing." />
    <${AsCommand} lines=${[command(thread, "logs", consumer), `${command(thread, "info", consumer)} --runs`]} />`;
}

function given(thread, { first_event: first, last_event: last }) {
  return first === last ? address.eventsAddress(thread.id, { event: first }) : address.eventsAddress(thread.id, { filter: `id >= ${first} AND id <= ${last}` });
}

function Events({ thread, events, title, none }) {
  return html`<h2>${title}</h2>
    ${events.length === 0 && html`<p class="hint">${none}</p>`}
    <ol class="brief rows">${events.map(({ id, created_at: at, type, subtype, source, content }) => html`<li key=${id}>
      <a class="row" href=${address.eventsAddress(thread.id, { event: id })}><span class="figure">${id}</span><${Stamp} time=${at} />
      <span>${visible(subtype ?? type)}</span><span class="text">${visible(beginning(content, 160))}</span></a></li>`)}</ol>`;
}
