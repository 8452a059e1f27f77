"""Many clients, several gateways on one root, and killed gateways: the events that every client has seen are compared
with those on disk."""

import asyncio
import contextlib
import fcntl
import json
import os
import pathlib
import random
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import termios
import time

import websockets

from agent import answer
from harness import EVENT, LONG, PATIENCE, SERVE, THREAD, Client, Gateway, Refused, run

AGENT = f"{shlex.quote(sys.executable)} {shlex.quote(str(pathlib.Path(__file__).with_name('agent.py')))}"
HERE = pathlib.Path(__file__).parent
WS = os.environ.get("GATEWAY_WS")
CHAT = os.environ.get("THREAD_CHAT")
BROKEN = (ConnectionError, OSError, websockets.WebSocketException, TimeoutError)


def ends(event):
    """Whether an event ends a run."""
    name = event["event"]
    return name in ("final", "cancelled") or name == "error" and not event["payload"]["retryable"]


class Person:
    """A client that stays in one session and reconnects as often as necessary."""

    def __init__(self, name, gateways, session, after, dial=None):
        self.name, self.gateways, self.session, self.after = name, gateways, session, after
        self.seen, self.client, self.said, self.dial = [], None, {}, dial

    async def here(self):
        """Connects if necessary. Returns the connection."""
        while self.client is None or self.client.closed.done():
            await self.leave()
            try:
                gateway = random.choice(self.gateways)
                client = await asyncio.wait_for(Client.connect(gateway, clientId=self.name, dial=self.dial), 10)
                self.client = client
                last = self.seen[-1]["seq"] if self.seen else self.after
                await client.request("sessions.switch", sessionId=self.session, after=last)
            except BROKEN:
                await asyncio.sleep(0.02)
        return self.client

    async def leave(self):
        if self.client:
            await self.client.close()
            self.seen += [event for event in self.client.events if "seq" in event]
            self.client = None

    async def say(self, text):
        """Sends a message, again until it is accepted, and waits for the answer."""
        key = f"{self.name}-{len(self.said)}"
        began = time.monotonic()
        while True:
            client = await self.here()
            try:
                accepted = await client.request("agent", sessionId=self.session, message=text, idempotencyKey=key)
                break
            except BROKEN:
                continue
            except Refused as e:
                raise AssertionError(f"{text} was refused: {e}") from None
        self.said[text] = accepted["runId"]
        while True:
            client = await self.here()
            events = self.seen + [event for event in client.events if "seq" in event]
            if any(ends(event) and event["payload"]["runId"] == accepted["runId"] for event in events):
                return
            assert time.monotonic() - began < 4 * PATIENCE, (text, client.seen())
            await asyncio.sleep(0.02)

    async def comes_or_goes(self):
        """Disconnects or reconnects, at random."""
        if self.client and random.random() < 0.5:
            if random.random() < 0.5:
                # Without a closing handshake.
                self.client.abort()
            await self.leave()
        else:
            await self.here()

    async def listen(self, until):
        """Reconnects as necessary until it has seen an event."""
        while not (self.seen and self.seen[-1]["seq"] >= until):
            client = await self.here()
            seqs = client.seqs()
            if seqs and seqs[-1] >= until:
                return await self.leave()
            await asyncio.sleep(0.02)

    def check(self, stored, sayings):
        """Checks that it has seen exactly what is stored."""
        seqs = [event["seq"] for event in self.seen]
        assert seqs == [event["id"] for event in stored if event["id"] > self.after], self.name
        assert all(event["payload"]["sessionId"] == self.session for event in self.seen)
        for event in self.seen:
            if event["event"] == "message":
                text = event["payload"]["content"]
                assert event["payload"]["fromSelf"] == (sayings[text] == self.name), (self.name, text)


async def python_person(name, gateways, session):
    """A client that uses Python's `websockets`."""
    return Person(name, gateways, session, 0)


