"""Runs gateways and clients for the scenarios: real processes, real sockets, and every frame checked.

No code of the gateway is used here: the client is `websockets`, the schemas are those of docs/schema.
THREAD_SERVE and THREAD_PROGRAM name the programs, DOCS the directory of the schemas.
"""

import asyncio
import atexit
import gc
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

# What is imported from here on stays: looking for garbage in it takes longer than to import some of it.
gc.set_threshold(100_000)

import jsonschema_rs
import websockets

SERVE = os.environ["THREAD_SERVE"]
THREAD = os.environ["THREAD_PROGRAM"]
SCHEMAS = pathlib.Path(os.environ["DOCS"]) / "schema"
# The long forms of scenarios, which do more of the same.
LONG = os.environ.get("THREAD_FAULTS") == "long"
# A generous limit, in seconds, since a machine may be slow.
PATIENCE = 120


def validator(name, part=None):
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    if part:
        schema = {"$schema": schema["$schema"], "$defs": schema["$defs"], "$ref": f"#/$defs/{part}"}
    return jsonschema_rs.Draft202012Validator(schema)


REQUEST, RESPONSE, EVENT = validator("request"), validator("response"), validator("event")
PAYLOADS = {}


def check_payload(method, payload):
    if method not in PAYLOADS:
        PAYLOADS[method] = validator("response", method)
    PAYLOADS[method].validate(payload)


class Refused(Exception):
    """An error response."""


class Gateway:
    """A gateway process, with a root of its own or a given one."""

    def __init__(self, *options, root=None, cwd=None, env=None, listen="127.0.0.1:0", preexec=None):
        self.scratch = None if root else tempfile.TemporaryDirectory(prefix="thread-gateway-")
        self.root = pathlib.Path(root or self.scratch.name)
        self.options, self.cwd, self.env, self.listen, self.preexec = options, cwd, env, listen, preexec
        # In append mode, so that reading does not move the end where the gateway writes.
        self.log = tempfile.TemporaryFile("ab+")
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [SERVE, "--root", self.root, "--listen", self.listen, *self.options],
            stdout=subprocess.PIPE,
            stderr=self.log,
            cwd=self.cwd or self.root,
            env={**{k: v for k, v in os.environ.items() if not k.startswith("THREAD_")}, **(self.env or {})},
            preexec_fn=self.preexec,
            text=True,
        )
        self.link = self.process.stdout.readline().strip()
        assert self.link, self.output()
        # The link begins with the address for clients, which may be a proxy's.
        self.public, _, self.token = self.link.partition("/#token=")
        self.public = self.public.rstrip("/")
        self.url = (self.root / "address").read_text().strip()
        self.ws = self.url.replace("http", "ws", 1) + "/ws"
        self.port = int(self.url.rsplit(":", 1)[1])

    def output(self):
        self.log.seek(0)
        return self.log.read().decode()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def restart(self):
        """Starts it again on the same port, after a kill."""
        self.listen = f"127.0.0.1:{self.port}"
        self.start()

    def stop(self):
        """Stops it with SIGTERM. Returns the exit code and how long that took, in seconds."""
        began = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE)
        return code, time.monotonic() - began

    def thread(self, *args, session=None, stdin=None, env=None):
        """Runs the program `thread` in a session."""
        env = {**{k: v for k, v in os.environ.items() if not k.startswith("THREAD_")}, **(env or {})}
        if session:
            args = [*args, "--thread", self.root / session]
        done = subprocess.run([THREAD, *args], input=stdin, capture_output=True, text=True, env=env)
        assert done.returncode == 0, (args, done)
        return done.stdout

    def push(self, session, content, subtype=None, kind="record", source="self", key=None, **metadata):
        """Pushes an event, and returns its id. `key` is its idempotency key."""
        args = ["push", "--source", source, "--type", kind, "--content-file", "-"]
        if key:
            args += ["--idempotency-key", key]
        if subtype:
            args += ["--subtype", subtype]
        if metadata:
            args += ["--metadata", json.dumps(metadata)]
        content = content if isinstance(content, str) else json.dumps(content)
        return int(self.thread(*args, session=session, stdin=content))

    def ending(self, session, reply_to, content, subtype=None, **metadata):
        """Pushes what ends the run of the message `reply_to`, as an agent does: the answer, or an `error` or
        `cancelled`. It is the key that makes it an ending."""
        kind = "record" if subtype else "message"
        key = f"end:{reply_to}"
        return self.push(session, content, subtype, kind=kind, key=key, reply_to=reply_to, **metadata)

    def events(self, session, after=0):
        lines = self.thread("peek", "--last-event-id", str(after), "--limit", "100000", session=session)
        return [json.loads(line) for line in lines.splitlines()]

    def logged(self, session):
        """The events in a session's JSONL log, sealed ones included."""
        logs = sorted((self.root / session).glob("events-*.jsonl")) + [self.root / session / "events.jsonl"]
        return [json.loads(line) for log in logs for line in log.read_text().splitlines()]

    def fake_agent(self, session):
        """Subscribes a paused agent: the scenario pushes its events."""
        self.thread(
            "subscribe", "--consumer", "agent", "--handler", "sleep 3600",
            "--filter", "type = 'message' AND source <> 'self' OR subtype = 'cancel'", session=session,
        )
        self.thread("pause", "--consumer", "agent", session=session)

    async def begun(self, client, session, text="go"):
        """Sends a client's message to a fake agent, which begins to answer. Returns the metadata of its events."""
        self.fake_agent(session)
        run_id = (await client.request("agent", sessionId=session, message=text))["runId"]
        said = (await client.wait(lambda e: e["payload"].get("runId") == run_id and e["event"] == "message"))["seq"]
        self.push(session, {"status": "started", "attempt": 1}, "run", run_id=run_id, reply_to=said)
        return {"run_id": run_id}

    async def client(self, **params):
        return await Client.connect(self, **params)

    def __enter__(self):
        return self

    def kill_agents(self):
        """Kills the programs of agents whose adapters were killed before they could end them."""
        mark = f"THREAD_DIR={self.root}/".encode()
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if any(entry.startswith(mark) for entry in (process / "environ").read_bytes().split(b"\0")):
                    os.kill(int(process.name), signal.SIGKILL)
            except OSError:
                # It has ended in the meantime, or belongs to another user.
                pass

    def __exit__(self, failed, *_):
        self.stop()
        for session in self.root.glob("[0-9a-f]*"):
            thread = lambda *args: subprocess.run([THREAD, *args, "--thread", session], capture_output=True, text=True)
            info = thread("info", "--json")
            # A damaged thread, or another folder, has no agent to stop.
            for consumer in json.loads(info.stdout).get("subscriptions", []) if info.returncode == 0 else []:
                name = consumer["consumer_id"]
                thread("pause", "--consumer", name)
                thread("stop", "--consumer", name, "--kill-after", "1s")
        self.kill_agents()
        if failed:
            print(self.output(), file=sys.stderr)
        else:
            # Neither the token nor a signed URL may be in the log.
            secret = self.token or "token="
            assert secret not in self.output() and "token=" not in self.output(), self.output()
        # Stopping processes may still be writing there.
        while self.scratch:
            try:
                self.scratch.cleanup()
                break
            except OSError:
                time.sleep(0.1)


