// The agent asks for permission. All of the request stands before the buttons, with nothing hidden in it.

import { html, useState } from "./vendor/preact.js";
import { jsonText, visible } from "./text.js";
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
  return html`<section class=${isOpen ? "permission open" : "permission"} aria-labelledby=${id} tabIndex="-1">
    <div class="label" id=${id} role="heading" aria-level="2">${isOpen ? "asks for permission" : "asked for permission"}</div>
    <div class="request">${visible(asked.title)}</div>
    ${asked.arguments != null && html`<pre class="plain whole">${visible(jsonText(asked.arguments))}</pre>`}
    ${asked.details && html`<pre class="plain whole">${visible(asked.details)}</pre>`}
    ${isOpen && !readOnly && html`<div class="buttons">${asked.choices.map((choice) => html`<button type="button" key=${choice.id}
      class=${choice.kind === "allow_once" ? "primary" : ""} disabled=${sent !== null}
      onClick=${() => choose(choice)}>${visible(choice.name)}</button>`)}</div>`}
    ${answer && html`<p class="answered">Answered: <strong>${visible(chosen?.name ?? answer)}</strong></p>`}
    ${!answer && over && html`<p class="answered">Nobody answered in time, or the run ended.</p>`}
    ${error && html`<p class="error" role="alert">${error}</p>`}
  </section>`;
}
