// Tests of the client, with the real program: node --test
//
// THREAD_PROGRAM names the program, if it is not installed. THREAD_TEST_LOCATION, such as postgres://…/db?schema=x, is where
// threads are made instead of directories.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { errors, Thread, ThreadError } from "../index.js";

const PATIENCE = 120_000;
const ELSEWHERE = process.env.THREAD_TEST_LOCATION;

async function waitFor(what, look) {
  for (const end = Date.now() + PATIENCE; Date.now() < end; await sleep(20)) {
    const found = await look();
    if (found) return found;
  }
  assert.fail(`timed out waiting for ${what}`);
}

/** Processes of handlers and supervisors of a thread. */
const handlers = (location) =>
  readdirSync("/proc").filter((pid) => {
    try {
      const words = readFileSync(`/proc/${pid}/cmdline`, "utf8").split("\0");
      return words.includes(location) && !words.includes("session");
    } catch {
      return false;
    }
  });

/** A test with a thread in a folder of its own. */
function withThread(name, options, use = options) {
  test(name, use === options ? {} : options, async (t) => {
    const folder = mkdtempSync(join(tmpdir(), "threadq-"));
    const location = ELSEWHERE ? `${ELSEWHERE}#${name}` : join(folder, "inbox");
    process.env.XDG_STATE_HOME = join(folder, "state");
    const thread = await Thread.init(location);
    try {
      await use({ thread, location, folder, t });
    } finally {
      // No handler is left when the folder goes.
      const all = (await thread.command("info"))[0].subscriptions;
      for (const { consumer_id } of all) await thread.unsubscribe(consumer_id);
      await waitFor("handlers to end", () => handlers(location).every((pid) => pid === String(process.pid)));
      await thread.close();
      rmSync(folder, { recursive: true });
    }
  });
}

withThread("what is pushed is read", async ({ thread }) => {
  const odd = 'two\nlines, "quoted" \u2028 \0 -- 🧵';
  assert.equal(await thread.push(odd, { source: "self", type: "record", subtype: "-x", meta: { a: [1, null] } }), 1);
  assert.deepEqual(await Promise.all([thread.push({ n: 1 }, { replyTo: 1 }), thread.push("")]), [2, 3]);
  const [first, second, third] = await thread.read();
  assert.deepEqual(
    { ...first, created_at: "" },
    { id: 1, created_at: "", source: "self", type: "record", subtype: "-x", content: odd, metadata: { a: [1, null] } },
  );
  assert.deepEqual([JSON.parse(second.content), second.metadata], [{ n: 1 }, { reply_to: 1 }]);
  assert.deepEqual([third.content, third.metadata], ["", undefined]);
  const ids = async (which) => (await thread.read(which)).map(({ id }) => id);
  assert.deepEqual(await ids({ after: 1, limit: 1 }), [2]);
  assert.deepEqual(await ids({ tail: 1 }), [3]);
  assert.deepEqual(await ids({ since: "1h", type: "record" }), [1]);
  assert.deepEqual([await ids({ after: 2, since: "1h" }), await ids({ after: 2, tail: 2 })], [[3], [3]]);
  assert.deepEqual(await ids({ meta: { reply_to: "1" } }), [2]);
  const long = "é".repeat(3_000_000);
  await thread.push(long);
  assert.equal((await thread.read({ tail: 1 }))[0].content, long);
});

withThread("many at once or none, and once under a key", async ({ thread }) => {
  const many = ["one", { n: 2 }, { content: "three", subtype: "s", meta: { a: 1 }, key: "k" }];
  assert.deepEqual(await thread.pushMany(many), { count: 3, first_id: 1, last_id: 3 });
  assert.deepEqual((await thread.read())[2].metadata, { a: 1 });
  await assert.rejects(thread.pushMany(["four", { content: "five", type: "odd" }]), errors.EventInvalid);
  assert.equal(await thread.push("x", { key: "l" }), await thread.push("x", { key: "l" }));
  await assert.rejects(thread.push("y", { key: "l" }), (error) => {
    assert.ok(error instanceof errors.IdempotencyConflict && error instanceof ThreadError);
    assert.deepEqual([error.name, error.code, error.exit], ["IdempotencyConflict", "idempotency_conflict", 1]);
    return error.suggestion.includes("use a new key");
  });
});