class Client:
    """One connection, which keeps all events received, in order."""

    @classmethod
    async def connect(cls, gateway, connect=True, token=True, headers=None, dial=None, **params):
        self = cls()
        self.gateway = gateway
        if dial:
            self.socket = await dial(gateway)
        else:
            self.socket = await websockets.connect(
                gateway.ws, max_size=None, additional_headers=headers, open_timeout=PATIENCE, proxy=None,
                ping_interval=None,
            )
        self.count, self.answers, self.events = 0, {}, []
        # The `clients` events, which come whenever a client enters or leaves, apart from all others.
        self.company = []
        # How many events had come before the last response.
        self.answered_at = 0
        self.news = asyncio.Condition()
        self.closed = asyncio.get_running_loop().create_future()
        self.reading = asyncio.create_task(self.read())
        if connect:
            if token and gateway.token:
                params = {"token": gateway.token, **params}
            params = {"version": "1", "clientType": "test", **params}
            self.hello = await self.request("connect", **params)
            self.id = self.hello["clientId"]
        return self

    async def read(self):
        try:
            async for text in self.socket:
                frame = json.loads(text)
                if frame["type"] == "res":
                    RESPONSE.validate(frame)
                    self.answered_at = len(self.events)
                    # The request has timed out already.
                    if not (answer := self.answers.pop(frame["id"])).done():
                        answer.set_result(frame)
                else:
                    EVENT.validate(frame)
                    async with self.news:
                        (self.company if frame["event"] == "clients" else self.events).append(frame)
                        self.news.notify_all()
        except websockets.ConnectionClosed:
            pass
        except Exception as e:  # A frame that violates the schema fails everything that is waiting.
            print("bad frame:", e, file=sys.stderr)
            if not self.closed.done():
                self.closed.set_exception(e)
        if not self.closed.done():
            self.closed.set_result((self.socket.close_code, self.socket.close_reason))
        for answer in self.answers.values():
            if not answer.done():
                answer.set_exception(ConnectionError("closed"))
        async with self.news:
            self.news.notify_all()

    def send(self, method, params, checked=True):
        """Sends a request. Returns a future for its response."""
        self.count += 1
        frame = {"type": "req", "id": str(self.count), "method": method, "params": params}
        if checked:
            REQUEST.validate(frame)
        answer = asyncio.get_running_loop().create_future()
        self.answers[frame["id"]] = answer

        def sent(sending):
            if sending.exception() and not answer.done():
                answer.set_exception(ConnectionError("closed"))

        asyncio.ensure_future(self.socket.send(json.dumps(frame))).add_done_callback(sent)
        return answer

    async def request(self, method, **params):
        return await self.call(method, params)

    async def call(self, method, params, checked=True):
        answer = await asyncio.wait_for(self.send(method, params, checked), PATIENCE)
        if not answer["ok"]:
            raise Refused(answer["error"])
        check_payload(method, answer["payload"])
        return answer["payload"]

    async def refused(self, method, **params):
        """Sends a request that must be refused. Returns the error."""
        try:
            answer = await self.call(method, params, checked=False)
        except Refused as e:
            return str(e)
        raise AssertionError(f"{method} {params} was carried out: {answer}")

    async def wait(self, wanted, after=0):
        """Waits for the first event from index `after` on that is `wanted`: a name, or a function of the event."""
        is_wanted = wanted if callable(wanted) else lambda event: event["event"] == wanted
        async def look():
            at = after
            async with self.news:
                while True:
                    while at < len(self.events):
                        if is_wanted(self.events[at]):
                            return self.events[at]
                        at += 1
                    if self.closed.done():
                        raise ConnectionError(f"closed: {self.closed.result()}, saw {self.seen()}")
                    await self.news.wait()
        try:
            return await asyncio.wait_for(look(), PATIENCE)
        except TimeoutError:
            raise AssertionError(f"did not come: {wanted}; saw {self.seen()}") from None

    async def seq(self, seq):
        return await self.wait(lambda event: event.get("seq") == seq)

    async def ends(self):
        """Waits for the end of the connection. Returns its code."""
        return (await asyncio.wait_for(asyncio.shield(self.closed), PATIENCE))[0]

    async def close(self):
        await self.socket.close()
        await self.reading

    def abort(self):
        """Ends the connection without a closing handshake."""
        self.socket.transport.abort()

    def seen(self):
        """The last events, for error messages."""
        return [json.dumps(event)[:300] for event in self.events[-10:]]

    def named(self, *names):
        return [event for event in self.events if event["event"] in names]

    def seqs(self):
        return [event["seq"] for event in self.events if "seq" in event]


