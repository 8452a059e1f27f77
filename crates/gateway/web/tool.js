// A tool call: what it was given and what came of it, in the form of its kind; its duration, and the sub-agents that
// work for it.

import { html, useMemo } from "./vendor/preact.js";
import { t } from "./language.js";
import { inArguments, inContent, inDetails, isPatch } from "./changes.js";
import { Code, languageOf } from "./code.js";
import { Changes } from "./diff.js";
import { Content, Fold, Plain } from "./parts.js";
import { says } from "./permission.js";
import { Elapsed } from "./time.js";
import { beginning, jsonText, stoppedText, visible } from "./text.js";
import { state } from "./state.js";

/** The error that the agent's side gives a call without a result at its answer. */
const NOT_WAITED_FOR = "the answer came without it";

/** What tools do, by words in their names, if the agent does not say it. */
const DOES = [
  ["execute", /^(bash|sh|shell|run|exec|execute|terminal|run_?(command|shell|terminal_?cmd)|local_shell|command)$/i],
  [
    "search",
    /^(grep|glob|find|search|rg|ls|list(_?(files|dir(ectory)?))?|web_?search|codebase_?search|file_?search)$/i,
  ],
  ["read", /^(read|cat|open|view|read_?(text_?)?file|get_?file(_contents)?)$/i],
  ["fetch", /^(fetch|web_?fetch|http|curl|get_?url)$/i],
];

/** A result that is longer is shown as plain text only. */
const LONG = 60_000;

function kindOf({ does, name }) {
  const word = does && does !== "other" ? does : DOES.find(([, names]) => names.test(name))?.[0];
  return word ?? null;
}

/** The state of a call (it waits for permission, runs, was rejected or has ended), and its duration without the wait. */
function courseOf({ asks, at, until, error, unreported }) {
  const asked = asks[asks.length - 1];
  const waited = asks.reduce((sum, step) => sum + ((step.until ?? step.at) - step.at), 0);
  const wasRejected = asked?.asked.choices.some(({ id, kind }) => id === asked.answer && kind.startsWith("reject"));
  const how = asks.some((step) => !step.over)
    ? "asks"
    : until === undefined
      ? "running"
      : wasRejected && error !== undefined
        ? "rejected"
        : unreported
          ? "unreported"
          : error !== undefined
            ? "error"
            : "";
  const isTimed = ["", "running", "error"].includes(how);
  return { how, took: isTimed && html`<${Elapsed} from=${at + waited} to=${until} />` };
}

const HOW = {
  asks: t("waits_for_you"), running: t("running"), rejected: t("rejected"), unreported: t("no_result"), error: t("error"),
};

export function Tool({ step, Steps, Ending }) {
  const { name, subs } = step;
  const { how, took } = courseOf(step);
  const brief = gist(step);
  return html`<${Fold} class=${`tool ${how === "error" ? "wrong" : ""}`} open=${how === "error"} data-seq=${step.seq}
      isFound=${state.conversation?.found?.step === step} summary=${html`
      <span class="name">${visible(name)}</span> ${" "}<span class="gist">${brief}</span>
      <span class=${how === "asks" ? "figure doing" : "figure"}>
        ${HOW[how] ?? ""}${how && took ? " · " : ""}${took}</span>`}>
    ${() => html`<${Inside} step=${step} version=${step.version} />`}
  <//>
  ${subs.map((sub) => html`<${SubAgent} key=${sub.name} sub=${sub} events=${sub.events}
    Steps=${Steps} Ending=${Ending} />`)}`;
}