withThread("later, and again", async ({ thread }) => {
  assert.equal(await thread.schedule("x", { delay: 3_600_000 }), "s1");
  assert.equal(await thread.schedule("x", { at: "2100-01-01T00:00:00Z", key: "k" }), "s2");
  assert.equal(await thread.repeat("daily", "good morning", { cron: "0 9 * * *", tz: "Europe/Berlin" }), "daily");
  assert.equal((await thread.command("scheduled")).length, 2);
  // Or a process would wait for them.
  for (const id of ["s1", "s2"]) await thread.command("scheduled", "cancel", id);
  await thread.command("schedule", "remove", "daily");
});

withThread("followers and questions", async ({ thread }) => {
  await thread.push("before");
  const seen = [];
  for await (const { content } of thread.follow({ after: 0 })) {
    seen.push(content);
    if (seen.length === 1) await thread.push("after");
    else break;
  }
  assert.deepEqual(seen, ["before", "after"]);
  const asked = thread.ask("ready?", { timeout: PATIENCE });
  for await (const question of thread.follow({ after: 2 })) {
    await thread.reply(question.id, "yes");
    break;
  }
  assert.equal((await asked).content, "yes");
  await assert.rejects(thread.ask("anybody?", { timeout: 10 }), errors.TimedOut);
  const aborted = new AbortController();
  const waiting = thread.ask("anybody?", { signal: aborted.signal });
  aborted.abort();
  await assert.rejects(waiting, { name: "AbortError" });
});

withThread("claims are one program's", async ({ thread }) => {
  await thread.subscribe("team", undefined, { concurrency: 3, key: "content" });
  await thread.pushMany(["a", "a", "b", "c"]);
  const [a, b] = await thread.pop("team", { claim: "1h", limit: 2 });
  const [c] = await thread.pop("team", { claim: 60_500, limit: 9 });
  assert.deepEqual([a.content, b.content, c.content], ["a", "b", "c"]);
  assert.deepEqual(await thread.pop("team", { claim: "1h" }), []);
  await thread.claim("team", a.id, "2h", { claim: a.claim });
  assert.equal(await thread.ack("team", a.id, { claim: a.claim }), 1);
  await assert.rejects(thread.ack("team", a.id, { claim: a.claim }), errors.ClaimOver);
  await thread.nack("team", b.id, { delay: "1h", error: "busy", attempt: false, claim: b.claim });
  await thread.reject("team", c.id, { error: "bad" });
  assert.equal((await thread.deadLetters("team"))[0].last_error, "bad");
  await assert.rejects(thread.discard("team", a.id), errors.NotADeadLetter);
  assert.deepEqual([await thread.discard("team", c.id), await thread.discard("team")], [1, 0]);
  assert.deepEqual(await thread.deadLetters("team"), []);
  const [second] = await thread.pop("team", { claim: "1h", wait: PATIENCE });
  assert.equal(second.id, 2);
  await thread.unsubscribe("team");
  await assert.rejects(thread.pop("team"), errors.UnknownConsumer);
});

test("each error of the specification has a class", () => {
  const spec = readFileSync(new URL("../../../SPEC.md", import.meta.url), "utf8");
  const section = spec.split("### Error codes")[1].split("\n## ")[0];
  const rows = section.split("\n").filter((line) => line.startsWith("| `") && !line.includes("`code`"));
  const codes = rows.flatMap((row) => [...row.split("|")[1].matchAll(/`(\w+)`/g)].map(([, code]) => code));
  const names = [...codes, "session_ended"].map((code) => code.replace(/(^|_)(.)/g, (_, __, c) => c.toUpperCase()));
  assert.deepEqual(Object.keys(errors).sort(), names.sort());
  const types = readFileSync(new URL("../index.d.ts", import.meta.url), "utf8").split("export type ErrorName =")[1].split(";")[0];
  assert.deepEqual([...types.matchAll(/"(\w+)"/g)].map(([, name]) => name).sort(), names);
});

