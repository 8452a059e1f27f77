// The parts that Chat and Queues share: links between them, the choice of colours, and "Log out".

import { html, useState } from "./vendor/preact.js";
import { logout } from "./login.js";
import { Do } from "./parts.js";
import { state } from "./state.js";
import * as address from "./address.js";

export function Halves() {
  const isLook = state.route.view === "look";
  return html`<nav class="halves" aria-label="Parts of this page">
    <a href=${state.talkAddress()} aria-current=${isLook ? null : "true"} title="g c">Chat</a>
    <a href=${address.look()} aria-current=${isLook ? "true" : null} title="g q">Queues</a>
  </nav>`;
}

/** Without a token, there is no login to end. */
export function LogOut() {
  if (!("login" in document.documentElement.dataset)) return null;
  return html`<${Do} class="quiet" action=${logout}>Log out<//>`;
}

export function Theme() {
  const [name, setName] = useState(globalThis.theme.get());
  const choose = (event) => {
    globalThis.theme.set(event.target.value);
    setName(event.target.value);
  };
  return html`<label class="theme"><span class="theme-name">Colours</span> ${" "}<select value=${name} onChange=${choose}>
    <option value="auto">as the system</option><option value="light">light</option><option value="dark">dark</option>
  </select></label>`;
}
