"""A client that enters a session at any moment misses no event, gets none twice, and sees what the clients in it see.

The gateway is frozen at many points while it answers. Events pushed then would be lost by a race between reading a
session for the response and following it."""

import asyncio
import contextlib
import json
import signal
import time

from agui import get
from harness import PATIENCE, Gateway, run

# At how many points of an answer the gateway is frozen.
POINTS = 6

# How long events are pushed while it is frozen. Not longer: it may hold the lock that they wait for.
FROZEN = 0.3


async def push_while_frozen(gateway, after, push):
    """Freezes the gateway after so many seconds, and pushes."""
    await asyncio.sleep(after)
    gateway.process.send_signal(signal.SIGSTOP)
    pushing = asyncio.create_task(asyncio.to_thread(push))
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(pushing), FROZEN)
    gateway.process.send_signal(signal.SIGCONT)
    await pushing


def of_a_run(run_id, said):
    """The events of a run, in order: content, subtype and metadata. The last is an ending."""
    about, replies = {"run_id": run_id}, {"run_id": run_id, "reply_to": said}
    choices = [{"id": "yes", "name": "Yes", "kind": "allow_once"}]
    return [
        ({"status": "started", "attempt": 1}, "run", replies),
        ("hm", "thinking", {**about, "message_id": "m"}),
        ({"call_id": "c", "name": "rm", "arguments": {}}, "toolcall", about),
        ({"request_id": f"p{said}", "title": "rm", "call_id": "c", "choices": choices}, "permission", about),
        ({"request_id": f"p{said}", "choice": "yes"}, "permission_answer", about),
        ({"call_id": "c", "name": "rm", "result": 0}, "toolresult", about),
        ("Hel", "token", {**about, "message_id": "m"}),
        ({"error": "again", "retryable": True}, "error", replies),
        ({"status": "started", "attempt": 2}, "run", replies),
        ("Hello", "token", {**about, "message_id": "m"}),
        ("Hello", None, replies),
    ]


def as_seen(events):
    """The events that all clients must see alike."""
    return [
        (event["event"], event["seq"], {key: of for key, of in event["payload"].items() if key != "fromSelf"})
        for event in events if "seq" in event
    ]


async def at_any_point_of_a_run_it_is_seen_from_its_beginning():
    with Gateway() as gateway:
        witness = await gateway.client()
        session = (await witness.request("sessions.new"))["sessionId"]
        gateway.fake_agent(session)
        entered = []

        async def enter(first, expected):
            """Enters in each way. `first` is the seq of the open run's message, or None; `expected` are the contents of
            the messages that are shown as past."""
            newest = max(witness.seqs(), default=0)
            ways = [None, 0, newest, newest + 100, *([first - 1, first] if first else [])]
            for after in ways:
                client = await gateway.client()
                params = {} if after is None else {"after": after}
                switched = await client.request("sessions.switch", sessionId=session, **params)
                before = client.seqs()[:client.answered_at]
                recent = [message["content"] for message in switched["recentMessages"]]
                if after is None:
                    assert recent == expected, (recent, expected)
                    begins = first - 1 if first else newest
                    assert not before and (switched["lastSeq"] < first if first else switched["lastSeq"] == newest)
                else:
                    begins = min(after, newest)
                    # Earlier events are sent before the response.
                    assert before == [seq for seq in witness.seqs() if seq > begins], (after, before)
                    assert switched["lastSeq"] == newest, switched
                entered.append((client, begins, after))

        await enter(None, [])
        past = []
        for n in range(2):
            run_id = (await witness.request("agent", message=f"say hello {n}"))["runId"]
            said = (await witness.wait(lambda e: e["payload"].get("content") == f"say hello {n}"))["seq"]
            await enter(said, past)
            # Another run waits behind it; it is not past either.
            waiting = (await witness.request("agent", message=f"wait {n}"))["runId"]
            behind = (await witness.wait(lambda e: e["payload"].get("content") == f"wait {n}"))["seq"]
            *events, (answer, _, metadata) = of_a_run(run_id, said)
            for content, subtype, about in events:
                source = "external:test:t:dm:t:t" if subtype == "permission_answer" else "self"
                seq = gateway.push(session, content, subtype, source=source, **about)
                await witness.seq(seq)
                if seq % 2 == n:
                    await enter(said, past)
            # The end of the one is the beginning of the other.
            await witness.seq(gateway.ending(session, content=answer, **metadata))
            past += [f"say hello {n}"]
            await enter(behind, past)
            await witness.seq(gateway.ending(session, behind, "waited", run_id=waiting))
            past += [f"wait {n}", "Hello", "waited"]
            await enter(None, past)
        last = gateway.push(session, "end", "token")
        await witness.seq(last)
        for client, begins, after in entered:
            await client.seq(last)
            expected = [event for event in as_seen(witness.events) if event[1] > begins]
            assert as_seen(client.events) == expected, (after, begins, client.seqs())
        print(f"entered {len(entered)} times")


