// Channels in Slack are conversations with an agent of `thread serve`; needs `npm install ws`.
// SLACK_APP_TOKEN=xapp-… SLACK_BOT_TOKEN=xoxb-… GATEWAY=http://127.0.0.1:3336 GATEWAY_TOKEN=… node slack.mjs
// The app needs Socket Mode, the event `message.channels` or `message.im`, and the scope `chat:write`. A message is
// acknowledged when the gateway has it on disk; until then, Slack sends it again. If this program is killed between an
// answer and its record in `slack.json`, that answer is sent twice.
import { existsSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { once } from "node:events";
import { setTimeout as pause } from "node:timers/promises";
import WebSocket from "ws";

const { SLACK_APP_TOKEN, SLACK_BOT_TOKEN, SLACK = "https://slack.com/api", GATEWAY = "http://127.0.0.1:3336", GATEWAY_TOKEN, STATE = "slack.json" } = process.env;
// The session of each channel, and the last event that was heard of each session.
const state = existsSync(STATE) ? JSON.parse(readFileSync(STATE, "utf8")) : { sessions: {}, heard: {} };
const save = () => { writeFileSync(`${STATE}.new`, JSON.stringify(state)); renameSync(`${STATE}.new`, STATE); };

async function slack(method, token, body = {}) {
  const headers = { Authorization: `Bearer ${token}`, "Content-Type": "application/json; charset=utf-8" };
  const answer = await (await fetch(`${SLACK}/${method}`, { method: "POST", headers, body: JSON.stringify(body) })).json();
  if (answer.ok) return answer;
  throw new Error(`${method}: ${answer.error}`);
}

/** A connection to the gateway: `ask(method, params)`, and `heard(frame)` for each event, one after another. */
async function gateway(heard) {
  const socket = new WebSocket(`${GATEWAY.replace(/^http/, "ws")}/ws`), waiting = new Map();
  let number = 0, last = Promise.resolve();
  socket.on("message", (text) => {
    const frame = JSON.parse(text);
    if (frame.type === "res") waiting.get(frame.id)(frame);
    else last = last.then(() => heard(frame)).catch((error) => { console.error(error.message); socket.terminate(); });
  });
  await once(socket, "open");
  const ask = (method, params) => new Promise((done, failed) => {
    const id = String(number++);
    waiting.set(id, ({ ok, payload, error }) => (ok ? done(payload) : failed(new Error(error))));
    socket.once("close", () => failed(new Error("the gateway is gone")));
    socket.send(JSON.stringify({ type: "req", id, method, params }));
  });
  await ask("connect", { version: "1", clientType: "slack", token: GATEWAY_TOKEN });
  await ask("sessions.watch", { sessionIds: Object.values(state.sessions), after: state.heard });
  return { ask, socket };
}

/** Posts what is said in a session to its channel. */
async function heard({ event, payload, seq }) {
  const channel = Object.keys(state.sessions).find((channel) => state.sessions[channel] === payload.sessionId);
  if (!channel || !seq || !(event === "final" || (event === "error" && !payload.retryable))) return;
  await slack("chat.postMessage", SLACK_BOT_TOKEN, { channel, text: event === "final" ? payload.content : payload.message });
  state.heard[payload.sessionId] = seq;
  save();
}

async function take(ask, { event_id: key, event }) {
  if (event?.type !== "message" || event.subtype || event.bot_id || !event.text) return;
  if (!state.sessions[event.channel]) {
    const { sessionId } = await ask("sessions.new", { title: `Slack ${event.channel}` });
    state.sessions[event.channel] = sessionId;
    save();
    await ask("sessions.watch", { sessionIds: [sessionId], after: { [sessionId]: 0 } });
  }
  await ask("agent", { sessionId: state.sessions[event.channel], message: event.text, idempotencyKey: `slack-${key}` });
}
for (;; await pause(1000)) {
  try {
    const { ask, socket } = await gateway(heard);
    const from = new WebSocket((await slack("apps.connections.open", SLACK_APP_TOKEN)).url);
    let last = Promise.resolve();
    socket.on("close", () => from.terminate());
    from.on("message", (text) => {
      const { envelope_id, type, payload } = JSON.parse(text);
      if (type === "disconnect") return from.close();
      if (!envelope_id) return;
      const taken = async () => { await take(ask, payload ?? {}); from.send(JSON.stringify({ envelope_id })); };
      last = last.then(taken).catch((error) => { console.error(error.message); socket.terminate(); });
    });
    await once(from, "close");
    socket.terminate();
  } catch (error) { console.error(`Trying again: ${error.message}`); }
}
