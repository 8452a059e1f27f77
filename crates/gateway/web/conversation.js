// The model of a conversation, built from the gateway's events, one after the other. Nothing here renders: `version` of
// an item grows when it has changed.
//
// An item is an exchange (a message and the run that answers it) or a note (any other text). A run has steps: the
// actions of the agent in the current attempt, in order.

import { t } from "./language.js";
import { addAside, newRun, record, stepAt, tool } from "./runs.js";

export class Conversation {
  /** `onChange(item)` is called with each item that has changed, and with nothing for the conversation itself. */
  constructor(id, onChange) {
    this.id = id;
    this.onChange = onChange;
    this.title = "";
    /** How many clients are in the session. */
    this.clients = 1;
    /** The newest known event, from which to continue. */
    this.lastSeq = 0;
    /** Set once the session has been entered. */
    this.entered = false;
    /** If it is a copy, of what: `{sessionId, title, before, seq}`. */
    this.forkedFrom = null;
    /** The name of its agent, if it has one. */
    this.agent = null;
    /** What that agent does for messages that begin with `/`: `{name, hint, description}`, and the event that says so. */
    this.commands = [];
    this.commandsAt = -1;
    /** What can be chosen at it, `{id, name, description, current, choices}`, the event that says so, and why it refused it. */
    this.options = [];
    this.optionsAt = -1;
    this.refused = null;
    /** Why it cannot be shown. */
    this.gone = null;
    this.items = [];
    this.bySeq = new Map();
    this.hasOlder = false;
    /** Messages that were sent and have not come back as events; how many were ever sent. */
    this.sending = [];
    this.sent = 0;
    /** What is scheduled in it, as the gateway has it: the first of these, and how many there are. */
    this.toCome = [];
    this.scheduled = 0;
    /** The search hit that is marked: `{item, step}`. */
    this.found = null;
    this.version = 0;
  }

  /** The first messages, as `sessions.switch` has them. */
  enter({ title, recentMessages, lastSeq, forkedFrom, agent, options }, hasOlder) {
    this.title = title;
    this.agent = agent ?? null;
    [this.options, this.optionsAt] = [options ?? [], lastSeq];
    this.forkedFrom = forkedFrom ?? null;
    this.entered = true;
    this.hasOlder = hasOlder;
    this.lastSeq = Math.max(this.lastSeq, lastSeq);
    this.history(recentMessages);
  }

  /** Messages, as `sessions.history` has them. */
  history(messages) {
    for (const message of messages) {
      const at = Date.parse(message.timestamp);
      if (message.role === "user") {
        this.said(message.seq, message, {
          at, id: message.id, source: message.source, mine: message.metadata?.client === this.clientId,
          priority: message.metadata?.priority,
        });
      } else if (message.replyTo ?? message.metadata?.began) {
        // A run that the agent began itself answers no message.
        const run = message.replyTo ? this.exchange(message.replyTo).run : this.unasked(message.metadata.began, message.runId);
        run.runId ??= message.runId;
        const { metadata = {} } = message;
        const ending = { seq: message.seq, at, id: message.id, content: message.content, large: message.large };
        if (message.role === "error") Object.assign(ending, { kind: "failed", why: String(metadata.error ?? "") });
        else if (message.role === "cancelled") Object.assign(ending, { kind: "cancelled", why: String(metadata.why ?? "") });
        else {
          const { total_tokens: tokens, stage, latency_ms: took } = metadata;
          Object.assign(ending, { kind: "answer", tokens, stage, took });
        }
        // Output of the agent besides the answer comes before the ending.
        const earlier = [run.ending, ending].filter(Boolean).sort((a, b) => a.seq - b.seq);
        run.ending = earlier.pop();
        for (const aside of earlier) if (aside.seq !== run.ending.seq) addAside(run, aside);
        this.touch(run.of);
      } else {
        const from = message.role === "system" ? "system" : "agent";
        this.note({ seq: message.seq, at, content: message.content, large: message.large, from });
      }
    }
  }

  get oldestSeq() {
    return this.items.find((item) => item.seq)?.seq ?? null;
  }

  /** The item that an event belongs to, if it is known: as its message, or as a part of its run. */
  itemAt(seq) {
    if (this.bySeq.has(seq)) return this.bySeq.get(seq);
    if (!(seq >= this.oldestSeq)) return null;
    const isOf = ({ run }) => run && (run.ending?.seq === seq || stepAt(run, seq) ||
      run.earlier.some((attempt) => stepAt(attempt, seq)));
    const isAround = (item) => item.run && item.seq < seq && (item.run.ending?.seq ?? Infinity) > seq;
    return this.items.find(isOf) ?? this.items.find(isAround) ?? this.items.findLast((item) => item.seq < seq) ?? null;
  }

