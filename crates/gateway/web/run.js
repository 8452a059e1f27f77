// The run that answers a message: its thinking, its tools, its text, and its ending.

import { html, useCallback, useEffect, useRef, useState } from "./vendor/preact.js";
import { t } from "./language.js";
import { Content, Copy, Do, Fold, Large, Plain, Versioned } from "./parts.js";
import { Markdown, isLong } from "./markdown.js";
import { Permission } from "./permission.js";
import { Tool } from "./tool.js";
import { Clock, Elapsed, duration } from "./time.js";
import { beginning, contentOf, stoppedText } from "./text.js";
import { state } from "./state.js";
import * as address from "./address.js";

/** How many steps are shown at first, how many more on request, and how many are rendered per frame. */
const SHOWN = 60, MORE = 500, STEP = 5;

const DOING = {
  waiting: t("waits_too_many_agents_are_running"), thinking: t("thinks"), executing_tool: t("uses_a_tool"),
  streaming: t("answers"),
};

export function Run({ run }) {
  const { ending, earlier } = run;
  return html`<div class="run" aria-busy=${Boolean(run.attempt && !ending)}>
    <${RunHead} run=${run} session=${state.conversation?.id} />
    ${run.stepsBefore && html`<p><${Do} action=${() => state.stepsOf(run)}>${t("show_what_the_agent_did")}<//></p>`}
    ${earlier.map((attempt, at) => html`<${Earlier} key=${at} attempt=${attempt} />`)}
    <${Steps} run=${run} />
    ${run.failure && !ending && html`<p class="failure">${t("attempt_n_failed_why_another_follows",
      { n: run.attempt, why: run.failure.why })}</p>`}
    ${ending && html`<${Ending} run=${run} />`}
  </div>`;
}

function RunHead({ run, session }) {
  const { ending, attempt, firstBegan, status } = run;
  const asks = run.steps.some((step) => step.kind === "permission" && !step.over);
  const works = attempt ? DOING[status] ?? t("works") : status === "waiting" ? DOING.waiting : null;
  const state = ending ? null : asks ? t("waits_for_you") : works;
  if (!attempt && !ending && !state) return null;
  return html`<div class="head">${t("agent_2")}
    ${firstBegan && html` · <${Elapsed} from=${firstBegan} to=${ending?.at} />`}
    ${!firstBegan && ending?.took > 0 && html` · <span class="figure">${duration(ending.took)}</span>`}
    ${state && html` · <span class="doing">${state}</span>`}
    ${attempt > 1 && html` · ${t("attempt_n", { n: attempt })}`}
    ${session && html` · <a href=${address.besideAddress(session, run.of.seq)}>${t("trace")}</a>`}
  </div>`;
}

export function Steps({ run }) {
  const [first, setFirst] = useState(null);
  const [, redraw] = useState(0);
  /** Long texts that are rendered. */
  const long = useRef(new Set()).current;
  const leave = useCallback((step) => { long.delete(step); redraw((n) => n + 1); }, []);
  const { steps } = run;
  const isOpen = !run.ending;
  const words = spoken(run) ? steps : steps.filter((step) => step.kind !== "text");
  /** The calls that wait for permission. */
  const isAsking = ({ kind, answer, over }) => kind === "permission" && !answer && !over;
  const asked = new Set(steps.filter(isAsking).map((step) => step.asked.callId));
  // A new attempt begins without any.
  const begin = Math.min(first ?? Infinity, Math.max(0, words.length - SHOWN));
  /** The rendered steps: the last ones at first. */
  const made = useRef({ from: 0, length: 0 }).current;
  if (!made.length) made.from = words.length;
  const from = made.from = Math.max(begin, Math.min(made.from, words.length) - STEP);
  made.length = words.length;
  useEffect(() => {
    if (from === begin) return;
    const frame = requestAnimationFrame(() => redraw((n) => n + 1));
    return () => cancelAnimationFrame(frame);
  });
  for (const step of words.slice(from)) if (step.source && isLong(step.source)) long.add(step);
  return html`${begin > 0 && html`<button type="button" class="quiet" onClick=${() => setFirst(Math.max(0, begin - MORE))}>
      ${t("n_earlier_steps", { n: begin })}</button>`}
    ${words.flatMap((step, n) => (n < from && !long.has(step) ? [] : [html`
      <${Versioned} key=${step.key} of=${Step} step=${step} version=${step.version}
        asked=${step.kind === "tool" && asked.has(step.callId)} isLast=${isOpen && step === words[words.length - 1]}
        leave=${n < begin ? leave : null} />`]))}`;
}

function Step({ step, isLast, asked, leave }) {
  switch (step.kind) {
    case "text": return html`<div class=${isLast ? "answer growing" : "answer"}><${Markdown} source=${step.source} version=${step.version}
      onGone=${leave && (() => leave(step))} /></div>`;
    case "thinking": return html`<${Fold} class="thinking" summary=${isLast ? t("thinking") : thought(step)}>
      ${() => html`<${Plain} text=${step.text} label=${t("thinking_2")} />`}<//>`;
    case "tool": return html`<${Tool} step=${step} version=${step.version} asked=${asked} Steps=${Steps} Ending=${Ending} />`;
    case "permission": return html`<${Permission} step=${step} version=${step.version} />`;
    case "plan": return html`<${Plan} entries=${step.entries} />`;
    case "aside": return html`<div class="answer aside"><${Content} content=${step.content} />
      ${step.large && html`<${Large} large=${step.large} what=${t("this_message")} />`}</div>`;
    case "error": return html`<p class="failure">${step.why}</p>`;
    case "large": return html`<${Large} large=${step.large}
      what=${t("what_the_agent_stored_here_kind", { kind: step.large.subtype ?? step.large.type })} />`;
    default: return null;
  }
}

