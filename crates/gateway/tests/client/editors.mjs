// An editor made with @agentclientprotocol/sdk, which checks all that it receives. Arguments: the command of the agent.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { Readable, Writable } from "node:stream";

const acp = await import(`file://${process.env.NODE_MODULES}/@agentclientprotocol/sdk/dist/acp.js`);
const [command, ...options] = process.argv.slice(2);

class Editor {
  constructor(choose) {
    this.choose = choose;
    this.updates = [];
    this.asked = 0;
    this.process = spawn(command, options, { stdio: ["pipe", "pipe", "inherit"] });
    const stream = acp.ndJsonStream(Writable.toWeb(this.process.stdin), Readable.toWeb(this.process.stdout));
    this.agent = new acp.ClientSideConnection(() => this, stream);
  }

  async sessionUpdate({ update }) {
    this.updates.push(update);
  }

  async requestPermission({ options }) {
    this.asked += 1;
    const option = options.find(({ kind }) => kind === this.choose);
    return { outcome: { outcome: "selected", optionId: option.optionId } };
  }

  text(kind = "agent_message_chunk") {
    return this.updates.filter((update) => update.sessionUpdate === kind).map((update) => update.content.text).join("");
  }

  async ends() {
    this.process.stdin.end();
    await new Promise((done) => (this.process.exitCode === null ? this.process.on("exit", done) : done()));
    assert.equal(this.process.exitCode, 0);
  }
}

const prompt = (editor, sessionId, text) => editor.agent.prompt({ sessionId, prompt: [{ type: "text", text }] });

let editor = new Editor("allow_once");
const { protocolVersion, agentCapabilities } = await editor.agent.initialize({ protocolVersion: acp.PROTOCOL_VERSION });
assert.equal(protocolVersion, 1);
assert.ok(agentCapabilities.loadSession);
const { sessionId } = await editor.agent.newSession({ cwd: "/tmp", mcpServers: [] });
assert.deepEqual(await prompt(editor, sessionId, "work a"), { stopReason: "end_turn" });
assert.equal(editor.text(), "First then that: yes");
editor.choose = "reject_once";
await prompt(editor, sessionId, "work b");
assert.equal(editor.asked, 2);
const ends = editor.updates.filter((update) => ["completed", "failed"].includes(update.status));
assert.deepEqual(ends.map((update) => update.status), ["completed", "failed"]);
assert.equal(ends[0].content[0].newText, "y");

const running = prompt(editor, sessionId, "long");
while (!editor.text().endsWith("at work")) await new Promise((done) => setTimeout(done, 10));
await editor.agent.cancel({ sessionId });
assert.equal((await running).stopReason, "cancelled");
const { sessions } = await editor.agent.listSessions({});
assert.deepEqual(sessions.map((session) => session.sessionId), [sessionId]);
const said = editor.text();
await editor.ends();

editor = new Editor("allow_once");
await editor.agent.initialize({ protocolVersion: acp.PROTOCOL_VERSION });
await editor.agent.loadSession({ sessionId, cwd: "/tmp", mcpServers: [] });
assert.equal(editor.text(), said);
assert.equal(editor.text("user_message_chunk"), "work awork blong");
await editor.ends();
