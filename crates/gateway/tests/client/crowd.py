"""Many clients, several gateways on one root, and killed gateways: what every client has seen is compared with
what is on disk."""

import asyncio
import fcntl
import json
import os
import pathlib
import random
import resource
import shlex
import sys
import termios
import time

import websockets

from agent import answer
from harness import EVENT, PATIENCE, THREAD, Client, Gateway, Refused, run

AGENT = f"{shlex.quote(sys.executable)} {shlex.quote(str(pathlib.Path(__file__).with_name('agent.py')))}"
HERE = pathlib.Path(__file__).parent
WS = os.environ.get("GATEWAY_WS")
CHAT = os.environ.get("THREAD_CHAT")
LONG = os.environ.get("THREAD_FAULTS") == "long"
BROKEN = (ConnectionError, OSError, websockets.WebSocketException, TimeoutError)


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
            if any(e["event"] == "final" and e["payload"]["runId"] == accepted["runId"] for e in events):
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
        await self.until(lambda: any(e["event"] == "final" and e["payload"]["runId"] == run_id for e in self.seen))
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
        about = {"run_id": "r"}
        gateway.push(session, {"call_id": "c1", "name": "helper", "arguments": {}}, "toolcall", **about)
        env = {k: v for k, v in os.environ.items() if not k.startswith("THREAD_")}
        os.mkfifo(gateway.root / "wait")
        working = await asyncio.create_subprocess_exec(
            THREAD, "agent", "run", "--parent", str(gateway.root / session), "--call", "c1", "--name", "helper",
            "--", "sh", "-c", "echo first; read go <wait; echo second",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, cwd=gateway.root,
            env={**env, "THREAD_RUN_ID": "r"},
        )
        working.stdin.write(b"do it")
        working.stdin.close()
        said = lambda text: lambda e: (e["event"] == "sub_agent" and "seq" not in e
                                       and e["payload"]["payload"].get("content", "").startswith(text))
        event = await client.wait(said("first"))
        assert event["payload"]["parentCallId"] == "c1" and event["payload"]["event"] == "token"
        assert event["payload"]["subAgent"].startswith("helper-") and event["payload"]["runId"] == "r"
        assert not client.named("tool_result")
        (gateway.root / "wait").write_text("go\n")
        result = await client.wait("tool_result")
        assert result["payload"]["result"] == "first\nsecond\n" and result["seq"], result
        assert await working.wait() == 0
        # Deleting the session stops what is left of the sub-agents.
        await client.request("sessions.delete", sessionId=session)
        assert not (gateway.root / session).exists()


async def twelve_clients_of_three_kinds_and_two_gateways_see_the_same():
    with Gateway("--agent", AGENT, "--protocol", "ndjson") as one:
        with Gateway("--agent", AGENT, "--protocol", "ndjson", root=one.root) as two:
            assert one.token == two.token
            first = await one.client()
            session = (await first.request("sessions.new"))["sessionId"]
            elsewhere = (await first.request("sessions.new"))["sessionId"]
            kinds = [python_person, *([node_person] if WS else []), *([chat_person] if CHAT else [])]
            if len(kinds) < 3:
                print("SKIPPED: twelve clients of three kinds are only "
                      f"{len(kinds)}; GATEWAY_WS names no folder with npm's ws, or there is no thread-chat")
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


async def a_gateway_that_is_killed_loses_nothing_and_doubles_nothing():
    rounds = 200 if LONG else 10
    with Gateway("--agent", AGENT, "--protocol", "ndjson") as gateway:
        first = await gateway.client()
        session = (await first.request("sessions.new"))["sessionId"]
        people = [Person(f"person{n}", [gateway], session, 0) for n in range(5)]
        stop, sayings = asyncio.Event(), {}
        talking = [asyncio.create_task(talk(person, stop, sayings)) for person in people[:3]]
        listening = asyncio.create_task(keep(people[3:], stop))
        for _ in range(rounds):
            await asyncio.sleep(random.random() ** 2 * 0.6)
            gateway.kill()
            gateway.restart()
        stop.set()
        await asyncio.gather(*talking, listening)
        await answered(gateway, session, sayings)
        stored = gateway.events(session)
        await asyncio.gather(*(person.listen(stored[-1]["id"]) for person in people))
        check_transcript(stored, sayings)
        for person in people:
            await person.leave()
            person.check(stored, sayings)
        print(f"{rounds} kills, {len(sayings)} messages, {len(stored)} events, five clients")


async def keep(people, stop):
    while not stop.is_set():
        for person in people:
            await person.here()
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    run(globals())
