// What a bar of a trace opens as: the card of the conversation, what a run printed, or the event.

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { t } from "../language.js";
import { Conversation } from "../conversation.js";
import { Do, Plain } from "../parts.js";
import { Ending, Steps } from "../run.js";
import { bytesText, jsonText, visible } from "../text.js";
import { readOnly, state } from "../state.js";
import { api, get } from "./api.js";
import { exitText, outcomeText } from "./words.js";
import * as address from "../address.js";

const SESSION = /^[0-9a-f-]{36}$/;

/** Kinds that have a card in a conversation. */
const STEPS = ["thinking", "text", "tool", "permission", "plan", "sub_agent", "event"];

/** How many steps are read at once, and how many events after the last one of a trace. */
const PAGE = 1000, LATER = 200;

export const hasCard = ({ kind, event, run }) => kind !== "consumer" && Boolean(event || run);

/** `cards` is what the cards of one trace share. */
export function Card({ thread, bar, trace, cards }) {
  const { kind, event, end_event: end, run, consumer, thread: inner } = bar, step = stepOf(bar, trace);
  return html`<div class="card-of">
    ${SESSION.test(thread) && STEPS.includes(kind)
      ? html`<${Said} thread=${thread} bar=${bar} trace=${trace} cards=${cards} />`
      : run && consumer && kind === "run" ? html`<${Printed} thread=${thread} consumer=${consumer} run=${run} />`
      : html`<${Stored} thread=${thread} id=${event} />`}
    <p class="links">${event && html`<a href=${address.eventsAddress(thread, { event })}>${t("event_id", { id: String(event) })}</a>`}
      ${end && html`<a href=${address.eventsAddress(thread, { event: end })}>${t("event_id_its_end", { id: String(end) })}</a>`}
      ${run && consumer && html`<a href=${address.look(thread, "c", consumer, run)}>${
        kind === "run" ? t("the_run") : t("what_its_program_printed")}</a>`}
      ${inner && html`<a href=${address.look(inner)}>${t("its_own_thread")}</a>`}
      ${kind === "pushed" && html`<${Again} thread=${thread} seq=${event} />`}
      ${step && html`<${AgainFrom} thread=${thread} step=${step} />`}</p>
  </div>`;
}

/** A message, sent again in a copy of the conversation up to it. */
function Again({ thread, seq }) {
  const { conversation } = state;
  if (!SESSION.test(thread)) return null;
  const item = conversation?.id === thread ? conversation.bySeq.get(seq) : null;
  if (!item?.message || readOnly) return html`<a href=${address.sessionAddress(thread, seq)}>${t("in_the_conversation")}</a>`;
  const again = () => state.sendCopy(item, item.message.content);
  const about = t("in_a_new_session_with_everything_before");
  return html`<${Do} action=${again} title=${about}>${t("again_from_here")}<//>`;
}

/** The event with which a step ends that a model can continue from: a call with its result, or a turn with calls. */
function stepOf({ kind, event, end_event: end }, { bars }) {
  if (kind === "tool") return end;
  return kind === "model" && bars.some((bar) => bar.kind === "tool" && bar.event > event) ? event : null;
}

/** A variant that has everything up to a step, from where the agent continues. */
function AgainFrom({ thread, step }) {
  const { conversation, connection } = state;
  const agent = conversation?.id === thread && connection.agents.find(({ name }) => name === conversation.agent);
  if (!agent?.steps || readOnly) return null;
  return html`<${Do} action=${() => state.goOnFrom(step)} title=${t("as_a_variant_that_goes_on_after_this")}>${
    t("again_from_here")}<//>`;
}

/** The result of a promise, and why it failed. */
function useFound(promise, about) {
  const [{ found, error }, setFound] = useState({});
  useEffect(() => {
    let isGone = false;
    const set = (result) => { if (!isGone) setFound(result); };
    promise().then((found) => set({ found }), ({ message }) => set({ error: message }));
    return () => { isGone = true; };
  }, [about]);
  return [found, error && html`<p class="error" role="alert">${error}</p>`];
}

