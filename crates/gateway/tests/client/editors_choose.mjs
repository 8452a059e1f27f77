// An editor made with @agentclientprotocol/sdk, in which a mode is chosen. Arguments: the command of the agent.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { Readable, Writable } from "node:stream";

const acp = await import(`file://${process.env.NODE_MODULES}/@agentclientprotocol/sdk/dist/acp.js`);
const [command, ...options] = process.argv.slice(2);
const child = spawn(command, options, { stdio: ["pipe", "pipe", "inherit"] });
const updates = [];
const editor = { async sessionUpdate({ update }) { updates.push(update); } };
const stream = acp.ndJsonStream(Writable.toWeb(child.stdin), Readable.toWeb(child.stdout));
const agent = new acp.ClientSideConnection(() => editor, stream);

const newest = (kind) => updates.filter((update) => update.sessionUpdate === kind).at(-1);
const current = (all) => Object.fromEntries((all ?? []).map(({ id, currentValue }) => [id, currentValue]));
const said = () => updates.filter((update) => update.sessionUpdate === "agent_message_chunk").map((update) => update.content.text).join("");
const prompt = (sessionId, text) => agent.prompt({ sessionId, prompt: [{ type: "text", text }] });

const { agentCapabilities } = await agent.initialize({ protocolVersion: acp.PROTOCOL_VERSION });
assert.deepEqual(agentCapabilities.mcpCapabilities, { http: true, sse: true });
const { sessionId } = await agent.newSession({ cwd: "/tmp", mcpServers: [] });
await prompt(sessionId, "what");
while (!newest("config_option_update")) await new Promise((done) => setTimeout(done, 10));
assert.deepEqual(current(newest("config_option_update").configOptions), { mode: "ask", model: "small" });
const changed = await agent.setSessionConfigOption({ sessionId, configId: "model", value: "large" });
assert.deepEqual(current(changed.configOptions), { mode: "ask", model: "large" });
const loaded = await agent.loadSession({ sessionId, cwd: "/tmp", mcpServers: [] });
assert.deepEqual(loaded.modes.availableModes.map(({ id }) => id), ["ask", "code", "never"]);
await agent.setSessionMode({ sessionId, modeId: "code" });
assert.equal(newest("current_mode_update").currentModeId, "code");
updates.length = 0;
await prompt(sessionId, "what");
assert.equal(said(), "code large");
child.stdin.end();
await new Promise((done) => (child.exitCode === null ? child.on("exit", done) : done()));
assert.equal(child.exitCode, 0);
