"""The bridges in examples/bridges: chats of Telegram (`telegram-test-api`, of npm) and channels of a Slack with its
Socket Mode, while the gateway and the bridges are killed."""

import asyncio
import contextlib
import http.server
import json
import os
import pathlib
import subprocess
import tempfile
import threading
import time
import urllib.request

import websockets

from harness import PATIENCE, Gateway, run

BRIDGES = pathlib.Path(os.environ["DOCS"]).parent / "examples/bridges"
TELEGRAM, WS = os.environ.get("GATEWAY_TELEGRAM"), os.environ.get("GATEWAY_WS")
SERVER = """
const TelegramServer = require("telegram-test-api");
// 0 means 9000 to it.
const probe = require("net").createServer().listen(0, "127.0.0.1", () => {
  const { port } = probe.address();
  const server = new TelegramServer({ port, host: "127.0.0.1", storeTimeout: 3600 });
  probe.close(() => server.start().then(() => console.log(port)));
});
"""
TOKEN = "1:secret"
# Answers with the message in capitals.
AGENT = ["--agent", "tr a-z A-Z"]


def post(url, **body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return json.load(answer)


class Updates(http.server.BaseHTTPRequestHandler):
    """In front of the test server, which forgets an update once it was asked for: as Telegram does, it keeps each until it
    is confirmed by the offset of a later request, and gives it again."""

    kept, lock, api = [], threading.Lock(), None

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        try:
            if self.path.endswith("/getUpdates"):
                answer = {"ok": True, "result": self.updates(body.get("offset", 0))}
            else:
                answer = post(self.api + self.path, **body)
            text = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
        except OSError:
            pass

    def updates(self, offset):
        end = time.monotonic() + 1
        while True:
            with self.lock:
                new = post(f"{self.api}/bot{TOKEN}/getUpdates")["result"]
                self.kept[:] = [update for update in self.kept + new if update["update_id"] >= offset]
                if self.kept or time.monotonic() > end:
                    return list(self.kept)
            time.sleep(0.05)

    def log_message(self, *_):
        pass


async def until(what, is_so):
    end = time.monotonic() + PATIENCE
    while not (found := is_so()):
        assert time.monotonic() < end, f"timed out: {what}"
        await asyncio.sleep(0.05)
    return found


class Bridge:
    """A bridge, which is started again when it was killed."""

    def __init__(self, command, cwd, env):
        self.command, self.cwd, self.env = command, cwd, env
        self.start()

    def start(self):
        self.log = open(self.cwd / "log", "a")
        self.process = subprocess.Popen(self.command, cwd=self.cwd, env={**os.environ, **self.env}, stdout=self.log, stderr=self.log)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.log.close()


def check(gateway, said, answers):
    """Each message is in one session once, and answered once; `answers` are those of each chat."""
    stored = {}
    for session in sorted(path.name for path in gateway.root.iterdir() if (path / "events.db").exists()):
        for event in gateway.events(session):
            if event["type"] == "message" and event["source"] != "self":
                stored.setdefault(session, []).append(event["content"])
    assert sorted(stored.values()) == sorted(said.values()), (stored, said)
    for chat, texts in said.items():
        heard = answers[chat]
        # One that was sent just before a kill may come again.
        assert list(dict.fromkeys(heard)) == [text.upper() for text in texts], (chat, heard)


async def disturbed(gateway, bridge, say, heard):
    """Says ten things in each of two chats, while the gateway is down, the bridge is killed, and in peace. Returns them."""
    said = {chat: [] for chat in ("7", "8")}
    for n in range(10):
        for chat in said:
            text = f"message {n} of chat {chat}"
            said[chat].append(text)
            if n in (2, 6):
                gateway.kill()
            if n in (4, 8):
                bridge.kill()
            await asyncio.to_thread(say, chat, text)
            if n in (2, 6):
                await asyncio.sleep(0.5)
                await asyncio.to_thread(gateway.restart)
            if n in (4, 8):
                bridge.start()
        await until(f"the answers to {n}", lambda: all(text.upper() in heard(chat) for chat, texts in said.items() for text in texts))
    return said


async def a_chat_of_telegram_is_a_conversation():
    if not TELEGRAM:
        return print("SKIPPED: needs telegram-test-api, of npm")
    with tempfile.TemporaryDirectory() as scratch, Gateway(*AGENT) as gateway, contextlib.ExitStack() as ending:
        scratch = pathlib.Path(scratch)
        server = subprocess.Popen(["node", "-e", SERVER], stdout=subprocess.PIPE, text=True, env={**os.environ, "NODE_PATH": f"{TELEGRAM}/node_modules"})
        ending.callback(server.kill)
        Updates.api = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        front = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Updates)
        threading.Thread(target=front.serve_forever, daemon=True).start()
        ending.callback(front.shutdown)
        env = {"TELEGRAM_TOKEN": TOKEN, "TELEGRAM": f"http://127.0.0.1:{front.server_port}", "GATEWAY": gateway.url, "GATEWAY_TOKEN": gateway.token}
        bridge = Bridge([os.sys.executable, BRIDGES / "telegram.py"], scratch, env)
        ending.callback(bridge.kill)
        who = {"id": 1, "first_name": "Ada", "is_bot": False}

        def say(chat, text):
            post(f"{Updates.api}/sendMessage", botToken=TOKEN, date=int(time.time()), chat={"id": int(chat), "type": "private"}, **{"from": who}, text=text)

        def heard(chat):
            history = post(f"{Updates.api}/getUpdatesHistory", token=TOKEN)["result"]
            return [one["message"]["text"] for one in history if str(one["message"].get("chat_id")) == chat]

        said = await disturbed(gateway, bridge, say, heard)
        check(gateway, said, {chat: heard(chat) for chat in said})


