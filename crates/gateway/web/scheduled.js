// Messages that are sent later: the question when, and the list above the box of what is to come.

import { html, useState } from "./vendor/preact.js";
import { t } from "./language.js";
import { Dialog } from "./dialog.js";
import { Do } from "./parts.js";
import { Stamp } from "./time.js";
import { beginning, visible } from "./text.js";
import { readOnly, state } from "./state.js";

/** The units of a delay, in milliseconds. */
const UNITS = [[60_000, t("minutes")], [3_600_000, t("hours")], [86_400_000, t("days")]];

/** A time in the form of a field, by the clock here: the minute that begins then or next. */
function inField(time) {
  const end = new Date(Date.parse(time) + 59_999);
  return new Date(end - end.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

/** Asks when to send a message. `due`: when it was to be sent before. `onSend` is called with the time, as the gateway
 * takes it. */
export function Later({ due, onSend, onClose }) {
  const [amount, setAmount] = useState("30");
  const [unit, setUnit] = useState(UNITS[0][0]);
  const [at, setAt] = useState(due ? inField(due) : "");
  const [error, setError] = useState(null);
  const send = (timeOf) => (event) => {
    event.preventDefault();
    const time = timeOf();
    if (!(time > Date.now())) return setError(t("this_time_is_over_2"));
    onClose();
    onSend(new Date(time).toISOString());
  };
  return html`<${Dialog} title=${t("send_later")} class="later" onClose=${onClose}>
    <form onSubmit=${send(() => Date.now() + Number(amount) * unit)}>
      <label>${t("in")} <input type="number" min="1" max="9999" required value=${amount} onInput=${({ target }) => setAmount(target.value)} /></label>
      <select aria-label=${t("unit")} value=${unit} onChange=${({ target }) => setUnit(Number(target.value))}>
        ${UNITS.map(([ms, name]) => html`<option value=${ms}>${name}</option>`)}</select>
      <button class="primary">${t("schedule")}</button>
    </form>
    <form onSubmit=${send(() => Date.parse(at))}>
      <label>${t("at")} <input type="datetime-local" required value=${at} onInput=${({ target }) => { setError(null); setAt(target.value); }} /></label>
      <button>${t("schedule")}</button>
    </form>
    ${error && html`<p class="error" role="alert">${error}</p>`}
    <p class="hint">${t("it_comes_even_if_this_page_is_closed")}</p>
    <p class="buttons"><button type="button" onClick=${onClose}>${t("leave_it")}</button></p>
  <//>`;
}

export function Scheduled({ conversation: { toCome, scheduled } }) {
  if (!toCome.length) return null;
  const hidden = scheduled - toCome.filter(({ rule }) => !rule).length;
  return html`<section class="strip" aria-label=${t("what_is_to_come")}><ol tabIndex="0" role="list">
    ${toCome.map((one) => html`<${One} key=${one.id} one=${one} />`)}
    ${hidden > 0 && html`<li class="hint">${t("n_scheduled_events_more", { n: hidden })}</li>`}
  </ol></section>`;
}

/** A scheduled message; or a schedule, which has a rule and is not cancelled here. */
function One({ one: { id, next, rule, content } }) {
  return html`<li>
    <span class="place">${next ? t("scheduled_for_time", { time: html`<${Stamp} time=${next} />` }) : t("paused")}</span>
    <span class="words">${visible(beginning(content, 200)) || t("attachments")}</span>
    ${rule && html`<span class="hint">${visible(rule)}</span>`}
    ${!rule && !readOnly && html`<span class="doing-with">
      <${Do} class="quiet" action=${() => state.doScheduled(id, "now")}>${t("send_now")}<//>
      <${Do} class="quiet" action=${() => state.doScheduled(id, "cancel")}>${t("cancel")}<//></span>`}
  </li>`;
}