/** The conversation's own card. */
function Said({ thread, bar, trace, cards }) {
  const open = state.conversation?.id === thread ? state.conversation : null;
  const read = async () => {
    const known = open && stepIn(open, bar);
    return known ?? stepIn(await (cards.read ??= conversationOf(thread, trace)), bar);
  };
  const [step, failed] = useFound(read, trace);
  const box = useRef();
  // What is folded in a conversation is what one wants to see here.
  useEffect(() => {
    for (const fold of box.current?.querySelectorAll(":scope > details") ?? []) fold.open = true;
  }, [step]);
  // Only where it is said may one answer.
  const isAsked = bar.kind === "permission" && bar.is_open && !open;
  if (failed || step === undefined) return failed || null;
  if (isAsked) return html`<p><a href=${address.sessionAddress(thread)}>${t("it_asks_for_permission_answer_it")}</a></p>`;
  if (!step) return html`<${Stored} thread=${thread} id=${bar.event} />`;
  if (bar.kind === "sub_agent") {
    const { run } = step;
    return html`<div ref=${box}><${Steps} run=${run} />${run.ending && html`<${Ending} run=${run} />`}</div>`;
  }
  return html`<div ref=${box}><${Steps} run=${{ steps: [step], ending: true, all: true }} /></div>`;
}

/** The step of a bar, or its sub-agent. */
function stepIn({ items }, { kind, event, thread }) {
  const among = (steps) => {
    for (const step of steps) {
      for (const sub of step.subs ?? []) {
        if (kind === "sub_agent" && thread?.endsWith(`~${sub.name}`)) return sub;
        const inner = among(sub.run.steps);
        if (inner) return inner;
      }
      if (kind !== "sub_agent" && (step.seq === event || step.resultSeq === event)) return step;
    }
    return null;
  };
  for (const { run } of items) {
    const found = run && (among(run.steps) ?? among(run.earlier.flatMap(({ steps }) => steps)));
    if (found) return found;
  }
  return null;
}

/** The part of a conversation that a trace is about, as the conversation reads it. */
async function conversationOf(session, { event, bars }) {
  const conversation = new Conversation(session, () => {});
  const last = Math.max(event.id, ...bars.flatMap(({ event, end_event: end }) => [event ?? 0, end ?? 0]));
  const frames = [];
  // What a sub-agent did may be told after the answer.
  let before = last + LATER, page;
  do {
    const params = { sessionId: session, after: Math.max(event.id - 1, 0), before, limit: PAGE };
    page = await state.ask("sessions.steps", params);
    frames.unshift(...page.events);
    before = page.events[0]?.seq;
  } while (page.hasMore && before);
  conversation.fill(frames, event.id);
  return conversation;
}

/** What a run printed. */
function Printed({ thread, consumer, run }) {
  const [found, failed] = useFound(() => get(api([thread, "consumers", consumer, "runs", run])), run);
  if (!found) return failed;
  const { outcome, exit, output, output_bytes: bytes, output_truncated: isCut } = found;
  return html`<p class="hint">${outcomeText(outcome)}${exit > 0 && `, ${exitText(exit)}`}${
      isCut && ` · ${t("the_end_of_size", { size: bytesText(bytes) })}`}</p>
    ${output ? html`<${Plain} text=${visible(output)} label=${t("output")} />`
      : html`<p class="hint">${t("it_printed_nothing_or_its_log_is_not")}</p>`}`;
}

/** An event's content. */
function Stored({ thread, id }) {
  const [found, failed] = useFound(() => get(api([thread, "events", id])), id);
  if (!found) return failed;
  const { content, source, type, subtype } = found.event;
  let text = content;
  if (/^\s*[{[]/.test(content)) try { text = jsonText(JSON.parse(content)); } catch { /* It is none. */ }
  return html`<p class="hint">${visible(type)}${subtype && ` · ${visible(subtype)}`} · ${t("from_who", { who: visible(source) })}</p>
    <${Plain} text=${visible(text)} label=${t("content")} />`;
}
