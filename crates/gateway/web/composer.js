// The box for messages. The text is kept in the browser until it is sent.

import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/preact.js";
import { t } from "./language.js";
import { Greeting, Picker, Prompts } from "./agents.js";
import { Completions, completed, completions } from "./commands.js";
import { Do } from "./parts.js";
import { Later } from "./scheduled.js";
import { upload } from "./attachments.js";
import { focusBox, hasKeyboard } from "./focus.js";
import { beginning, contentOf, draftOf } from "./text.js";
import { drafts } from "./kept.js";
import { state } from "./state.js";
import * as address from "./address.js";

/** The priorities to choose from while another message is being answered. */
const PRIORITIES = [
  ["next", t("after_this"), t("answered_after_what_is_under_way_in_the")],
  ["steer", t("in_the_middle_of_it"), t("given_to_the_agent_while_it_works_if_it")],
  ["now", t("interrupting_it"), t("answered_at_once_what_is_under_way_is")],
  ["later", t("when_idle"), t("answered_when_no_other_message_waits")],
];


/** `session`: the key under which the draft is kept; `edited`: the exchange whose message is changed, for a copy. */
export function Composer({ session, activeRun, isBusy, edited, dropped }) {
  const [draft, setDraft] = useState(() => {
    const kept = drafts.get(session);
    return edited && !kept.text && !kept.files.length ? draftOf(edited.message) : kept;
  });
  const [error, setError] = useState(null);
  const [uploading, setUploading] = useState(0);
  const area = useRef(), picker = useRef();
  const { text, files, priority = "next", agent, due } = draft;
  const [chosen, setChosen] = useState(0);
  const [left, setLeft] = useState(null);
  const [asksWhen, askWhen] = useState(false);
  const found = edited || session === "new" || left === text ? []
    : completions(text, state.conversation.commands);
  const at = Math.min(chosen, found.length - 1);
  const isEmpty = (!text.trim() && !files.length) || uploading > 0;

  const change = (change) => setDraft((draft) => {
    const next = { ...draft, ...change(draft) };
    drafts.set(session, next);
    return next;
  });
  const add = async (list) => {
    setError(null);
    for (const file of list) {
      setUploading((n) => n + 1);
      try {
        const stored = await upload(file);
        change((draft) => ({ files: [...draft.files, stored] }));
      } catch (error) {
        setError(error.message);
      }
      setUploading((n) => n - 1);
    }
  };
  /** `at`: when, if that is later. A message that was to be sent later before asks again. */
  const send = async (at) => {
    if (isEmpty) return;
    if (due && !at) return askWhen(true);
    setError(null);
    const content = files.length
      ? [...(text.trim() ? [{ type: "text", text }] : []), ...files.map((file) => file.part)]
      : text;
    try {
      if (edited) await state.sendCopy(edited, content);
      else await state.send(content, { priority, agent: session === "new" ? agent : undefined, at });
      change(() => ({ text: "", files: [], priority: "next" }));
    } catch (error) {
      setError(error.message);
    }
    area.current?.focus();
  };
  /** The button is gone then: the focus goes where one writes, unless it has gone elsewhere. */
  const stop = async () => {
    const button = document.activeElement;
    await state.cancel(activeRun);
    if ([button, document.body].includes(document.activeElement)) focusBox();
  };
  const suggest = (text) => {
    change(() => ({ text }));
    area.current.focus();
  };
  const complete = (command) => {
    change(() => ({ text: completed(command) }));
    setChosen(0);
  };
  /** The keys of the list of commands. Returns whether it was one of them. */
  const pick = (event) => {
    const steps = { ArrowDown: 1, ArrowUp: -1 };
    if (event.key in steps) setChosen((at + steps[event.key] + found.length) % found.length);
    else if (event.key === "Tab" || (event.key === "Enter" && !event.shiftKey)) complete(found[at]);
    else if (event.key === "Escape") setLeft(text);
    else return false;
    event.preventDefault();
    event.stopPropagation();
    return true;
  };
  const press = (event) => {
    if (found.length && !event.isComposing && pick(event)) return;
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || !hasKeyboard()) return;
    event.preventDefault();
    send();
  };
  const paste = (event) => {
    const list = [...event.clipboardData.files];
    if (!list.length) return;
    event.preventDefault();
    add(list);
  };

  useLayoutEffect(() => {
    // As high as its text, up to the maximum in the style.
    area.current.style.height = "auto";
    area.current.style.height = `${area.current.scrollHeight + 2}px`;
  }, [text]);
  // Focused at once; on a phone only for a new session or a changed message.
  useLayoutEffect(() => {
    if (!hasKeyboard() && !edited && session !== "new") return;
    area.current.setSelectionRange(text.length, text.length);
    area.current.focus();
  }, []);
  useEffect(() => { if (dropped?.length) add(dropped); }, [dropped]);

  return html`<form class="composer" onSubmit=${(event) => { event.preventDefault(); send(); }}>
    ${edited && html`<p class="hint copying">${t("changes_text_in_a_variant_of_this",
        { text: beginning(contentOf(edited.message.content).text, 40) })} ${" "}
      <a href=${address.sessionAddress(state.conversation.id)}>${t("leave_it")}</a></p>`}
    ${session === "new" && html`<${Greeting} name=${agent} />`}
    <div class="box">
    ${files.length + uploading > 0 && html`<ul class="files" aria-label=${t("attachments")}>
      ${files.map((file, n) => html`<li>${file.name} <button type="button" class="quiet" aria-label=${t("remove_name", { name: file.name })}
        onClick=${() => change((draft) => ({ files: draft.files.filter((_, other) => other !== n) }))}>✕</button></li>`)}
      ${uploading > 0 && html`<li class="hint">${t("storing")}</li>`}
    </ul>`}
    ${found.length > 0 && html`<${Completions} found=${found} chosen=${at} onChoose=${complete} />`}
    <textarea id="message" name=${session} dir="auto" ref=${area} rows="1" placeholder=${t("message")}
      aria-label=${t("message")} value=${text} enterkeyhint="send"
      aria-autocomplete=${found.length ? "list" : null} aria-controls=${found.length ? "completions" : null}
      aria-activedescendant=${found.length ? `completion-${at}` : null}
      onInput=${({ target: { value } }) => change(() => ({ text: value }))} onKeyDown=${press} onPaste=${paste}></textarea>
    ${error && html`<p class="error" role="alert">${error}</p>`}
    <div class="bar">
      <input type="file" multiple hidden ref=${picker} aria-label=${t("files")} tabIndex="-1"
        onChange=${(event) => { add([...event.target.files]); event.target.value = ""; }} />
      <button type="button" onClick=${() => picker.current.click()}>${t("attach")}</button>
      ${session === "new" && html`<${Picker} value=${agent} onChange=${(agent) => change(() => ({ agent }))} />`}
      ${!edited && (isBusy || priority !== "next") && html`<label class="when"><span class="unseen">${t("when_it_is_answered")}</span>
        <select value=${priority} title=${PRIORITIES.find(([value]) => value === priority)?.[2]}
          onChange=${(event) => { const { value } = event.target; change(() => ({ priority: value })); }}>
          ${PRIORITIES.map(([value, name, about]) => html`<option value=${value} title=${about}>${name}</option>`)}
        </select>
      </label>`}
      <span class="hint keys-hint">${t("enter_sends_shift_enter_makes_a_new")}</span>
      <span class="space"></span>
      ${activeRun?.runId && !edited && html`<${Do} class="stop"
        title=${t("stops_this_answer_what_waits_is")} action=${stop}>${t("stop")}<//>`}
      ${!edited && html`<button type="button" disabled=${isEmpty} onClick=${() => askWhen(true)}>${t("later_2")}</button>`}
      <button class="primary" disabled=${isEmpty}>${edited ? t("send_as_a_variant") : t("send")}</button>
    </div>
    </div>
    ${session === "new" && isEmpty && html`<${Prompts} name=${agent} onPrompt=${suggest} />`}
  </form>
  ${asksWhen && html`<${Later} due=${due} onSend=${send} onClose=${() => { askWhen(false); change(() => ({ due: undefined })); }} />`}`;
}