class NodeSocket:
    """A connection with npm's `ws`, in a process of its own."""

    @classmethod
    async def dial(cls, gateway):
        self = cls()
        self.process = await asyncio.create_subprocess_exec(
            "node", str(HERE / "ws.mjs"), WS, gateway.ws, gateway.token, limit=2**24,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )
        self.close_code = self.close_reason = None
        return self

    async def send(self, text):
        self.process.stdin.write(text.encode() + b"\n")
        await self.process.stdin.drain()

    async def __aiter__(self):
        while line := await self.process.stdout.readline():
            yield line

    async def close(self):
        self.process.stdin.close()
        await self.process.wait()

    @property
    def transport(self):
        return self

    def abort(self):
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()


async def node_person(name, gateways, session):
    """A client that uses npm's `ws`."""
    return Person(name, gateways, session, 0, dial=NodeSocket.dial)


class Crossing:
    """A proxy that connects each client to one of several gateways, until the connection is cut."""

    @classmethod
    async def open(cls, gateways):
        self = cls()
        self.gateways, self.ways, self.crossed = gateways, set(), 0
        self.server = await asyncio.start_server(self.cross, "127.0.0.1", 0)
        self.url = "http://127.0.0.1:%d" % self.server.sockets[0].getsockname()[1]
        return self

    async def cross(self, reader, writer):
        try:
            there, back = await asyncio.open_connection("127.0.0.1", random.choice(self.gateways).port)
        except OSError:
            writer.transport.abort()
            return
        way = (writer.transport, back.transport)
        self.ways.add(way)
        self.crossed += 1
        await asyncio.gather(self.carry(reader, back), self.carry(there, writer))
        self.ways.discard(way)

    async def carry(self, reader, writer):
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.close()

    def cut(self):
        for transport in [transport for way in self.ways for transport in way]:
            transport.abort()


class ChatPerson(Person):
    """A client that runs `thread chat --json` in a terminal, which reconnects by itself."""

    async def start(self, home):
        self.crossing = await Crossing.open(self.gateways)
        self.screen, terminal = os.openpty()
        begin = lambda: (os.setsid(), fcntl.ioctl(terminal, termios.TIOCSCTTY, 0))
        options = ["--json", "--session", self.session, "--url", self.crossing.url]
        token = self.gateways[0].token
        self.process = await asyncio.create_subprocess_exec(
            CHAT, *options, stdin=terminal, stderr=terminal, stdout=asyncio.subprocess.PIPE, limit=2**24,
            env={**os.environ, "THREAD_TOKEN": token, "HOME": home, "XDG_STATE_HOME": home, "TERM": "xterm"},
            preexec_fn=begin,
        )
        os.close(terminal)
        self.prompts, self.shown = asyncio.Queue(), b""
        asyncio.get_running_loop().add_reader(self.screen, self.look)
        self.reading = asyncio.create_task(self.read())
        # With the prompt, it has entered the session, and will see every message from now on.
        await asyncio.wait_for(self.prompts.get(), PATIENCE)

    def look(self):
        try:
            said = os.read(self.screen, 65536)
        except OSError:
            said = b""
        self.shown += said
        for _ in range(said.count(b"> ")):
            self.prompts.put_nowait(None)
        if not said:
            asyncio.get_running_loop().remove_reader(self.screen)

    async def read(self):
        async for line in self.process.stdout:
            event = json.loads(line)
            EVENT.validate({"type": "event", **event})
            if "seq" in event:
                self.seen.append(event)

    async def say(self, text):
        os.write(self.screen, text.encode() + b"\r")
        is_own = lambda event: event["event"] == "message" and event["payload"]["content"] == text
        await self.until(lambda: any(is_own(event) for event in self.seen))
        [own] = [event for event in self.seen if is_own(event)]
        run_id = own["payload"]["runId"]
        await self.until(lambda: any(ends(event) and event["payload"]["runId"] == run_id for event in self.seen))
        # What is typed before the prompt would be discarded.
        await asyncio.wait_for(self.prompts.get(), PATIENCE)

    async def until(self, done):
        limit = time.monotonic() + 4 * PATIENCE
        while not done():
            assert self.process.returncode is None, (self.process.returncode, self.shown[-1000:])
            assert time.monotonic() < limit, (self.seen[-3:], self.shown[-1000:])
            await asyncio.sleep(0.02)

    async def comes_or_goes(self):
        self.crossing.cut()

    async def listen(self, until):
        await self.until(lambda: self.seen and self.seen[-1]["seq"] >= until)

    async def leave(self):
        os.write(self.screen, b"\x04")
        assert await asyncio.wait_for(self.process.wait(), PATIENCE) == 0, self.shown[-1000:]
        await self.reading
        asyncio.get_running_loop().remove_reader(self.screen)
        os.close(self.screen)
        self.crossing.server.close()