async def events_that_come_while_a_client_enters_are_neither_lost_nor_doubled():
    with Gateway() as gateway:
        witness = await gateway.client()
        quiet, busy, open_run = [(await witness.request("sessions.new"))["sessionId"] for _ in range(3)]
        gateway.fake_agent(open_run)
        await witness.request("agent", message="long", sessionId=open_run)
        said = (await witness.wait(lambda e: e["payload"].get("content") == "long"))["seq"]
        watching = {session: await gateway.client() for session in (quiet, busy, open_run)}
        for session, watcher in watching.items():
            await watcher.request("sessions.switch", sessionId=session, after=0)
        ways = [
            ("sessions.switch", quiet, {}), ("sessions.switch", quiet, {"after": 0}),
            ("sessions.switch", open_run, {}), ("sessions.switch", open_run, {"after": said}),
            # Sending a message to another session enters it.
            ("agent", quiet, {"message": "I come in"}),
        ]
        usual = 0
        for method, session, params in ways:
            # With and without other clients in it.
            for alone, point in [(alone, point) for alone in (False, True) for point in range(POINTS)]:
                if alone:
                    await watching[session].close()
                client = await gateway.client()
                # It comes from a session with activity, too.
                await client.request("sessions.switch", sessionId=busy)
                at, began = len(client.events), time.monotonic()
                entering = client.send(method, {"sessionId": session, **params})
                if point == 0:
                    # Without freezing: how long it takes.
                    await asyncio.wait_for(asyncio.shield(entering), PATIENCE)
                    usual = time.monotonic() - began
                else:
                    def push():
                        gateway.push(session, "meanwhile", "token")
                        gateway.push(busy, "elsewhere", "token")
                    await push_while_frozen(gateway, usual * point / POINTS, push)
                answer = await asyncio.wait_for(entering, PATIENCE)
                assert answer["ok"], answer
                answered_at = client.answered_at
                last = gateway.push(session, "and then", "token")
                await client.seq(last)
                assert not [e for e in client.events[answered_at:] if e["payload"]["sessionId"] != session]
                here = [event for event in client.events[at:] if event["payload"]["sessionId"] == session]
                seqs = [event["seq"] for event in here if "seq" in event]
                stored = [event["id"] for event in gateway.events(session) if event["id"] >= seqs[0]]
                assert seqs == stored, (method, params, alone, seqs, stored)
                if "after" in params:
                    assert seqs[0] == params["after"] + 1
                elif session == open_run:
                    assert seqs[0] == said
                elif method == "sessions.switch":
                    assert seqs[0] == answer["payload"]["lastSeq"] + 1 <= last
                else:
                    assert "I come in" in [event["payload"]["content"] for event in here]
                if alone:
                    watching[session] = await gateway.client()
                    await watching[session].request("sessions.switch", sessionId=session, after=0)
                await client.close()


async def a_stream_that_is_resumed_during_its_run_is_whole():
    with Gateway() as gateway:
        client = await gateway.client()
        session = (await client.request("sessions.new"))["sessionId"]
        gateway.fake_agent(session)
        run_id = (await client.request("agent", message="count"))["runId"]
        said = (await client.wait("message"))["seq"]
        about = {"run_id": run_id, "reply_to": said}
        gateway.push(session, {"status": "started", "attempt": 1}, "run", **about)
        first = gateway.push(session, "0 ", "token", run_id=run_id, message_id="m")
        began, ways = time.monotonic(), [{"Last-Event-ID": str(seq)} for seq in (said, first)] + [{}]
        streams = [
            asyncio.create_task(asyncio.to_thread(get, gateway, f"/api/v1/agent/events?threadId={session}", headers))
            for headers in ways
        ]
        count = 0
        while time.monotonic() - began < FROZEN or count < POINTS:
            count += 1
            await asyncio.to_thread(gateway.push, session, f"{count} ", "token", run_id=run_id, message_id="m")
        text = "".join(f"{n} " for n in range(count + 1))
        gateway.ending(session, said, text, run_id=run_id, message_id="m")
        for headers, stream in zip(ways, await asyncio.gather(*streams)):
            events = [json.loads(line[5:]) for line in stream.splitlines() if line.startswith(b"data:")]
            streamed = "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")
            expected = text[2:] if headers.get("Last-Event-ID") == str(first) else text
            assert streamed == expected and events[-1]["type"] == "RUN_FINISHED", (headers, streamed)


if __name__ == "__main__":
    run(globals())
