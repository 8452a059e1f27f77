// Commands of the gateway and of the agent, which complete as one types. A test compares the gateway's with what `/help`
// says.

import { html } from "./vendor/preact.js";
import { t } from "./language.js";

export const COMMANDS = [
  ["/new", "[@agent] [title]", t("starts_a_new_session")],
  ["/sessions", "", t("lists_sessions")],
  ["/session", "<n or id>", t("enters_a_session")],
  ["/history", "[n]", t("shows_the_last_messages")],
  ["/status", "", t("shows_the_status_of_the_gateway_and_the")],
  ["/cancel", "", t("cancels_the_current_run")],
  ["/clear", "", t("makes_the_agent_forget_what_was_said_so")],
  ["/help", "", t("lists_the_commands")],
];

/** The commands that a text may become; none if it is one already. `agents` are those that the agent takes. */
export function completions(text, agents) {
  if (!/^\/[^\s/]*$/.test(text)) return [];
  const own = agents.map(({ name, hint, description }) => [`/${name}`, hint ?? "", description])
    .filter(([name]) => COMMANDS.every(([known]) => known !== name));
  const found = [...COMMANDS, ...own].filter(([name]) => name.startsWith(text));
  return found.length === 1 && found[0][0] === text ? [] : found;
}

/** What a text becomes with a command: ready to send, or with room for what belongs to it. */
export const completed = ([name, given]) => (given ? `${name} ` : name);

export function Completions({ found, chosen, onChoose }) {
  return html`<ul class="completions" id="completions" role="listbox" aria-label=${t("commands")}>
    ${found.map((command, n) => html`<li role="option" id=${`completion-${n}`} aria-selected=${n === chosen}
      onMouseDown=${(event) => { event.preventDefault(); onChoose(command); }}>
      <span class="name">${command[0]}</span> <span class="given">${command[1]}</span> <span class="hint">${command[2]}</span></li>`)}
  </ul>`;
}