def most_memory(gateway):
    """The peak memory of a gateway, in MiB."""
    status = pathlib.Path(f"/proc/{gateway.process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) // 1024


async def stays_within(gateway, megabytes, doing):
    """Waits for a task, and kills the gateway at once if it takes more memory than allowed: it might take all of it."""
    doing = asyncio.ensure_future(doing)
    while True:
        done, _ = await asyncio.wait([doing], timeout=0.05)
        if (most := most_memory(gateway)) > megabytes:
            gateway.kill()
            doing.add_done_callback(lambda doing: doing.cancelled() or doing.exception())
            doing.cancel()
            raise AssertionError(f"the gateway took {most} MB")
        if done:
            return doing.result()


def fast_clock(speed, behind=0):
    """The environment in which a program's clock runs `speed` times as fast, and its time of day is `behind` seconds
    behind; None without a C compiler."""
    library = pathlib.Path(tempfile.gettempdir()) / f"thread-clock-{os.getpid()}.so"
    if not library.exists():
        atexit.register(lambda: library.unlink(missing_ok=True))
        source = pathlib.Path(__file__).with_name("clock.c")
        try:
            subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
        except (OSError, subprocess.CalledProcessError):
            print("SKIPPED: needs a C compiler")
            return None
    # By name and folder, because LD_PRELOAD splits a path at blanks.
    load = {"LD_PRELOAD": library.name, "LD_LIBRARY_PATH": str(library.parent)}
    return {**load, "CLOCK_SPEED": str(speed), "CLOCK_BEHIND": str(behind)}


def run(module):
    """Runs the scenario that the command line names."""
    scenario = module[sys.argv[1]]
    asyncio.run(scenario())