  /** Whether this event may be a message that is not read yet. */
  isToBeRead(seq) {
    return !this.bySeq.has(seq) && (!this.entered || (this.hasOlder && seq < this.oldestSeq));
  }

  /** Whether everything that is read at first is known of an item. */
  isRead({ run }) {
    return !run?.ending || Boolean(run.ending.live || run.filled || run.stepsBefore);
  }

  /** Opens the search hit. */
  find(item, seq) {
    const step = item.run && stepAt(item.run, seq);
    this.found = { item, step };
    if (step) step.version++;
    this.touch(item);
  }

  /** The current run. */
  get activeRun() {
    return this.openRuns().find((run) => run.attempt) ?? null;
  }

  /** Runs that are running or waiting; without those of messages that were skipped. */
  openRuns() {
    const open = [];
    let passed = false;
    for (let n = this.items.length - 1; n >= 0; n--) {
      const { run, message, priority, unasked } = this.items[n];
      if (!run) continue;
      const begun = run.attempt || run.ending;
      if ((message || unasked) && !run.ending && (begun || !passed || priority === "later")) open.unshift(run);
      if (begun && (!priority || priority === "next")) passed = true;
    }
    return open;
  }

  /** How many runs come before that of an exchange; null if it does not wait. */
  position(exchange) {
    const { run } = exchange;
    if (run.ending || run.attempt) return null;
    if (run.position != null) return run.position;
    if (!this.openRuns().includes(run)) return null;
    const rank = (run) => (run.attempt ? 0 : { now: 1, steer: 2, later: 4 }[run.of.priority] ?? 3);
    return this.openRuns().filter((other) => other !== run &&
      (rank(other) < rank(run) || (rank(other) === rank(run) && other.of.seq < run.of.seq))).length;
  }

  /** Handles a live event, or one that comes while catching up. */
  event(frame) {
    if (frame.seq) {
      if (frame.seq <= this.lastSeq) return;
      this.lastSeq = frame.seq;
    }
    this.apply(frame);
  }

  /** Events of runs that are in the history: `sessions.steps`. Those before `from` were not read. */
  fill(frames, from) {
    for (const frame of frames) this.apply(frame);
    for (const { run, seq } of this.items) {
      if (!run?.ending || run.ending.live || run.filled) continue;
      run.filled = seq >= from;
      run.stepsBefore = run.filled ? null : Math.min(run.ending.seq + 1, run.stepsBefore ?? from);
      this.touch(run.of);
    }
  }

  apply({ event, payload, seq, time }) {
    const at = time ? Date.parse(time) : Date.now();
    const run = this.runOf(payload.runId, seq) ?? this.begun(event, payload, seq);
    switch (event) {
      case "message": return this.message(payload, seq, Date.parse(payload.timestamp), run);
      case "clients": this.clients = payload.clients; return this.onChange();
      // History is read after newer events.
      case "commands":
        if (seq > this.commandsAt) [this.commands, this.commandsAt] = [payload.commands, seq];
        return this.onChange();
      case "options":
        if (seq > this.optionsAt) [this.options, this.optionsAt, this.refused] = [payload.options, seq, payload.refused ?? null];
        return this.onChange();
      case "option":
        if (seq > this.optionsAt) this.chosen(payload);
        return this.onChange();
      case "title": this.title = payload.title; return this.onChange();
      case "queued":
        if (run) { run.position = payload.position; this.touch(run.of); }
        return;
      case "sub_agent": return this.subAgent(payload, seq, at);
      case "permission": if ("choice" in payload) return this.permissionAnswer(payload, at);
    }
    if (event === "error" && payload.errorCode === "session_deleted") {
      this.gone = t("this_session_was_deleted");
      return this.onChange();
    }
    if (!run) {
      if (event === "large") this.note({ seq, at, from: payload.source, large: payload, content: "" });
      return;
    }
    record(run, event, payload, seq, at);
    this.touch(run.of);
  }

  /** Somebody has chosen a value of an option. What was refused before is over. */
  chosen({ id, value }) {
    this.refused = null;
    const isIt = (option) => option.id === id && option.choices.some((choice) => choice.id === value);
    this.options = this.options.map((option) => (isIt(option) ? { ...option, current: value } : option));
  }

