"""Unauthenticated clients ("strangers") can use up a small budget of their own, and nothing else."""

import asyncio
import os
import socket
import time

import websockets

from closing import close_code, connect, slow_websocket
from harness import PATIENCE, Client, Gateway, Refused, fast_clock, most_memory, run
from load import STRANGERS

# How many connections strangers have from one address, unless it is a loopback one.
AN_ADDRESS = 32
FEW_BYTES = 16 * 1024


def beginning(length):
    """The head and the first bytes of a text frame that is `length` long."""
    return bytes([0x81, 0x80 | 127]) + length.to_bytes(8, "big") + bytes(4)


async def is_over(reader):
    """Waits for the end of a connection, however it comes."""
    try:
        while await asyncio.wait_for(reader.read(65536), PATIENCE):
            pass
    except ConnectionError:
        pass


async def dropped(ended):
    """Waits until a stranger is dropped, which must be before its ten seconds are over."""
    await asyncio.wait([ended], timeout=5)
    assert ended.done(), "the oldest stranger still has its place"


def frame_of(size, **params):
    """A `connect` of so many bytes."""
    short = connect(padding="", **params)
    return connect(padding="x" * (size - len(short)), **params)


async def before_connect_frames_are_small():
    with Gateway() as gateway:
        async def begins(size):
            """A client whose `connect` has so many bytes, and its answer."""
            client = await gateway.client(connect=False)
            client.count, answer = 1, asyncio.get_running_loop().create_future()
            client.answers["1"] = answer
            await client.socket.send(frame_of(size, version="1", clientType="t", token=gateway.token))
            await asyncio.wait([answer, client.closed], timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
            return client, answer

        client, answer = await begins(FEW_BYTES + 1)
        assert client.closed.done() and await client.ends() == 1009, answer
        # One byte less is accepted, and an authenticated client may send larger frames.
        client, answer = await begins(FEW_BYTES)
        assert answer.done() and answer.result()["ok"] is True, client.closed
        await client.request("agent", message="x" * 500_000)


async def unfinished_frames_of_strangers_take_no_memory():
    with Gateway() as gateway:
        good = await gateway.client()
        before = most_memory(gateway)
        bad = []
        for _ in range(400):
            reader, writer = await slow_websocket(gateway)
            bad.append(writer)
            # All but the last byte of the largest frame of an authenticated client.
            writer.write(beginning(1024 * 1024) + b"x" * (1024 * 1024 - 1))
        async def sent(writer):
            try:
                await asyncio.wait_for(writer.drain(), 5)
            except (OSError, TimeoutError):
                pass
        await asyncio.gather(*map(sent, bad))
        await good.request("agent", message="hello")
        most = most_memory(gateway)
        assert most < before + 60, f"{before} MB before, {most} MB with 400 strangers"
        for writer in bad:
            writer.transport.abort()


async def unauthenticated_clients_take_no_place_of_others():
    places = 60
    with Gateway("--max-connections", str(places)) as gateway:
        over = asyncio.Event()

        async def sit():
            """A silent WebSocket that is opened again whenever it is dropped."""
            while not over.is_set():
                try:
                    reader, writer = await slow_websocket(gateway)
                except (OSError, AssertionError, asyncio.IncompleteReadError):
                    await asyncio.sleep(0.02)
                    continue
                ended = asyncio.create_task(is_over(reader))
                await asyncio.wait([ended, asyncio.create_task(over.wait())], return_when=asyncio.FIRST_COMPLETED)
                writer.transport.abort()
                await ended

        sitting = [asyncio.create_task(sit()) for _ in range(places)]
        while (files := len(os.listdir(f"/proc/{gateway.process.pid}/fd"))) < places:
            assert not over.is_set(), files
            await asyncio.sleep(0.02)
        refused, owners = 0, []
        for _ in range(12):
            try:
                owners.append(await gateway.client())
            except websockets.InvalidStatus:
                refused += 1
        assert not refused, f"the owner was refused in {refused} of 12 tries"
        # As many as the limit for authenticated clients, however many strangers there are.
        for _ in range(places - len(owners)):
            owners.append(await gateway.client())
        full = (websockets.WebSocketException, ConnectionError, Refused)
        try:
            one_more = await gateway.client()
        except full:
            one_more = None
        assert one_more is None, "there is no limit on those who are in"
        for owner in owners:
            await owner.request("status")
        # The place of a client that has left is free.
        await owners.pop().close()
        until = time.monotonic() + PATIENCE
        while len(owners) < places:
            try:
                owners.append(await gateway.client())
            except full:
                assert time.monotonic() < until
                await asyncio.sleep(0.02)
        over.set()
        await asyncio.gather(*sitting)


async def the_oldest_stranger_goes_first():
    with Gateway() as gateway:
        strangers = [await slow_websocket(gateway) for _ in range(STRANGERS)]
        ends = [asyncio.create_task(is_over(reader)) for reader, _ in strangers]
        # All have a place. Each further one takes that of the oldest, and of no other.
        for n in range(3):
            reader, writer = await slow_websocket(gateway)
            strangers.append((reader, writer))
            ends.append(asyncio.create_task(is_over(reader)))
            await dropped(ends[n])
            assert sum(end.done() for end in ends) == n + 1
        # A client that shows a token is no longer a stranger.
        client = await gateway.client()
        await client.request("status")
        for _, writer in strangers:
            writer.transport.abort()


def own_address():
    """An address of this machine that is not a loopback one; None if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as looking:
        try:
            # Nothing is sent: this only asks for the route.
            looking.connect(("198.51.100.1", 9))
        except OSError:
            return None
        address = looking.getsockname()[0]
    return None if address.startswith("127.") else address


async def one_address_cannot_have_all_that_strangers_have():
    if not (address := own_address()):
        return print("SKIPPED: needs an address of the machine that is no loopback one")
    with Gateway(listen="0.0.0.0:0") as gateway:
        from_afar = lambda: slow_websocket(gateway, address)
        near = await slow_websocket(gateway)
        strangers = [await from_afar() for _ in range(AN_ADDRESS)]
        ends = [asyncio.create_task(is_over(reader)) for reader, _ in [near, *strangers]]
        strangers.append(await from_afar())
        # The oldest of that address, not the oldest of all.
        await dropped(ends[1])
        assert sum(end.done() for end in ends) == 1
        # Authenticated clients are not limited by address.
        gateway.ws = gateway.ws.replace("0.0.0.0", address).replace("127.0.0.1", address)
        clients = [await Client.connect(gateway) for _ in range(2 * AN_ADDRESS)]
        for client in clients:
            await client.request("status")
        for _, writer in [near, *strangers]:
            writer.transport.abort()


async def a_body_that_drips_in_is_not_waited_for():
    speed = 20
    if not (env := fast_clock(speed)):
        return
    with Gateway(env=env) as gateway:
        async def drip(path, kind):
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write((f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {gateway.token}\r\n"
                          f"Content-Type: {kind}\r\nContent-Length: 100000\r\n\r\n").encode())
            ended, began = asyncio.create_task(is_over(reader)), time.monotonic()
            while not ended.done():
                took = time.monotonic() - began
                assert took < 40, f"{path} still waits after {took * speed:.0f} s of the gateway's time"
                try:
                    writer.write(b" ")
                    await writer.drain()
                except OSError:
                    pass
                await asyncio.wait([ended], timeout=0.2)
            writer.close()

        await asyncio.gather(
            drip("/api/v1/agent/run", "application/json"),
            drip("/api/v1/agent/attachments", "multipart/form-data; boundary=x"),
        )


if __name__ == "__main__":
    run(globals())