async def chat_person(name, gateways, session):
    """A client that uses `thread chat`."""
    self = ChatPerson(name, gateways, session, 0)
    home = gateways[0].root / f"home of {name}"
    home.mkdir()
    await self.start(str(home))
    return self


class StreamPerson:
    """A client of AG-UI, which resumes its streams where they broke off."""

    def __init__(self, name, gateways, session):
        self.name, self.gateways, self.session, self.said, self.broken = name, gateways, session, 0, 0

    async def say(self, text):
        run_id, events, last, began = f"{self.name}-{self.said}", [], None, time.monotonic()
        self.said += 1
        message = {"id": "m", "role": "user", "content": text}
        body = json.dumps({"threadId": self.session, "runId": run_id, "messages": [message], "protocolVersion": "1.0"})
        while not (events and events[-1]["type"] in ("RUN_FINISHED", "RUN_ERROR")):
            assert time.monotonic() - began < 4 * PATIENCE, (text, events[-5:])
            try:
                async for seq, some in self.stream(body, last):
                    # All frames of one stored event, or none.
                    assert last is None or seq > last, (seq, last)
                    last, events = seq, events + some
                # A stream that ends well belongs to a run that has ended.
                assert events[-1]["type"] in ("RUN_FINISHED", "RUN_ERROR"), events[-1]
            except BROKEN:
                self.broken += last is not None
                await asyncio.sleep(0.05)
        kinds = [event["type"] for event in events]
        assert kinds.count("RUN_STARTED") == 1 == kinds.count("RUN_FINISHED") + kinds.count("RUN_ERROR"), kinds
        streamed = {}
        for event in events:
            if event["type"] == "TEXT_MESSAGE_CONTENT":
                streamed[event["messageId"]] = streamed.get(event["messageId"], "") + event["delta"]
        if kinds[-1] == "RUN_FINISHED":
            assert list(streamed.values())[-1] == answer(text), (text, streamed)

    async def stream(self, body, last):
        """A stream, as lists of events with the id of each."""
        gateway = random.choice(self.gateways)
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=2**24)
        try:
            line = "POST /api/v1/agent/run" if last is None else f"GET /api/v1/agent/events?threadId={self.session}"
            more = (f"Content-Type: application/json\r\nContent-Length: {len(body.encode())}" if last is None
                    else f"Last-Event-ID: {last}")
            writer.write((f"{line} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {gateway.token}\r\n{more}\r\n"
                          f"\r\n{body if last is None else ''}").encode())
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
            assert b" 200 " in head.partition(b"\r\n")[0], head
            events, seq = [], None
            # In chunks, of which the last is empty.
            while size := int(await asyncio.wait_for(reader.readuntil(b"\r\n"), PATIENCE), 16):
                for said in (await reader.readexactly(size)).decode().splitlines():
                    if said.startswith("id:"):
                        seq = int(said[3:])
                    elif said.startswith("data:"):
                        events.append(json.loads(said[5:]))
                        if seq is not None:
                            yield seq, events
                            events, seq = [], None
                await reader.readexactly(2)
        except asyncio.IncompleteReadError as e:
            raise ConnectionError("cut off") from e
        finally:
            writer.transport.abort()

    async def comes_or_goes(self):
        pass

    async def listen(self, until):
        pass

    async def leave(self):
        pass

    def check(self, stored, sayings):
        pass