/** What a call was given and what came of it. */
function Inside({ step }) {
  const { error, unreported, until, corrected } = step,
    kind = kindOf(step),
    given = step.arguments;
  const isOver = until !== undefined;
  const { changes, rest, others } = useMemo(() => {
    const told = inContent(step.content),
      own = inArguments(given, { kind, name: step.name });
    // What the agent has done counts, rather than what it was about to do.
    return { changes: told.changes.length ? told.changes : own.changes, rest: own.rest, others: told.rest };
  }, [given, step.content, kind, step.name]);
  let outcome = isOver && error === undefined ? step.result : undefined;
  // A program that reports no other result has the changes as its text.
  if (changes.length && typeof outcome === "string") outcome = inDetails(outcome).rest;
  const View = !changes.length && VIEWS[kind];
  const viewed = View
    ? View({ given: given ?? null, outcome, isOver, error: unreported ? undefined : error, step })
    : null;
  const isTitled = step.title && step.title !== step.name && !says(given, step.title);
  const isWrong = error !== undefined && !unreported;
  const label = corrected ? t("given_corrected") : t("given");
  const hasResult = outcome !== undefined && !(changes.length && isEmpty(outcome));
  return html`
    ${isTitled && html`<p class="does">${visible(step.title)}</p>`}
    ${
      viewed ??
      html`
      ${rest !== null && html`<div class="label">${label}</div><${Given} value=${rest} />`}
      <${Changes} changes=${changes} />
      ${isWrong && html`<div class="label">${t("error")}</div><${Plain} text=${jsonText(error)} label=${t("error_2")} />`}
      ${hasResult && html`<div class="label">${t("result")}</div><${Result} value=${outcome} />`}`
    }
    ${unreported && html`<div class="label">${t("result")}</div><p class="hint">${unreportedText(error)}</p>`}
    <${Others} parts=${others} result=${outcome} />`;
}

const isEmpty = (value) => value === null || value === undefined || value === "";

/** Content besides the result: texts and pictures, as ACP has them. */
function Others({ parts, result }) {
  const texts = parts
    .map((part) => part?.content ?? part)
    .filter((part) => part && !(part.type === "text" && part.text === result));
  if (!texts.length) return null;
  const known = texts.map((part) =>
    part.type === "image"
      ? { type: "image", source: { type: "data", value: part.data, mimeType: part.mimeType } }
      : part,
  );
  const isShown = (part) => typeof part.text === "string" || part.type === "image";
  const raw = known.filter((part) => !isShown(part));
  return html`<div class="label">${t("shown")}</div><${Content} content=${known.filter(isShown)} plain=${true} />
    ${raw.map((part) => html`<${Plain} text=${visible(jsonText(part))} label=${t("shown_2")} />`)}`;
}

function Result({ value }) {
  if (isPatch(value)) return html`<${Changes} changes=${[{ patch: value }]} />`;
  return html`<${Plain} text=${jsonText(value)} label=${t("result_2")} />`;
}

/** Each kind of tool, in the form in which one knows it; null if it does not have that form. */
const VIEWS = {
  execute: ({ given, outcome, isOver, error }) => {
    const command = commandOf(given);
    if (command === null) return null;
    const { command: _, cmd: __, description, ...more } = typeof given === "object" ? given : {};
    const output = outputOf(error ?? outcome);
    if (output === null) return null;
    return html`${description && html`<p class="does">${visible(description)}</p>`}
      ${Object.keys(more).length > 0 && html`<${Given} value=${more} />`}
      <div class="terminal">
        <pre class="plain" tabIndex="0" aria-label=${t("command")}><span class="prompt">$ </span><b>${visible(command)}</b>${"\n"}</pre>
        ${output.text && html`<${Plain} text=${output.text} label=${t("output")} />`}
        ${isOver && !output.text && html`<p class="hint">${t("no_output")}</p>`}
        ${output.exit !== null &&
          html`<p class=${output.exit === 0 ? "exit" : "exit failure"}>${t("exit_code", { code: String(output.exit) })}</p>`}</div>`;
  },
  search: ({ given, outcome, error }) => {
    if (error !== undefined || outcome === undefined) return null;
    const found = linesFound(outcome);
    if (!found) return null;
    return html`<${Sought} given=${given} />
      <p class="hint">${found.length === 0 ? t("nothing_found") : t("n_found", { n: found.length })}</p>
      <ul class="found-list" tabIndex="0" aria-label=${t("found")}>
        ${found.slice(0, 200).map((line) => html`<li>${foundLine(line)}</li>`)}</ul>
      ${found.length > 200 && html`<${Plain} text=${found.slice(200).join("\n")} label=${t("the_rest")} />`}`;
  },
  read: ({ given, outcome, error, step }) => {
    const path = given?.file_path ?? given?.path ?? given?.filePath ?? step.locations?.[0]?.path;
    if (error !== undefined || typeof outcome !== "string" || typeof path !== "string" || outcome.length > LONG)
      return null;
    const { path: _, file_path: __, filePath: ___, ...others } = typeof given === "object" ? (given ?? {}) : {};
    const more = typeof given === "object" && !Array.isArray(given) ? others : given;
    return html`${Object.keys(more).length > 0 && html`<${Given} value=${more} />`}
      <${Code} text=${outcome} info=${languageOf(path) ?? ""} name=${path} />`;
  },
};

