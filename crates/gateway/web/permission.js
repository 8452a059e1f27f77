// A permission request of the agent. All of it is shown before the buttons, and nothing in it is hidden.

import { html, useState } from "./vendor/preact.js";
import { jsonText, stoppedText, visible } from "./text.js";
import { readOnly, state } from "./state.js";

export function Permission({ step }) {
  const { asked, answer, over } = step;
  const [sent, setSent] = useState(null);
  const [error, setError] = useState(null);
  const id = `permission-${asked.requestId}`;
  const choose = async (choice) => {
    setSent(choice);
    setError(null);
    try {
      await state.permit(asked, choice.id);
    } catch (error) {
      setSent(null);
      setError(error.message);
    }
  };
  const chosen = asked.choices.find((choice) => choice.id === answer);
  const isOpen = !answer && !over;
  const lasting = asked.choices.filter((choice) => choice.kind.endsWith("_always")).map((choice) => `“${visible(choice.name)}”`);
  return html`<section class=${isOpen ? "permission open" : "permission"} aria-labelledby=${id} tabIndex="-1">
    <div class="label" id=${id} role="heading" aria-level="2">${isOpen ? "asks for permission" : "asked for permission"}</div>
    <div class="request">${visible(asked.title)}</div>
    ${asked.arguments != null && !says(asked.arguments, asked.title) && html`<pre class="plain whole">${visible(jsonText(asked.arguments))}</pre>`}
    ${asked.details && asked.details !== asked.title && html`<pre class="plain whole">${visible(asked.details)}</pre>`}
    ${isOpen && !readOnly && html`<div class="buttons">${asked.choices.map((choice) => html`<button type="button" key=${choice.id}
      class=${choice.kind === "allow_once" ? "primary" : ""} disabled=${sent !== null}
      onClick=${() => choose(choice)}>${visible(choice.name)}</button>`)}</div>`}
    ${isOpen && lasting.length > 0 && html`<p class="hint">${lasting.join(" and ")}: the agent keeps the answer and does not ask for the like again; for how long is up to it.</p>`}
    ${answer && html`<p class="answered">Answered: <strong>${visible(chosen?.name ?? answer)}</strong></p>`}
    ${!answer && over && html`<p class="answered">${unanswered(step.ending)}</p>`}
    ${error && html`<p class="error" role="alert">${error}</p>`}
  </section>`;
}

/** Whether the only argument is the title itself: most often a command. */
export function says(given, title) {
  const values = typeof given === "object" ? Object.values(given) : [given];
  return values.length === 1 && values[0] === title;
}

function unanswered(ending) {
  if (ending?.kind === "cancelled") return `Not answered. ${stoppedText(ending.why, state.conversation?.clientId)}`;
  return ending?.kind === "failed" ? "Not answered: the attempt failed." : "Nobody answered in time.";
}
