// The keyboard: single keys outside of input fields.

import { html, useEffect, useState } from "./vendor/preact.js";
import { t } from "./language.js";
import { Dialog } from "./dialog.js";
import { focusRequest } from "./focus.js";
import { state } from "./state.js";
import * as address from "./address.js";

export const KEYS = [
  ["g c, g q", t("chat_queues")],
  ["/", t("search_or_filter")],
  ["j, k", t("next_previous_in_a_list")],
  ["Enter", t("open_it")],
  ["Esc", t("close_what_is_open_leave_what_is_typed")],
  ["n", t("new_session")],
  ["w", t("write_a_message")],
  ["a, d", t("allow_deny_the_request_first_go_there")],
  ["?", t("this_help")],
];

function isTyping(target) {
  return target.closest?.("input, textarea, select, [contenteditable]");
}

/** Moves the focus by `step` among the elements of a list, from the one that has it or is current. */
function move(list, step) {
  const all = [...list];
  const at = all.findIndex((element) => element === document.activeElement || element.contains(document.activeElement));
  const current = at >= 0 ? at : all.findIndex((element) => element.getAttribute("aria-current"));
  const next = all[at < 0 && current >= 0 && step === 0 ? current : Math.min(Math.max(current + step, 0), all.length - 1)];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

/** The lists that j and k go through. */
function list() {
  const here = document.activeElement?.closest(".messages, .rows") ?? document.querySelector(".look .rows");
  if (!here) return document.querySelectorAll(".sessions a.session");
  return here.querySelectorAll(here.matches(".rows") ? "a.row" : ".exchange, .note");
}

/** The name of the box to write in at an address; null if it has none. */
const boxAt = ({ view, edits, session, seq }) => (edits ? `${session}/${seq}` : view === "new" || view === "list" ? "new" : null);

/** After a link to an address for writing, one may type at once: until the box is rendered, letters are not shortcuts,
 * and the text is kept. */
function useTyped() {
  const [way] = useState({ towards: null, typed: "" });
  useEffect(() => {
    const set = (towards) => Object.assign(way, { towards, typed: "" });
    const click = ({ target, ctrlKey, metaKey, shiftKey }) => {
      const href = target.closest?.("a")?.getAttribute("href") ?? "";
      if (!ctrlKey && !metaKey && !shiftKey) set(href.startsWith("#") ? boxAt(address.parse(href)) : null);
    };
    const follow = () => { if (way.towards !== boxAt(address.current())) set(null); };
    const arrive = ({ target: box }) => {
      if (box.id !== "message" || box.name !== way.towards) return;
      const { typed } = way;
      set(null);
      if (!typed) return;
      box.setRangeText(typed, box.value.length, box.value.length, "end");
      box.dispatchEvent(new InputEvent("input", { bubbles: true }));
    };
    addEventListener("click", click);
    addEventListener("hashchange", follow);
    addEventListener("focusin", arrive);
    return () => {
      removeEventListener("click", click);
      removeEventListener("hashchange", follow);
      removeEventListener("focusin", arrive);
    };
  }, []);
  return (event) => {
    if (!way.towards || event.key.length !== 1) return false;
    const box = document.querySelector("#message");
    if (box?.name === way.towards) {
      box.focus();
    } else {
      way.typed += event.key;
      event.preventDefault();
    }
    return true;
  };
}

/** How long no other character may have been typed before a key that answers, in milliseconds. */
const ALONE = 1000;

/** Answers the request for permission that has the focus, with the choice that has this key; otherwise goes to the next
 * one, so that nothing is allowed that was not in view. Only a key that is pressed alone answers: somebody may be typing,
 * into a box that has lost the focus. */
function answer(key, isAlone) {
  const card = document.activeElement?.closest(".permission.open");
  if (!card) focusRequest();
  else if (isAlone) card.querySelector(`[aria-keyshortcuts="${key}"]`)?.click();
}

export function useKeys(onHelp) {
  const isText = useTyped();
  useEffect(() => {
    let before = null, typedAt = -Infinity;
    const press = (event) => {
      const isAlone = !event.repeat && event.timeStamp - typedAt > ALONE;
      if (event.key.length === 1) typedAt = event.timeStamp;
      if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
      if (document.querySelector("dialog[open]")) return;
      const typing = isTyping(event.target);
      if (event.key === "Escape") {
        if (typing) event.target.blur();
        else if (document.activeElement?.closest(".exchange")) document.activeElement.blur();
        else if (address.above(address.current())) address.go(address.above(address.current()));
        return;
      }
      if (typing || isText(event)) return;
      const key = before ? `${before} ${event.key}` : event.key;
      before = event.key === "g" ? "g" : null;
      const actions = {
        "g c": () => address.go(state.talkAddress()),
        "g q": () => address.go(address.look()),
        "/": () => document.querySelector("#search")?.focus(),
        n: () => address.go(address.newAddress()),
        j: () => move(list(), 1),
        k: () => move(list(), -1),
        w: () => document.querySelector("#message")?.focus(),
        a: () => answer("a", isAlone),
        d: () => answer("d", isAlone),
        "?": onHelp,
      };
      if (!actions[key]) return;
      event.preventDefault();
      actions[key]();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
}

export function Help({ onClose }) {
  return html`<${Dialog} title=${t("keys")} onClose=${onClose}>
    <dl class="keys">${KEYS.map(([keys, what]) => html`<dt>${keys.split(", ").map((key, n) => html`${n > 0 && " "}<kbd>${key}</kbd>`)}</dt><dd>${what}</dd>`)}</dl>
    <p class="buttons"><button type="button" onClick=${onClose}>${t("close")}</button></p>
  <//>`;
}
