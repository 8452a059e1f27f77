// CopilotKit's runtime in front of the gateway, and its client in front of that, as released. Does what the options
// say, and prints what the client has then as JSON.
// usage: node copilotkit.mjs <folder with node_modules> <url> <token> <options as JSON>
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [modules, url, token, json] = process.argv.slice(2);
const options = JSON.parse(json);
const resolve = createRequire(join(modules, "x.js")).resolve;
const load = (name) => import(pathToFileURL(resolve(name)));
const { HttpAgent } = await load("@ag-ui/client");
const { CopilotRuntime } = await load("@copilotkit/runtime/v2");
const { createCopilotNodeListener } = await load("@copilotkit/runtime/v2/node");
const { CopilotKitCore, ProxiedCopilotRuntimeAgent } = await load("@copilotkit/core");

const gateway = new HttpAgent({
  url: `${url}/api/v1/agent/run?protocol=1&on_disconnect=cancel`,
  headers: { Authorization: `Bearer ${token}` },
});
const runtime = new CopilotRuntime({ agents: { default: gateway } });
const server = createServer(createCopilotNodeListener({ runtime, basePath: "/copilot" }));
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));

const errors = [];
const runtimeUrl = `http://127.0.0.1:${server.address().port}/copilot`;
// Outside of a browser the client does not ask the runtime for its agents.
const agent = new ProxiedCopilotRuntimeAgent({ runtimeUrl, agentId: "default", transport: "rest", threadId: options.threadId });
const core = new CopilotKitCore({ agents__unsafe_dev_only: { default: agent } });
core.subscribe({ onError: ({ error, code }) => void errors.push(`${code}: ${error?.message ?? error}`) });
const seen = [];
if (options.tool) {
  const handler = async (given) => (seen.push(given), options.tool.answer);
  core.addTool({ name: options.tool.name, description: "a tool of the client", handler });
}
agent.addMessage({ id: "m1", role: "user", content: options.message });
const stops = { onTextMessageContentEvent: () => options.stop && core.stopAgent({ agent }) };
const subscription = agent.subscribe(stops);
await core.runAgent({ agent });
if (options.resume) {
  const resume = agent.pendingInterrupts.map(({ id }) => ({ interruptId: id, status: "resolved", payload: options.resume }));
  await core.runAgent({ agent, resume });
}
subscription.unsubscribe();
console.log(JSON.stringify({ messages: agent.messages, pending: agent.pendingInterrupts, errors, seen }));
process.exit(0);