async def stream_person(name, gateways, session):
    """A client of AG-UI."""
    return StreamPerson(name, gateways, session)


def check_endings(stored, sayings):
    """Checks that each message is stored once and has one ending. Returns how many were answered."""
    said = [event for event in stored if event["type"] == "message" and event["source"] != "self"]
    assert sorted(event["content"] for event in said) == sorted(sayings)
    answered = 0
    for event in said:
        about = [other for other in stored if (other.get("metadata") or {}).get("reply_to") == event["id"]]
        is_final = lambda other: (
            other["type"] == "message" or other["subtype"] == "cancelled"
            or other["subtype"] == "error" and not json.loads(other["content"])["retryable"])
        [ending] = [other for other in about if is_final(other)]
        if ending["type"] != "message":
            continue
        answered += 1
        assert ending["content"] == answer(event["content"])
        run_id = event["metadata"]["run_id"]
        if len([other for other in about if other["subtype"] == "run"]) == 1:
            tokens = [e["content"] for e in stored if e["subtype"] == "token" and e["metadata"]["run_id"] == run_id]
            assert "".join(tokens) == answer(event["content"])
    return answered


def check_transcript(stored, sayings):
    """Checks that each message is stored once and answered once, with a complete stream."""
    said = {event["content"]: event for event in stored if event["type"] == "message" and event["source"] != "self"}
    assert sorted(said) == sorted(sayings) and len(said) == len(sayings)
    spoken = [event["content"] for event in stored if event["type"] == "message" and event["source"] != "self"]
    assert len(spoken) == len(said)
    for text, event in said.items():
        about = lambda other: other.get("metadata", {}).get("reply_to") == event["id"]
        [final] = [other for other in stored if other["type"] == "message" and about(other)]
        assert final["content"] == answer(text)
        run_id = event["metadata"]["run_id"]
        tokens = [e["content"] for e in stored if e["subtype"] == "token" and e["metadata"]["run_id"] == run_id]
        assert "".join(tokens) == answer(text)


async def talk(person, stop, sayings):
    n = 0
    while not stop.is_set():
        text = f"{person.name} says number {n}"
        sayings[text] = person.name
        await person.say(text)
        n += 1


async def an_answer_streams_from_an_agent_program():
    with Gateway("--agent", "sh -c 'tr a-z A-Z; echo done'") as gateway:
        client = await gateway.client()
        accepted = await client.request("agent", message="hello\n")
        final = await client.wait("final")
        assert final["payload"]["content"] == "HELLO\ndone\n" and final["payload"]["runId"] == accepted["runId"]
        names = [event["event"] for event in client.events]
        assert names[0] == "message" and names[-1] == "final" and "token" in names, names
        # An older session keeps its agent: here, none.
        gateway.stop()
        gateway.options = ()
        gateway.start()
        client = await gateway.client()
        older = (await client.request("sessions.new"))["sessionId"]
        assert (await client.request("agent", message="one"))["status"] == "accepted"
        gateway.stop()
        gateway.options = ("--agent", "cat", "--agent-for-all")
        gateway.start()
        client = await gateway.client()
        await client.request("agent", sessionId=older, message="two")
        await client.wait(lambda event: event["event"] == "final" and event["payload"]["content"] == "two")
        assert "one" in [event["payload"]["content"] for event in client.named("final")]


