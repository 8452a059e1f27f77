// The program thread: where it is, its arguments, and processes of it.
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { createRequire } from "node:module";
import { delimiter, join } from "node:path";
import { Asleep, errorOf } from "./errors.js";

const PLATFORM = `@threadq/${process.platform}-${process.arch}/bin/thread`;

/** The program that THREAD_PROGRAM names, else the one that came with this package, else the one on PATH. */
export function program() {
  if (process.env.THREAD_PROGRAM) return process.env.THREAD_PROGRAM;
  try {
    return createRequire(import.meta.url).resolve(PLATFORM);
  } catch {
    const found = (process.env.PATH ?? "").split(delimiter).map((folder) => join(folder, "thread"));
    const own = found.find((path) => existsSync(path));
    if (own) return own;
    const suggestion = "install it, or set THREAD_PROGRAM to its path";
    throw errorOf({ code: "spawn_failed", error: "the program 'thread' is not installed", suggestion });
  }
}

/** "30s", or a number of milliseconds. */
export const duration = (length) => (typeof length === "number" ? `${Math.max(0, Math.round(length))}ms` : length);

const RENAMED = { key: "idempotency-key", delay: "in", start: "from" };

/** Options of the command line. Those that are undefined, null or false are left out. */
export function options(given, renamed = RENAMED) {
  return Object.entries(given).flatMap(([name, value]) => {
    const flag = `--${(renamed[name] ?? name).replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;
    if (value === undefined || value === null || value === false) return [];
    if (value === true) return [flag];
    if (typeof value === "object") return Object.entries(value).map(([key, text]) => `${flag}=${key}=${text}`);
    return [`${flag}=${value}`];
  });
}

export const text = (content) => (typeof content === "string" ? content : JSON.stringify(content));

/** A call of a command that makes an event. Times are in milliseconds. */
export function event(command, content, { meta, expires, delay, every, timeout, ...rest }, result) {
  const metadata = meta && JSON.stringify(meta);
  const times = { expires, delay, every, timeout };
  for (const name of Object.keys(times)) times[name] &&= duration(times[name]);
  return { args: [...command, "--content-file=-", ...options({ ...rest, ...times, metadata })], input: text(content), result };
}

/** The result of a call, from the answer of a session. */
export function finish(call, { exit, out, notices = [], ...failure }) {
  for (const line of notices) if (line.startsWith("Warning")) process.emitWarning(line, "threadq");
  if (exit === 75) throw new Asleep("the event sleeps");
  if (exit) throw errorOf(failure, exit);
  return call.result(out);
}

/** Starts a process of its own for a call, which a signal ends: `ended` is its exit code, and `errors` what it said on stderr. */
export function start(location, { args: [command, ...rest] }, signal) {
  signal?.throwIfAborted();
  const named = location ? [`--thread=${location}`] : [];
  // Away from the terminal, whose Ctrl-C is not for it.
  const child = spawn(program(), [command, "--json", ...named, ...rest], { detached: true, signal });
  const ended = new Promise((resolve, reject) => {
    child.on("close", resolve).on("error", (error) => reject(signal?.aborted ? signal.reason : error));
  });
  // Whoever waits for it gets the error.
  ended.catch(() => {});
  child.stdin.on("error", () => {});
  child.stderr.setEncoding("utf8").on("data", (chunk) => (child.errors += chunk));
  return Object.assign(child, { ended, errors: "" });
}

/** The whole lines of a stream. Not those of readline, which has other ideas of what ends a line. */
export async function* lines(stream) {
  let rest = [];
  for await (const chunk of stream) {
    let from = 0;
    for (let end; (end = chunk.indexOf(10, from)) >= 0; from = end + 1) {
      yield Buffer.concat([...rest, chunk.subarray(from, end)]).toString();
      rest = [];
    }
    rest.push(chunk.subarray(from));
  }
}

/** The result of a process of its own, which has got what it reads. */
export async function result(call, child) {
  const out = [];
  for await (const line of lines(child.stdout)) out.push(line);
  const exit = await child.ended;
  if (exit !== 0 && exit !== 75) throw failure(child, exit);
  return finish(call, { exit, out: out.map((line) => JSON.parse(line)) });
}

/** The error of a process that has ended: the last line of its stderr. */
export function failure(child, exit) {
  const last = child.errors.trim().split("\n").pop();
  try {
    return errorOf(JSON.parse(last), exit);
  } catch {
    return errorOf({ error: last || `thread ended with exit code ${exit}` }, exit);
  }
}

/** Runs a call that waits. */
export async function run(location, call, signal) {
  const child = start(location, call, signal);
  child.stdin.end(call.input ?? "");
  return result(call, child);
}
