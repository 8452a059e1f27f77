"""How connections end: closed by which side, with which code, and without effect on other clients."""

import asyncio
import json
import time

import websockets

from harness import LONG, PATIENCE, Gateway, fast_clock, most_memory, run

TEXT, CLOSE, PING = 1, 8, 9


async def raw(gateway, *frames, **more):
    client = await gateway.client(connect=False, **more)
    for frame in frames:
        await client.socket.send(frame)
    return client


def connect(**params):
    return json.dumps({"type": "req", "id": "1", "method": "connect", "params": params})


async def a_bad_beginning_is_answered_where_it_can_be_and_closed():
    with Gateway() as gateway:
        good = {"version": "1", "clientType": "t", "token": gateway.token}
        for frame, code, answered in [
            ("nonsense", 1002, False),
            ("[]", 1002, False),
            (json.dumps({"type": "req", "method": "connect"}), 1002, False),
            (json.dumps({"type": "what", "id": "1", "method": "connect"}), 1002, True),
            (json.dumps({"type": "req", "id": "1", "method": "status", "params": {}}), 1008, True),
            (connect(**{**good, "version": "2"}), 1008, True),
            (connect(clientType="t", token=gateway.token), 1008, True),
            (connect(version="1", token=gateway.token), 1008, True),
            (connect(**{**good, "clientId": ""}), 1008, True),
            (connect(**{**good, "clientId": "x" * 65}), 1008, True),
            (connect(**{**good, "clientType": "x" * 65}), 1008, True),
            (connect(**{**good, "token": "wrong"}), 1008, True),
            (connect(version="1", clientType="t"), 1008, True),
            (b"bytes", 1003, False),
        ]:
            client = await gateway.client(connect=False)
            answer = asyncio.get_running_loop().create_future()
            client.answers["1"] = answer
            await client.socket.send(frame)
            assert await client.ends() == code, (frame, client.closed)
            if answered:
                assert answer.result()["ok"] is False, frame
            else:
                assert isinstance(answer.exception(), ConnectionError), frame


async def a_frame_that_is_no_request_ends_a_connection_at_any_time():
    with Gateway() as gateway:
        client = await gateway.client()
        await client.request("status")
        await client.socket.send("{")
        assert await client.ends() == 1002


async def a_frame_over_a_mebibyte_is_1009_and_one_below_is_not():
    with Gateway() as gateway:
        good, bad = await gateway.client(), await gateway.client()
        await good.request("agent", message="x" * (1024 * 1024 - 200))
        await bad.socket.send(json.dumps({"type": "req", "id": "x" * 1024 * 1024, "method": "status"}))
        assert await bad.ends() == 1009
        await good.request("status")


async def a_client_that_sends_far_too_much_can_read_why_it_is_closed():
    with Gateway() as gateway:
        huge = json.dumps({"type": "req", "id": "1", "method": "agent", "params": {"message": "x" * 8_000_000}})
        ends = []
        for _ in range(6):
            bad = await gateway.client()
            try:
                await bad.socket.send(huge)
            except websockets.ConnectionClosed:
                pass
            ends.append(await bad.ends())
            # A client that reads nothing before it has sent everything.
            reader, writer = await slow_websocket(gateway)
            await send_text(writer, connect(version="1", clientType="t", token=gateway.token))
            try:
                await send_text(writer, huge)
                ends.append(await close_code(reader))
            except (ConnectionError, asyncio.IncompleteReadError) as e:
                ends.append(type(e).__name__)
            writer.close()
        assert ends == [1009] * 12, ends
        assert most_memory(gateway) < 100


async def more_than_64_unanswered_requests_are_1008():
    with Gateway() as gateway:
        good, bad = await gateway.client(), await gateway.client()
        # Creating a session takes a moment, so the requests pile up.
        for _ in range(400):
            bad.send("sessions.new", {})
        assert await bad.ends() == 1008
        for answer in bad.answers.values():
            answer.done() and answer.exception()
        await good.request("status")


