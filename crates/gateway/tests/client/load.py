"""Too many connections, and too few descriptors for them, while a good client continues."""

import asyncio
import concurrent.futures
import json
import multiprocessing
import os
import resource
import statistics
import time

from harness import LONG, PATIENCE, Gateway, Refused, most_memory, run
from security import ask

# How many connections all unauthenticated clients may have together.
STRANGERS = 256

UPGRADE = (
    "GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
).encode()


def text_frame(text):
    data = text.encode()
    return bytes([0x81, 0x80 | 126]) + len(data).to_bytes(2, "big") + bytes(4) + data


WRONG = text_frame(json.dumps(
    {"type": "req", "id": "1", "method": "connect", "params": {"version": "1", "clientType": "t", "token": "wrong"}}))

# The bytes that a connection sends before it stops.
KINDS = {
    "nothing": b"",
    "half a head": b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1",
    "no connect": UPGRADE,
    "a wrong token": UPGRADE + WRONG,
}


def how_it_ended(data):
    """The last thing the gateway sent: an HTTP status or a close code; `closed` if it sent nothing."""
    head, _, frames = data.partition(b"\r\n\r\n")
    status = head.split(b" ")[1].decode() if head else "closed"
    while status == "101" and len(frames) >= 2:
        length, at = frames[1] & 0x7F, 2
        if length == 126:
            length, at = int.from_bytes(frames[2:4], "big"), 4
        if frames[0] & 0x0F == 8:
            return str(int.from_bytes(frames[at:at + 2], "big"))
        frames = frames[at + length:]
    # It had to make room for later connections.
    return "closed" if status == "101" else status


async def one(port, kind):
    """Opens a connection and waits for its end. Returns the kind, how it ended, and after how many seconds."""
    began, last, data = time.monotonic(), None, b""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(KINDS[kind])
    try:
        while piece := await asyncio.wait_for(reader.read(4096), PATIENCE):
            # The last chunk has the close frame; the time after that is spent waiting for an answer to it.
            last, data = time.monotonic(), data + piece
    except ConnectionResetError:
        # The gateway closed the socket with data unread, so the kernel sent a reset and discarded the response.
        data = data or b"HTTP/1.1 reset"
    except TimeoutError:
        data += b"HTTP/1.1 never"
    took = (last or time.monotonic()) - began
    writer.close()
    return kind, how_it_ended(data), took


def flood(port, count):
    """Opens `count` connections at once, in a process of their own."""
    async def all_of_them():
        names = list(KINDS)
        return await asyncio.gather(*(one(port, names[n % len(names)]) for n in range(count)))
    return asyncio.run(all_of_them())


