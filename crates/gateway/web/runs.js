// A run: what an agent does to answer a message. It has steps, in order: those of the current attempt.

import { Blocks } from "./blocks.js";

/** The step that an event is part of. */
export const stepAt = ({ steps }, seq) => steps.find((step) => step.seq === seq || step.resultSeq === seq);

export function newRun(of) {
  return {
    of,
    runId: null,
    steps: [],
    attempt: null,
    began: null,
    firstBegan: null,
    earlier: [],
    failure: null,
    status: null,
    position: null,
    ending: null,
  };
}

/** Handles an event of a run, or of a sub-agent. */
export function record(run, event, payload, seq, at) {
  // History is read after the newer events.
  const last = run.steps.findLast((step) => !seq || !step.seq || step.seq < seq);
  switch (event) {
    case "status":
      if (payload.status === "started") attempt(run, payload.attempt ?? 1, at);
      else run.status = payload.status;
      break;
    case "token": {
      const step = last?.kind === "text" ? last : addStep(run, { kind: "text", seq, at, source: new Blocks() });
      step.source.add(payload.content);
      step.until = at;
      step.version++;
      break;
    }
    case "thinking": {
      const step = last?.kind === "thinking" ? last : addStep(run, { kind: "thinking", seq, at, text: "" });
      step.text += payload.content;
      step.until = at;
      step.version++;
      break;
    }
    case "tool_call": {
      const known = tool(run, payload.callId),
        { callId, toolName: name, title, kind: does, locations = [] } = payload;
      const about = { name, arguments: payload.arguments, title, does, locations };
      if (known) {
        Object.assign(known, about, { corrected: true });
        known.version++;
      } else {
        addStep(run, { kind: "tool", seq, at, callId, ...about, subs: [], asks: [] });
      }
      break;
    }
    case "tool_result": {
      const call =
        tool(run, payload.callId) ??
        addStep(run, { kind: "tool", seq, at, callId: payload.callId, name: payload.toolName, subs: [], asks: [] });
      if ("error" in payload) call.error = payload.error;
      else call.result = payload.result;
      call.content = payload.content;
      call.unreported = payload.unreported === true;
      call.resultSeq = seq;
      call.until = at;
      call.version++;
      break;
    }
    case "permission": {
      const asks = addStep(run, { kind: "permission", seq, at, asked: payload, answer: null, over: false });
      const call = tool(run, payload.callId);
      if (call) {
        asks.call = call;
        call.asks.push(asks);
        call.version++;
      }
      if (run.ending) close(asks, run.ending.at, run.ending);
      break;
    }
    case "plan": {
      const plan = run.steps.find((step) => step.kind === "plan") ?? addStep(run, { kind: "plan", seq, at });
      plan.entries = payload.entries;
      plan.version++;
      break;
    }
    case "large":
      addStep(run, { kind: "large", seq, at, large: payload });
      break;
    case "final":
      end(run, {
        kind: "answer",
        seq,
        at,
        id: payload.messageId,
        content: payload.content,
        tokens: payload.totalTokens,
        took: payload.latencyMs,
        stage: payload.stage,
      });
      break;
    case "cancelled":
      end(run, { kind: "cancelled", seq, at, why: payload.message });
      break;
    case "error":
      if (payload.retryable) {
        run.failure = { why: payload.message, at };
        closePermissions(run, at, { kind: "failed", why: payload.message });
      } else if (payload.errorCode === "reported") {
        addStep(run, { kind: "error", seq, at, why: payload.message });
      } else {
        end(run, { kind: "failed", seq, at, why: payload.message });
      }
      break;
  }
}

/** A new attempt, or one that begins again because it was cut off: the steps of the previous one are folded away. */
function attempt(run, number, at) {
  if (run.attempt) {
    const { attempt, began, failure, steps } = run;
    run.earlier.push({
      attempt,
      began,
      until: failure?.at ?? at,
      why: failure?.why ?? "",
      isCut: number === attempt,
      steps,
    });
    run.steps = [];
  }
  Object.assign(run, {
    attempt: number,
    began: at,
    firstBegan: run.firstBegan ?? at,
    failure: null,
    status: null,
    position: null,
  });
}

function end(run, ending) {
  if (run.ending?.seq === ending.seq) return;
  run.ending = { ...ending, live: true };
  run.status = null;
  closePermissions(run, ending.at, ending);
}

/** Closes all permission requests: a run, or an attempt, has ended. */
function closePermissions(run, at, ending) {
  for (const step of run.steps) if (step.kind === "permission" && !step.answer && !step.over) close(step, at, ending);
}

function close(step, at, ending) {
  Object.assign(step, { over: true, until: at, ending });
  step.version++;
  if (step.call) step.call.version++;
}

/** Adds what the agent said besides its answer. */
export function addAside(run, { seq, at, content, large }) {
  if (!run.steps.some((step) => step.seq === seq)) addStep(run, { kind: "aside", seq, at, content, large });
}

/** Adds a step at its position: history is read after the newer events. */
function addStep(run, step) {
  const { steps } = run;
  Object.assign(step, { version: 0, key: step.seq ?? `s${steps.length}` });
  let place = steps.length;
  while (step.seq && place > 0 && steps[place - 1].seq > step.seq) place--;
  steps.splice(place, 0, step);
  return step;
}

/** The call with this id. */
export function tool(run, callId) {
  return run.steps.findLast((step) => step.kind === "tool" && step.callId === callId);
}
