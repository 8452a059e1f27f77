"""Measures the gateway. Run by `figures.rs`, which takes the times; each figure is printed as a line."""

import asyncio
import contextlib
import ctypes
import json
import os
import pathlib
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid

import websockets

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests/client"))
from harness import Gateway  # noqa: E402

# Each figure is the median of the medians of so many rounds. The candidates take turns in each round, so that
# other load on the machine affects all of them.
ROUNDS = int(os.environ.get("ROUNDS", "5"))
TOKENS = int(os.environ.get("TOKENS", "60"))
# Milliseconds between two tokens.
PAUSE = 30
FIGURES = os.environ["FIGURES"]

# A program that sends the time to Redis.
TELLS_REDIS = f"""
import socket, sys, time
redis = socket.socket(socket.AF_UNIX)
redis.connect(sys.argv[1])
for _ in range({TOKENS}):
    redis.sendall((sys.argv[2] % time.monotonic_ns()).encode() + b"\\r\\n")
    redis.recv(1000)
    time.sleep({PAUSE / 1000})
"""

CONNECT = '{"type":"req","id":"1","method":"connect","params":{"version":"1","clientType":"t","token":"%s"}}'
SWITCH = '{"type":"req","id":"2","method":"sessions.switch","params":{"sessionId":"%s"}}'


def show(what, value, wanted=""):
    print(f"{what:<64} {value:>12}   {wanted}", flush=True)


def since(digits):
    """Milliseconds since the time at the beginning of a text."""
    now = time.monotonic_ns()
    return (now - int(digits[:len(str(now))])) / 1e6


async def websocket(address):
    # Not the client of the harness: its checks against the schemas would dominate the figures.
    return await websockets.connect(address, proxy=None, compression=None, ping_interval=None)


async def timed(reader, pusher):
    """Runs one of the clients together, and one that pushes. Returns the times of each token by its thread and id, when
    its commit began, when its push was done and how long a sync took then; and each client's tokens, and when it read
    them. In nanoseconds."""
    reading = await asyncio.create_subprocess_exec(
        FIGURES, "read", *reader, stdout=asyncio.subprocess.PIPE, limit=2**24)
    assert await reading.stdout.readline() == b"ready\n"
    pushing = await asyncio.create_subprocess_exec(FIGURES, *pusher, stdout=asyncio.subprocess.PIPE)
    lines = lambda out: [tuple(map(int, line.split())) for line in out.splitlines()]
    pushed, read = await asyncio.gather(pushing.communicate(), reading.communicate())
    return {(thread, seq): times for thread, seq, *times in lines(pushed[0])}, lines(read[0])


