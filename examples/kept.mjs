#!/usr/bin/env node
// A handler that is kept: thread subscribe counter ./kept.mjs --deliver ndjson
import { appendFile } from "node:fs/promises";

// Your work. What it throws is tried again later, except a SyntaxError: that event can never be handled.
async function handle(event) {
  const order = JSON.parse(event.content);
  await appendFile("total.txt", `${order.item} ${order.count}\n`);
}

// Not readline, which also splits lines at U+2028 and U+2029; JSON allows both in strings.
let rest = "";
process.stdin.setEncoding("utf8").on("data", (chunk) => {
  const lines = (rest + chunk).split("\n");
  rest = lines.pop();
  for (const event of lines.map((line) => JSON.parse(line)))
    handle(event)
      .then(() => ({ ack: event.id }))
      .catch((error) => ({ [error instanceof SyntaxError ? "reject" : "nack"]: event.id, error: String(error) }))
      .then((answer) => console.log(JSON.stringify(answer)));
});
