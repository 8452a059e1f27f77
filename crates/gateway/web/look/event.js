// One event: its fields, its content, who handled it, and its dead letters.

import { html, useEffect, useState } from "../vendor/preact.js";
import { Large, Plain } from "../parts.js";
import { Markdown } from "../markdown.js";
import { Ago, Stamp } from "../time.js";
import { bytesText, jsonText, visible } from "../text.js";
import { api, get } from "./api.js";
import { AsCommand, command } from "./command.js";
import { Letter } from "./letter.js";
import { Why, Word, wordOf } from "./words.js";
import * as address from "../address.js";

export function Event({ thread, id, filter }) {
  const [{ answer, error }, setFound] = useState({});
  // Read again when it has been handled.
  const about = [thread.dead, ...thread.consumers_state.map(({ cursor, run }) => `${cursor >= id} ${run?.id}`)].join();
  useEffect(() => {
    const gone = new AbortController();
    get(api([thread.id, "events", id]), gone.signal).then((answer) => setFound({ answer }),
      (error) => { if (error.name !== "AbortError") setFound({ error: error.message }); });
    return () => gone.abort();
  }, [about]);
  const to = (event) => address.eventsAddress(thread.id, { event, filter });
  return html`<section class="event" aria-label=${`Event ${id}`}>
    <div class="bar"><h2>Event ${id}</h2><span class="space"></span>
      ${answer?.next && html`<a class="button" href=${to(answer.next)}>Newer</a>`}
      ${answer?.previous && html`<a class="button" href=${to(answer.previous)}>Older</a>`}
      <a class="button" href=${address.eventsAddress(thread.id, { filter })} aria-label="Close the event">✕</a></div>
    ${error && html`<p class="error" role="alert">${error}</p>`}
    ${answer && html`<${Whole} thread=${thread} answer=${answer} />`}
  </section>`;
}

function Whole({ thread, answer: { event, content_url: url, handled = [], dead = [] } }) {
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
    ${handled.length === 0 ? html`<p class="hint">No consumer wants it.</p>` : html`<ul class="plain-list">${handled.map(({ consumer, outcome, run }) => html`<li key=${consumer}>
      <a href=${address.look(thread.id, "c", consumer)}>${visible(consumer)}</a>: ${OUTCOMES[outcome] ?? visible(outcome)}${
        run && html` · <a href=${address.look(thread.id, "c", consumer, run)}>the run</a>`}${
        outcome === "pending" && html`<${Standing} thread=${thread} name=${consumer} />`}</li>`)}</ul>`}
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
