"""Many sessions on one machine: they share a few agents, and nothing piles up in long conversations."""

import asyncio
import contextlib
import json
import os
import pathlib
import random
import shlex
import signal
import sqlite3
import statistics
import sys
import time

from crowd import BROKEN
from harness import LONG, PATIENCE, THREAD, Client, Gateway, Refused, run

PLAYER = f"{shlex.quote(sys.executable)} {shlex.quote(str(pathlib.Path(__file__).with_name('page_agent.py')))}"
# Minutes.
SOAK = float(os.environ.get("SOAK", 30 if LONG else 0.3))
SESSIONS = int(os.environ.get("SESSIONS", 50 if LONG else 9))


def about(process):
    """The command line and the environment of a process; empty once it is gone."""
    with contextlib.suppress(OSError):
        return (process / "cmdline").read_bytes(), (process / "environ").read_bytes()
    return b"", b""


def in_root(root):
    """The processes that work for the sessions of a root."""
    root = os.fsencode(str(root)) + b"/"
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        command, environment = about(process)
        if root in command or root in environment:
            yield process, command


def endings(gateway, session):
    """By the id of each client's message: its run, and whether that has ended."""
    with contextlib.closing(sqlite3.connect(f"file:{gateway.root / session / 'events.db'}?mode=ro", uri=True)) as db:
        found = db.execute("""SELECT m.metadata ->> 'run_id', (SELECT count(*) FROM events AS e
            WHERE e.idempotency_key = 'thread:end:' || m.id) FROM events AS m WHERE m.type = 'message' AND m.source <> 'self'""")
        return dict(found.fetchall())


async def forty_sessions_share_three_agents():
    line = "sleep 0.4; echo read"
    plays = {"one": [["sub", "c", "reader", line], ["say", "first"]], "two": [["say", "second"]]}
    with Gateway("--agent", PLAYER, "--protocol", "ndjson", "--max-agents", "3") as gateway:
        (gateway.root / "plays.json").write_text(json.dumps(plays))
        (gateway.root / "programs.json").write_text(json.dumps({"thread": THREAD}))
        client = await gateway.client()
        sessions = [(await client.request("sessions.new"))["sessionId"] for _ in range(40)]
        runs = {session: [(await client.request("agent", sessionId=session, message=text))["runId"]
                          for text in plays] for session in sessions}
        most = {"programs": 0, "sub-agents": 0}
        limit = time.monotonic() + 4 * PATIENCE
        while not all(all(endings(gateway, session).values()) for session in sessions):
            assert time.monotonic() < limit, {session: endings(gateway, session) for session in sessions}
            # A look takes a while, so only processes seen in two looks count as simultaneous.
            before = dict(in_root(gateway.root))
            commands = [command for pid, command in in_root(gateway.root) if before.get(pid) == command]
            # The program itself, not the shell or the adapter with it in their arguments.
            programs = [command for command in commands
                        if command.split(b"\0")[1:2] == [os.fsencode(shlex.split(PLAYER)[-1])]]
            helpers = [command for command in commands if command.startswith(b"sh\0-c\0" + line.encode())]
            most["programs"] = max(most["programs"], len(programs))
            most["sub-agents"] = max(most["sub-agents"], len(helpers))
            await asyncio.sleep(0.02)
        assert 1 <= most["programs"] <= 3 and 1 <= most["sub-agents"] <= 3, most
        begun = {}
        for session in sessions:
            assert set(endings(gateway, session)) == set(runs[session])
            events = gateway.events(session)
            answers = [event["content"] for event in events if event["type"] == "message" and event["source"] == "self"]
            assert answers == ["first", "second"], (session, answers)
            begun[session] = next(event["created_at"] for event in events if event.get("subtype") == "run")
        # Three are in the queue at a time, so each is at most that far from its position.
        for place, session in enumerate(sorted(sessions, key=begun.get)):
            assert abs(place - sessions.index(session)) <= 3, (place, sessions.index(session))
        await client.close()
        print(f"80 messages in 40 sessions, at most {most} at a time")


class Talker:
    """A client that sends messages in one session after the other, through any gateway."""

    def __init__(self, gateways, dice, done):
        self.gateways, self.dice, self.done = gateways, dice, done
        # By session, the runs of the messages that were accepted there.
        self.accepted, self.session, self.client = {}, None, None

    def count(self, what):
        self.done[what] = self.done.get(what, 0) + 1

    async def request(self, method, **params):
        """Sends a request, through another connection if this one breaks. None if its outcome is unknown."""
        while self.client is None or self.client.closed.done():
            with contextlib.suppress(*BROKEN):
                self.client = await asyncio.wait_for(Client.connect(self.dice.choice(self.gateways)), 10)
        try:
            return await self.client.request(method, **params)
        except BROKEN:
            await self.leave()

    async def leave(self):
        if self.client:
            client, self.client = self.client, None
            await client.close()

    async def say(self, text, **params):
        accepted = await self.request("agent", sessionId=self.session, message=text, **params)
        if accepted:
            self.accepted[self.session].append(accepted["runId"])
            self.count("messages")
        return accepted and accepted["runId"]

    async def move(self, made):
        """Continues in another session, and deletes the one before the last with all its messages."""
        if made:
            self.session = made["sessionId"]
            self.accepted[self.session] = []
        if len(self.accepted) > 2:
            oldest = next(iter(self.accepted))
            del self.accepted[oldest]
            await self.request("sessions.delete", sessionId=oldest)
            self.count("deletes")

    async def act(self):
        what = self.dice.random()
        if self.session is None or len(self.accepted[self.session]) > 12:
            await self.move(await self.request("sessions.new"))
        elif what < 0.6:
            await self.say(self.dice.choice(["hello", "work", "long"]))
        elif what < 0.75:
            await self.say("at once", priority="now")
            self.count("interrupts")
        elif what < 0.9:
            if run_id := await self.say("long"):
                await asyncio.sleep(self.dice.random())
                await self.request("agent.cancel", sessionId=self.session, runId=run_id)
                self.count("cancels")
        elif any(endings(self.gateways[0], self.session).values()):
            # Messages from the original are answered there.
            await self.move(await self.request("sessions.fork", sessionId=self.session))
            self.count("forks")

    async def talk(self, stop):
        while not stop.is_set():
            try:
                await self.act()
            except Refused as e:
                # The run has ended or its session is gone in the meantime.
                assert any(word in str(e) for word in ("run", "session", "busy", "message")), e
                self.count("refusals")
            await asyncio.sleep(self.dice.random() * 2)