async def a_reader_that_stops_for_a_minute_continues_and_misses_nothing():
    speed = 1 if LONG else 10
    if not (env := fast_clock(speed)):
        return
    with Gateway(env=env) as gateway:
        good = await patiently(gateway)
        session = (await good.request("sessions.new"))["sessionId"]
        reader, writer = await slow_websocket(gateway)
        await send_text(writer, connect(version="1", clientType="t", token=gateway.token))
        await send_text(writer, json.dumps(
            {"type": "req", "id": "2", "method": "sessions.switch", "params": {"sessionId": session}}))
        while (await good.request("status"))["session"]["clients"] < 2:
            await asyncio.sleep(0.01)
        # Far more than fits into the sockets' buffers, or into any queue.
        began, seqs = time.monotonic(), []
        while len(seqs) < 60 or (time.monotonic() - began) * speed < 70:
            if len(seqs) < 60:
                seqs.append(await asyncio.to_thread(gateway.push, session, "x" * 1_000_000, "token"))
            else:
                await asyncio.sleep(0.1)
            # It does not read, but it is alive.
            try:
                await send(writer, PING, b"")
            except ConnectionError:
                raise AssertionError(f"it was closed after {len(seqs)} MB with {await close_code(reader)}") from None
        assert not reader.at_eof() and most_memory(gateway) < 150, most_memory(gateway)
        assert (await good.request("status"))["session"]["clients"] == 2
        seqs.append(gateway.push(session, "end", "token"))
        await good.seq(seqs[-1])
        seen = []
        while seqs[-1] not in seen:
            kind, data = await asyncio.wait_for(one_frame(reader), PATIENCE)
            assert kind != CLOSE, data
            if kind == TEXT and "seq" in (frame := json.loads(data)):
                seen.append(frame["seq"])
        assert seen == seqs == good.seqs(), seen
        writer.close()


async def an_ending_of_any_size_reaches_everybody_whole():
    with Gateway() as gateway:
        client = await gateway.client()
        session = (await client.request("sessions.new"))["sessionId"]
        gateway.fake_agent(session)
        run_id = (await client.request("agent", message="go"))["runId"]
        said = (await client.wait("message"))["seq"]
        # Twice as long as JSON.
        text = "\n" * 9_000_000
        huge = await asyncio.to_thread(gateway.ending, session, said, text, run_id=run_id)
        last = gateway.push(session, "after it", "token")
        late = await gateway.client()
        await late.request("sessions.switch", sessionId=session, after=0)
        for who in client, late:
            event = await who.seq(huge)
            assert event["event"] == "final" and event["payload"]["content"] == text
            await who.seq(last)
            assert not who.closed.done()


