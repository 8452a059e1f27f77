// The actions on a consumer. Those that end or repeat work ask first.

import { html, useState } from "../vendor/preact.js";
import { t } from "../language.js";
import { Dialog } from "../dialog.js";
import { Do } from "../parts.js";
import { announce } from "../announce.js";
import { visible } from "../text.js";
import { api, post } from "./api.js";
import { AsCommand, command } from "./command.js";
import { cameOf } from "./words.js";

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
      <p class="buttons"><button type="button" onClick=${onClose}>${t("leave_it")}</button>
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
    ${has && isOver && html`<${Do} class=${state === "stalled" ? "primary" : ""} action=${resume} title=${command(thread, "resume", name)}>${t("resume")}<//>`}
    ${(state === "running" || state === "waiting") && html`<button type="button" class="stop" onClick=${() => setAsked("stop")}>${t("stop_2")}</button>`}
    ${has && state !== "paused" && html`<${Do} action=${() => act("pause")} title=${command(thread, "pause", name)}>${t("pause")}<//>`}
    <button type="button" onClick=${() => setAsked("seek")}>${t("seek")}</button>
    ${became && html`<span class=${isWrong ? "came-of failure" : "came-of hint"} role="status">${t("resumed_what", { what: became })}</span>`}
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
  return html`<${Question} title=${t("stop_name", { name: visible(name) })} verb=${t("stop")} action=${() => act("stop", { skip })} onClose=${onClose}
      lines=${command(thread, "stop", name, skip ? "--skip" : "")}>
    <p>${state === "running" ? t("its_run_is_ended_its_processes_get_term") : t("it_does_not_try_again")}
      ${" "}${t("it_is_then_stalled_until_it_is_resumed")}</p>
    <label><input type="checkbox" checked=${skip} onChange=${(event) => setSkip(event.target.checked)} /> ${t("skip_its_events_they_are_not_delivered")}</label>
  <//>`;
}

const PLACES = [
  ["earliest", t("the_beginning"), t("everything_is_delivered_again")],
  ["latest", t("the_end"), t("what_waits_is_skipped")],
  ["event", t("after_an_event"), t("the_next_one_read_is_the_one_after_it")],
  ["time", t("a_time_or_an_age_like_10m"), t("the_next_one_read_is_the_first_stored")],
];

function Seek({ thread, consumer, act, onClose }) {
  const [place, setPlace] = useState("event");
  const [id, setId] = useState(String(consumer.cursor));
  const [time, setTime] = useState("10m");
  const to = { event: id.trim(), time: time.trim() }[place] ?? place;
  return html`<${Question} title=${t("move_the_cursor_of_name", { name: visible(consumer.name) })} verb=${t("move_it")} class="primary" disabled=${!to} onClose=${onClose}
      action=${() => act("seek", { to: /^\d+$/.test(to) ? Number(to) : to })} lines=${command(thread, "seek", consumer.name, to)}>
    <p>${t("it_stands_after_event_id_waiting_if",
      { id: String(consumer.cursor), waiting: t("n_events_wait", { n: consumer.pending }) })}</p>
    <fieldset><legend>${t("where_to")}</legend>${PLACES.map(([value, name, effect]) => html`<div key=${value}>
      <label><input type="radio" name="place" value=${value} checked=${place === value} onChange=${() => setPlace(value)} /> ${name}: <span class="hint">${effect}</span></label>
      ${place === value && value === "event" && html`<input inputmode="numeric" aria-label=${t("event")} value=${id} onInput=${(event) => setId(event.target.value)} />`}
      ${place === value && value === "time" && html`<input aria-label=${t("time_or_age")} value=${time} onInput=${(event) => setTime(event.target.value)} />`}
    </div>`)}</fieldset>
  <//>`;
}
