#!/usr/bin/env node
// An inbox for webhooks: stores what is posted, hands it on with retries, and writes a digest each night.
//
// usage: inbox.mjs TARGET [PORT]
//
//     npm install threadq-*.tgz      # of a release
//     node inbox.mjs http://localhost:9000
//     curl -d '{"order": 7}' http://localhost:8000/orders
//
// What the target cannot take is tried again, also if this program is killed in between; what it refuses is a dead letter:
// npx thread dead list -t inbox.
import { appendFile } from "node:fs/promises";
import { createServer } from "node:http";
import { errors, NotNow, Reject, Thread } from "threadq";

const thread = await Thread.init("inbox", { ifMissing: true });
const [target, port = "8000"] = process.argv.slice(2);

// Hands one on. What this throws is tried again: 5 times, or as long as it takes after NotNow.
const rules = { filter: "subtype = 'hook'", backoff: "1s,5s,30s,2m", timeout: "1m" };
thread.handler("forwarder", rules, async (event) => {
  const { ok, status } = await fetch(target + event.metadata.path, { method: "POST", body: event.content });
  if (ok) return;
  if (status === 429 || status === 503) throw new NotNow(`HTTP ${status}`, { delay: "10s" });
  if (status < 500) throw new Reject(`HTTP ${status}`);
  throw new Error(`HTTP ${status}`);
});

thread.handler("digest", { filter: "subtype = 'night'" }, async (event) => {
  const hooks = await thread.read({ since: "24h", filter: "subtype = 'hook'" });
  const dead = await thread.command("dead", "list", "forwarder");
  const lines = [`${event.created_at.slice(0, 10)}: ${hooks.length} webhooks, ${dead.length} could not be handed on`];
  lines.push(...dead.map((letter) => `  ${letter.event_id}: ${letter.last_error}`));
  await appendFile("digest.txt", `${lines.join("\n")}\n`);
});

await thread.run();
// Only the program that you start gets here, and not those that thread starts for the handlers.
await thread.repeat("nightly", "", { cron: "0 2 * * *", subtype: "night", replace: true });

const server = createServer(async (request, response) => {
  const content = Buffer.concat(await request.toArray()).toString();
  try {
    // A sender that got no answer sends again, with the same id: it is stored once.
    const key = request.headers["webhook-id"];
    const id = await thread.push(content, { subtype: "hook", key, meta: { path: request.url } });
    response.writeHead(202).end(`${id}\n`);
  } catch (error) {
    response.writeHead(error instanceof errors.IdempotencyConflict ? 409 : 500).end(`${error.message}\n`);
  }
});
server.listen(Number(port), "127.0.0.1", () => console.log(`listening on port ${server.address().port}`));
