// The parts that Chat and Queues share: links between them, the choice of colours, and "Log out".

import { html, useState } from "./vendor/preact.js";
import { t } from "./language.js";
import { logout } from "./login.js";
import { Do } from "./parts.js";
import { state } from "./state.js";
import * as address from "./address.js";

export function Halves() {
  const isLook = state.route.view === "look", needing = isLook ? 0 : state.needing;
  return html`<nav class="halves" aria-label=${t("parts_of_this_page")}>
    <a href=${state.talkAddress()} aria-current=${isLook ? null : "true"} title="g c">${t("chat")}</a>
    <a href=${address.look()} aria-current=${isLook ? "true" : null} title=${`${t("events_and_consumers_what_waits_and_what")} (g q)`}>${t("queues")}</a>
    ${needing > 0 && html`<a class="needing failure" href=${address.look()} aria-label=${t("n_threads_need_attention", { n: needing })}
      title=${t("n_threads_need_attention", { n: needing })}>■ ${needing}</a>`}
  </nav>`;
}

/** Without a token, there is no login to end. */
export function LogOut() {
  if (!("login" in document.documentElement.dataset)) return null;
  return html`<${Do} class="quiet" action=${logout}>${t("log_out")}<//>`;
}

/** The languages that there are words for, each by its own name. */
const LANGUAGES = [["en", "English"], ["de", "Deutsch"]];

/** The page begins again in the chosen language: what is typed and open is kept. */
export function Language() {
  const choose = ({ target }) => {
    globalThis.language.set(target.value);
    location.reload();
  };
  return html`<label class="theme"><span class="theme-name">${t("language")}</span> ${" "}
    <select value=${globalThis.language.get()} onChange=${choose}>
      <option value="auto">${t("as_the_system")}</option>
      ${LANGUAGES.map(([value, name]) => html`<option value=${value} lang=${value}>${name}</option>`)}
    </select></label>`;
}

export function Theme() {
  const [name, setName] = useState(globalThis.theme.get());
  const choose = (event) => {
    globalThis.theme.set(event.target.value);
    setName(event.target.value);
  };
  return html`<label class="theme"><span class="theme-name">${t("colours")}</span> ${" "}<select value=${name} onChange=${choose}>
    <option value="auto">${t("as_the_system")}</option><option value="light">${t("light")}</option><option value="dark">${t("dark")}</option>
  </select></label>`;
}