function commandOf(given) {
  if (typeof given === "string") return given;
  const command = given?.command ?? given?.cmd;
  if (Array.isArray(command) && command.every((part) => typeof part === "string")) return command.join(" ");
  return typeof command === "string" ? command : null;
}

/** The output of a command, and its exit code if it is told; null if it is something else. */
function outputOf(outcome) {
  if (isEmpty(outcome)) return { text: "", exit: null };
  if (typeof outcome === "string") return { text: outcome, exit: null };
  const known = typeof outcome === "object" ? outcome : {};
  const { stdout, stderr, output, exit, exit_code: code = exit, exitCode = code, ...more } = known;
  const texts = [stdout, stderr, output].filter((text) => typeof text === "string" && text !== "");
  if (Object.keys(more).length || ![stdout, stderr, output].some((text) => typeof text === "string")) return null;
  return {
    text: texts.map((text) => text.replace(/\n$/, "")).join("\n"),
    exit: Number.isInteger(exitCode) ? exitCode : null,
  };
}

/** What a search has found, line by line; null if that is something else. */
function linesFound(outcome) {
  if (typeof outcome === "string") return outcome.split("\n").filter((line) => line.trim() !== "");
  if (Array.isArray(outcome) && outcome.every((line) => typeof line === "string")) return outcome;
  return null;
}

/** A line that begins with a file, and perhaps a number, names it. */
function foundLine(line) {
  const [, path, number = "", text] = /^([^\s:][^:]*):(\d+:)?(.*)$/.exec(line) ?? [];
  if (path === undefined || /^\w+:\/\//.test(line)) return visible(line);
  return html`<span class="file">${visible(path)}${number && `:${number.slice(0, -1)}`}</span> ${visible(text)}`;
}

function Sought({ given }) {
  if (given === null) return null;
  if (typeof given !== "object") return html`<p class="does">${visible(jsonText(given))}</p>`;
  return html`<${Given} value=${given} />`;
}

function unreportedText(why) {
  if (why === NOT_WAITED_FOR) return t("the_agents_program_answered_without");
  return t("the_agents_program_reported_none_why", { why: stoppedText(why, state.conversation?.clientId) });
}

/** The arguments in a few words, without what the name says already. */
function gist({ arguments: given, name, locations = [] }) {
  const { changes } = inArguments(given, { name });
  if (changes.length) return visible(beginning([...new Set(changes.map(({ path }) => path))].join(" "), 80));
  if (given == null || says(given, name))
    return visible(beginning(locations.map(({ path }) => path ?? "").join(" "), 80));
  if (typeof given !== "object") return visible(beginning(given, 80));
  const short = Object.values(given).filter((value) => ["string", "number"].includes(typeof value) && value !== name);
  return visible(beginning(short.length ? short.join(" ") : jsonText(given), 80));
}

/** Arguments, each with its name; short ones in a line. `whole`: without scrolling. */
export function Given({ value, whole = false }) {
  const text = (value, label) =>
    whole
      ? html`<pre class="plain whole">${visible(jsonText(value))}</pre>`
      : html`<${Plain} text=${visible(jsonText(value))} label=${label} />`;
  const isFlat = value && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length > 0;
  if (!isFlat) return text(value, t("arguments"));
  const isShort = (inner) =>
    typeof inner === "object" ? inner === null : String(inner).length < 100 && !/\n/.test(inner);
  return html`<dl class="given">${Object.entries(value).map(
    ([key, inner]) => html`<div class=${isShort(inner) ? "short" : ""}>
    <dt>${visible(key)}</dt>
    <dd>${isShort(inner) ? html`<code>${visible(jsonText(inner))}</code>` : text(inner, key)}</dd></div>`,
  )}</dl>`;
}

const DONE = { answer: t("done"), failed: t("failed_2"), cancelled: t("cancelled_2") };

function SubAgent({ sub, Steps, Ending }) {
  const { run, name, events } = sub;
  const how = run.ending ? DONE[run.ending.kind] : t("works");
  const count = t("n_events", { n: events });
  const summary = `${t("sub_agent")} ${visible(name.replace(/-[0-9a-f]{16}$/, ""))} · ${how} · ${count}`;
  return html`<${Fold} class="sub-agent" summary=${summary}>
    ${() => html`<${Steps} run=${run} />${run.ending && html`<${Ending} run=${run} />`}`}
  <//>`;
}