  message(payload, seq, at, run) {
    if (payload.role === "user") {
      this.sending = this.sending.filter((sent) => !sent.runId || sent.runId !== payload.runId);
      return this.said(seq, payload, {
        at, id: payload.messageId, source: payload.source, mine: payload.fromSelf, priority: payload.priority,
      });
    }
    if (payload.role === "system" && payload.metadata?.agent) {
      this.agent = payload.metadata.agent;
      // Another agent has none until it says so.
      if (seq > this.commandsAt) [this.commands, this.commandsAt] = [[], seq];
      if (seq > this.optionsAt) [this.options, this.optionsAt, this.refused] = [[], seq, null];
    }
    const aside = { seq, at, content: payload.content, large: payload.large, from: payload.role };
    if (payload.role === "assistant" && run) { addAside(run, aside); this.touch(run.of); }
    else this.note(aside);
  }

  subAgent({ runId, parentCallId, subAgent, event, payload }, seq, at) {
    const call = this.callOf(parentCallId, runId);
    if (!call) return;
    let sub = call.step.subs.find((sub) => sub.name === subAgent);
    if (!sub) call.step.subs.push(sub = { name: subAgent, events: 0, run: newRun(null) });
    sub.events++;
    // A sub-agent has one attempt.
    sub.run.attempt ??= 1;
    sub.run.began ??= at;
    sub.run.firstBegan ??= at;
    if (event === "status" && payload?.status === "started") sub.run.attempt = 1;
    else record(sub.run, event, payload ?? {}, seq, at);
    call.step.version++;
    this.touch(call.run.of);
  }

  /** The tool call with this id, in the newest run that has it. */
  callOf(callId, runId) {
    for (const item of [...this.items].reverse()) {
      if (!item.run || (runId && item.run.runId !== runId)) continue;
      const step = tool(item.run, callId);
      if (step) return { run: item.run, step };
    }
    return null;
  }

  permissionAnswer({ requestId, choice }, at) {
    for (const { run } of this.items) {
      const step = run?.steps.findLast((step) => step.kind === "permission" && step.asked.requestId === requestId);
      if (!step) continue;
      // Without a choice, the agent has withdrawn its request.
      if (choice && !step.asked.choices.some((offered) => offered.id === choice)) return;
      if (step.answer || step.ending?.kind === "withdrawn") return;
      Object.assign(step, { answer: choice || null, over: true, until: at, ending: choice ? undefined : { kind: "withdrawn" } });
      step.version++;
      if (step.call) step.call.version++;
      return this.touch(run.of);
    }
  }

  /** All open permission requests. */
  openPermissions() {
    return this.openRuns().flatMap((run) => run.steps.filter((step) => step.kind === "permission" && !step.answer && !step.over));
  }

  /** The run that an event belongs to: of those with this id, the first that had not ended by then. */
  runOf(runId, seq) {
    if (!runId) return null;
    let last = null;
    for (const { run } of this.items) {
      if (run?.runId !== runId) continue;
      if (!run.ending || (seq && seq < run.ending.seq)) return run;
      last = run;
    }
    return last;
  }

  said(seq, { content, runId, large }, about) {
    const exchange = this.exchange(seq);
    if (exchange.message) return;
    exchange.message = { content, large, ...about };
    exchange.priority = about.priority;
    exchange.run.runId = runId ?? exchange.run.runId;
    this.touch(exchange);
  }

  /** The run that an event begins without a message: the agent's own. */
  begun(event, { runId, status }, seq) {
    return event === "status" && status === "started" && seq && runId ? this.unasked(seq, runId) : null;
  }

  unasked(seq, runId) {
    const exchange = this.exchange(seq);
    exchange.unasked = true;
    exchange.run.runId ??= runId;
    return exchange.run;
  }

  /** The exchange that a message begins. Its message may be further back in the history. */
  exchange(seq) {
    let exchange = this.bySeq.get(seq);
    if (!exchange) {
      exchange = { kind: "exchange", key: `e${seq}`, seq, message: null, priority: null, version: 0 };
      exchange.run = newRun(exchange);
      this.insert(exchange);
    }
    return exchange;
  }

  note(note) {
    if (note.seq && this.bySeq.has(note.seq)) return;
    this.insert({ kind: "note", key: note.seq ? `n${note.seq}` : `n-${++this.version}-${note.at}`, version: 0, ...note });
  }

  insert(item) {
    let place = this.items.length;
    if (item.seq) {
      this.bySeq.set(item.seq, item);
      while (place > 0 && (this.items[place - 1].seq ?? 0) > item.seq) place--;
    }
    this.items.splice(place, 0, item);
    this.onChange();
  }

  touch(item) {
    if (item) item.version++;
    this.onChange(item);
  }
}