async def an_agent_is_a_line_of_shell_with_the_limits_that_the_gateway_was_given():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    line = "name=value; tr a-z A-Z | sed s/$/!/; echo $(ulimit -Sn) $name"
    with Gateway("--agent", line) as gateway:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        # The gateway has raised its own limit.
        limits = pathlib.Path(f"/proc/{gateway.process.pid}/limits").read_text()
        [own] = [line.split()[3] for line in limits.splitlines() if line.startswith("Max open files")]
        assert int(own) == min(hard, 16384) or hard == resource.RLIM_INFINITY, limits
        client = await gateway.client()
        await client.request("agent", message="hello")
        assert (await client.wait("final"))["payload"]["content"] == "HELLO!200 value\n"


async def agents_get_the_options_that_the_gateway_was_given():
    def handler(gateway, session):
        [agent] = json.loads(gateway.thread("info", "--json", session=session))["subscriptions"]
        return shlex.split(agent["handler_cmd"])
    options = {"permit": "allow", "attempts": "1", "quiet": "5m", "idle": "30s", "max-output": "1048576"}
    given = [word for name, value in options.items() for word in (f"--{name}", value)]
    with tempfile.TemporaryDirectory() as cwd:
        keys = pathlib.Path(cwd, "keys.env")
        keys.write_text("KEY=first\n")
        with Gateway("--agent", "echo $KEY; test $KEY != bad", "--env-file", "keys.env", *given, cwd=cwd) as gateway:
            client = await gateway.client()
            session = (await client.request("agent", message="hello"))["sessionId"]
            assert (await client.wait("final"))["payload"]["content"] == "first\n"
            told = handler(gateway, session)
            for name, value in {**options, "max-agents": "100", "env-file": str(keys.resolve())}.items():
                assert told[told.index(f"--{name}") + 1] == value, (name, told)
            # There is only one attempt, and the file is read at each start.
            keys.write_text("KEY=bad\n")
            at = len(client.events)
            await client.request("agent", message="hello")
            assert not (await client.wait("error", at))["payload"]["retryable"]
            # An older session gets other options with its next message.
            gateway.kill()
            keys.write_text("KEY=again\n")
            gateway.options = [*gateway.options, "--agent-for-all", "--idle", "5s", "--max-agents", "0"]
            gateway.restart()
            client = await gateway.client()
            await client.request("agent", sessionId=session, message="hello")
            assert (await client.wait("final"))["payload"]["content"] == "again\n"
            told = handler(gateway, session)
            assert told[told.index("--idle") + 1] == "5s" and told[told.index("--attempts") + 1] == "1", told
            assert "--max-agents" not in told, told

        def refused(*options):
            command = [SERVE, "--root", f"{cwd}/root", "--listen", "127.0.0.1:0", *options]
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=cwd)
            assert done.returncode == 2 and not pathlib.Path(cwd, "root").exists(), done
            return done.stderr
        keys.write_text("KEY=a\nnothing\n")
        assert "line 2 of " in refused("--agent", "cat", "--env-file", "keys.env")
        assert "cannot read " in refused("--agent", "cat", "--env-file", "missing.env")
        assert "--agent" in refused("--permit", "allow") and "--agent" in refused("--idle", "5s")


async def a_now_message_interrupts_and_a_cancel_ends():
    with Gateway("--agent", f"{AGENT} 0.5", "--protocol", "ndjson") as gateway:
        client = await gateway.client()
        first = await client.request("agent", message="slow")
        await client.wait("token")
        urgent = await client.request("agent", message="urgent", priority="now")
        assert urgent["status"] == "queued"
        event = await client.wait("cancelled")
        assert event["payload"]["runId"] == first["runId"] and "interrupted by" in event["payload"]["message"]
        await client.wait(lambda e: e["event"] == "token" and e["payload"]["runId"] == urgent["runId"])
        waiting = await client.request("agent", message="never begun")
        await client.request("agent.cancel", runId=waiting["runId"])
        await client.request("agent.cancel", runId=urgent["runId"])
        for run_id in urgent["runId"], waiting["runId"]:
            await client.wait(lambda e: e["event"] == "cancelled" and e["payload"]["runId"] == run_id)
        begun = [e["payload"]["runId"] for e in client.named("status") if e["payload"]["status"] == "started"]
        assert waiting["runId"] not in begun