class ThroughTheGateway:
    """From the commit of a token to the sockets of all clients in its session."""

    def __init__(self, gateway, clients, sessions=1):
        self.name = "a token, from the beginning of its commit"
        self.gateway, self.clients, self.count = gateway, clients, sessions

    async def __aenter__(self):
        speaker = await self.gateway.client()
        self.sessions = [(await speaker.request("sessions.new"))["sessionId"] for _ in range(self.count)]
        await speaker.close()
        self.syncs, self.after = [], []

    async def round(self):
        of_client = [n % self.count for n in range(self.clients)]
        first = [CONNECT % self.gateway.token + "\n" + SWITCH % self.sessions[session] for session in of_client]
        each = max(2, TOKENS // self.count)
        times, read = await timed(
            [str(self.gateway.port), str(each), *first],
            ["push", str(each * self.count), str(PAUSE), *(str(self.gateway.root / name) for name in self.sessions)])
        assert len(read) == each * self.clients, len(read)
        took = []
        for client, seq, at in read:
            committing, done, _ = times[of_client[client], seq]
            took.append((at - committing) / 1e6)
            self.after.append((at - done) / 1e6)
        self.syncs += [sync / 1e6 for _, _, sync in times.values()]
        return took

    async def __aexit__(self, *_):
        pass


class ThroughAnEcho:
    """From a client to all clients, through a bare axum server that sends each frame to all of them."""

    def __init__(self, clients):
        self.name, self.clients = "client to the socket through a bare axum echo", clients

    async def __aenter__(self):
        self.process = subprocess.Popen([FIGURES, "echo"], stdout=subprocess.PIPE, text=True)
        self.port = self.process.stdout.readline().strip()

    async def round(self):
        reader = [self.port, str(TOKENS), *([""] * self.clients)]
        times, read = await timed(reader, ["say", self.port, str(TOKENS), str(PAUSE)])
        return [(at - times[0, seq][0]) / 1e6 for _, seq, at in read]

    async def __aexit__(self, *_):
        self.process.kill()
        self.process.wait()


class ThroughRedis:
    """From a program to all readers, through a private Redis: only published, or first stored on disk."""

    def __init__(self, clients, kept):
        self.name = "XADD (appendfsync always) to XREAD" if kept else "PUBLISH to a subscriber"
        self.name, self.clients, self.kept = f"{self.name} through Redis", clients, kept

    async def __aenter__(self):
        self.dir = tempfile.TemporaryDirectory(prefix="figures-")
        self.path = f"{self.dir.name}/redis.sock"
        keep = ["--appendonly", "yes", "--appendfsync", "always"] if self.kept else []
        self.server = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", self.path, "--dir", self.dir.name, "--save", "", *keep],
            stdout=subprocess.DEVNULL)
        while not os.path.exists(self.path):
            assert self.server.poll() is None, "redis-server has ended"
            await asyncio.sleep(0.05)
        self.readers = [await asyncio.open_unix_connection(self.path) for _ in range(self.clients)]
        if not self.kept:
            for reader, writer in self.readers:
                writer.write(b"SUBSCRIBE c\r\n")
                await reader.readuntil(b":1\r\n")

    async def round(self):
        took = []
        async def listen(reader, writer):
            for n in range(TOKENS):
                if self.kept:
                    # Each read continues after the last entry; the first waits for a new one.
                    writer.write(b"XREAD COUNT 1 BLOCK 0 STREAMS s %s\r\n" % last if n else b"XREAD COUNT 1 BLOCK 0 STREAMS s $\r\n")
                while True:
                    line = (await reader.readline()).strip()
                    if self.kept and b"-" in line:
                        last = line
                    elif len(line) > 10 and line.isdigit():
                        break
                took.append(since(line.decode()))
        listening = [asyncio.create_task(listen(*reader)) for reader in self.readers]
        await asyncio.sleep(0.2)
        tell = "XADD s * t %d" if self.kept else "PUBLISH c %d"
        teller = await asyncio.create_subprocess_exec(sys.executable, "-c", TELLS_REDIS, self.path, tell)
        await asyncio.gather(*listening)
        await teller.wait()
        return took

    async def __aexit__(self, *_):
        for _, writer in self.readers:
            writer.close()
        self.server.terminate()
        self.server.wait()
        self.dir.cleanup()


async def latency(clients, wanted, sessions=1):
    with Gateway() as gateway:
        own = ThroughTheGateway(gateway, clients, sessions)
        ways = [own]
        if sessions == 1:
            ways += [ThroughAnEcho(clients)]
            if shutil.which("redis-server"):
                ways += [ThroughRedis(clients, False), ThroughRedis(clients, True)]
            else:
                show("through Redis", "SKIPPED", "needs redis-server")
        async with contextlib.AsyncExitStack() as stack:
            for way in ways:
                await stack.enter_async_context(way)
                # A warm-up round, which is not measured.
                await way.round()
            own.syncs, own.after = [], []
            rounds = [[await way.round() for way in ways] for _ in range(ROUNDS)]
        whole = None
        for n, way in enumerate(ways):
            medians = [statistics.median(took[n]) for took in rounds]
            median, every = statistics.median(medians), sorted(ms for took in rounds for ms in took[n])
            whole = whole or median
            ratio = f"; ours takes {whole / median:.1f} times as long" if n else f"; {wanted}"
            where = f"{clients} client(s)" + (f", {sessions} sessions" if sessions > 1 else "")
            show(f"{way.name}, {where}", f"{median:.2f} ms",
                 f"quickest round {min(medians):.2f} ms, 99 of 100 within {every[len(every) * 99 // 100]:.1f} ms{ratio}")
            if not n:
                show("  a sync of the disk, right after each", f"{statistics.median(own.syncs):.2f} ms",
                     f"quickest {min(own.syncs):.2f} ms; the commit has one or more")
                show("  from when the push was done, with log and waiters told", f"{statistics.median(own.after):.2f} ms",
                     "less than nothing: before that")


def copies(gateway, template, count):
    """Copies a session `count` times, which is cheaper than creating as many."""
    for _ in range(count):
        shutil.copytree(gateway.root / template, gateway.root / str(uuid.uuid4()))