def flooded(port, count, processes=4):
    """Starts floods in several processes. Returns a future for how each connection ended."""
    pool = concurrent.futures.ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))
    loop = asyncio.get_running_loop()
    parts = [loop.run_in_executor(pool, flood, port, count // processes) for _ in range(processes)]
    async def together():
        ended = [end for part in await asyncio.gather(*parts) for end in part]
        pool.shutdown()
        return ended
    return asyncio.ensure_future(together())


async def said(client, text):
    """Sends a message. Returns after how many seconds its event came back."""
    began = time.monotonic()
    await client.request("agent", message=text)
    await client.wait(lambda event: event["payload"].get("content") == text)
    return time.monotonic() - began


def descriptors(gateway):
    return len(os.listdir(f"/proc/{gateway.process.pid}/fd"))


def cpu(gateway):
    fields = open(f"/proc/{gateway.process.pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def thousands_that_never_connect_are_each_closed_while_a_good_client_talks():
    count, places = (10_000, 8_000) if LONG else (1_000, 800)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * places:
        print(f"SKIPPED: needs the right to {2 * places} open files")
        return
    with Gateway("--max-connections", str(places)) as gateway:
        good = await gateway.client()
        alone = [await said(good, f"alone {n}") for n in range(30)]
        own = descriptors(gateway)
        bad, among, most = flooded(gateway.port, count), [], 0
        while not bad.done():
            among.append(await said(good, f"among them {len(among)}"))
            most = max(most, descriptors(gateway))
            await asyncio.sleep(0.05)
        ended = {}
        for kind, how, took in await bad:
            ended.setdefault((kind, how), []).append(took)
        longest = {}
        for (kind, how), took in sorted(ended.items()):
            print(f"{len(took)} sent {kind}: {how} after {min(took):.1f} to {max(took):.1f} s")
            # If too many come at once, the kernel drops some, and only those that send something notice it.
            if (kind, how) == ("nothing", "never"):
                continue
            # Early connections made room for later ones, which were closed after ten seconds.
            assert how in ("1008", "closed", "reset", "503"), (kind, how)
            assert max(took) < 10 + PATIENCE / 2, (kind, max(took))
            longest[kind] = max(max(took), longest.get(kind, 0))
        # Neither too early nor much too late.
        assert longest.pop("a wrong token") and max(longest.values()) > 9.5, longest
        # Unauthenticated clients take neither the places of authenticated ones nor all of the files.
        assert most < own + STRANGERS + 50, f"{most} files are open"
        # All bad connections are gone, whatever their clients believe.
        until = time.monotonic() + PATIENCE
        while descriptors(gateway) > 100:
            assert time.monotonic() < until, descriptors(gateway)
            await asyncio.sleep(0.1)
        print(f"said and heard: {statistics.median(alone) * 1000:.1f} ms alone, among {count} "
              f"{statistics.median(among) * 1000:.1f} ms, at most {max(among) * 1000:.0f} ms; {most} descriptors, "
              f"{most_memory(gateway)} MB")
        assert statistics.median(among) < 1, among
        await said(await gateway.client(), "afterwards")


async def half_of_the_descriptors_are_kept_for_those_who_are_in():
    few = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
    with Gateway(preexec=few) as gateway:
        assert "100 connections" in gateway.output(), gateway.output()
        good = await gateway.client()
        bad = flooded(gateway.port, 300, processes=1)
        while descriptors(gateway) < 90 and not bad.done():
            await asyncio.sleep(0.01)
        for n in range(20):
            await good.request("sessions.new")
            await said(good, f"hello {n}")
        hows = {how for _, how, _ in await bad}
        assert hows <= {"503", "reset", "closed", "1008", "never"}, hows
        await said(await gateway.client(), "afterwards")
        assert "cannot" not in gateway.output(), gateway.output()


async def without_descriptors_the_gateway_waits_and_then_continues():
    with Gateway() as gateway:
        good = await gateway.client()
        await said(good, "before")
        limits = resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE)
        left = descriptors(gateway) + 30
        resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE, (left, limits[1]))
        bad = flooded(gateway.port, 40, processes=1)
        while "cannot accept" not in gateway.output():
            assert not bad.done(), "there was room for all"
            await asyncio.sleep(0.05)
        before, began = cpu(gateway), time.monotonic()
        while time.monotonic() - began < 3:
            try:
                await good.request("status")
            except Refused as e:
                assert "open" in str(e), e
            await asyncio.sleep(0.1)
        # No busy loop, and not a log line for each attempt.
        assert cpu(gateway) - before < 1.5, cpu(gateway) - before
        assert gateway.output().count("cannot accept") <= 2, gateway.output()
        # After they were closed after ten seconds, there is room for others.
        hows = [how for _, how, _ in await bad]
        assert set(hows) <= {"closed", "1008", "reset"}, hows
        await said(good, "after")
        await said(await gateway.client(), "a new one")
        resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE, limits)
        assert ask(gateway, "/healthz")[0] == 200


async def a_lack_of_descriptors_is_called_by_its_name():
    with Gateway() as gateway:
        client = await gateway.client()
        sessions = [(await client.request("sessions.new"))["sessionId"] for _ in range(8)]
        limits, refused = resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE), []
        # Each file that is opened for a request is once the first that cannot be opened.
        for spare in range(16):
            session = sessions[spare % len(sessions)]
            for method, params in (
                ("sessions.history", {"sessionId": session}), ("agent", {"message": "now", "sessionId": session}),
                ("sessions.switch", {"sessionId": session, "after": 0}), ("sessions.new", {}), ("sessions.list", {}),
                ("sessions.search", {"query": "now"}), ("status", {"sessionId": session}),
            ):
                left = descriptors(gateway) + spare
                resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE, (left, limits[1]))
                try:
                    await client.request(method, **params)
                except Refused as e:
                    refused.append(str(e))
                    assert "permi" not in str(e) and str(gateway.root) not in str(e), (spare, method, e)
                resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE, limits)
        assert refused
        await said(client, "afterwards")
        for session in sessions:
            await client.request("sessions.switch", sessionId=session, after=0)


if __name__ == "__main__":
    run(globals())