async def a_message_that_is_to_be_resumed_gets_its_turn_again():
    with Gateway("--agent", f"{AGENT} 0.2", "--protocol", "ndjson") as gateway:
        client = await gateway.client()
        first = await client.request("agent", message="slow", metadata={"resume": True})
        await client.wait("token")
        urgent = await client.request("agent", message="urgent", priority="now")
        ends = lambda run: lambda e: e["event"] in ("final", "cancelled") and e["payload"]["runId"] == run["runId"]
        await client.wait(ends(first))
        runs = [(e["event"], e["payload"]["runId"]) for e in client.named("error", "final", "cancelled")]
        assert runs == [("error", first["runId"]), ("final", urgent["runId"]), ("final", first["runId"])], runs
        assert client.named("error")[0]["payload"]["retryable"] is True


async def a_session_that_is_removed_ends_its_agent():
    with Gateway("--agent", "echo $$ >pid; echo working; exec sleep 1000") as gateway:
        client = await gateway.client()
        session = (await client.request("agent", message="work"))["sessionId"]
        await client.wait("token")
        process = pathlib.Path("/proc") / (gateway.root / "pid").read_text().strip()
        assert "sleep" in (process / "comm").read_text()
        await client.request("sessions.delete", sessionId=session)
        assert not (gateway.root / session).exists() and not process.exists()


async def sub_agents_are_watched_at_work():
    with Gateway() as gateway:
        client = await gateway.client()
        session = (await client.request("sessions.new"))["sessionId"]
        about = await gateway.begun(client, session)
        gateway.push(session, {"call_id": "c1", "name": "helper", "arguments": {}}, "toolcall", **about)
        env = {k: v for k, v in os.environ.items() if not k.startswith("THREAD_")}
        os.mkfifo(gateway.root / "wait")
        working = await asyncio.create_subprocess_exec(
            THREAD, "agent", "run", "--parent", str(gateway.root / session), "--call", "c1", "--name", "helper",
            "--", "sh", "-c", "echo first; read go <wait; echo second",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, cwd=gateway.root,
            env={**env, "THREAD_RUN_ID": about["run_id"]},
        )
        working.stdin.write(b"do it")
        working.stdin.close()
        said = lambda text: lambda e: (e["event"] == "sub_agent" and "seq" not in e
                                       and e["payload"]["payload"].get("content", "").startswith(text))
        event = await client.wait(said("first"))
        assert event["payload"]["parentCallId"] == "c1" and event["payload"]["event"] == "token"
        assert event["payload"]["subAgent"].startswith("helper-") and event["payload"]["runId"] == about["run_id"]
        assert not client.named("tool_result")
        (gateway.root / "wait").write_text("go\n")
        result = await client.wait("tool_result")
        assert result["payload"]["result"] == "first\nsecond\n" and result["seq"], result
        assert await working.wait() == 0
        # Deleting the session stops the remaining sub-agents.
        await client.request("sessions.delete", sessionId=session)
        assert not (gateway.root / session).exists()


