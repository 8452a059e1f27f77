"""Clients that leave while their request is processed or waits: no other client is affected."""

import asyncio
import contextlib
import json
import os
import signal
import statistics
import time
import urllib.parse
import uuid

from harness import LONG, PATIENCE, Gateway, run
from isolation import token_latency
from look import Queues, with_httpx

# How many of each kind leave: more than may be worked on at the same time.
LEAVE = 200 if LONG else 30
# How often the requests of others are measured meanwhile, at least.
TIMES = 5 if LONG else 2
# After how long, in seconds.
STAYS = 0.02
# The maximum time of another client's request, in seconds, on a machine that is as busy as these tests make it.
BOUND = 5


def request(gateway, method, path, body=None, **headers):
    """A request as it is sent."""
    body = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {gateway.token}",
             f"Content-Length: {len(body)}", "Content-Type: application/json", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def connection(gateway, sent):
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(sent)
    await writer.drain()
    return reader, writer


async def leaves(gateway, sent, stays=STAYS):
    """Sends a request, and disconnects before the answer."""
    _, writer = await connection(gateway, sent)
    await asyncio.sleep(stays)
    writer.transport.abort()


async def asks(gateway, *words, **headers):
    """Sends a request. Returns the status and body of the answer."""
    reader, writer = await connection(gateway, request(gateway, *words, **headers))
    answer = await asyncio.wait_for(reader.read(), PATIENCE)
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), head, body


async def many_leave(gateway, sent):
    # Few at a time: a request that waits for its turn has not started anything when its client leaves.
    for number in range(0, LEAVE, 2):
        await asyncio.gather(leaves(gateway, sent(number)), leaves(gateway, sent(number + 1)))


class Others:
    """Measures how long other requests, /healthz and those given, take while something runs."""

    def __init__(self, gateway, **others):
        self.others = {"/healthz": lambda: asks(gateway, "GET", "/healthz"), **others}
        self.before, self.times = {}, {name: [] for name in self.others}

    async def measure(self):
        for name, ask in self.others.items():
            began = time.monotonic()
            answer = await ask()
            if isinstance(answer, tuple):
                assert answer[0] == 200, (name, answer)
            self.times[name].append(time.monotonic() - began)

    async def during(self, what, do):
        """Measures as long as what `do` returns is done, and at least as often as is wanted."""
        if not self.before:
            for _ in range(5):
                await self.measure()
            self.before = {name: statistics.median(times) for name, times in self.times.items()}
        before, self.times = self.before, {name: [] for name in self.others}
        doing, count, began = asyncio.ensure_future(do()), 0, time.monotonic()
        try:
            while not doing.done() or count < TIMES:
                await self.measure()
                count += 1
                longest = {name: max(times) for name, times in self.times.items()}
                told = ", ".join(f"{name} {statistics.median(times) * 1000:.0f} ms, at most {longest[name] * 1000:.0f} ms "
                                 f"(before {before[name] * 1000:.0f} ms)" for name, times in self.times.items())
                assert all(longest[name] < BOUND + 5 * before[name] for name in longest), f"{what}: {told}"
            print(f"{what}, for {time.monotonic() - began:.1f} s: {told}", flush=True)
            return await doing
        finally:
            doing.cancel()


# For each event, this takes some milliseconds.
SLOW = f"content LIKE '%{'a' * 200}b%'"


def slow_events(queues, place, count=1500):
    """Stores events on which a filter takes long."""
    event = {"source": "x", "type": "message", "content": "a" * 20_000}
    queues.run("push", "-t", place, "--batch", stdin="\n".join([json.dumps(event)] * count))


@contextlib.asynccontextmanager
async def slow_and_good(*options):
    """A gateway with a session on which filters take long, and another with a client in it."""
    with Queues(options=options) as queues:
        gateway = queues.gateway
        client = await gateway.client()
        slow, good = [(await client.request("sessions.new", title=title))["sessionId"] for title in ("slow", "good")]
        await client.request("sessions.switch", sessionId=good)
        slow_events(queues, gateway.root / slow)
        yield queues, gateway, client, slow, good


def others(gateway, client, good):
    return Others(
        gateway,
        look=lambda: asks(gateway, "GET", f"/api/v1/threads/{good}/events?limit=1"),
        token=lambda: token_latency(gateway, good, client),
        message=lambda: client.request("agent", sessionId=good, message="hello"),
    )