async def slow_websocket(gateway, address="127.0.0.1"):
    """A WebSocket without a library: nothing is read unless the caller reads."""
    reader, writer = await asyncio.open_connection(address, gateway.port, limit=2**16)
    writer.write(
        f"GET /ws HTTP/1.1\r\nHost: {address}:{gateway.port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    head = await reader.readuntil(b"\r\n\r\n")
    assert b"101" in head, head
    return reader, writer


async def send(writer, kind, data):
    """Sends a frame, masked with zeros."""
    small = len(data) < 2**16
    length = (126 if small else 127, len(data).to_bytes(2 if small else 8, "big"))
    writer.write(bytes([0x80 | kind, 0x80 | length[0]]) + length[1] + bytes(4) + data)
    await writer.drain()


async def send_text(writer, text):
    await send(writer, TEXT, text.encode())


async def one_frame(reader):
    """The next message: its opcode and payload. A long text comes in fragments, with pings and pongs in between."""
    while True:
        head = await reader.readexactly(2)
        length, kind = head[1] & 0x7F, head[0] & 0x0F
        if length >= 126:
            length = int.from_bytes(await reader.readexactly(2 if length == 126 else 8), "big")
        data = await reader.readexactly(length)
        if kind >= CLOSE:
            return kind, data
        begun = getattr(reader, "fragments", [])
        reader.fragments = [*begun, (kind, data)]
        if head[0] & 0x80:
            whole, reader.fragments = reader.fragments, []
            return whole[0][0], b"".join(data for _, data in whole)


async def frames_to_close(reader):
    """All frames up to and including the close frame."""
    frames = []
    while not frames or frames[-1][0] != CLOSE:
        frames.append(await one_frame(reader))
    return frames


async def close_code(reader):
    frames = await asyncio.wait_for(frames_to_close(reader), PATIENCE)
    return int.from_bytes(frames[-1][1][:2], "big")


async def a_client_that_closes_is_answered():
    with Gateway() as gateway:
        client = await gateway.client()
        await client.request("sessions.new")
        await client.close()
        assert client.socket.close_code == 1000, client.socket.close_code


async def term_closes_with_1001_and_ends_within_two_seconds():
    with Gateway() as gateway:
        clients = [await gateway.client() for _ in range(20)]
        session = (await clients[0].request("sessions.new"))["sessionId"]
        # A client that never reads the close frame.
        reader, writer = await slow_websocket(gateway)
        await send_text(writer, connect(version="1", clientType="t", token=gateway.token))
        await clients[0].request("agent", message="still said", sessionId=session)
        code, took = await asyncio.to_thread(gateway.stop)
        assert code == 0 and took < 2, (code, took)
        for client in clients:
            assert await client.ends() == 1001
        assert not (gateway.root / "address").exists()
        writer.close()


async def a_silent_client_is_pinged_and_after_a_minute_closed():
    # The gateway's clock runs ten times as fast, except in the long form.
    speed = 1 if LONG else 10
    if not (env := fast_clock(speed)):
        return
    with Gateway(env=env) as gateway:
        # One client that answers pings, and one that does not.
        good = await patiently(gateway)
        reader, writer = await slow_websocket(gateway)
        began = time.monotonic()
        await send_text(writer, connect(version="1", clientType="t", token=gateway.token))
        frames = await asyncio.wait_for(frames_to_close(reader), PATIENCE + 100 / speed)
        took = (time.monotonic() - began) * speed
        kinds = [kind for kind, _ in frames]
        assert kinds in ([TEXT, PING, PING, CLOSE], [TEXT, PING, PING, PING, CLOSE]), frames
        assert frames[-1][1][:2] == (1008).to_bytes(2, "big") and b"60 s" in frames[-1][1], frames
        assert took >= 60, took
        # It does not answer the close frame either, but its connection ends all the same.
        while (await good.request("status"))["gateway"]["activeConnections"] > 1:
            await asyncio.sleep(0.05)
        print(f"silent for {took:.0f} s of the gateway's time")
        writer.close()


async def a_connection_without_connect_is_closed_after_ten_seconds():
    speed = 5
    if not (env := fast_clock(speed)):
        return
    with Gateway(env=env) as gateway:
        began = time.monotonic()
        reader, writer = await slow_websocket(gateway)
        [(kind, reason)] = await asyncio.wait_for(frames_to_close(reader), PATIENCE)
        assert kind == CLOSE and reason[:2] == (1008).to_bytes(2, "big") and b"10 s" in reason, reason
        assert (time.monotonic() - began) * speed >= 10
        writer.close()


async def a_search_says_that_two_seconds_were_too_short():
    if not (env := fast_clock(50)):
        return
    with Gateway(env=env) as gateway:
        session = (await patiently(gateway, "sessions.new"))["sessionId"]
        line = json.dumps({"source": "external:a:b:c:d:e", "type": "message", "content": "hay " * 250})
        gateway.thread("push", "--batch", session=session, stdin="\n".join([line] * 20_000))
        found = await patiently(gateway, "sessions.search", query="needle")
        assert found["truncated"] is True and found["sessions"] == [], found


async def patiently(gateway, method=None, **params):
    """A client of a gateway with a fast clock, or the response to a request: retried until no limit is exceeded."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            client = await gateway.client()
            return await client.request(method, **params) if method else client
        except (OSError, TimeoutError, websockets.WebSocketException):
            if time.monotonic() > end:
                raise


if __name__ == "__main__":
    run(globals())
