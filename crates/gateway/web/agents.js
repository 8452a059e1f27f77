// The agents to choose from, where there are several.

import { html, useState } from "./vendor/preact.js";
import { t } from "./language.js";
import { visible } from "./text.js";
import { readOnly, state } from "./state.js";

/** How many suggestions are shown. */
const MOST_PROMPTS = 3;

/** The agents, if there is something to choose. */
export function choices() {
  const { agents } = state.connection;
  return agents.length > 1 ? agents : [];
}

/** The agent of a new session: `name` if it was chosen. */
function agentOf(name) {
  return choices().find((agent) => agent.name === name) ?? state.connection.agents[0];
}

/** The name of the agent that a page is for: undefined if there is none, empty if its name is not known. */
const ownAgent = () => document.documentElement.dataset.agent;

/** Who answers in a new session, and what for. */
export function Greeting({ name }) {
  const agent = agentOf(name), title = (choices().length && agent?.name) || ownAgent();
  return html`<div class="greeting">
    <p class="product"><img src="page/icon.svg" alt="" width="18" height="18" />thread</p>
    <h2>${visible(title || t("a_new_conversation"))}</h2>
    <p>${agent?.about ? visible(agent.about) : title === undefined ? t("no_agent_is_set_up_here_messages_wait")
      : t("what_is_said_and_done_here_is_kept_in_a")}</p>
  </div>`;
}

/** What one could ask the agent of a new session. */
export function Prompts({ name, onPrompt }) {
  const prompts = agentOf(name)?.prompts ?? [];
  if (readOnly || !prompts.length) return null;
  return html`<ul class="prompts" aria-label=${t("suggestions")}>
    ${prompts.slice(0, MOST_PROMPTS).map((prompt) => html`<li><button type="button" onClick=${() => onPrompt(prompt)}>
      ${visible(prompt)}</button></li>`)}
  </ul>`;
}

/** The choice for a new session. */
export function Picker({ value, onChange }) {
  const agents = choices();
  if (!agents.length) return null;
  return html`<label class="with"><span class="unseen">${t("agent")}</span>
    <select value=${value ?? agents[0].name} onChange=${(event) => onChange(event.target.value)}>
      ${agents.map(({ name, about }) => html`<option value=${name} title=${about}>${name}</option>`)}
    </select>
  </label>`;
}

/** The agent of a session, which can be another. */
export function Moves({ conversation }) {
  const [error, setError] = useState(null);
  const agents = choices(), { agent } = conversation;
  if (readOnly || !agents.length) return null;
  const move = async (event) => {
    const { target } = event, name = target.value;
    setError(null);
    try {
      await state.moveTo(name);
    } catch (error) {
      target.value = conversation.agent ?? "";
      setError(error.message);
    }
  };
  const isKnown = agents.some((known) => known.name === agent);
  return html`<label class="with" title=${t("who_answers_from_the_next_message_on")}><span class="unseen">${t("agent")}</span>
    <select value=${isKnown ? agent : ""} onChange=${move}>
      ${!isKnown && html`<option value="" disabled>${visible(agent ?? t("no_agent"))}</option>`}
      ${agents.map(({ name, about }) => html`<option value=${name} title=${about}>${name}</option>`)}
    </select>
    ${error && html`<span class="error" role="alert">${error}</span>`}
  </label>`;
}

/** What can be chosen at the agent of a session, such as its mode. */
export function Options({ conversation }) {
  const [error, setError] = useState(null);
  const { options, refused } = conversation;
  if (readOnly || !options.length) return null;
  const choose = async ({ id, current }, { target }) => {
    const { value } = target;
    setError(null);
    try {
      await state.choose(id, value);
    } catch (error) {
      target.value = current;
      setError(error.message);
    }
  };
  const select = (option) => html`<label class="with" key=${option.id} title=${option.description ?? option.name}>
    <span class="unseen">${visible(option.name)}</span>
    <select value=${option.current} onChange=${(event) => choose(option, event)}>
      ${option.choices.map(({ id, name, description }) => html`<option value=${id} title=${description}>${visible(name)}</option>`)}
    </select>
  </label>`;
  const why = error ?? refused;
  return html`${options.map(select)}${why && html`<span class="error" role="alert">${visible(why)}</span>`}`;
}
