// A form that pushes an event, with the command that does the same.

import { html, useEffect, useState } from "../vendor/preact.js";
import { t } from "../language.js";
import { forms, randomId } from "../kept.js";
import { announce } from "../announce.js";
import { Stamp } from "../time.js";
import { jsonText } from "../text.js";
import { api, get, post } from "./api.js";
import { Line, command, quoted } from "./command.js";
import * as address from "../address.js";

const EMPTY = { content: "", type: "message", subtype: "", source: "internal:dm:default:page", metadata: "", key: "", at: "" };

export function Push({ thread, route }) {
  const [form, setForm] = useState(() => ({ ...EMPTY, ...forms.get(thread.id) }));
  const [error, setError] = useState(null);
  const [stored, setStored] = useState(null);
  const [busy, setBusy] = useState(false);
  const set = (changed) => {
    setStored(null);
    setForm((form) => {
      const now = { ...form, ...changed, own: undefined };
      forms.set(thread.id, now);
      return now;
    });
  };
  const { like } = route.params;
  useEffect(() => {
    if (!like) return;
    get(api([thread.id, "events", like])).then(({ event }) => set({ content: event.content, type: event.type, subtype: event.subtype ?? "", source: event.source,
      metadata: event.metadata === undefined ? "" : jsonText(event.metadata), key: "" }), (error) => setError(error.message));
    address.replace(address.look(thread.id, "push"));
  }, [like]);
  if (thread.read_only) return html`<div class="page"><h1>${t("push_an_event")}</h1><p class="verdict">${t("nothing_can_be_pushed_from_here")}</p></div>`;
  const field = (name, label, hint, more = {}) => html`<label><span>${label}: <span class="hint">${hint}</span></span>
    <input value=${form[name]} spellcheck=${false} autocomplete="off" ...${more} onInput=${(event) => set({ [name]: event.target.value })} /></label>`;
  const submit = async (event) => {
    event.preventDefault();
    setError(null);
    setStored(null);
    let metadata;
    try {
      metadata = form.metadata.trim() ? JSON.parse(form.metadata) : undefined;
    } catch (error) {
      return setError(t("the_metadata_is_not_json_why_give_an", { why: error.message, example: `{"run_id": "17"}` }));
    }
    if (form.at && new Date(form.at) <= new Date()) return setError(t("this_time_is_over"));
    setBusy(true);
    try {
      // The event is stored once even if the answer is lost and it is sent again.
      const answer = await post(api([thread.id, "events"]), { source: form.source, type: form.type, subtype: form.subtype || undefined, content: form.content,
        metadata, idempotency_key: form.key || (form.own ??= randomId()), at: instant(form.at) });
      // A pushed event is not pushed again by accident: for that there is "Push another like it".
      set({ content: "", key: "", at: "" });
      setStored(answer);
      announce(answer.scheduled ? t("scheduled_as_id", { id: answer.scheduled }) : t("stored_as_event_id", { id: String(answer.id) }));
    } catch (error) {
      setError(error.message);
    }
    setBusy(false);
  };
  return html`<div class="page">
    <h1>${t("push_an_event")}</h1>
    <form class="push" onSubmit=${submit}>
      <label class="whole"><span>${t("content")}</span> <textarea rows="5" dir="auto" value=${form.content} onInput=${(event) => set({ content: event.target.value })}></textarea></label>
      <label><span>${t("type_2")}</span> <select value=${form.type} onChange=${(event) => set({ type: event.target.value })}>
        <option value="message">${t("message_between_actors")}</option><option value="record">${t("record_an_actors_own_trace")}</option></select></label>
      ${field("subtype", t("subtype_2"), t("what_kind_of_message_or_record_if_you"))}
      ${field("source", t("source_2"), t("who_sends_it"), { required: true })}
      ${field("metadata", t("metadata"), t("a_json_object"))}
      ${field("key", t("idempotency_key"), t("pushed_twice_under_one_key_it_is_stored"))}
      ${field("at", t("when"), t("now_if_it_is_empty"), { type: "datetime-local" })}
      ${error && html`<p class="error whole" role="alert">${error}</p>`}
      <p class="buttons whole"><button class="primary" disabled=${busy || !form.content}>${t("push_2")}</button></p>
      ${stored && html`<p class="stored whole" role="status">${storedText(thread, stored)}</p>`}
    </form>
    <h2>${t("as_a_command")}</h2>
    <${Line} lines=${asCommand(thread, form)} />
  </div>`;
}

/** The time of a field, whose zone is the browser's: the gateway's may be another. */
const instant = (at) => (at ? new Date(at).toISOString() : undefined);

function storedText(thread, { id, deduplicated, scheduled, scheduled_at: at }) {
  if (scheduled) {
    return t("it_comes_time_as_id_see_to_come", {
      time: html`<${Stamp} time=${at} />`, id: html`<code>${scheduled}</code>`,
      to_come: html`<a href=${address.look(thread.id)}>${t("what_is_to_come")}</a>` });
  }
  const event = html`<a href=${address.eventsAddress(thread.id, { event: id })}>${t("event_id_2", { id: String(id) })}</a>`;
  return deduplicated ? t("it_was_stored_already_as_event", { event }) : t("stored_as_event", { event });
}

function asCommand(thread, { content, type, subtype, source, metadata, key, at }) {
  const options = ["--source", source, ...(type === "message" ? [] : ["--type", type]), ...(subtype ? ["--subtype", subtype] : []),
    ...(metadata.trim() ? ["--metadata", metadata.trim()] : []), ...(key ? ["--idempotency-key", key] : []),
    ...(instant(at) ? ["--at", instant(at)] : [])];
  // An empty text is an argument too.
  const text = content === "" ? " ''" : content.startsWith("-") ? ["", "--", quoted(content)].join(" ") : ` ${quoted(content)}`;
  return command(thread, "push", ...options) + text;
}
