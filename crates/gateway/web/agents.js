// The agents to choose from, where there are several.

import { html, useState } from "./vendor/preact.js";
import { visible } from "./text.js";
import { readOnly, state } from "./state.js";

/** The agents, if there is something to choose. */
export function choices() {
  const { agents } = state.connection;
  return agents.length > 1 ? agents : [];
}

/** What the agent of a new session is for, and what one could ask it. */
export function About({ name, onPrompt }) {
  const agent = choices().find((agent) => agent.name === name) ?? state.connection.agents[0];
  if (readOnly || !(agent?.about || agent?.prompts?.length)) return null;
  return html`<div class="about-agent">
    ${agent.about && html`<p class="hint">${visible(agent.about)}</p>`}
    ${agent.prompts?.length > 0 && html`<ul class="prompts" aria-label="Suggestions">
      ${agent.prompts.map((prompt) => html`<li><button type="button" class="quiet" onClick=${() => onPrompt(prompt)}>${visible(prompt)}</button></li>`)}
    </ul>`}
  </div>`;
}

/** The choice for a new session. */
export function Picker({ value, onChange }) {
  const agents = choices();
  if (!agents.length) return null;
  return html`<label class="with"><span class="unseen">Agent</span>
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
  return html`<label class="with" title="Who answers from the next message on"><span class="unseen">Agent</span>
    <select value=${isKnown ? agent : ""} onChange=${move}>
      ${!isKnown && html`<option value="" disabled>${visible(agent ?? "no agent")}</option>`}
      ${agents.map(({ name, about }) => html`<option value=${name} title=${about}>${name}</option>`)}
    </select>
    ${error && html`<span class="error" role="alert">${error}</span>`}
  </label>`;
}