async def strike(gateways, dice, stop, done):
    """Kills gateways, supervisors, adapters and programs."""
    while not stop.is_set():
        await asyncio.sleep(dice.random() * 3)
        if dice.random() < 0.1:
            gateway = dice.choice(gateways)
            gateway.kill()
            gateway.restart()
            done["gateways killed"] = done.get("gateways killed", 0) + 1
        elif at_work := list(in_root(gateways[0].root)):
            process, _ = dice.choice(at_work)
            if int(process.name) not in [gateway.process.pid for gateway in gateways]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process.name), signal.SIGKILL)
                    done["processes killed"] = done.get("processes killed", 0) + 1


def weight(gateways):
    """Bytes of memory of the gateways, bytes on disk below the root, and the number of processes at work."""
    resident = 0
    for gateway in gateways:
        with contextlib.suppress(OSError):
            resident += int(pathlib.Path(f"/proc/{gateway.process.pid}/statm").read_text().split()[1]) * 4096
    stored = 0
    for folder, _, files in os.walk(gateways[0].root):
        for name in files:
            with contextlib.suppress(OSError):
                stored += os.stat(os.path.join(folder, name)).st_size
    return resident, stored, len(list(in_root(gateways[0].root)))


async def in_a_long_conversation_nothing_piles_up_and_each_message_ends_once():
    seed = int(os.environ.get("SEED", random.randrange(10**6)))
    dice, stop, done, weights = random.Random(seed), asyncio.Event(), {}, []
    common = ["--keep-stream", "10s", "--max-agents", "12", "--idle", "10s"]
    shell = "read line; echo thinking; sleep 0.3; echo done"
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(Gateway("--agent", f"{PLAYER} --acp", "--protocol", "acp", *common))
        gateways = [one, *(stack.enter_context(Gateway("--agent", *agent, *common, root=one.root)) for agent in (
            (PLAYER, "--protocol", "ndjson"), (shell, "--protocol", "exec")))]
        (one.root / "plays.json").write_text(json.dumps({
            "work": [["think", "hm"], ["call", "c", "count", {"of": "x"}], ["result", "c", "count", 3], ["say", "three"]],
            "long": [["say", "a "], ["many", 500]],
        }))
        people = [Talker(gateways, random.Random(dice.random()), done) for _ in range(SESSIONS)]
        talking = [asyncio.create_task(person.talk(stop)) for person in people]
        striking = asyncio.create_task(strike(gateways, dice, stop, done))
        end = time.monotonic() + SOAK * 60
        while time.monotonic() < end:
            await asyncio.sleep(min(5, SOAK * 2))
            for task in (*talking, striking):
                if task.done():
                    task.result()
            weights.append(await asyncio.to_thread(weight, gateways))
        stop.set()
        await asyncio.gather(*talking, striking)
        for person in people:
            await person.leave()

        expected = {session: runs for person in people for session, runs in person.accepted.items() if runs}
        limit, left = time.monotonic() + 4 * PATIENCE, dict(expected)
        while left:
            for session, runs in list(left.items()):
                found = endings(one, session)
                assert set(runs) <= set(found), (seed, session, set(runs) - set(found))
                assert set(found.values()) <= {0, 1}, (seed, session, found)
                if all(found[run_id] for run_id in runs):
                    del left[session]
            assert time.monotonic() < limit, (seed, {session: one.thread("info", session=session) for session in left})
            await asyncio.sleep(0.2)
        checked = sum(map(len, expected.values()))
        quarters = [weights[len(weights) * n // 4:len(weights) * (n + 1) // 4] for n in range(4)]
        for name, kind, slack in [("MB of memory", 0, 5e6), ("MB on disk", 1, 5e6), ("processes", 2, 10)]:
            scale = 1 if kind == 2 else 1e6
            means = [statistics.mean(weight[kind] for weight in quarter or weights) for quarter in quarters]
            print(f"{name}, on average in each quarter: {', '.join(f'{mean / scale:.1f}' for mean in means)}")
            # At the beginning everything grows.
            assert SOAK < 10 or means[3] <= means[2] * 1.2 + slack, (seed, name, means)
        print(f"seed {seed}, {SOAK:g} minutes, {SESSIONS} people: {done}; {checked} messages of sessions that are "
              "still there, each with one ending")
        assert checked


if __name__ == "__main__":
    run(globals())
