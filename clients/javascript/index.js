// The client. One process of thread serves all calls of a Thread but those that wait.
import { errorOf } from "./errors.js";
import { Handlers } from "./handlers.js";
import { duration, event, failure, finish, lines, options, run, start, text } from "./program.js";

export { Asleep, errors, NotNow, Reject, ThreadError } from "./errors.js";

const events = (out) => out;
const stored = (out) => out[0].id;
const cursor = (out) => out[0].last_acked_id;
const count = (out) => out[0].count;
const nothing = () => undefined;

/** A line of a batch. */
function line(one) {
  const { content, meta: metadata, key: idempotency_key, ...rest } =
    one !== null && typeof one === "object" && "content" in one ? one : { content: one };
  return `${JSON.stringify({ ...rest, content: text(content), metadata, idempotency_key })}\n`;
}

export class Thread extends Handlers {
  #session;
  #waiting = [];
  #isClosed = false;

  constructor(location) {
    super();
    this.location = location;
  }

  static async open(location) {
    const thread = new Thread(location);
    await thread.#start();
    return thread;
  }

  static async init(location, { ifMissing } = {}) {
    const args = ["init", ...options({ ifMissing }), "--", location];
    return Thread.open(await run(undefined, { args, result: (out) => out[0].thread }));
  }

  push(content, rest = {}) {
    return this.#do(event(["push"], content, rest, stored));
  }

  pushMany(contents) {
    const result = ([{ count, first_id, last_id }]) => ({ count, first_id, last_id });
    return this.#do({ args: ["push", "--batch"], input: Array.from(contents, line).join(""), result });
  }

  schedule(content, when) {
    return this.#do(event(["push"], content, when, (out) => out[0].scheduled_id));
  }

  repeat(name, content, when) {
    return this.#do(event(["schedule", "add", name], content, when, (out) => out[0].name));
  }

  read({ after = 0, ...which } = {}) {
    const start = (which.since || which.tail) && !after ? {} : { lastEventId: after };
    return this.#do({ args: ["peek", ...options({ ...start, ...which })], result: events });
  }

  async *follow({ after, signal, ...which } = {}) {
    const args = ["peek", "--follow", ...options({ lastEventId: after, ...which })];
    const child = start(this.location, { args }, signal);
    try {
      for await (const row of lines(child.stdout)) yield JSON.parse(row);
      throw failure(child, await child.ended);
    } finally {
      child.kill();
    }
  }

  subscribe(consumer, handler, { timeout, idle, probe, ...rest } = {}) {
    const times = { timeout: timeout && duration(timeout), idle: idle && duration(idle), probe: probe && duration(probe) };
    const given = { consumer, handler, noHandler: !handler && (rest.defaults || !rest.replace), ...rest, ...times };
    return this.#do({ args: ["subscribe", ...options(given, { start: "from" })], result: (out) => out[0].consumer_id });
  }

  unsubscribe(consumer) {
    return this.#do({ args: ["unsubscribe", ...options({ consumer })], result: nothing });
  }

  pop(consumer, { claim, wait, limit, signal } = {}) {
    const times = { claim: claim && duration(claim), wait: wait && duration(wait) };
    const call = { args: ["pop", ...options({ consumer, limit, ...times })], result: events };
    return wait ? run(this.location, call, signal) : this.#do(call);
  }

  ack(consumer, ids, { claim } = {}) {
    const args = ["ack", ...options({ consumer, claim }), "--", ...[ids].flat().map(String)];
    return this.#do({ args, result: cursor });
  }

  nack(consumer, id, { delay, error, attempt = true, claim } = {}) {
    const given = { consumer, delay: delay && duration(delay), error, noAttempt: !attempt, claim };
    return this.#do({ args: ["nack", ...options(given, {}), String(id)], result: cursor });
  }

  reject(consumer, id, { error, claim } = {}) {
    return this.#do({ args: ["reject", ...options({ consumer, error, claim }), String(id)], result: cursor });
  }

  claim(consumer, id, length, { claim } = {}) {
    const args = ["claim", ...options({ consumer, claim }), String(id), duration(length)];
    return this.#do({ args, result: nothing });
  }

  deadLetters(consumer) {
    return this.#do({ args: ["dead", "list", ...options({ consumer })], result: events });
  }

  retry(consumer, eventId) {
    return this.#do({ args: ["dead", "retry", ...options({ consumer, eventId, all: eventId == null })], result: count });
  }

  discard(consumer, eventId) {
    return this.#do({ args: ["dead", "discard", ...options({ consumer, eventId, all: eventId == null })], result: count });
  }

  ask(content, { signal, ...rest } = {}) {
    return run(this.location, event(["ask"], content, rest, (out) => out[0]), signal);
  }

  reply(to, content, rest = {}) {
    return this.#do(event(["reply"], content, { to, ...rest }, stored));
  }

  command(...args) {
    return this.#do({ args, result: events });
  }

  /** Ends the process, once all calls are answered. */
  async close() {
    this.#isClosed = true;
    const session = this.#session;
    if (!session) return;
    const ended = new Promise((resolve) => session.on("close", resolve));
    hold(session, true);
    session.stdin.end();
    await ended;
  }

  async [Symbol.asyncDispose ?? Symbol("asyncDispose")]() {
    await this.close();
  }

  async #do(call) {
    if (this.#isClosed) throw sessionEnded("open the thread again");
    if (!this.#session) await this.#start();
    const session = this.#session;
    const answer = await new Promise((resolve, reject) => {
      // The program does not end before it has its answer.
      if (this.#waiting.push({ resolve, reject }) === 1) hold(session, true);
      session.stdin.write(`${JSON.stringify({ args: call.args, input: call.input })}\n`);
    });
    return finish(call, answer);
  }

  /** Starts the process that serves the calls; once, even if several calls need it. */
  #start() {
    this.starting ??= this.#begin().finally(() => (this.starting = undefined));
    return this.starting;
  }

  async #begin() {
    const session = start(this.location, { args: ["session"] });
    const answers = lines(session.stdout);
    const { value: hello } = await answers.next();
    if (!hello) throw failure(session, await session.ended);
    this.location = JSON.parse(hello).thread;
    this.#session = session;
    hold(session, false);
    this.#read(session, answers);
  }

  async #read(session, answers) {
    for await (const answer of answers) {
      this.#waiting.shift()?.resolve(JSON.parse(answer));
      if (!this.#waiting.length && !this.#isClosed) hold(session, false);
    }
    this.#session = undefined;
    for (const { reject } of this.#waiting.splice(0)) reject(sessionEnded("see whether it was done before you do it again"));
  }
}

/** Whether the process keeps this program alive. */
function hold(session, yes) {
  for (const one of [session, session.stdin, session.stdout, session.stderr]) yes ? one.ref?.() : one.unref?.();
}

function sessionEnded(suggestion) {
  return errorOf({ code: "session_ended", error: "the session has ended", suggestion });
}