withThread("what fails, and a session that was killed", async ({ thread, location, folder }) => {
  await assert.rejects(Thread.open(join(folder, "nowhere")), errors.NotAThread);
  await assert.rejects(Thread.init(location), errors.AlreadyAThread);
  await (await Thread.init(location, { ifMissing: true })).close();
  await assert.rejects(thread.read({ filter: "nosuch = 1" }), errors.FilterInvalid);
  await assert.rejects(thread.command("frobnicate"), errors.Usage);
  const session = readdirSync("/proc").find((pid) => {
    try {
      return readFileSync(`/proc/${pid}/cmdline`, "utf8").split("\0").includes(`--thread=${location}`);
    } catch {
      return false;
    }
  });
  process.kill(Number(session), "SIGKILL");
  await waitFor("the session to be gone", () => thread.push("x").then(() => true, () => false));
  // An open thread keeps no program alive.
  const program = `import { Thread } from ${JSON.stringify(new URL("../index.js", import.meta.url))};
    console.log(await (await Thread.open(${JSON.stringify(location)})).push("x"));`;
  execFileSync(process.execPath, ["--input-type=module", "-e", program], { timeout: PATIENCE });
});

const PROGRAM = `
import { appendFileSync, existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { NotNow, Reject, Thread } from ${JSON.stringify(new URL("../index.js", import.meta.url))};
const thread = await Thread.open(process.argv[2]);

const plain = { filter: "subtype = 'plain'", idle: "1s", backoff: "50ms", maxAttempts: 2, batchSize: 1 };
thread.handler("plain", plain, ({ content }) => {
  console.log("this is no answer");
  appendFileSync("seen", content + "\\n");
  if (content === "reject") throw new Reject("never");
  if (content === "fail") throw new TypeError("odd");
  if (content === "later" && !existsSync("later")) {
    writeFileSync("later", "");
    throw new NotNow("busy", { delay: 10 });
  }
});

thread.handler("soon", { filter: "subtype = 'soon'", idle: "1s", backoff: "1h" }, () => {
  if (existsSync("soon")) return;
  writeFileSync("soon", "");
  throw new NotNow("", { delay: 0 });
});

thread.handler("steps", { filter: "subtype = 'steps'", idle: "1s", concurrency: 2, backoff: "50ms" }, async (event, run) => {
  const receipt = await run.step("charge", (key) => {
    appendFileSync("charged", key + "\\n");
    if (!existsSync("tried")) {
      writeFileSync("tried", "");
      throw new Error("the bank is closed");
    }
    return { receipt: event.content, key };
  });
  await run.sleep("a while", 50);
  const approval = await run.waitFor("approval", { subtype: "approval", meta: { order: event.content }, timeout: "1h" });
  const nobody = await run.waitFor("nobody", { subtype: "nobody", timeout: 10 });
  await run.step("ship", (key) => run.thread.push([receipt, approval.content, nobody], { subtype: "done", key }));
});

thread.handler("large", { filter: "subtype = 'large'", idle: "1s", backoff: "50ms" }, async (event, run) => {
  const make = () => run.step("make", (key) => "x".repeat(300_000) + key);
  const made = [await make(), await make()];
  await run.thread.push([made[0].length > 300_000, made[0] === made[1]], { subtype: "made" });
});

/** What a step fails with. */
const failure = (run, name, work) => run.step(name, work).then(() => "it did not fail", ({ message }) => message);
thread.handler("broken", { filter: "subtype = 'broken'", idle: "1s", backoff: "50ms" }, async (event, run) => {
  const killed = await failure(run, "killed", () => {
    const words = (pid) => {
      try {
        return readFileSync(\`/proc/\${pid}/cmdline\`, "utf8").split("\\0");
      } catch {
        return [];
      }
    };
    const pids = readdirSync("/proc").filter((pid) => words(pid)[1] === "step" && words(pid).includes("killed"));
    for (const pid of pids) process.kill(Number(pid), "SIGKILL");
    return pids.length;
  });
  const { THREAD_PROGRAM } = process.env;
  process.env.THREAD_PROGRAM = "/nowhere/thread";
  const missing = await failure(run, "missing", () => null);
  if (THREAD_PROGRAM === undefined) delete process.env.THREAD_PROGRAM;
  else process.env.THREAD_PROGRAM = THREAD_PROGRAM;
  await run.thread.push([killed, missing], { subtype: "broke" });
});

thread.handler("version", { filter: "subtype = 'version'" }, () => thread.push("old", { subtype: "said" }));

thread.handler("crash", { filter: "subtype = 'crash'", maxAttempts: 1 }, async () => {
  setTimeout(() => { throw new Error("out of nowhere"); });
  await new Promise(() => {});
});

await thread.run();
`;

