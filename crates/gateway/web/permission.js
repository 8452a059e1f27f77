// A permission request of the agent. All of it is shown before the buttons, and nothing in it is hidden.

import { html, useMemo, useRef, useState } from "./vendor/preact.js";
import { list, t } from "./language.js";
import { inArguments, inDetails } from "./changes.js";
import { Changes } from "./diff.js";
import { focusBox, focusRequest } from "./focus.js";
import { stoppedText, visible } from "./text.js";
import { Given } from "./tool.js";
import { readOnly, state } from "./state.js";

export function Permission({ step }) {
  const { asked, answer, over } = step;
  const [sent, setSent] = useState(null);
  const [error, setError] = useState(null);
  const { changes, given, details } = useMemo(() => changesOf(asked, step.call), [asked, step.call]);
  const id = `permission-${asked.requestId}`;
  const card = useRef();
  const choose = async (choice) => {
    // Before the button is disabled.
    const isHere = card.current.contains(document.activeElement);
    setSent(choice);
    setError(null);
    try {
      await state.permit(asked, choice.id);
      // Unless it has gone elsewhere since.
      const { activeElement: focused, body } = document;
      const isStill = isHere && (focused === body || card.current?.contains(focused));
      if (isStill && !focusRequest(card.current)) focusBox();
    } catch (error) {
      setSent(null);
      setError(error.message);
    }
  };
  const chosen = asked.choices.find((choice) => choice.id === answer);
  const isOpen = !answer && !over;
  const lasting = asked.choices
    .filter((choice) => choice.kind.endsWith("_always"))
    .map((choice) => `“${visible(choice.name)}”`);
  const keys = keysOf(asked.choices);
  const kind = `permission${isOpen ? " open" : ""}${changes.length ? " changes" : ""}`;
  return html`<section class=${kind} ref=${card} aria-labelledby=${id} tabIndex="-1">
    <div class="label" id=${id} role="heading" aria-level="2">${isOpen ? t("asks_for_permission") : t("asked_for_permission")}</div>
    <div class="request">${visible(asked.title)}</div>
    ${given !== null && !says(given, asked.title) && html`<${Given} value=${given} whole=${true} />`}
    ${details && details !== asked.title && html`<pre class="plain whole">${visible(details)}</pre>`}
    <${Changes} changes=${changes} />
    ${
      isOpen &&
      !readOnly &&
      html`<div class="buttons">${asked.choices.map(
        (choice) => html`<button type="button" key=${choice.id}
      class=${choice.kind === "allow_once" ? "primary" : ""} aria-keyshortcuts=${keys.get(choice)} title=${keys.get(choice)} disabled=${sent !== null}
      onClick=${() => choose(choice)}>${visible(choice.name)}</button>`,
      )}</div>`
    }
    ${isOpen && lasting.length > 0 && html`<p class="hint">${
      t("answers_the_agent_keeps_the_answer_and",
        { answers: list(lasting) })}</p>`}
    ${answer && html`<p class="answered">${t("answered_answer",
      { answer: html`<strong>${visible(chosen?.name ?? answer)}</strong>` })}</p>`}
    ${!answer && over && html`<p class="answered">${unanswered(step.ending)}</p>`}
    ${error && html`<p class="error" role="alert">${error}</p>`}
  </section>`;
}

/** The choices that have a key: the first that allows, and the first that denies; rather for once. */
function keysOf(choices) {
  const first = (kind) => choices.find((choice) => choice.kind === `${kind}_once`) ?? choices.find((choice) => choice.kind.startsWith(kind));
  return new Map([[first("allow"), "a"], [first("reject"), "d"]]);
}

/** What is asked for: the changes of files, and what else is given. Where both the arguments and the details have a
 * change, the details are what the agent's program has made of it. */
function changesOf(asked, call) {
  const inside = inDetails(asked.details),
    own = inArguments(asked.arguments, { kind: call?.does, name: call?.name });
  if (!inside.changes.length) return { changes: own.changes, given: own.rest, details: inside.rest };
  const isSame = own.changes.every(
    (change) =>
      change.after !== undefined &&
      inside.changes.some(
        ({ path, before, after }) =>
          after !== undefined &&
          path.endsWith(change.path) &&
          (before ?? "").includes(change.before ?? "") &&
          after.includes(change.after),
      ),
  );
  const given = isSame ? own.rest : asked.arguments;
  return { changes: inside.changes, given: without(given, inside.changes.map(({ path }) => path)), details: inside.rest };
}

/** Arguments without the names of files that stand at the changes; null if there are no others. */
function without(given, paths) {
  if (given === null || typeof given !== "object" || Array.isArray(given)) return given ?? null;
  const rest = Object.entries(given).filter(([, value]) => !paths.includes(value));
  return rest.length ? Object.fromEntries(rest) : null;
}

/** Whether the only argument is the title itself: most often a command. */
export function says(given, title) {
  if (given === null || given === undefined) return false;
  const values = typeof given === "object" ? Object.values(given) : [given];
  return values.length === 1 && values[0] === title;
}

function unanswered(ending) {
  if (ending?.kind === "cancelled") return t("not_answered_why", { why: stoppedText(ending.why, state.conversation?.clientId) });
  if (ending?.kind === "withdrawn") return t("not_answered_the_agent_needs_none");
  return ending?.kind === "failed" ? t("not_answered_the_attempt_failed") : t("nobody_answered_in_time");
}
