// A tool call: what it was given, what came of it, how long it took; with the sub-agents that work for it.

import { html } from "./vendor/preact.js";
import { Fold, Plain } from "./parts.js";
import { Elapsed } from "./time.js";
import { beginning, jsonText, visible } from "./text.js";

/** What an adapter stores for a call that its agent never said anything more about. */
const UNKNOWN = "the answer came without it";

/** `asked`: whether it waits for permission. */
export function Tool({ step, asked, Steps, Ending }) {
  const { name, subs, at, until, error } = step;
  const isOver = until !== undefined;
  const given = step.arguments;
  const waits = !isOver && asked;
  // The agent has gone on without saying what came of it: nobody knows that it failed.
  const isSilent = error === UNKNOWN, isWrong = error !== undefined && !isSilent;
  return html`<${Fold} class=${`tool ${isWrong ? "wrong" : ""}`} open=${isWrong} summary=${html`
      <span class="name">${visible(name)}</span> ${" "}<span class="gist">${gist(given, name)}</span>
      <span class="figure">${isSilent ? "no result · " : isWrong ? "error · " : waits ? "waits for you · " : isOver ? "" : "running · "}<${Elapsed} from=${at} to=${until} /></span>`}>
    ${() => html`
      ${given != null && html`<div class="label">${step.corrected ? "given (corrected)" : "given"}</div><${Given} value=${given} />`}
      ${isSilent && html`<p class="hint">The agent did not say what came of it.</p>`}
      ${isWrong && html`<div class="label">error</div><${Plain} text=${jsonText(error)} label="Error" />`}
      ${error === undefined && isOver && html`<div class="label">result</div><${Plain} text=${jsonText(step.result)} label="Result" />`}`}
  <//>
  ${subs.map((sub) => html`<${SubAgent} key=${sub.name} sub=${sub} events=${sub.events} Steps=${Steps} Ending=${Ending} />`)}`;
}

/** The arguments in a few words, without what the name says already. */
function gist(given, name) {
  if (given == null) return "";
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