withThread("handlers that are functions", { skip: ELSEWHERE && "handlers there are started by a dispatch" }, async ({
  thread,
  location,
  folder,
}) => {
  const program = join(folder, "program.mjs");
  writeFileSync(program, PROGRAM);
  execFileSync(process.execPath, [program, location], { cwd: folder, timeout: PATIENCE });
  const order = await thread.push("order-7", { subtype: "steps" });
  await thread.pushMany(["one", "reject", "fail", "later", "two"].map((content) => ({ content, subtype: "plain" })));
  const dead = await waitFor("dead letters", async () => {
    const dead = await thread.deadLetters("plain");
    return dead.length === 2 && dead;
  });
  assert.deepEqual(dead.map(({ last_error }) => last_error), ["never", "TypeError: odd"]);
  await waitFor("the cursor", async () => (await thread.command("info", "plain"))[0].subscriptions[0].pending === 0);
  const seen = readFileSync(join(folder, "seen"), "utf8").trim().split("\n");
  assert.deepEqual(seen, ["one", "reject", "fail", "fail", "later", "later", "two"]);
  const log = execFileSync(process.env.THREAD_PROGRAM ?? "thread", ["logs", "-t", location, "plain"], { encoding: "utf8" });
  assert.match(log, /event 4: TypeError: odd/);
  assert.equal(await thread.retry("plain", dead[1].event_id), 1);
  await waitFor("the retry", async () => (await thread.deadLetters("plain"))[1].attempts > dead[1].attempts);
  await thread.push("", { subtype: "soon" });
  await waitFor("what is given again at once", async () => (await thread.command("info", "soon"))[0].subscriptions[0].pending === 0);

  // A program that was changed replaces the one that runs.
  const said = (count) => waitFor("the version", async () => {
    const said = await thread.read({ subtype: "said" });
    return said.length === count && said.at(-1).content;
  });
  await thread.push("", { subtype: "version" });
  assert.equal(await said(1), "old");
  writeFileSync(program, PROGRAM.replace('"old"', '"new"').replace(', backoff: "1h"', ""));
  execFileSync(process.execPath, [program, location], { cwd: folder, timeout: PATIENCE });
  await thread.push("", { subtype: "version" });
  assert.equal(await said(2), "new");
  // An option that was removed from it, too.
  const backoff = async (consumer) => (await thread.command("info", consumer))[0].subscriptions[0].backoff;
  assert.equal(await backoff("soon"), await backoff("version"));

  // Of a crash, what went wrong is kept, not the version of Node.
  await thread.push("", { subtype: "crash" });
  const crashed = await waitFor("a dead letter", async () => (await thread.deadLetters("crash"))[0]);
  assert.equal(crashed.last_error.trim().split("\n").at(-1), "Error: out of nowhere");

  await thread.pushMany([{ content: "", subtype: "large" }, { content: "", subtype: "broken" }]);
  const first = (subtype) => waitFor(subtype, async () => (await thread.read({ subtype }))[0]?.content);
  assert.equal(await first("made"), "[true,true]");
  const [killed, missing] = JSON.parse(await first("broke"));
  assert.match(killed, /^thread ended with exit code/);
  assert.match(missing, /ENOENT/);

  await waitFor("the wait", async () => (await thread.command("step", "--list")).some(({ name }) => name === "approval"));
  await thread.push("fine", { subtype: "approval", meta: { order: "order-7" } });
  const [done] = await waitFor("the end", async () => {
    const done = await thread.read({ subtype: "done" });
    return done.length && done;
  });
  const charged = readFileSync(join(folder, "charged"), "utf8").trim().split("\n");
  assert.deepEqual(JSON.parse(done.content), [{ receipt: "order-7", key: charged[0] }, "fine", null]);
  assert.deepEqual([charged.length, charged[0]], [2, charged[1]]);
  const steps = await thread.command("step", "--list", "--consumer=steps", `--event=${order}`);
  assert.deepEqual(steps.map(({ name }) => name), ["charge", "a while", "approval", "nobody", "ship"]);
  assert.ok(existsSync(join(folder, "tried")));
});