function thought({ at, until }) {
  return until - at < 1000 ? t("thought_for_a_moment") : t("thought_for_time", { time: duration(until - at) });
}

const DONE = { completed: "☑", in_progress: "◐", pending: "☐" };
const SAYS = { completed: t("done"), in_progress: t("in_progress"), pending: t("to_do") };

function Plan({ entries }) {
  const done = entries.filter((entry) => entry.status === "completed").length;
  return html`<${Fold} class="plan" open=${true} summary=${t("plan_n_of_all_done", { n: done, all: entries.length })}>
    <ul>${entries.map(({ status, content }) => html`<li class=${status}>
      <span role="img" aria-label=${SAYS[status] ?? status}>${DONE[status] ?? "·"}</span> ${content}</li>`)}</ul>
  <//>`;
}

function Earlier({ attempt }) {
  const { attempt: number, began, until, why, isCut, steps } = attempt;
  const took = duration(until - began);
  const given = { n: number, took };
  const ended = isCut ? (took ? t("attempt_n_was_cut_off_after_took", given) : t("attempt_n_was_cut_off", given))
    : took ? t("attempt_n_failed_after_took", given) : t("attempt_n_failed", given);
  return html`<${Fold} class="earlier" summary=${`${ended}${why && `: ${beginning(why, 120)}`}`}>
    ${() => html`<${Steps} run=${{ steps, ending: true, all: true }} />${why && html`<p class="failure">${why}</p>`}`}
  <//>`;
}

/** The text is shown between the steps, if the whole answer begins with it: then `rest` is the remainder. Null if it does
 * not, or no text is known: then the whole answer is shown after the steps. */
function spoken(run) {
  const { ending, steps } = run;
  if (!ending || run.all) return { rest: "" };
  const texts = steps.filter((step) => step.kind === "text");
  // Steps that are read later may contain more of it.
  if (run.spoken?.of !== ending || run.spoken.texts !== texts.length) {
    const said = texts.map((step) => step.source.whole()).join("");
    const whole = ending.content || (ending.kind === "answer" ? null : said);
    const begins = said !== "" && typeof whole === "string" && whole.startsWith(said);
    run.spoken = { of: ending, texts: texts.length, found: begins ? { rest: whole.slice(said.length) } : null };
  }
  return run.spoken.found;
}

export function Ending({ run }) {
  const { ending } = run;
  const said = contentOf(ending.content ?? "").text;
  const between = spoken(run);
  const isAnswer = ending.kind === "answer";
  return html`
    ${between?.rest.trim() && html`<div class=${isAnswer ? "answer" : "answer partial"}><${Markdown} text=${between.rest} /></div>`}
    ${!between && isAnswer && html`<div class="answer"><${Content} content=${ending.content} /></div>`}
    ${!between && !isAnswer && said && html`<div class="answer partial"><${Markdown} text=${said} /></div>`}
    ${ending.large && html`<${Large} large=${ending.large} what=${t("the_answer")} />`}
    ${ending.kind === "failed" && html`<p class="failure"><strong>${t("failed")}</strong> ${ending.why}</p>`}
    ${ending.kind === "cancelled" && html`<p class="cancelled"><${Stopped} run=${run} /></p>`}
    ${ending.stage && ending.stage !== "final" && html`<p class="hint">${t("ended_early_stage", { stage: ending.stage })}</p>`}
    ${said && run.of && html`<div class="actions"><${Copy} text=${said} label=${t("copy_answer")} />${
      ending.tokens > 0 && html`<span class="hint">${t("n_tokens", { n: ending.tokens })}</span>`}</div>`}`;
}

function Stopped({ run }) {
  const { ending, attempt, of } = run;
  const { clientId, forkedFrom } = state.conversation ?? {};
  // A run that never began was removed from the queue. Of a copy that is not known.
  const isTaken = of && !attempt && !run.stepsBefore && !(of.seq < forkedFrom?.seq);
  const words = stoppedText(ending.why, clientId, isTaken);
  return html`<strong>${words}</strong>${ending.at && html` · <${Clock} time=${ending.at} />`}`;
}
