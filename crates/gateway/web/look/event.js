// One event: its fields, its content, who handled it, and its dead letters.

import { html, useEffect, useState } from "../vendor/preact.js";
import { t } from "../language.js";
import { Do, Large, Plain } from "../parts.js";
import { announce } from "../announce.js";
import { Markdown } from "../markdown.js";
import { Ago, Stamp } from "../time.js";
import { bytesText, jsonText, visible } from "../text.js";
import { Question } from "./actions.js";
import { api, get, post } from "./api.js";
import { AsCommand, command } from "./command.js";
import { Given, before } from "./given.js";
import { Letter } from "./letter.js";
import { Why, Word, wordOf } from "./words.js";
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
  return html`<section class="event" aria-label=${t("event_id", { id: String(id) })}>
    <div class="bar"><h2>${t("event_id", { id: String(id) })}</h2><span class="space"></span>
      ${answer && html`<a class="button" href=${address.traceAddress(thread.id, id)}>${t("trace")}</a>`}
      ${answer?.next && html`<a class="button" href=${to(answer.next)}>${t("newer")}</a>`}
      ${answer?.previous && html`<a class="button" href=${to(answer.previous)}>${t("older")}</a>`}
      <a class="button" href=${address.eventsAddress(thread.id, { filter })} aria-label=${t("close_the_event")}>✕</a></div>
    ${error && html`<p class="error" role="alert">${error}</p>`}
    ${answer && html`<${Whole} thread=${thread} answer=${answer} onChange=${() => setChanges((n) => n + 1)} />`}
  </section>`;
}

function Whole({ thread, answer: { event, content_url: url, handled = [], dead = [], steps = [] }, onChange }) {
  // By consumer, until the page is left.
  const [given, setGiven] = useState({});
  const onGiven = (one) => { setGiven((given) => ({ ...given, [one.consumer]: one })); onChange(); };
  // It is no dead letter if it was just given again.
  const isGoing = ({ consumer, retrying }) => retrying && given[consumer];
  const letters = dead.filter((letter) => !isGoing(letter)), going = dead.filter(isGoing).map(({ consumer }) => consumer);
  const only = (field, value) => address.eventsAddress(thread.id, { filter: `${field} = '${String(value).replaceAll("'", "''")}'` });
  const fields = [[t("stored"), html`<${Stamp} time=${event.created_at} /> · <${Ago} time=${event.created_at} />`],
    [t("source"), html`<a href=${only("source", event.source)}>${visible(event.source)}</a>`],
    [t("type"), html`<a href=${only("type", event.type)}>${visible(event.type)}</a>`],
    [t("subtype"), event.subtype && html`<a href=${only("subtype", event.subtype)}>${visible(event.subtype)}</a>`],
    [t("size"), bytesText(event.content_bytes)]];
  return html`
    <dl class="fields">${fields.filter(([, value]) => value).map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>
    <${Content} text=${event.content} />
    ${event.content_bytes > new TextEncoder().encode(event.content).length && html`<${Large} large=${{ bytes: event.content_bytes, url }} what=${t("the_content")} />`}
    ${event.metadata !== undefined && html`<h3>${t("metadata")}</h3><${Plain} text=${visible(jsonText(event.metadata))} label=${t("metadata")} />`}
    ${event.metadata_bytes && html`<p class="hint">${t("its_metadata_has_size", { size: bytesText(event.metadata_bytes) })}</p>`}
    <h3>${t("who_handled_it")}</h3>
    ${handled.length === 0 ? html`<p class="hint">${t("no_consumer_wants_it")}</p>` : html`<ul class="plain-list">${handled.map(({ consumer, outcome, run, wait }) => html`<li key=${consumer}>
      <a href=${address.look(thread.id, "c", consumer)}>${visible(consumer)}</a>: ${
        going.includes(consumer) ? t("waits") : OUTCOMES[outcome] ?? visible(outcome)}${
        run && html` · <a href=${address.look(thread.id, "c", consumer, run)}>${t("the_run_2")}</a>`}${
        outcome === "acknowledged" && html`<${GiveAgain} thread=${thread} name=${consumer} event=${event.id} onGiven=${onGiven} />`}${
        wait ? html`<${Waits} thread=${thread} consumer=${consumer} event=${event.id} wait=${wait} onChange=${onChange} />`
          : outcome === "pending" && html`<${Standing} thread=${thread} name=${consumer} />`}${
        given[consumer] && html`<${Given} thread=${thread} given=${given[consumer]} />`}</li>`)}</ul>`}
    ${steps.length > 0 && html`<${Steps} thread=${thread} event=${event.id} steps=${steps} onChange=${onChange} />`}
    ${letters.length > 0 && html`<h3>${t("dead_letter")}</h3><ul class="letters">${letters.map((letter) => html`<li key=${letter.consumer}>
      <${Letter} thread=${thread} letter=${letter} inEvent=${true} onGiven=${onGiven} onDone=${onChange} /></li>`)}</ul>`}
    <p class="buttons">${!thread.read_only && html`<a class="button" href=${`${address.look(thread.id, "push")}?like=${event.id}`}>${t("push_another_like_it")}</a>`}</p>
    <${AsCommand} lines=${command(thread, "peek", "--last-event-id", event.id - 1, "--filter", `id = ${event.id}`)} />`;
}