withThread("the example: an inbox for webhooks", { skip: ELSEWHERE && "handlers there are started by a dispatch" }, async ({
  thread,
  folder,
}) => {
  const got = [];
  const target = createServer(async (request, response) => {
    const content = Buffer.concat(await request.toArray()).toString();
    got.push(`${request.url} ${content}`);
    const isFirst = got.filter((one) => one === "/once three").length === 1 && request.url === "/once";
    response.writeHead(request.url === "/bad" ? 400 : isFirst ? 500 : 200).end();
  });
  await new Promise((listening) => target.listen(0, "127.0.0.1", listening));
  // As npm would install it.
  const program = join(folder, "inbox.mjs");
  writeFileSync(program, readFileSync(new URL("../../../examples/inbox.mjs", import.meta.url)));
  mkdirSync(join(folder, "node_modules"));
  symlinkSync(fileURLToPath(new URL("..", import.meta.url)), join(folder, "node_modules", "threadq"));
  const inbox = spawn(process.execPath, [program, `http://127.0.0.1:${target.address().port}`, "0"], { cwd: folder });
  try {
    let printed = "";
    inbox.stdout.on("data", (chunk) => (printed += chunk));
    const port = await waitFor("its port", () => /port (\d+)\n/.exec(printed)?.[1]);
    const post = async (path, body, id) => {
      const answer = await fetch(`http://127.0.0.1:${port}${path}`, { method: "POST", body, headers: { "webhook-id": id } });
      return `${answer.status} ${await answer.text()}`;
    };
    assert.equal(await post("/a", "one", "x"), "202 1\n");
    assert.equal(await post("/a", "one", "x"), "202 1\n");
    assert.match(await post("/a", "other", "x"), /^409 /);
    assert.equal(await post("/bad", "two", "y"), "202 2\n");
    assert.equal(await post("/once", "three", "z"), "202 3\n");
    await waitFor("what was tried again", () => got.filter((one) => one === "/once three").length === 2);
    assert.deepEqual([...new Set(got)].sort(), ["/a one", "/bad two", "/once three"]);
    await waitFor("a dead letter", async () => (await thread.command("dead", "list")).length);
    assert.equal((await thread.command("schedule", "list"))[0].cron, "0 2 * * *");
    await thread.push("", { subtype: "night" });
    const digest = join(folder, "digest.txt");
    const written = await waitFor("the digest", () => existsSync(digest) && readFileSync(digest, "utf8"));
    assert.match(written, /: 3 webhooks, 1 could not be handed on\n  2: HTTP 400\n/);
  } finally {
    inbox.kill();
    target.close();
    await thread.command("schedule", "remove", "nightly");
  }
});