@with_httpx
async def abandoned_requests_delay_no_other_client():
    async with slow_and_good() as (queues, gateway, client, slow, good):
        queues.run("subscribe", "-t", gateway.root / slow, "bot", "true", "--filter", SLOW)
        filter = urllib.parse.quote(SLOW)
        names = [slow, slow.upper(), slow[:8].upper() + slow[8:], slow[:-4] + slow[-4:].upper()]
        thread = lambda number, tail="": f"/api/v1/threads/{names[number % len(names)]}{tail}"
        get = lambda path: lambda number: request(gateway, "GET", path(number) if callable(path) else path)
        post = lambda path, body: lambda number: request(
            gateway, "POST", path(number) if callable(path) else path, body(number) if callable(body) else body)
        run_input = lambda number: {
            "threadId": slow, "runId": f"r{number}", "tools": [], "context": [], "state": {}, "forwardedProps": {},
            "messages": [{"id": f"m{number}", "role": "user", "content": "hello"}]}
        kinds = {
            "events with a filter": get(lambda n: thread(n, f"/events?filter={filter}")),
            "tails with a filter": get(lambda n: thread(n, f"/events/stream?after=0&filter={filter}")),
            "a thread": get(thread),
            "watching a thread": get(lambda n: thread(n, "/watch")),
            "watching the list": get("/api/v1/threads/watch"),
            "the list": get("/api/v1/threads?limit=1000"),
            "an event": get(lambda n: thread(n, "/events/700")),
            "a content": get(lambda n: thread(n, "/events/700/content")),
            "the runs": get(lambda n: thread(n, "/consumers/bot/runs")),
            "dead letters": get(lambda n: thread(n, "/dead")),
            "pushes": post(lambda n: thread(n, "/events"), {"source": "x", "type": "record", "content": "y"}),
            "pauses": post(lambda n: thread(n, "/consumers/bot/pause"), {}),
            "resumes": post(lambda n: thread(n, "/consumers/bot/resume"), {}),
            "seeks": post(lambda n: thread(n, "/consumers/bot/seek"), {"to": 0}),
            "stops": post(lambda n: thread(n, "/consumers/bot/stop"), {}),
            "retries": post(lambda n: thread(n, "/dead/retry"), {"consumer": "bot", "all": True}),
            "discards": post(lambda n: thread(n, "/dead/discard"), {"consumer": "bot", "all": True}),
            "metrics": get("/metrics"),
            "a session's content": get(f"/api/v1/sessions/{slow}/events/700/content"),
            "history": get(f"/api/v1/agent/history?threadId={slow}&limit=200"),
            "streams": get(f"/api/v1/agent/events?threadId={slow}&after=0"),
            "runs": post("/api/v1/agent/run", run_input),
            "cancels": post("/api/v1/agent/cancel", {"threadId": slow}),
            "answers": post("/api/v1/agent/permission", {"threadId": slow, "requestId": "x", "choice": "y"}),
            "attachments": lambda number: request(
                gateway, "POST", "/api/v1/agent/attachments",
                b'--b\r\nContent-Disposition: form-data; name="f"; filename="f"\r\n\r\n' + b"x" * 500_000 + b"\r\n--b--\r\n",
                content_type="multipart/form-data; boundary=b"),
        }
        asked = others(gateway, client, good)
        for what, sent in kinds.items():
            await asked.during(f"{LEAVE} left {what}", lambda: many_leave(gateway, sent))


async def a_websocket_is_left(gateway, method, params):
    client = await gateway.client()
    client.send(method, params).add_done_callback(lambda answer: answer.cancelled() or answer.exception())
    await asyncio.sleep(STAYS)
    client.abort()
    await client.reading


@with_httpx
async def abandoned_websockets_delay_no_other_client():
    async with slow_and_good("--agent", "cat") as (queues, gateway, client, slow, good):
        kinds = {
            "agent": {"sessionId": slow, "message": "hello"},
            "sessions.list": {"limit": 100},
            "sessions.new": {"title": "new"},
            "sessions.switch": {"sessionId": slow, "after": 0},
            "sessions.history": {"sessionId": slow, "limit": 200},
            "sessions.steps": {"sessionId": slow},
            "sessions.rename": {"sessionId": slow, "title": "x"},
            "sessions.search": {"query": "not there"},
            "sessions.fork": {"sessionId": slow},
            "sessions.delete": {"sessionId": slow},
            "agent.cancel": {"sessionId": slow, "runId": "x"},
            "permission.answer": {"sessionId": slow, "requestId": "x", "choice": "y"},
            "status": {"sessionId": slow},
        }

        async def leave(method, params):
            for _ in range(0, LEAVE, 20):
                await asyncio.gather(*(a_websocket_is_left(gateway, method, params) for _ in range(20)))

        asked = others(gateway, client, good)
        for method, params in sorted(kinds.items(), key=lambda kind: kind[0] == "sessions.delete"):
            await asked.during(f"{LEAVE} left {method}", lambda: leave(method, params))