class Slack:
    """What the bridge uses of Slack: connections for events, which are sent again until they are acknowledged."""

    def __init__(self):
        self.posted, self.waiting, self.sockets, self.number = [], {}, set(), 0

    async def socket(self, socket):
        self.sockets.add(socket)
        sent = {}
        try:
            await socket.send(json.dumps({"type": "hello"}))
            while True:
                for id, payload in list(self.waiting.items()):
                    if time.monotonic() - sent.get(id, 0) > 2:
                        sent[id] = time.monotonic()
                        await socket.send(json.dumps({"envelope_id": id, "type": "events_api", "payload": payload}))
                with contextlib.suppress(asyncio.TimeoutError):
                    self.waiting.pop(json.loads(await asyncio.wait_for(socket.recv(), 0.1))["envelope_id"], None)
        except websockets.ConnectionClosed:
            self.sockets.discard(socket)

    def say(self, channel, text):
        self.number += 1
        event = {"type": "message", "channel": channel, "user": "U1", "text": text, "ts": str(self.number)}
        self.waiting[f"envelope-{self.number}"] = {"event_id": f"Ev{self.number}", "event": event}

    def answer(self, method, token, body):
        if method == "apps.connections.open":
            return {"ok": token == "xapp", "url": f"ws://127.0.0.1:{self.port}", "error": "invalid_auth"}
        assert method == "chat.postMessage" and token == "xoxb", (method, token)
        self.posted.append((body["channel"], body["text"]))
        return {"ok": True}


async def a_channel_of_slack_is_a_conversation():
    if not WS:
        return print("SKIPPED: needs ws, of npm")
    slack = Slack()

    class Api(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            token = self.headers["authorization"].removeprefix("Bearer ")
            text = json.dumps(slack.answer(self.path.rsplit("/", 1)[1], token, body)).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_):
            pass

    with tempfile.TemporaryDirectory() as scratch, Gateway(*AGENT) as gateway, contextlib.ExitStack() as ending:
        scratch = pathlib.Path(scratch)
        front = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api)
        threading.Thread(target=front.serve_forever, daemon=True).start()
        ending.callback(front.shutdown)
        # Modules are looked for beside the program.
        program = scratch / "slack.mjs"
        program.write_text((BRIDGES / "slack.mjs").read_text())
        (scratch / "node_modules").symlink_to(f"{WS}/node_modules")
        async with websockets.serve(slack.socket, "127.0.0.1", 0) as server:
            slack.port = server.sockets[0].getsockname()[1]
            env = {"SLACK_APP_TOKEN": "xapp", "SLACK_BOT_TOKEN": "xoxb", "SLACK": f"http://127.0.0.1:{front.server_port}/api",
                   "GATEWAY": gateway.url, "GATEWAY_TOKEN": gateway.token}
            bridge = Bridge(["node", program], scratch, env)
            ending.callback(bridge.kill)
            heard = lambda chat: [text for channel, text in slack.posted if channel == chat]
            said = await disturbed(gateway, bridge, slack.say, heard)
            check(gateway, said, {chat: heard(chat) for chat in said})


if __name__ == "__main__":
    run(globals())
