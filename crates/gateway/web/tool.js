// A tool call: its arguments, its result, its duration, and the sub-agents that work for it.

import { html } from "./vendor/preact.js";
import { Fold, Plain } from "./parts.js";
import { says } from "./permission.js";
import { Elapsed } from "./time.js";
import { beginning, jsonText, stoppedText, visible } from "./text.js";
import { state } from "./state.js";

/** The error that the agent's side gives a call without a result at its answer. */
const NOT_WAITED_FOR = "the answer came without it";

/** The state of a call (it waits for permission, runs, was rejected or has ended), and its duration without the wait. */
function courseOf({ asks, at, until, error, unreported }) {
  const asked = asks[asks.length - 1];
  const waited = asks.reduce((sum, step) => sum + ((step.until ?? step.at) - step.at), 0);
  const wasRejected = asked?.asked.choices.some(({ id, kind }) => id === asked.answer && kind.startsWith("reject"));
  const how = asks.some((step) => !step.over) ? "waits for you" : until === undefined ? "running"
    : wasRejected && error !== undefined ? "rejected" : unreported ? "no result" : error !== undefined ? "error" : "";
  return { how, took: ["", "running", "error"].includes(how) && html`<${Elapsed} from=${at + waited} to=${until} />` };
}

export function Tool({ step, Steps, Ending }) {
  const { name, subs, error, unreported } = step;
  const { how, took } = courseOf(step);
  const isOver = step.until !== undefined;
  const given = step.arguments;
  const brief = gist(given, name);
  return html`<${Fold} class=${`tool ${how === "error" ? "wrong" : ""}`} open=${how === "error"} data-seq=${step.seq} isFound=${state.conversation?.found?.step === step} summary=${html`
      <span class="name">${visible(name)}</span> ${" "}<span class="gist">${brief}</span>
      <span class=${how === "waits for you" ? "figure doing" : "figure"}>${how}${how && took ? " · " : ""}${took}</span>`}>
    ${() => html`
      ${given != null && html`<div class="label">${step.corrected ? "given (corrected)" : "given"}</div><${Given} value=${given} />`}
      ${unreported && html`<div class="label">result</div><p class="hint">${unreportedText(error)}</p>`}
      ${error !== undefined && !unreported && html`<div class="label">error</div><${Plain} text=${jsonText(error)} label="Error" />`}
      ${error === undefined && isOver && html`<div class="label">result</div><${Plain} text=${jsonText(step.result)} label="Result" />`}`}
  <//>
  ${subs.map((sub) => html`<${SubAgent} key=${sub.name} sub=${sub} events=${sub.events} Steps=${Steps} Ending=${Ending} />`)}`;
}

function unreportedText(why) {
  if (why === NOT_WAITED_FOR) return "The agent's program answered without reporting what came of it.";
  return `The agent's program reported none. ${stoppedText(why, state.conversation?.clientId)}`;
}

/** The arguments in a few words, without what the name says already. */
function gist(given, name) {
  if (given == null || says(given, name)) return "";
  if (typeof given !== "object") return visible(beginning(given, 80));
  const short = Object.values(given).filter((value) => ["string", "number"].includes(typeof value) && value !== name);
  return visible(beginning(short.length ? short.join(" ") : jsonText(given), 80));
}

/** Arguments: texts of several lines are shown as such. */
function Given({ value }) {
  const isFlat = value && typeof value === "object" && !Array.isArray(value);
  const texts = isFlat && Object.entries(value).some(([, inner]) => typeof inner === "string" && inner.includes("\n"));
  if (!texts) return html`<${Plain} text=${visible(jsonText(value))} label="Arguments" />`;
  return html`<dl class="given">${Object.entries(value).map(([key, inner]) => html`<dt>${visible(key)}</dt><dd><${Plain} text=${visible(jsonText(inner))} label=${key} /></dd>`)}</dl>`;
}

function SubAgent({ sub, Steps, Ending }) {
  const { run, name, events } = sub;
  const how = run.ending ? { answer: "done", failed: "failed", cancelled: "cancelled" }[run.ending.kind] : "works";
  return html`<${Fold} class="sub-agent" summary=${`sub-agent ${visible(name.replace(/-[0-9a-f]{16}$/, ""))} · ${how} · ${events} ${events === 1 ? "event" : "events"}`}>
    ${() => html`<${Steps} run=${run} />${run.ending && html`<${Ending} run=${run} />`}`}
  <//>`;
}
