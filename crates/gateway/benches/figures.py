"""Measures the gateway. Run by `figures.rs`; each figure is printed as a line."""

import asyncio
import os
import pathlib
import shlex
import shutil
import statistics
import subprocess
import sys
import time
import uuid

import websockets

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests/client"))
from harness import Gateway  # noqa: E402

TOKENS = int(os.environ.get("TOKENS", "200"))

# Says what time it is, again and again. The clock is the same for all processes of a machine.
AGENT = """
import json, sys, time
say = lambda event, **keys: print(json.dumps({"event": event, **keys}), flush=True)
for line in sys.stdin:
    for _ in range(%d):
        say("token", content=str(time.monotonic_ns()))
        time.sleep(0.03)
    say("final")
""" % TOKENS


def show(what, value, wanted=""):
    print(f"{what:<64} {value:>12}   {wanted}", flush=True)


async def latency(clients, wanted):
    agent = f"{shlex.quote(sys.executable)} -c {shlex.quote(AGENT)}"
    with Gateway("--agent", agent, "--protocol", "ndjson") as gateway:
        first = await gateway.client()
        session = (await first.request("sessions.new"))["sessionId"]
        took, ended = [], []

        async def listen():
            # By hand: checking each frame against the schemas would be what is measured.
            socket = await websockets.connect(gateway.ws, proxy=None, compression=None)
            connect = '{"type":"req","id":"1","method":"connect","params":{"version":"1","clientType":"t","token":"%s"}}'
            await socket.send(connect % gateway.token)
            await socket.send('{"type":"req","id":"2","method":"sessions.switch","params":{"sessionId":"%s"}}' % session)
            async for text in socket:
                now = time.monotonic_ns()
                if '"event":"token"' in text:
                    # Under load the adapter joins pieces: the last is the newest, and the first the oldest.
                    at = text.index('"content":"') + 11
                    took.append((now - int(text[at:text.index('"', at)][:len(str(now))])) / 1e6)
                elif '"event":"final"' in text:
                    ended.append(True)
                    return await socket.close()

        listening = [asyncio.create_task(listen()) for _ in range(clients)]
        while (await first.request("status", sessionId=session))["session"]["clients"] < clients:
            await asyncio.sleep(0.1)
        await first.close()
        speaker = await gateway.client()
        await speaker.request("agent", sessionId=session, message="go")
        await asyncio.gather(*listening)
        took.sort()
        show(f"agent's token to the socket, {clients} client(s): median", f"{statistics.median(took):.1f} ms", wanted)
        show(f"agent's token to the socket, {clients} client(s): 99 of 100", f"{took[len(took) * 99 // 100]:.1f} ms")


async def echo():
    process = subprocess.Popen([os.environ["ECHO"], "echo"], stdout=subprocess.PIPE, text=True)
    port = int(process.stdout.readline())
    took = []
    async with websockets.connect(f"ws://127.0.0.1:{port}/ws", proxy=None, compression=None) as socket:
        for _ in range(TOKENS):
            began = time.monotonic_ns()
            await socket.send("x" * 200)
            await socket.recv()
            took.append((time.monotonic_ns() - began) / 1e6)
            await asyncio.sleep(0.005)
    process.kill()
    process.wait()
    show("there and back through a bare axum echo: median", f"{statistics.median(took):.1f} ms")


async def redis():
    if not shutil.which("redis-server"):
        return show("PUBLISH to a subscriber through Redis: median", "skipped", "needs redis-server")
    path = f"/tmp/figures-{os.getpid()}.sock"
    server = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", path, "--save", ""],
                              stdout=subprocess.DEVNULL)
    while not os.path.exists(path):
        time.sleep(0.05)
    reader, writer = await asyncio.open_unix_connection(path)
    _, publisher = await asyncio.open_unix_connection(path)
    writer.write(b"SUBSCRIBE c\r\n")
    await reader.readuntil(b":1\r\n")
    took = []
    for _ in range(TOKENS):
        publisher.write(b"PUBLISH c %d\r\n" % time.monotonic_ns())
        line = b""
        while not line.strip().isdigit() or len(line) < 10:
            line = await reader.readline()
        took.append((time.monotonic_ns() - int(line)) / 1e6)
        await asyncio.sleep(0.005)
    server.terminate()
    server.wait()
    show("PUBLISH to a subscriber through Redis: median", f"{statistics.median(took):.1f} ms")


def copies(gateway, template, count):
    """So many sessions like one, without the cost of making each."""
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
        connect = '{"type":"req","id":"1","method":"connect","params":{"version":"1","clientType":"t","token":"%s"}}'
        for n in range(connections):
            socket = await websockets.connect(gateway.ws, proxy=None, compression=None, ping_interval=None)
            await socket.send(connect % gateway.token)
            await socket.recv()
            # Each in a session of its own.
            await socket.send('{"type":"req","id":"2","method":"sessions.switch","params":{"sessionId":"%s"}}' % ids[n])
            await socket.recv()
            sockets.append(socket)
        await asyncio.sleep(8)
        before = cpu(gateway)
        await asyncio.sleep(seconds)
        share = 100 * (cpu(gateway) - before) / seconds
        show(f"{sessions} sessions, {connections} connections: memory", f"{memory(gateway):.0f} MB", "at most 150 MB")
        show(f"{sessions} sessions, {connections} connections: a core", f"{share:.1f} %", "at most 2 %")
        for socket in sockets:
            socket.transport.abort()


async def listing(sessions):
    with Gateway() as gateway:
        client = await gateway.client()
        template = (await client.request("agent", message="hello"))["sessionId"]
        copies(gateway, template, sessions)
        for what, params in ("first", {}), ("again", {}), ("a hundred of them, first", {"limit": 100}), (
            "a hundred of them, again", {"limit": 100}):
            began = time.monotonic()
            page = await client.request("sessions.list", **params)
            assert page["total"] == sessions + 1
            show(f"{sessions} sessions listed, {what}", f"{(time.monotonic() - began) * 1000:.0f} ms", "at most 100 ms")


async def main():
    wanted = set(sys.argv[1:])
    for name, measured in [
        ("echo", echo), ("redis", redis), ("one", lambda: latency(1, "at most 8 ms")),
        ("hundred", lambda: latency(100, "at most 15 ms")), ("list", lambda: listing(10_000)),
        ("idle", lambda: idle(2000, 1000)),
    ]:
        if not wanted or name in wanted:
            await measured()


if __name__ == "__main__":
    asyncio.run(main())
