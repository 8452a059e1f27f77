// Handlers that are functions. thread starts the program that has them when there is an event, and keeps it.
import { statSync } from "node:fs";
import { Asleep, errors, NotNow, Reject } from "./errors.js";
import { duration, lines, options, result, start } from "./program.js";

/** Names the handler, in the environment of a program that was started for it. */
const STARTED_FOR = "THREADQ_HANDLER";
const VERSION = "THREADQ_VERSION";
/** A step: says that it begins, under which key, and then stores the line that it gets. */
const STEP = 'echo "begun $THREAD_STEP_KEY" >&2; IFS= read -r result && printf "%s\\n" "$result"';

const quoted = (word) => `'${word.replaceAll("'", "'\\''")}'`;

/** One event at a handler, and what is stored for it. */
class Run {
  constructor(thread, consumer, event) {
    Object.assign(this, { thread, consumer, event });
  }

  get #words() {
    return [`--consumer=${this.consumer}`, `--event=${this.event.id}`];
  }

  async step(name, work) {
    const call = { args: ["step", ...this.#words, name, "--", "sh", "-c", STEP], result: (out) => out[0] };
    const child = start(this.thread.location, call);
    const done = result(call, child);
    // It may fail before anything waits for it.
    done.catch(() => {});
    const begun = new Promise((resolve) => {
      child.stderr.on("data", () => {
        const [line, key] = /^begun (.*)\n/m.exec(child.errors) ?? [];
        if (!line) return;
        // It is no part of an error.
        child.errors = child.errors.replace(line, "");
        resolve(key);
      });
    });
    const key = await Promise.race([begun, child.ended.then(() => null)]);
    try {
      if (key !== null) child.stdin.write(`${JSON.stringify((await work(key)) ?? null)}\n`);
    } finally {
      // Without a line, the step has failed, and nothing is stored.
      child.stdin.end();
      await done.catch(() => {});
    }
    return done;
  }

  async sleep(name, length) {
    await this.thread.command("sleep", ...this.#words, name, duration(length));
  }

  async waitFor(name, { timeout, ...which } = {}) {
    const words = options({ timeout: timeout && duration(timeout), ...which });
    try {
      return (await this.thread.command("await", ...this.#words, name, ...words))[0];
    } catch (error) {
      if (error instanceof errors.TimedOut) return null;
      throw error;
    }
  }
}

/** The part of Thread that is about handlers. */
export class Handlers {
  #handlers = new Map();

  handler(consumer, given, handle) {
    this.#handlers.set(consumer, handle ? [handle, given] : [given, {}]);
  }

  async run() {
    const startedFor = process.env[STARTED_FOR];
    delete process.env[STARTED_FOR];
    if (startedFor !== undefined) {
      const [handle] = this.#handlers.get(startedFor) ?? [];
      if (!handle) throw new errors.UnknownConsumer(`this program has no handler for '${startedFor}'`, "unsubscribe it");
      await answer(this, startedFor, handle);
      process.exit();
    }
    for (const [consumer, [, given]] of this.#handlers) {
      const words = [process.execPath, ...process.execArgv, ...process.argv.slice(1)];
      // With another command, what runs is replaced.
      const version = statSync(process.argv[1] ?? "", { throwIfNoEntry: false })?.mtimeMs ?? 0;
      const command = `${STARTED_FOR}=${quoted(consumer)} ${VERSION}=${version} exec ${words.map(quoted).join(" ")}`;
      await this.subscribe(consumer, command, { deliver: "ndjson", replace: true, defaults: true, ...given });
    }
  }
}

/** Answers the events on stdin. */
async function answer(thread, consumer, handle) {
  // What the handler prints must not be taken for an answer; thread adds it to the log.
  const print = process.stdout.write.bind(process.stdout);
  process.stdout.write = process.stderr.write.bind(process.stderr);
  const say = (answer) => print(`${JSON.stringify(answer)}\n`);
  // The last line of a crash is what is kept of it. Node would end with its version.
  process.on("uncaughtException", (error) => {
    console.error(error);
    console.error(String(error));
    process.exit(1);
  });
  const underWay = new Set();
  for await (const line of lines(process.stdin)) {
    const event = JSON.parse(line);
    const handled = (async () => handle(event, new Run(thread, consumer, event)))()
      .then(() => say({ ack: event.id }), (error) => say(refusal(event, error)))
      .finally(() => underWay.delete(handled));
    underWay.add(handled);
  }
  await Promise.all(underWay);
  await thread.close();
}

/** The answer for an event whose handler has thrown. */
function refusal({ id }, error) {
  if (error instanceof Asleep) return { nack: id, attempt: false };
  if (error instanceof Reject) return { reject: id, error: error.message };
  if (error instanceof NotNow) {
    const delay = error.delay == null ? {} : { delay: duration(error.delay) };
    return { nack: id, attempt: false, error: error.message, ...delay };
  }
  console.error(`event ${id}:`, error);
  return { nack: id, error: String(error) };
}
