// The actions on a consumer. Those that end or repeat work ask first.

import { html, useState } from "../vendor/preact.js";
import { Dialog } from "../dialog.js";
import { Do } from "../parts.js";
import { announce } from "../announce.js";
import { visible } from "../text.js";
import { api, post } from "./api.js";
import { AsCommand, command } from "./command.js";
import { cameOf, count } from "./words.js";

/** A question before an action that cannot be undone. `action` resolves when it is done. */
export function Question({ title, verb, action, lines, disabled = false, class: name = "danger", onClose, children }) {
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const run = async (event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      await action();
      onClose();
    } catch (error) {
      setError(error.message);
      setBusy(false);
    }
  };
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <form class="question-form" onSubmit=${run}>
      ${children}
      ${error && html`<p class="error" role="alert">${error}</p>`}
      <p class="buttons"><button type="button" onClick=${onClose}>Leave it</button>
        <button class=${name} disabled=${disabled || busy}>${verb}</button></p>
      <${AsCommand} lines=${lines} />
    </form>
  <//>`;
}

/** The buttons of a consumer that apply in its state. */
export function Actions({ thread, consumer }) {
  const [asked, setAsked] = useState(null);
  const [resumed, setResumed] = useState(null);
  if (thread.read_only) return null;
  const { name, state } = consumer;
  const resume = () => { const before = consumer.last_run?.id; return act("resume").then(() => setResumed({ before })); };
  const act = (verb, body) => post(api([thread.id, "consumers", name, verb]), body).then(() => announce(`${name}: ${verb}`));
  const close = () => setAsked(null);
  const [became, isWrong] = resumed && state !== "paused" ? cameOf(consumer, resumed.before) : [];
  const isOver = state === "stalled" || state === "paused" || state === "waiting" || (state === "idle" && consumer.pending > 0);
  const has = Boolean(consumer.command);
  return html`
    ${has && isOver && html`<${Do} class=${state === "stalled" ? "primary" : ""} action=${resume} title=${command(thread, "resume", name)}>Resume<//>`}
    ${(state === "running" || state === "waiting") && html`<button type="button" class="stop" onClick=${() => setAsked("stop")}>Stop …</button>`}
    ${has && state !== "paused" && html`<${Do} action=${() => act("pause")} title=${command(thread, "pause", name)}>Pause<//>`}
    <button type="button" onClick=${() => setAsked("seek")}>Seek …</button>
    ${became && html`<span class=${isWrong ? "came-of failure" : "came-of hint"} role="status">Resumed: ${became}.</span>`}
    ${asked === "stop" && html`<${Stop} thread=${thread} consumer=${consumer} act=${act} onClose=${close} />`}
    ${asked === "seek" && html`<${Seek} thread=${thread} consumer=${consumer} act=${act} onClose=${close} />`}`;
}

/** The commands that do the same as the buttons. */
export function commandsOf(thread, { name, state }) {
  const verbs = { stalled: ["resume"], paused: ["resume"], waiting: ["resume", "stop", "pause"], running: ["stop", "pause"] }[state] ?? ["pause"];
  return [`${command(thread, "info", name)}`, ...verbs.map((verb) => command(thread, verb, name)), `${command(thread, "logs", name)} --tail 50`];
}

function Stop({ thread, consumer, act, onClose }) {
  const [skip, setSkip] = useState(false);
  const { name, state } = consumer;
  return html`<${Question} title=${`Stop ${visible(name)}?`} verb="Stop" action=${() => act("stop", { skip })} onClose=${onClose}
      lines=${command(thread, "stop", name, skip ? "--skip" : "")}>
    <p>${state === "running" ? "Its run is ended: its processes get TERM, and KILL ten seconds later." : "It does not try again."}
      ${" "}It is then stalled, until it is resumed or an event comes that it wants.</p>
    <label><input type="checkbox" checked=${skip} onChange=${(event) => setSkip(event.target.checked)} /> Skip its events: they are not delivered again</label>
  <//>`;
}

const PLACES = [
  ["earliest", "the beginning", "everything is delivered again"],
  ["latest", "the end", "what waits is skipped"],
  ["event", "after an event", "the next one read is the one after it"],
  ["time", "a time, or an age like 10m", "the next one read is the first stored then or later"],
];

function Seek({ thread, consumer, act, onClose }) {
  const [place, setPlace] = useState("event");
  const [id, setId] = useState(String(consumer.cursor));
  const [time, setTime] = useState("10m");
  const to = { event: id.trim(), time: time.trim() }[place] ?? place;
  return html`<${Question} title=${`Move the cursor of ${visible(consumer.name)}`} verb="Move it" class="primary" disabled=${!to} onClose=${onClose}
      action=${() => act("seek", { to: /^\d+$/.test(to) ? Number(to) : to })} lines=${command(thread, "seek", consumer.name, to)}>
    <p>It stands after event ${consumer.cursor}; ${count(consumer.pending, "event")} ${consumer.pending === 1 ? "waits" : "wait"}. If something waits afterwards, it is started.</p>
    <fieldset><legend>Where to?</legend>${PLACES.map(([value, name, effect]) => html`<div key=${value}>
      <label><input type="radio" name="place" value=${value} checked=${place === value} onChange=${() => setPlace(value)} /> ${name}: <span class="hint">${effect}</span></label>
      ${place === value && value === "event" && html`<input inputmode="numeric" aria-label="Event" value=${id} onInput=${(event) => setId(event.target.value)} />`}
      ${place === value && value === "time" && html`<input aria-label="Time or age" value=${time} onInput=${(event) => setTime(event.target.value)} />`}
    </div>`)}</fieldset>
  <//>`;
}