def cpu(gateway):
    fields = open(f"/proc/{gateway.process.pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(gateway):
    status = open(f"/proc/{gateway.process.pid}/status").read()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


async def idle(sessions, connections, seconds=30):
    with Gateway() as gateway:
        client = await gateway.client()
        template = (await client.request("agent", message="hello"))["sessionId"]
        copies(gateway, template, sessions)
        ids = [path.name for path in gateway.root.glob("*-*-*") if (path / "events.db").exists()]
        sockets = []
        for n in range(connections):
            socket = await websocket(gateway.ws)
            await socket.send(CONNECT % gateway.token)
            await socket.recv()
            # Each connection enters a session of its own.
            await socket.send(SWITCH % ids[n])
            await socket.recv()
            sockets.append(socket)
        await asyncio.sleep(8)
        before = cpu(gateway)
        await asyncio.sleep(seconds)
        share = 100 * (cpu(gateway) - before) / seconds
        show(f"{sessions} sessions, {connections} connections: memory", f"{memory(gateway):.0f} MB", "at most 150 MB")
        show(f"{sessions} sessions, {connections} connections: a core", f"{share:.1f} %", "at most 2 %")
        _, took = await asyncio.to_thread(gateway.stop)
        await asyncio.gather(*(socket.wait_closed() for socket in sockets))
        told = sum(socket.close_code == 1001 for socket in sockets)
        show(f"TERM with {connections} connections, of which {told} got 1001", f"{took * 1000:.0f} ms", "at most 2000 ms")


async def listing(sessions):
    with Gateway() as gateway:
        client = await gateway.client()
        template = (await client.request("agent", message="hello"))["sessionId"]
        copies(gateway, template, sessions)

        async def timed(**params):
            began = time.monotonic()
            page = await client.request("sessions.list", **params)
            assert page["total"] == sessions + 1
            return (time.monotonic() - began) * 1000

        show(f"{sessions} sessions listed, ten of them opened", f"{await timed():.0f} ms", "at most 100 ms")
        show(f"{sessions} sessions listed, a hundred of them opened", f"{await timed(limit=100):.0f} ms")
        again = [await timed() for _ in range(3 * ROUNDS)]
        show(f"{sessions} sessions listed, again", f"{statistics.median(again):.0f} ms",
             f"at most 100 ms; quickest {min(again):.0f} ms")


# An agent program that is kept, and answers at once.
ANSWERS = """sh -c 'while read -r line; do echo "{\\"event\\":\\"final\\",\\"content\\":\\"ok\\"}"; done'"""


@contextlib.contextmanager
def no_watches_left():
    """Takes all of this user's inotify instances."""
    libc = ctypes.CDLL(None)
    taken = []
    while (fd := libc.inotify_init1(os.O_CLOEXEC)) >= 0:
        taken.append(fd)
    try:
        yield
    finally:
        for fd in taken:
            os.close(fd)


def processes(gateway):
    """The processes of ours that work for this root: pid, and seconds of processor time."""
    ours, root = pathlib.Path(os.environ["THREAD_SERVE"]).parent, os.fsencode(str(gateway.root))
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if pathlib.Path(os.readlink(path / "exe")).parent != ours:
                continue
            if root in (path / "cmdline").read_bytes() or root in (path / "environ").read_bytes():
                fields = (path / "stat").read_text().rsplit(")", 1)[1].split()
                yield int(path.name), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def answered(socket, message):
    """Says something in a session, and waits for the answer. Returns how long it took, in seconds."""
    began = time.monotonic()
    await socket.send(json.dumps({"type": "req", "id": "3", "method": "agent", "params": {"message": message}}))
    while True:
        frame = json.loads(await socket.recv())
        if frame.get("event") == "final":
            return time.monotonic() - began
        assert frame.get("event") != "error" and frame.get("ok", True), frame


async def entered(gateway, new=True):
    """A connection in a new session."""
    socket = await websocket(gateway.ws)
    await socket.send(CONNECT % gateway.token)
    await socket.recv()
    if new:
        await socket.send('{"type":"req","id":"2","method":"sessions.new","params":{}}')
        await socket.recv()
    return socket


async def begun(gateway, count):
    """So many conversations that begin at once: their connections, and the milliseconds that each took."""
    sockets = [await entered(gateway) for _ in range(count)]
    return sockets, await all_answered(sockets, "one")


async def all_answered(sockets, message):
    began = time.monotonic()
    await asyncio.gather(*(answered(socket, message) for socket in sockets))
    return (time.monotonic() - began) * 1000 / len(sockets)


@contextlib.asynccontextmanager
async def conversing(count):
    """A gateway with so many conversations, each with a program that is kept."""
    with Gateway("--agent", ANSWERS, "--protocol", "ndjson", "--max-agents", "0") as gateway:
        sockets, each = await begun(gateway, count)
        try:
            yield gateway, sockets, each
            for socket in sockets:
                await socket.close()
        finally:
            gateway.kill()
            kill_agents(gateway)


async def conversations(watched):
    where = "" if watched else ", no inotify instance left"
    first = None
    for count in (20, 200, 1000):
        with contextlib.nullcontext() if watched else no_watches_left():
            async with conversing(count) as (_, sockets, each):
                first = first or each
                show(f"{count} conversations that begin at once{where}, each", f"{each:.1f} ms",
                     f"{each / first:.2f} of that of 20; at most 1.5")
                again = await all_answered(sockets, "two")
                show(f"{count} conversations that go on at once{where}, each", f"{again:.1f} ms")


async def silent(count=500, seconds=30):
    """So many conversations in which nothing is said."""
    async with conversing(count) as (gateway, *_):
        await asyncio.sleep(seconds)
        before = dict(processes(gateway))
        await asyncio.sleep(seconds)
        used = {pid: used - before.get(pid, 0) for pid, used in processes(gateway)}
        show(f"{count} conversations, nothing said, {len(before)} processes: a core",
             f"{sum(used.values()) * 100 / seconds:.1f} %", "at most 2 %")
        show("  of which the gateway", f"{used[gateway.process.pid] * 100 / seconds:.1f} %")


def kill_agents(gateway):
    """Kills what works for this root: a thousand orderly stops, of which each looks at all processes, take minutes."""
    root = os.fsencode(str(gateway.root))
    for again in range(100):
        found = False
        for path in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if int(path.name) != os.getpid() and root in (path / "environ").read_bytes():
                    os.kill(int(path.name), signal.SIGKILL)
                    found = True
        if not found:
            return
        time.sleep(0.1)


def size(root):
    return sum(path.stat().st_blocks * 512 for path in root.rglob("*") if path.is_file()) / 1e6


# 500 words, a millisecond apart, and at once.
WORDS = {
    "a millisecond apart":
        "import time\nfor n in range(500): print('word%02d' % (n % 100), end=' ', flush=True); time.sleep(0.001)",
    "at once": "print(*('word%02d' % (n % 100) for n in range(500)))",
}


async def disk(messages=1000, sessions=20):
    for pace in WORDS:
        await answers_on_disk(pace, messages, sessions)


async def answers_on_disk(pace, messages, sessions):
    """What answers of 500 words take on disk, with their tokens and without."""
    program = shlex.join([sys.executable, "-c", WORDS[pace]])
    with Gateway("--agent", program, "--keep-stream", "off") as gateway:
        sockets = [await entered(gateway) for _ in range(sessions)]

        async def talk(socket):
            for n in range(messages // sessions):
                await answered(socket, f"message {n}")
        await asyncio.gather(*(talk(socket) for socket in sockets))
        events = sum(int(json.loads(gateway.thread("info", "--json", session=path.name))["last_event_id"])
                     for path in gateway.root.glob("*-*-*"))
        show(f"{messages} answers of 500 words {pace}, in {events} events: disk", f"{size(gateway.root):.1f} MB",
             "at most 15 MB")
        gateway.stop()
        gateway.options = ["--keep-stream", "1s"]
        gateway.start()
        least, end = size(gateway.root), time.monotonic() + 30
        while time.monotonic() < end:
            await asyncio.sleep(1)
            if (now := size(gateway.root)) < least:
                least, end = now, time.monotonic() + 10
        show("  when their tokens are no longer kept", f"{least:.1f} MB", "at most 6 MB")


async def main():
    wanted = set(sys.argv[1:])
    for name, measured in [
        ("one", lambda: latency(1, "at most 8 ms")),
        ("hundred", lambda: latency(100, "at most 15 ms")),
        ("sessions", lambda: latency(100, "at most 15 ms", sessions=100)),
        ("list", lambda: listing(10_000)), ("idle", lambda: idle(2000, 1000)),
        ("conversations", lambda: conversations(True)), ("unwatched", lambda: conversations(False)),
        ("silent", silent), ("disk", disk),
    ]:
        if not wanted or name in wanted:
            await measured()


if __name__ == "__main__":
    asyncio.run(main())