STUBBORN = "trap '' TERM; echo $$ >> pids; while :; do sleep 0.2; done"


@with_httpx
async def waiting_or_abandoned_stops_delay_no_other_client():
    async with slow_and_good() as (queues, gateway, client, _, good):
        async def stubborn():
            session = str(uuid.uuid4())
            place = gateway.root / session
            queues.run("init", place)
            queues.run("subscribe", "-t", place, "bot", STUBBORN, "--deliver", "stdin")
            queues.run("push", "-t", place, "go")
            # Its trap is set before.
            while not (pids := queues.dir / "pids").exists() or not pids.read_text().endswith("\n"):
                await asyncio.sleep(0.05)
            pid = int(pids.read_text())
            pids.unlink()
            # Other processes see it a moment later.
            is_known = lambda one: one.get("run", {}).get("pid") == pid
            await asyncio.to_thread(queues.look.until_consumer, session, "bot", is_known)
            return session

        stop = lambda session: request(gateway, "POST", f"/api/v1/threads/{session}/consumers/bot/stop", {"kill_after_ms": 8000})
        asked = others(gateway, client, good)
        waited = [await stubborn() for _ in range(10)]
        path = "/api/v1/threads/{}/consumers/bot/stop"
        stops = lambda: asyncio.gather(
            *(asks(gateway, "POST", path.format(session), {"kill_after_ms": 8000}) for session in waited))
        for status, _, body in await asked.during(f"{len(waited)} stops that wait", stops):
            assert status == 200 and json.loads(body)["reason"] == "stopped", (status, body)

        left = await stubborn()
        await asked.during(f"{LEAVE} left stops", lambda: many_leave(gateway, lambda _: stop(left)))
        # It is stopped all the same.
        queues.look.until_consumer(left, "bot", lambda one: one.get("reason") == "stopped")

        silent = await stubborn()
        [supervisor] = [int(name) for name in os.listdir("/proc") if name.isdigit() and supervises(name, silent)]
        os.kill(supervisor, signal.SIGSTOP)
        try:
            await asked.during(f"{LEAVE} left stops at a suspended supervisor", lambda: many_leave(gateway, lambda _: stop(silent)))
            # On a busy machine, all may have left before the gateway had begun to wait.
            end = time.monotonic() + PATIENCE
            while queues.look.consumer(silent, "bot").get("reason") != "stopped":
                assert time.monotonic() < end
                await leaves(gateway, stop(silent), stays=1)
            status, _, body = await asks(gateway, "POST", f"/api/v1/threads/{silent}/consumers/bot/stop", {})
            assert status == 409, body
        finally:
            os.kill(supervisor, signal.SIGCONT)


def supervises(pid, session):
    try:
        line = open(f"/proc/{pid}/cmdline", "rb").read()
    except OSError:
        return False
    return b"_supervise" in line and session.encode() in line


@with_httpx
async def sessions_deleted_while_their_handlers_end_delay_no_other_client():
    async with slow_and_good() as (queues, gateway, client, _, good):
        deleted = []
        for _ in range(30):
            session = str(uuid.uuid4())
            queues.run("init", gateway.root / session)
            queues.run("subscribe", "-t", gateway.root / session, "bot", STUBBORN, "--deliver", "stdin")
            queues.run("push", "-t", gateway.root / session, "go")
            deleted.append(session)
        look = queues.look
        for session in deleted:
            await asyncio.to_thread(look.until_consumer, session, "bot", lambda one: one["state"] == "running")

        async def leaves_when_it_has_begun():
            leaving = await gateway.client()
            leaving.send("sessions.delete", {"sessionId": deleted[0]}).add_done_callback(lambda answer: answer.exception())
            while not (gateway.root / "deleting" / deleted[0]).exists():
                await asyncio.sleep(0.05)
            leaving.abort()

        waiting = [await gateway.client() for _ in deleted[1:]]
        doing = lambda: asyncio.gather(leaves_when_it_has_begun(), *(
            one.request("sessions.delete", sessionId=session) for one, session in zip(waiting, deleted[1:])))
        await others(gateway, client, good).during("30 deletions that wait", doing)
        end = time.monotonic() + PATIENCE
        while any((gateway.root / session).exists() for session in deleted) or any((gateway.root / "deleting").iterdir()):
            assert time.monotonic() < end
            await asyncio.sleep(0.1)


