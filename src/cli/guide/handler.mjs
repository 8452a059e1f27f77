#!/usr/bin/env node
// An agent on a thread that answers each message it gets.
//
//   thread guide --handler node >agent.mjs && chmod +x agent.mjs
//   thread subscribe agent ./agent.mjs --deliver stdin \
//       --filter "type = 'message' AND metadata ->> 'reply_to' IS NULL"
//   thread ask 'What is 2+2?'
//
// The filter leaves out answers, its own and others': agents that answer each other's answers never stop.

import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";

// Your work: from an event to the text of its answer. If it throws, the event comes again later.
async function answer(event) {
  return "You said: " + event.content;
}

const me = "internal:dm:default:" + process.env.THREAD_CONSUMER;

function thread(args, input = "") {
  return execFileSync("thread", args, { input, encoding: "utf8", maxBuffer: Infinity });
}

function isAnswered(id) {
  const mine = `source = '${me}' AND metadata ->> 'reply_to' = ${id}`;
  return thread(["peek", "--last-event-id", `${id}`, "--limit", "1", "--filter", mine]) !== "";
}

// Not readline, which also splits lines at U+2028 and U+2029; JSON allows both in strings.
for (const line of readFileSync(0, "utf8").split("\n").filter(Boolean)) {
  const event = JSON.parse(line);
  const id = event.id;
  // An event may be delivered twice, after a crash for instance, but is answered only once.
  if (!isAnswered(id)) {
    thread(
      ["reply", "--to", `${id}`, "--source", me, "--idempotency-key", `${me}-answers-${id}`, "-"],
      await answer(event),
    );
  }
}