async def what_a_sub_agent_said_is_not_said_again():
    with Gateway() as gateway:
        client = await gateway.client()
        session = (await client.request("sessions.new"))["sessionId"]
        about = await gateway.begun(client, session)
        gateway.push(session, {"call_id": "c1", "name": "helper", "arguments": {}}, "toolcall", **about)
        os.mkfifo(gateway.root / "say")
        env = {k: v for k, v in os.environ.items() if not k.startswith("THREAD_")}
        working = await asyncio.create_subprocess_exec(
            THREAD, "agent", "run", "--parent", str(gateway.root / session), "--call", "c1", "--name", "helper",
            "--", "sh", "-c", "while read line; do echo $line; done <say",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, cwd=gateway.root,
            env={**env, "THREAD_RUN_ID": about["run_id"]},
        )
        working.stdin.write(b"do it")
        working.stdin.close()
        with await asyncio.to_thread(open, gateway.root / "say", "w", 1) as say:
            lines, limit = 0, time.monotonic() + PATIENCE
            heard = lambda who: [int(line) for e in who.named("sub_agent") if "seq" not in e
                                 for line in e["payload"]["payload"]["content"].split()]

            async def says_until(all_have_heard):
                nonlocal lines
                while not all_have_heard():
                    assert time.monotonic() < limit
                    say.write(f"{lines}\n")
                    lines += 1
                    await asyncio.sleep(0.02)

            await says_until(lambda: len(heard(client)) > 20)
            # Some clients return, others come for the first time.
            late, last = [], 0
            for _ in range(4):
                last = max(client.seqs(), default=last)
                await client.close()
                # Output that was not relayed before the result is not repeated.
                began = heard(client)[-1] + 1
                client = await gateway.client()
                await client.request("sessions.switch", sessionId=session, after=last)
                late.append((began, await gateway.client()))
                await late[-1][1].request("sessions.switch", sessionId=session)
                await says_until(lambda: all(len(heard(who)) > 20 for who in (client, late[-1][1])))
                assert heard(client)[0] >= began, (began, heard(client))
            # Except the last line: output that is left when the call has its result is in the result.
            whole = lambda said: said == list(range(said[0], lines))
            while not all(whole(heard(who)) for _, who in late):
                assert time.monotonic() < limit, [heard(who) for _, who in late]
                await asyncio.sleep(0.02)
        assert all(heard(who)[0] >= began for began, who in late), [(began, heard(who)[0]) for began, who in late]
        await client.wait("tool_result")
        assert await working.wait() == 0


async def twelve_clients_of_three_kinds_and_two_gateways_see_the_same():
    with Gateway("--agent", AGENT, "--protocol", "ndjson") as one:
        with Gateway("--agent", AGENT, "--protocol", "ndjson", root=one.root) as two:
            assert one.token == two.token
            first = await one.client()
            session = (await first.request("sessions.new"))["sessionId"]
            elsewhere = (await first.request("sessions.new"))["sessionId"]
            kinds = [python_person, *([node_person] if WS else []), *([chat_person] if CHAT else [])]
            if len(kinds) < 3:
                print("SKIPPED: needs ws, of npm")
            # One client of each kind sends messages, if there are three kinds.
            people = [await kinds[n % len(kinds)](f"person{n}", [one, two], session) for n in range(12)]
            stop, sayings = asyncio.Event(), {}
            talking = [asyncio.create_task(talk(person, stop, sayings)) for person in people[:3]]
            end = time.monotonic() + (60 if LONG else 6)
            while time.monotonic() < end:
                await random.choice(people[3:]).comes_or_goes()
                if random.random() < 0.2:
                    await first.request("agent", sessionId=elsewhere, message="in another session")
                await asyncio.sleep(0.02)
            stop.set()
            await asyncio.gather(*talking)
            await answered(one, session, sayings)
            stored = one.events(session)
            await asyncio.gather(*(person.listen(stored[-1]["id"]) for person in people))
            check_transcript(stored, sayings)
            for person in people:
                await person.leave()
                person.check(stored, sayings)
            again = sum(person.crossing.crossed - 1 for person in people if isinstance(person, ChatPerson))
            print(f"{len(sayings)} messages, {len(stored)} events, twelve clients of {len(kinds)} kinds; "
                  f"thread chat came back {again} times")


async def answered(gateway, session, sayings):
    """Waits until every message has its answer, which is the last event of a run."""
    limit = time.monotonic() + 300
    while True:
        events = await asyncio.to_thread(gateway.events, session)
        answers = [event for event in events if event["type"] == "message" and event["source"] == "self"]
        if len(answers) >= len(sayings):
            return
        assert time.monotonic() < limit, f"{len(answers)} of {len(sayings)} are answered"
        await asyncio.sleep(0.1)