/** Why an event is still pending for a consumer. */
function Standing({ thread, name }) {
  const consumer = thread.consumers_state.find((consumer) => consumer.name === name);
  if (!consumer || consumer.state === "idle") return null;
  const { run, last_run: last } = consumer;
  const shown = run?.id ?? last?.id;
  return html` · <${Word} state=${wordOf(thread, consumer)} /><${Why} consumer=${consumer} />${
    shown && html` · <a href=${address.look(thread.id, "c", name, shown)}>${run?.id ? t("the_run_2") : t("the_last_run")}</a>`}`;
}

/** Delivers an event once more that was handled. */
function GiveAgain({ thread, name, event, onGiven }) {
  const consumer = thread.consumers_state.find((consumer) => consumer.name === name);
  if (thread.read_only || !consumer?.command || consumer.settings.deliver === "wake") return null;
  const redo = async () => {
    const given = before(thread, name, event);
    await post(api([thread.id, "consumers", name, "redo"]), { event });
    announce(t("name_event_id_is_given_again", { name, id: String(event) }));
    onGiven(given);
  };
  return html` <${Do} class="quiet" action=${redo}
    title=${command(thread, "redo", name, event)}>${t("give_again")}<//>`;
}

/** Until when an event waits by itself, with a button that ends it. */
function Waits({ thread, consumer, event, wait: { attempts, until, is_asleep: asleep }, onChange }) {
  const resume = () => post(api([thread.id, "consumers", consumer, "resume"]), { event }).then(onChange);
  const why = asleep ? t("asleep") : t("after_n_failed_attempts", { n: attempts });
  return html` · ${why}, ${until ? t("until_time", { time: html`<${Stamp} time=${until} />` }) : t("until_another_event_comes")}
    ${!thread.read_only && !asleep && html` <${Do} action=${resume} title=${command(thread, "resume", consumer, "--event", event)}>${t("try_now")}<//>`}`;
}

const STATES = {
  begun: t("begun"), waiting: t("waits"), due: t("due"), done: t("done"), timed_out: t("no_event_came_in_time"),
};

/** What handlers have done for an event. */
function Steps({ thread, event, steps, onChange }) {
  const [asked, setAsked] = useState(null);
  const several = new Set(steps.map(({ consumer }) => consumer)).size > 1;
  return html`<h3>${t("steps")}</h3>
    <table class="steps"><thead><tr>${several && html`<th scope="col">${t("consumer")}</th>`}<th scope="col">${t("step")}</th><th scope="col">${t("state")}</th><th scope="col">${t("when")}</th>
      <th scope="col">${t("what")}</th>${!thread.read_only && html`<th scope="col"><span class="unseen">${t("change")}</span></th>`}</tr></thead>
      <tbody>${steps.map((step) => html`<tr key=${`${step.consumer} ${step.name}`}>${several && html`<td>${visible(step.consumer)}</td>`}
        <th scope="row"><code>${visible(step.name)}</code></th><td>${STATES[step.state] ?? visible(step.state)}</td>
        <td>${step.state === "waiting" && step.until ? t("until_time", { time: html`<${Stamp} time=${step.until} />` })
          : html`<${Stamp} time=${step.ended ?? step.began} />`}</td>
        <td>${step.kind !== "step" && `${visible(step.kind)} `}<code>${visible(step.words)}</code></td>
        ${!thread.read_only && html`<td><button type="button" class="danger" aria-label=${t("forget_name", { name: visible(step.name) })} onClick=${() => setAsked(step)}>${t("forget")}</button></td>`}</tr>`)}</tbody></table>
    <${AsCommand} lines=${command(thread, "step", "--list", "--event", event)} />
    ${asked && html`<${Forget} thread=${thread} event=${event} step=${asked} onDone=${onChange} onClose=${() => setAsked(null)} />`}`;
}

function Forget({ thread, event, step: { consumer, name, kind }, onDone, onClose }) {
  const act = () => post(api([thread.id, "consumers", consumer, "forget_step"]), { event, name }).then(onDone);
  return html`<${Question} title=${t("forget_name_2", { name: visible(name) })} verb=${t("forget_2")} action=${act} onClose=${onClose}
      lines=${command(thread, "step", "--consumer", consumer, "--event", event, "--forget", name)}>
    <p>${kind === "step" ? t("what_it_printed_is_forgotten_the_next")
      : t("the_next_run_for_this_event_waits_again")}</p>
  <//>`;
}

const OUTCOMES = { acknowledged: t("done"), pending: t("waits"), dead: html`<span class="failure">${t("dead_letter_2")}</span>` };

/** A content that is JSON is shown as such at first. */
function Content({ text }) {
  const json = parsed(text);
  const [form, setForm] = useState(null);
  const shown = form ?? (json ? "JSON" : "Text");
  return html`<h3>${t("content")}</h3>
    <div class="choice" role="group" aria-label=${t("shown_as")}>${["Text", ...(json ? ["JSON"] : []), "Markdown"].map((name) => html`
      <button type="button" key=${name} aria-pressed=${shown === name} onClick=${() => setForm(name)}>${
        name === "Text" ? t("text") : name}</button>`)}</div>
    ${shown === "JSON" ? html`<${Plain} text=${visible(jsonText(json))} label=${t("content")} />`
      : shown === "Markdown" ? html`<div class="answer"><${Markdown} text=${text} /></div>`
      : html`<${Plain} text=${visible(text)} label=${t("content")} />`}`;
}

function parsed(text) {
  if (!/^\s*[{[]/.test(text)) return null;
  try { return JSON.parse(text); } catch { return null; }
}
