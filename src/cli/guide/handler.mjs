#!/usr/bin/env node
// An agent on a thread: it answers each message that it is given.
//
//   thread guide --handler node >agent.mjs && chmod +x agent.mjs
//   thread subscribe agent ./agent.mjs --deliver stdin \
//       --filter "type = 'message' AND metadata ->> 'reply_to' IS NULL"
//   thread ask 'What is 2+2?'
//
// The filter leaves out answers, its own and others': agents that answer answers never end.

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

// Not by readline: it would also end lines at characters that JSON lets stand in a text.
for (const line of readFileSync(0, "utf8").split("\n").filter(Boolean)) {
  const event = JSON.parse(line);
  const id = event.id;
  // An event may be given twice, after a crash for instance. It is answered once.
  if (!isAnswered(id)) {
    thread(
      ["reply", "--to", `${id}`, "--source", me, "--idempotency-key", `${me}-answers-${id}`, "-"],
      await answer(event),
    );
  }
}