async def runs_interrupted_by_a_reboot_continue_by_themselves():
    with Gateway("--agent", f"{AGENT} 0.2", "--protocol", "ndjson") as gateway:
        client = await gateway.client()
        session = (await client.request("agent", message="hello"))["sessionId"]
        await client.wait("token")
        # All of its processes at once.
        gateway.kill()
        while at_work := list(processes_of(session)):
            for process in at_work:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        gateway.restart()
        # Nobody enters the session.
        began = time.monotonic()
        while not [event for event in gateway.events(session) if event["content"] == answer("hello")]:
            assert time.monotonic() - began < 30, gateway.thread("info", session=session)
            await asyncio.sleep(0.1)


def processes_of(session):
    """The running processes of a session: its supervisor, its adapter and its agent's program."""
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            about = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if session.encode() in about and b"chat" not in about.partition(b"\0")[0]:
            yield int(process.name)


async def whichever_process_is_killed_each_message_ends_once_and_all_clients_see_the_same():
    seconds = float(os.environ.get("CHAOS_SECONDS", 300 if LONG else 6))
    seed = int(os.environ.get("SEED", random.randrange(10**6)))
    # The timing varies, but the order of kills can be repeated from the seed.
    dice = random.Random(seed)
    options = ["--agent", f"{AGENT} 0.02", "--protocol", "ndjson"]
    with Gateway(*options) as one, Gateway(*options, root=one.root) as two:
        gateways = [one, two]
        first = await one.client()
        session = (await first.request("sessions.new"))["sessionId"]
        await first.close()
        # The first three, one of each kind, send the messages.
        kinds = [python_person, stream_person, *([chat_person] if CHAT else []), *([node_person] if WS else [])]
        if len(kinds) < 4:
            print("SKIPPED: needs ws, of npm")
        people = [await kinds[n % len(kinds)](f"person{n}", gateways, session) for n in range(12)]
        stop, sayings, killed = asyncio.Event(), {}, {"gateway": 0, "at work": 0}
        talking = [asyncio.create_task(talk(person, stop, sayings)) for person in people[:3]]
        end = time.monotonic() + seconds
        # On a busy machine it takes longer until each kind was killed.
        while time.monotonic() < end or not all(killed.values()):
            assert time.monotonic() < end + 2 * PATIENCE, killed
            assert not any(task.done() for task in talking), [task.exception() for task in talking if task.done()]
            what, at_work = dice.random(), sorted(processes_of(session))
            if what < 0.25:
                gateway = dice.choice(gateways)
                gateway.kill()
                gateway.restart()
                killed["gateway"] += 1
            elif what < 0.5 and at_work:
                # Sometimes more than one at a time, as when a machine is short of memory.
                for process in dice.sample(at_work, dice.choice([1, 1, len(at_work)])):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
                        killed["at work"] += 1
            else:
                await dice.choice(people[3:]).comes_or_goes()
            await asyncio.sleep(dice.random() ** 2 * 0.6)
        stop.set()
        # The remaining runs continue by themselves, without any client and any push.
        try:
            await asyncio.wait_for(asyncio.gather(*talking), 2 * PATIENCE)
        except TimeoutError:
            state = one.thread("info", "--json", session=session)
            raise AssertionError(f"seed {seed}: {killed} killed, and it does not go on: {state}") from None
        last = one.push(session, "the end", "token", run_id="none")
        stored = one.events(session)
        await asyncio.gather(*(person.listen(last) for person in people))
        ended = check_endings(stored, sayings)
        for person in people:
            await person.leave()
            person.check(stored, sayings)
        assert one.logged(session) == stored
        assert killed["gateway"] and killed["at work"] and ended, (killed, ended)
        broken = sum(person.broken for person in people if isinstance(person, StreamPerson))
        print(f"seed {seed}: {killed} killed, {len(sayings)} messages, {ended} answered, {len(stored)} events; "
              f"streams were picked up {broken} times")


if __name__ == "__main__":
    run(globals())