class Mcp:
    """A client of the older generation of the protocol, whose calls continue if it leaves."""

    def __init__(self, gateway):
        self.gateway, self.id = gateway, None

    def message(self, method, **params):
        headers = {"Accept": "application/json, text/event-stream"}
        if self.id:
            headers |= {"Mcp_Session_Id": self.id, "Mcp_Protocol_Version": "2025-06-18"}
        body = {"jsonrpc": "2.0", "id": str(uuid.uuid4()), "method": method, "params": params}
        return "POST", "/mcp", body, headers

    async def begin(self):
        *words, headers = self.message(
            "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "test", "version": "1"})
        reader, writer = await connection(self.gateway, request(self.gateway, *words, **headers))
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
        [self.id] = [line.split(b": ")[1].decode() for line in head.split(b"\r\n") if line.lower().startswith(b"mcp-session-id")]
        writer.close()
        return self

    def call(self, tool, arguments):
        *words, headers = self.message("tools/call", name=tool, arguments=arguments)
        return request(self.gateway, *words, **headers)

    async def called(self, tool, **arguments):
        """Calls a tool, and waits for the first bytes of its result."""
        reader, writer = await connection(self.gateway, self.call(tool, arguments))
        async with asyncio.timeout(PATIENCE):
            while b'"result"' not in (line := await reader.readline()):
                assert line, "no result came"
        writer.close()
        assert b'"isError":true' not in line, line


@with_httpx
async def waiting_or_abandoned_tools_delay_no_other_client():
    async with slow_and_good() as (_, gateway, client, slow, good):
        mcp = await Mcp(gateway).begin()
        asked = others(gateway, client, good)
        asked.others["info"] = lambda: mcp.called("info", session=good)
        asked.times["info"] = []
        # More than may work at the same time.
        wait = lambda: mcp.called("wait", session=slow, after=0, filter=SLOW, timeout_seconds=20)
        await asked.during("16 calls of wait with a slow filter", lambda: asyncio.gather(*(wait() for _ in range(16))))
        kinds = {
            "wait": {"session": slow, "after": 0, "filter": SLOW},
            "peek": {"session": slow, "after": 0, "filter": SLOW},
            "push": {"session": slow, "content": "x"},
            "ack": {"session": slow, "consumer": "bot", "id": 1},
            "info": {"session": slow},
            "sessions_search": {"query": "not there"},
            "sessions_list": {},
            "sessions_get": {"session": slow},
            "process_list": {},
            "process_status": {"session": slow, "process": "run_x"},
            "process_cancel": {"session": slow, "process": "run_x"},
            "process_wait_time": {"session": slow},
            "subagent_run": {"session": slow, "task": "x"},
        }
        for tool, arguments in kinds.items():
            await asked.during(f"{LEAVE} left calls of {tool}", lambda: many_leave(gateway, lambda _: mcp.call(tool, arguments)))


def open_files(gateway):
    return len(os.listdir(f"/proc/{gateway.process.pid}/fd"))


@with_httpx
async def a_tail_that_lags_keeps_no_file_open():
    async with slow_and_good() as (_, gateway, _, slow, _):
        sent = request(gateway, "GET", f"/api/v1/threads/{slow}/events/stream?after=0")
        before, lagging = open_files(gateway), []
        for _ in range(50):
            # It reads a little, and then stops.
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=1024)
            writer.write(sent)
            assert b" 200 " in await asyncio.wait_for(reader.readline(), PATIENCE)
            lagging.append(writer)
        # Each has its connection, and what is being read for another moment.
        end = time.monotonic() + PATIENCE
        while (held := open_files(gateway) - before) > len(lagging) + 5:
            assert time.monotonic() < end, f"{held} files for {len(lagging)} tails"
            await asyncio.sleep(0.1)
        print(f"{len(lagging)} tails that lag: {held} files")
        for writer in lagging:
            writer.transport.abort()


@with_httpx
async def a_copy_and_searches_delay_no_other_client():
    async with slow_and_good() as (queues, gateway, client, _, good):
        long = (await client.request("sessions.new", title="long"))["sessionId"]
        event = {"source": "external:x:main:dm:x:bob", "type": "message", "content": "hello there"}
        queues.run("push", "-t", gateway.root / long, "--batch", stdin="\n".join([json.dumps(event)] * 40_000))
        copier, *searchers = [await gateway.client() for _ in range(101)]
        writer = await gateway.client()
        asked = others(gateway, client, good)
        # To the session that is copied.
        asked.others["to it"] = lambda: writer.request("agent", sessionId=long, message="more")
        asked.times["to it"] = []
        began = time.monotonic()
        copied = await asked.during("a copy", lambda: copier.request("sessions.fork", sessionId=long))
        print(f"the copy took {time.monotonic() - began:.1f} s")
        page = await copier.request("sessions.history", sessionId=copied["sessionId"], limit=1)
        assert page["messages"] and page["hasMore"]
        search = lambda: asyncio.gather(*(one.request("sessions.search", query="not there") for one in searchers))
        await asked.during("100 searches", search)


if __name__ == "__main__":
    run(globals())
