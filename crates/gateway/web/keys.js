// The keyboard: single keys where nothing is typed.

import { html, useEffect } from "./vendor/preact.js";
import { Dialog } from "./dialog.js";
import { state } from "./state.js";
import * as address from "./address.js";

export const KEYS = [
  ["g t, g l", "talk, look"],
  ["/", "search or filter"],
  ["j, k", "next, previous in a list"],
  ["Enter", "open it"],
  ["Esc", "leave what is open or typed in"],
  ["n", "new session"],
  ["w", "write a message"],
  ["?", "this help"],
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

/** What j and k go through. */
function list() {
  const here = document.activeElement?.closest(".messages, .rows") ?? document.querySelector(".look .rows");
  if (!here) return document.querySelectorAll(".sessions a.session");
  return here.querySelectorAll(here.matches(".rows") ? "a.row" : ".exchange, .note");
}

/** Whether somebody has just followed a link to where something is written, and now begins: what is typed then is text,
 * also while the page is still on its way there. */
function isBeginning() {
  const { hash } = document.activeElement ?? {};
  if (!hash || hash !== location.hash) return false;
  const { view, edits, session, seq } = address.current();
  if (view !== "new" && !edits) return false;
  const area = document.querySelector("#message");
  if (area?.name === (edits ? `${session}/${seq}` : view)) area.focus();
  return true;
}

export function useKeys(onHelp) {
  useEffect(() => {
    let before = null;
    const press = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
      if (document.querySelector("dialog[open]")) return;
      const typing = isTyping(event.target);
      if (event.key === "Escape") {
        if (typing) event.target.blur();
        else if (document.activeElement?.closest(".exchange")) document.querySelector("#message")?.focus();
        else address.go(address.above(address.current()));
        return;
      }
      if (typing || (event.key.length === 1 && isBeginning())) return;
      const key = before ? `${before} ${event.key}` : event.key;
      before = event.key === "g" ? "g" : null;
      const actions = {
        "g t": () => address.go(state.talkAddress()),
        "g l": () => address.go(address.look()),
        "/": () => document.querySelector("#search")?.focus(),
        n: () => address.go(address.newAddress()),
        j: () => move(list(), 1),
        k: () => move(list(), -1),
        w: () => document.querySelector("#message")?.focus(),
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
  return html`<${Dialog} title="Keys" onClose=${onClose}>
    <dl class="keys">${KEYS.map(([keys, what]) => html`<dt>${keys.split(", ").map((key, n) => html`${n > 0 && " "}<kbd>${key}</kbd>`)}</dt><dd>${what}</dd>`)}</dl>
    <p class="buttons"><button type="button" onClick=${onClose}>Close</button></p>
  <//>`;
}
