// One event: its fields, its content, who handled it, and its dead letters.

import { html, useEffect, useState } from "../vendor/preact.js";
import { Do, Large, Plain } from "../parts.js";
import { announce } from "../announce.js";
import { Markdown } from "../markdown.js";
import { Ago, Stamp } from "../time.js";
import { bytesText, jsonText, visible } from "../text.js";
import { Question } from "./actions.js";
import { api, get, post } from "./api.js";
import { AsCommand, command } from "./command.js";
import { Letter } from "./letter.js";
import { Why, Word, count, wordOf } from "./words.js";
import * as address from "../address.js";

export function Event({ thread, id, filter }) {
  const [{ answer, error }, setFound] = useState({});
  // Read again when it has been handled.
  const about = [thread.dead, ...thread.consumers_state.map(({ cursor, pending, run, last_run: last }) => `${cursor >= id} ${pending} ${run?.id} ${last?.id}`)].join();
  const [changes, setChanges] = useState(0);
  useEffect(() => {
    const gone = new AbortController();
    get(api([thread.id, "events", id]), gone.signal).then((answer) => setFound({ answer }),
      (error) => { if (error.name !== "AbortError") setFound({ error: error.message }); });
    return () => gone.abort();
  }, [about, changes]);
  const to = (event) => address.eventsAddress(thread.id, { event, filter });
  return html`<section class="event" aria-label=${`Event ${id}`}>
    <div class="bar"><h2>Event ${id}</h2><span class="space"></span>
      ${answer && html`<a class="button" href=${address.traceAddress(thread.id, id)}>Trace</a>`}
      ${answer?.next && html`<a class="button" href=${to(answer.next)}>Newer</a>`}
      ${answer?.previous && html`<a class="button" href=${to(answer.previous)}>Older</a>`}
      <a class="button" href=${address.eventsAddress(thread.id, { filter })} aria-label="Close the event">✕</a></div>
    ${error && html`<p class="error" role="alert">${error}</p>`}
    ${answer && html`<${Whole} thread=${thread} answer=${answer} onChange=${() => setChanges((n) => n + 1)} />`}
  </section>`;
}

function Whole({ thread, answer: { event, content_url: url, handled = [], dead = [], steps = [] }, onChange }) {
  const only = (field, value) => address.eventsAddress(thread.id, { filter: `${field} = '${String(value).replaceAll("'", "''")}'` });
  const fields = [["stored", html`<${Stamp} time=${event.created_at} /> · <${Ago} time=${event.created_at} />`],
    ["source", html`<a href=${only("source", event.source)}>${visible(event.source)}</a>`],
    ["type", html`<a href=${only("type", event.type)}>${visible(event.type)}</a>`],
    ["subtype", event.subtype && html`<a href=${only("subtype", event.subtype)}>${visible(event.subtype)}</a>`],
    ["size", bytesText(event.content_bytes)]];
  return html`
    <dl class="fields">${fields.filter(([, value]) => value).map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>
    <${Content} text=${event.content} />
    ${event.content_bytes > new TextEncoder().encode(event.content).length && html`<${Large} large=${{ bytes: event.content_bytes, url }} what="The content" />`}
    ${event.metadata !== undefined && html`<h3>Metadata</h3><${Plain} text=${visible(jsonText(event.metadata))} label="Metadata" />`}
    ${event.metadata_bytes && html`<p class="hint">Its metadata has ${bytesText(event.metadata_bytes)}.</p>`}
    <h3>Who handled it?</h3>
    ${handled.length === 0 ? html`<p class="hint">No consumer wants it.</p>` : html`<ul class="plain-list">${handled.map(({ consumer, outcome, run, wait }) => html`<li key=${consumer}>
      <a href=${address.look(thread.id, "c", consumer)}>${visible(consumer)}</a>: ${OUTCOMES[outcome] ?? visible(outcome)}${
        run && html` · <a href=${address.look(thread.id, "c", consumer, run)}>the run</a>`}${
        outcome === "acknowledged" && html`<${GiveAgain} thread=${thread} name=${consumer} event=${event.id} onChange=${onChange} />`}${
        wait ? html`<${Waits} thread=${thread} consumer=${consumer} event=${event.id} wait=${wait} onChange=${onChange} />`
          : outcome === "pending" && html`<${Standing} thread=${thread} name=${consumer} />`}</li>`)}</ul>`}
    ${steps.length > 0 && html`<${Steps} thread=${thread} event=${event.id} steps=${steps} onChange=${onChange} />`}
    ${dead.length > 0 && html`<h3>Dead letter</h3><ul class="letters">${dead.map((letter) => html`<li key=${letter.consumer}>
      <${Letter} thread=${thread} letter=${letter} inEvent=${true} /></li>`)}</ul>`}
    <p class="buttons">${!thread.read_only && html`<a class="button" href=${`${address.look(thread.id, "push")}?like=${event.id}`}>Push another like it</a>`}</p>
    <${AsCommand} lines=${command(thread, "peek", "--last-event-id", event.id - 1, "--filter", `id = ${event.id}`)} />`;
}

