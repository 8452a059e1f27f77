// The AG-UI client as released: runs an agent once, and prints the events as JSON.
// usage: node agui.mjs <folder with node_modules> <url> <token> <options as JSON>
import { createRequire } from "node:module";
import { join } from "node:path";

const [modules, url, token, json] = process.argv.slice(2);
const { HttpAgent } = createRequire(join(modules, "x.js"))("@ag-ui/client");
const options = JSON.parse(json);
const headers = { Authorization: `Bearer ${token}` };

// Aborts the stream after `options.cut` events with an id, and resumes it there.
async function cut(address, init) {
  const first = await fetch(address, init);
  const reader = first.body.getReader();
  let text = "";
  const ids = () => [...text.matchAll(/^id: (\d+)\n(data: .*\n\n)/gm)];
  while (ids().length < options.cut) {
    const { value, done } = await reader.read();
    if (done) break;
    text += new TextDecoder().decode(value);
  }
  await reader.cancel();
  const last = ids()[options.cut - 1];
  const kept = text.slice(0, last.index + last[0].length);
  const version = options.version ? `&protocol=${options.version}` : "";
  const events = `${url}/api/v1/agent/events?threadId=${encodeURIComponent(options.threadId)}${version}`;
  const second = await fetch(events, { headers: { ...headers, "Last-Event-ID": last[1] } });
  const rest = await second.text();
  return new Response(kept + rest, { headers: { "content-type": "text/event-stream" } });
}

const agent = new HttpAgent({
  url: `${url}/api/v1/agent/run${options.query ?? ""}`,
  headers,
  threadId: options.threadId,
  initialMessages: [{ id: options.messageId ?? "m1", role: "user", content: options.message }],
  ...(options.cut ? { fetch: cut } : {}),
});
if (options.cut && !agent.fetch) {
  // The client of 0.x uses the global fetch.
  const plain = globalThis.fetch;
  globalThis.fetch = (address, init) => (init?.method === "POST" ? (globalThis.fetch = plain, cut(address, init)) : plain(address, init));
}
const events = [];
let error = null;
const runAgent = (parameters) =>
  agent.runAgent({ tools: options.tools ?? [], ...parameters }, { onEvent: ({ event }) => void events.push(event) });
try {
  await runAgent(options.runId ? { runId: options.runId } : {});
  for (const turn of options.turns ?? []) {
    if (turn.resume) {
      const resume = agent.pendingInterrupts.map(({ id }) => ({ interruptId: id, status: "resolved", payload: turn.resume }));
      await runAgent({ resume });
    } else {
      const call = agent.messages.flatMap((message) => message.toolCalls ?? []).at(-1);
      agent.addMessage({ id: `tool-${call.id}`, role: "tool", toolCallId: call.id, content: turn.answer });
      await runAgent({});
    }
  }
} catch (e) {
  error = String(e.message ?? e);
}
console.log(JSON.stringify({ events, error, messages: agent.messages, pending: agent.pendingInterrupts ?? [] }));
process.exit(0);