/** Why an event is still pending for a consumer. */
function Standing({ thread, name }) {
  const consumer = thread.consumers_state.find((consumer) => consumer.name === name);
  if (!consumer || consumer.state === "idle") return null;
  const { run, last_run: last } = consumer;
  const shown = run?.id ?? last?.id;
  return html` · <${Word} state=${wordOf(thread, consumer)} /><${Why} consumer=${consumer} />${
    shown && html` · <a href=${address.look(thread.id, "c", name, shown)}>${run?.id ? "the run" : "the last run"}</a>`}`;
}

/** Delivers an event once more that was handled. */
function GiveAgain({ thread, name, event, onChange }) {
  const consumer = thread.consumers_state.find((consumer) => consumer.name === name);
  if (thread.read_only || !consumer?.command || consumer.settings.deliver === "wake") return null;
  const redo = () => post(api([thread.id, "consumers", name, "redo"]), { event }).then(() => { announce(`${name}: event ${event} is given again`); onChange(); });
  return html` <${Do} action=${redo} title=${command(thread, "redo", name, event)}>Give again<//>`;
}

/** Until when an event waits by itself, with a button that ends it. */
function Waits({ thread, consumer, event, wait: { attempts, until, is_asleep: asleep }, onChange }) {
  const resume = () => post(api([thread.id, "consumers", consumer, "resume"]), { event }).then(onChange);
  const why = asleep ? "asleep" : `after ${count(attempts, "failed attempt")}`;
  return html` · ${why}, ${until ? html`until <${Stamp} time=${until} />` : "until another event comes"}
    ${!thread.read_only && !asleep && html` <${Do} action=${resume} title=${command(thread, "resume", consumer, "--event", event)}>Try now<//>`}`;
}

const STATES = { begun: "begun", waiting: "waits", due: "due", done: "done", timed_out: "no event came in time" };

/** What handlers have done for an event. */
function Steps({ thread, event, steps, onChange }) {
  const [asked, setAsked] = useState(null);
  const several = new Set(steps.map(({ consumer }) => consumer)).size > 1;
  return html`<h3>Steps</h3>
    <table class="steps"><thead><tr>${several && html`<th scope="col">Consumer</th>`}<th scope="col">Step</th><th scope="col">State</th><th scope="col">When</th>
      <th scope="col">What</th>${!thread.read_only && html`<th scope="col"><span class="unseen">Change</span></th>`}</tr></thead>
      <tbody>${steps.map((step) => html`<tr key=${`${step.consumer} ${step.name}`}>${several && html`<td>${visible(step.consumer)}</td>`}
        <th scope="row"><code>${visible(step.name)}</code></th><td>${STATES[step.state] ?? visible(step.state)}</td>
        <td>${step.state === "waiting" && step.until && "until "}<${Stamp} time=${step.ended ?? (step.state === "waiting" && step.until ? step.until : step.began)} /></td>
        <td>${step.kind !== "step" && `${visible(step.kind)} `}<code>${visible(step.words)}</code></td>
        ${!thread.read_only && html`<td><button type="button" class="danger" aria-label=${`Forget ${visible(step.name)} …`} onClick=${() => setAsked(step)}>Forget …</button></td>`}</tr>`)}</tbody></table>
    <${AsCommand} lines=${command(thread, "step", "--list", "--event", event)} />
    ${asked && html`<${Forget} thread=${thread} event=${event} step=${asked} onDone=${onChange} onClose=${() => setAsked(null)} />`}`;
}

function Forget({ thread, event, step: { consumer, name, kind }, onDone, onClose }) {
  const act = () => post(api([thread.id, "consumers", consumer, "forget_step"]), { event, name }).then(onDone);
  return html`<${Question} title=${`Forget ${visible(name)}?`} verb="Forget" action=${act} onClose=${onClose}
      lines=${command(thread, "step", "--consumer", consumer, "--event", event, "--forget", name)}>
    <p>${kind === "step" ? "What it printed is forgotten: the next run for this event runs its command again." : "The next run for this event waits anew."}</p>
  <//>`;
}

const OUTCOMES = { acknowledged: "done", pending: "waits", dead: html`<span class="failure">dead letter</span>` };

/** A content that is JSON is shown as such at first. */
function Content({ text }) {
  const json = parsed(text);
  const [form, setForm] = useState(null);
  const shown = form ?? (json ? "JSON" : "Text");
  return html`<h3>Content</h3>
    <div class="choice" role="group" aria-label="Shown as">${["Text", ...(json ? ["JSON"] : []), "Markdown"].map((name) => html`
      <button type="button" key=${name} aria-pressed=${shown === name} onClick=${() => setForm(name)}>${name}</button>`)}</div>
    ${shown === "JSON" ? html`<${Plain} text=${visible(jsonText(json))} label="Content" />`
      : shown === "Markdown" ? html`<div class="answer"><${Markdown} text=${text} /></div>`
      : html`<${Plain} text=${visible(text)} label="Content" />`}`;
}

function parsed(text) {
  if (!/^\s*[{[]/.test(text)) return null;
  try { return JSON.parse(text); } catch { return null; }
}
