"""Several sessions, and several gateways on one root: the events of a session stay in it, whichever gateway a client
uses."""

import asyncio
import contextlib
import datetime
import json
import os
import pathlib
import sqlite3
import time

from agui import get
from attachments import PNG, until, upload
from crowd import AGENT
from harness import PATIENCE, Gateway, run


async def everybody_in_a_session_knows_how_many_are():
    with Gateway() as gateway:
        first = await gateway.client()
        one, two = [(await first.request("sessions.new"))["sessionId"] for _ in range(2)]
        await first.request("sessions.switch", sessionId=one)
        others = []

        async def all_know(*people, session=one):
            """Waits until the last event of each client has the right number of clients."""
            limit = asyncio.get_running_loop().time() + 10
            told = lambda who: [(event["payload"]["clients"], event["payload"]["sessionId"]) for event in who.company[-1:]]
            while not all(told(who) == [(len(people), session)] for who in people):
                assert asyncio.get_running_loop().time() < limit, [told(who) for who in people]
                await asyncio.sleep(0.02)
            for who in people:
                assert not any("seq" in event for event in who.company)
                assert (await who.request("status"))["session"]["clients"] == len(people)

        await all_know(first)
        for n in range(3):
            others.append(await gateway.client())
            # Also clients that are still catching up.
            await others[-1].request("sessions.switch", sessionId=one, **({"after": 0} if n % 2 else {}))
            await all_know(first, *others)
        others[0].abort()
        await all_know(first, *others[1:])
        await others[1].request("sessions.switch", sessionId=two)
        await all_know(first, others[2])
        await all_know(others[1], session=two)
        await others[2].close()
        await all_know(first)


async def messages_that_wait_in_one_session_are_not_shown_in_another():
    with Gateway() as gateway:
        client, other = await gateway.client(), await gateway.client()
        one, two = [(await client.request("sessions.new"))["sessionId"] for _ in range(2)]
        first = {}
        for session in one, two:
            gateway.fake_agent(session)
            await other.request("sessions.switch", sessionId=session)
            run_id = (await other.request("agent", message="first"))["runId"]
            said = (await other.wait(lambda e: e["event"] == "message" and e["payload"]["runId"] == run_id))["seq"]
            gateway.push(session, {"status": "started", "attempt": 1}, "run", run_id=run_id, reply_to=said)
            first[session] = said, run_id
        positions = lambda who, run: [
            e["payload"]["position"] for e in who.named("queued") if e["payload"]["runId"] == run["runId"]]
        waiting = await client.request("agent", sessionId=one, message="waits in one", priority="later")
        await client.wait("queued")
        # In the other session a message of another client waits, which has the same id there.
        theirs = await other.request("agent", sessionId=two, message="waits in two as well", priority="later")
        await other.wait("queued")
        await client.request("sessions.switch", sessionId=two)
        at = client.answered_at
        elsewhere = await client.request("agent", message="waits in two", priority="later")
        await client.wait(lambda e: e["event"] == "queued" and e["payload"]["sessionId"] == two)
        # Messages here while another message waits there.
        await other.request("sessions.switch", sessionId=one)
        told = await other.request("agent", message="goes before it")
        await other.wait(lambda e: e["event"] == "queued" and e["payload"]["runId"] == told["runId"])
        said, run_id = first[one]
        gateway.ending(one, said, "done", run_id=run_id)
        # It is first in the queue now, and only its sender is notified.
        await other.wait(lambda e: e["event"] == "final" and e["payload"]["runId"] == run_id)
        await other.request("sessions.switch", sessionId=two)
        ahead = await other.request("agent", message="goes before that one")
        await client.wait(lambda e: e["event"] == "queued" and e["payload"]["position"] == 3, after=at)
        await other.wait(lambda e: e["event"] == "queued" and e["payload"]["runId"] == ahead["runId"])
        assert positions(client, waiting) == [1] and positions(client, elsewhere) == [2, 3], client.named("queued")
        assert {e["payload"]["sessionId"] for e in client.events[at:]} == {two}, client.seen()
        # Clients are not notified of messages that others wait for.
        assert positions(client, theirs) == positions(other, waiting) == positions(other, elsewhere) == []
        assert positions(other, theirs)[0] == positions(other, ahead)[0] == 1, other.named("queued")


async def a_cancel_in_one_session_leaves_another_alone():
    with Gateway("--agent", f"{AGENT} 1", "--protocol", "ndjson") as gateway:
        ask = lambda thread: json.dumps(
            {"threadId": thread, "runId": "the run", "messages": [{"id": "m", "role": "user", "content": "hello"}]})
        post = lambda thread: get(
            gateway, "/api/v1/agent/run", {"Content-Type": "application/json"}, ask(thread).encode())
        streams = [asyncio.create_task(asyncio.to_thread(post, thread)) for thread in ("one", "two", "three")]
        client = await gateway.client()
        while len(listed := (await client.request("sessions.list"))["sessions"]) < 3:
            await asyncio.sleep(0.02)
        watchers = {}
        for session in (session["id"] for session in listed):
            watchers[session] = await gateway.client()
            await watchers[session].request("sessions.switch", sessionId=session, after=0)
            await watchers[session].wait("token")
        one, two, three = watchers
        # In its own session and in another one, under the same name.
        await client.request("sessions.switch", sessionId=one)
        await client.request("agent.cancel", runId="the run")
        await client.request("agent.cancel", runId="the run", sessionId=two)
        for session, ending in (one, "cancelled"), (two, "cancelled"), (three, "final"):
            await watchers[session].wait(ending)
            assert len(watchers[session].named("final", "cancelled", "error")) == 1, watchers[session].seen()
        assert not [event for event in gateway.events(three) if event["subtype"] in ("cancel", "cancelled")]
        assert "no run" in await client.refused("agent.cancel", runId="the run", sessionId=three)
        await asyncio.gather(*streams)


async def two_gateways_on_one_root_are_as_good_as_one():
    with Gateway() as one, Gateway(root=one.root) as two:
        here, there = await one.client(clientId="ada"), await two.client(clientId="bob")
        session = (await here.request("sessions.new", title="Ours"))["sessionId"]
        one.fake_agent(session)
        assert [s["title"] for s in (await there.request("sessions.list"))["sessions"]] == ["Ours"]
        await there.request("sessions.switch", sessionId=session)
        # The same message, sent again to the other one.
        sent = {"sessionId": session, "message": "first", "idempotencyKey": "k"}
        first = await here.request("agent", **sent)
        assert await there.request("agent", **sent) == first
        said = (await there.wait(lambda e: e["payload"].get("content") == "first"))["seq"]
        one.push(session, {"status": "started", "attempt": 1}, "run", run_id=first["runId"], reply_to=said)
        await there.wait("status")
        # Positions count what came through the other one, and change when that ends.
        second = await there.request("agent", message="second")
        third = await here.request("agent", message="third")
        for who, queued, position in (there, second, 1), (here, third, 2):
            assert queued["status"] == "queued"
            await who.wait(lambda e: e["event"] == "queued" and e["payload"]["runId"] == queued["runId"]
                           and e["payload"]["position"] == position)
        # A run of the one is cancelled through the other, and a permission answered.
        await there.request("agent.cancel", runId=first["runId"])
        one.ending(session, said, "asked", "cancelled", run_id=first["runId"])
        await here.wait("cancelled")
        await here.wait(lambda e: e["event"] == "queued" and e["payload"]["position"] == 1)
        choices = [{"id": "yes", "name": "Yes", "kind": "allow_once"}]
        waiting = (await here.wait(lambda e: e["payload"].get("content") == "second"))["seq"]
        about = {"run_id": second["runId"]}
        one.push(session, {"status": "started", "attempt": 1}, "run", reply_to=waiting, **about)
        one.push(session, {"request_id": "p", "title": "rm", "call_id": None, "choices": choices}, "permission", **about)
        await here.wait("permission")
        await there.request("permission.answer", sessionId=session, requestId="p", choice="yes")
        await here.wait(lambda e: e["event"] == "permission" and e["payload"].get("choice") == "yes")
        assert "no permission" in await here.refused("permission.answer", sessionId=session, requestId="p", choice="yes")
        await here.request("sessions.rename", sessionId=session, title="Still ours")
        await there.wait(lambda e: e["event"] == "title" and e["payload"]["title"] == "Still ours")
        own = lambda who: [e["payload"]["content"] for e in who.named("message") if e["payload"]["fromSelf"]]
        assert own(here) == ["first", "third"] and own(there) == ["second"]
        # `there` came later, and `here` was in it from the beginning.
        last = max(there.seqs())
        await here.seq(last)
        assert there.seqs() == [seq for seq in here.seqs() if seq >= said]
        # Deleted through the one, it is gone for those who are in it through the other.
        one.ending(session, here.named("message")[1]["seq"], "done", run_id=second["runId"])
        await there.request("sessions.delete", sessionId=session)
        event = await here.wait("error")
        assert event["payload"]["errorCode"] == "session_deleted"
        assert (await here.request("sessions.list"))["total"] == 0


async def a_gateway_that_stops_leaves_the_address_of_another():
    with Gateway() as one, Gateway(root=one.root) as two:
        address = lambda: (one.root / "address").read_text().strip()
        assert address() == two.url
        two.stop()
        assert address() == one.url
        # The address of a killed gateway stays for a while.
        with Gateway(root=one.root) as three:
            assert address() == three.url
            three.kill()
            until = time.monotonic() + PATIENCE
            while address() != one.url:
                assert time.monotonic() < until, address()
                await asyncio.sleep(0.05)
        one.stop()
        assert not (one.root / "address").exists()


async def a_fork_has_what_was_said_and_answers_none_of_it_again():
    with Gateway("--agent", "sed s/^/echo:/") as gateway:
        client, other = await gateway.client(), await gateway.client()
        session = (await client.request("sessions.new", title="Ours"))["sessionId"]
        for n in range(3):
            await client.request("agent", message=f"say {n}")
            await client.wait(lambda e: e["event"] == "final" and e["payload"]["content"] == f"echo:say {n}")
        said = (await client.request("sessions.history"))["messages"]
        assert [message["role"] for message in said] == ["user", "assistant"] * 3
        assert all(answer["replyTo"] == question["seq"] for question, answer in zip(said[::2], said[1::2])), said
        await other.request("sessions.switch", sessionId=session)

        # Another try at the third question: everything before it.
        forked = await client.request("sessions.fork", sessionId=session, before=said[4]["id"])
        fork = forked["sessionId"]
        assert fork != session and forked["title"] == "Ours"
        origin = {"sessionId": session, "title": "Ours", "before": said[4]["seq"], "seq": 5}
        assert (await other.request("sessions.list"))["sessions"][0]["forkedFrom"] == origin
        assert (await client.request("status"))["session"]["id"] == fork
        copied = (await client.request("sessions.history"))["messages"]
        alike = lambda messages: [(m["id"], m["role"], m["content"], m["source"]) for m in messages]
        assert alike(copied) == alike(said[:4])
        assert all(answer["replyTo"] == question["seq"] for question, answer in zip(copied[::2], copied[1::2])), copied
        at = len(client.events)
        await client.request("agent", message="say 2, please")
        final = await client.wait("final", after=at)
        assert final["payload"]["content"] == "echo:say 2, please"
        # Answers from the original are answers here too.
        await client.request("sessions.switch", sessionId=fork, after=0)
        finals = [e["payload"]["content"] for e in client.events[at:] if e["event"] == "final" and e["payload"]["sessionId"] == fork]
        assert finals.count("echo:say 0") == finals.count("echo:say 1") == 1 and "echo:say 2" not in finals, finals

        assert (await client.request("sessions.switch", sessionId=fork))["forkedFrom"] == origin
        assert (await client.request("sessions.fork", sessionId=session, before=said[2]["id"], title="Theirs"))["title"] == "Theirs"
        # Where nothing is copied, the title comes from the first message.
        empty = await client.request("sessions.fork", sessionId=session, before=said[0]["id"])
        assert empty["title"] == "", empty
        at = len(client.events)
        await client.request("agent", message="say it")
        assert (await client.wait("final", after=at))["payload"]["content"] == "echo:say it"
        assert (await client.request("sessions.switch", sessionId=empty["sessionId"]))["title"] == "say it"

        # All of it, by another client; the original does not change.
        whole = (await other.request("sessions.fork", sessionId=session))["sessionId"]
        assert alike((await other.request("sessions.history"))["messages"]) == alike(said)
        status = await other.request("status", sessionId=whole)
        assert status["session"]["queuedRequests"] == 0 and status["session"]["activeRun"] is None, status
        history = (await other.request("sessions.history", sessionId=session))["messages"]
        assert history == said
        assert "no message" in await client.refused("sessions.fork", sessionId=session, before="nonsense")
        assert "unknown session" in await client.refused("sessions.fork", sessionId="nonsense")


async def a_fork_keeps_the_answers_of_messages_that_were_queued():
    with Gateway() as gateway:
        client = await gateway.client()
        session = (await client.request("sessions.new"))["sessionId"]
        gateway.fake_agent(session)
        for n in range(4):
            await client.request("agent", message=f"say {n}", priority="later" if n == 1 else "next")
        said = (await client.request("sessions.history"))["messages"]
        seqs = [message["seq"] for message in said]
        # The second one has the priority `later`. The last one failed.
        for n in 0, 2, 1:
            gateway.ending(session, seqs[n], f"said {n}", run_id=said[n]["runId"], message_id=f"answer {n}")
        gateway.ending(session, seqs[3], {"error": "no", "retryable": False}, "error", run_id=said[3]["runId"])
        told = lambda messages: [(m["role"], m["content"]) for m in messages]
        everything = [("user", f"say {n}") for n in range(4)] + [("assistant", f"said {n}") for n in (0, 2, 1)]
        for before, kept in [
            (said[2]["id"], [("user", "say 0"), ("user", "say 1"), ("assistant", "said 0"), ("assistant", "said 1")]),
            (said[1]["id"], [("user", "say 0"), ("assistant", "said 0")]),
            (said[0]["id"], []),
            # Up to an answer: everything before it.
            ("answer 2", everything[:5]),
            (None, everything),
        ]:
            await client.request("sessions.fork", sessionId=session, **({"before": before} if before else {}))
            copied = (await client.request("sessions.history"))["messages"]
            assert told(copied) == kept, (before, copied)
            question = {message["seq"]: message["content"] for message in copied}
            for answer in copied:
                if answer["role"] == "assistant":
                    assert question[answer["replyTo"]] == answer["content"].replace("said", "say"), copied
            # They are endings in the copy: no message waits.
            assert (await client.request("status"))["session"]["queuedRequests"] == 0


async def a_fork_has_what_was_said_before_an_answer_was_stopped():
    with Gateway() as gateway:
        client = await gateway.client()
        session = (await client.request("sessions.new"))["sessionId"]
        gateway.fake_agent(session)
        for n in range(3):
            await client.request("agent", message=f"say {n}")
        said = (await client.request("sessions.history"))["messages"]
        stop = lambda n, of: gateway.ending(session, of["seq"], f"cancelled by {of['source']}: requested by a client", "cancelled",
                                            run_id=of["runId"], message_id=f"answer {n}", partial=f"As far as {n}")
        stop(0, said[0])
        # It queued, and its run ended after the message at which the copy is made.
        stop(1, said[1])
        # What ends nothing is no answer.
        gateway.push(session, "another", "cancelled", reply_to=said[0]["seq"], run_id=said[0]["runId"])
        for before in said[2]["id"], None:
            await client.request("sessions.fork", sessionId=session, **({"before": before} if before else {}))
            copied = (await client.request("sessions.history"))["messages"]
            stopped = [message for message in copied if message["role"] == "cancelled"]
            assert [message["content"] for message in stopped] == ["As far as 0", "As far as 1"], copied
            by = {message["seq"]: message["content"] for message in copied if message["role"] == "user"}
            assert [by[message["replyTo"]] for message in stopped] == ["say 0", "say 1"], copied
            assert all("requested by a client" in message["metadata"]["why"] for message in stopped), stopped


async def what_is_copied_keeps_its_time():
    with Gateway("--agent", "sed s/^/echo:/") as gateway:
        client = await gateway.client()
        session = (await client.request("sessions.new"))["sessionId"]
        # More than are stored at once.
        gateway.thread("push", "--batch", session=session, stdin="".join(
            json.dumps({"source": "external:test:a", "type": "message", "content": f"old {n}"}) + "\n" for n in range(40)
        ))
        await client.wait(lambda e: e["event"] == "final" and e["payload"]["content"] == "echo:old 39")
        said = (await client.request("sessions.history", limit=200))["messages"]
        later = (await client.request("sessions.new"))["sessionId"]
        fork = (await client.request("sessions.fork", sessionId=session))["sessionId"]
        copied = (await client.request("sessions.history", limit=200))["messages"]
        times = [message["timestamp"] for message in said]
        assert len(times) == 80 and [message["timestamp"] for message in copied] == times
        # In the frames and in the log, too.
        await client.request("sessions.switch", sessionId=fork, after=0)
        frames = [e for e in client.events if e["payload"].get("sessionId") == fork and e["event"] in ("message", "final")]
        assert [e["time"] for e in frames] == times
        events = gateway.events(fork)
        assert gateway.logged(fork) == events and [event["created_at"] for event in events[:80]] == times
        assert all(event["created_at"] >= times[-1] for event in events[80:])
        # The copy itself has a new time.
        listed = [entry["id"] for entry in (await client.request("sessions.list"))["sessions"]]
        assert listed == [fork, later, session]


async def a_deletion_is_finished_although_its_gateway_was_killed():
    # An agent that takes as long as it may to stop.
    agent = "trap ': >asked' INT TERM; echo working; while :; do sleep 0.1; done"
    for restarts in True, False:
        with Gateway("--agent", agent) as gateway, contextlib.ExitStack() as others:
            client = await gateway.client()
            session = (await client.request("agent", message="work"))["sessionId"]
            await client.wait("token")
            stays = (await client.request("sessions.new"))["sessionId"]
            part = {"type": "binary", "mimeType": "image/png", "url": upload(gateway, PNG)["url"]}
            await client.request("agent", sessionId=session, message=[part])
            if not restarts:
                there = await others.enter_context(Gateway("--agent", agent, root=gateway.root)).client()
            sent = client.send("sessions.delete", {"sessionId": session})
            await until((gateway.root / "asked").exists)
            # So that it is not done before its gateway is killed.
            lock = sqlite3.connect(gateway.root / session / "events.db", isolation_level=None, timeout=PATIENCE)
            others.callback(lock.close)
            lock.execute("BEGIN IMMEDIATE")
            # For all clients, it is gone.
            for one in [await gateway.client(), *([] if restarts else [there])]:
                assert [entry["id"] for entry in (await one.request("sessions.list"))["sessions"]] == [stays]
                assert "is being deleted" in await one.refused("agent", sessionId=session, message="too late")
                assert "is being deleted" in await one.refused("sessions.switch", sessionId=session)
            assert not sent.done() and (gateway.root / session).exists(), sent
            gateway.kill()
            with contextlib.suppress(ConnectionError):
                await sent
            lock.execute("ROLLBACK")
            lock.close()
            if restarts:
                gateway.restart()
                there = await gateway.client()
            assert [entry["id"] for entry in (await there.request("sessions.list"))["sessions"]] == [stays]
            await until(lambda: not (gateway.root / session).exists() and not list((gateway.root / "deleting").iterdir()))
            assert "unknown session" in await there.refused("agent", sessionId=session, message="too late")
            # Its attachments and its agent are gone, too.
            assert not list((gateway.root / "storage" / "attachments").iterdir())
            mark = f"THREAD_DIR={gateway.root / session}".encode()
            environments = [path for path in pathlib.Path("/proc").glob("[0-9]*/environ") if os.access(path, os.R_OK)]

            def runs(path):
                try:
                    return mark in path.read_bytes().split(b"\0")
                except OSError:
                    return False

            await until(lambda: not any(map(runs, environments)))


async def the_stream_of_a_run_that_ended_is_deleted_and_nothing_else():
    def stream(session):
        return [e["id"] for e in gateway.events(session) if e.get("subtype") in ("token", "thinking")]

    async def answer(session, text, size=1):
        """A run with all kinds of events. Returns the id of its message, and the metadata of its events."""
        about = {"run_id": (await client.request("agent", sessionId=session, message=text))["runId"]}
        said = gateway.events(session)[-1]["id"]
        gateway.push(session, {"status": "started", "attempt": 1}, "run", reply_to=said, **about)
        gateway.push(session, "x" * size, "token", message_id="m", **about)
        gateway.push(session, {"call_id": text, "name": "look", "arguments": {}}, "toolcall", **about)
        gateway.push(session, "so", "thinking", message_id="m", **about)
        gateway.push(session, {"call_id": text, "name": "look", "result": 1}, "toolresult", **about)
        return said, about

    def end(session, said, about):
        """Ends a run as an agent does."""
        ending = gateway.ending(session, said, "done", **about)
        gateway.thread("ack", "--consumer", "agent", str(ending), session=session)

    with Gateway("--keep-stream", "off") as gateway:
        client = await gateway.client()
        old, both, empty = [(await client.request("sessions.new"))["sessionId"] for _ in range(3)]
        for session in old, both:
            gateway.fake_agent(session)
        said, about = await answer(old, "one", 1 << 20)
        end(old, said, about)
        [token, thinking] = stream(old)
        said, about = await answer(both, "first")
        end(both, said, about)
        said, about = await answer(both, "second")
        ended, open_ = stream(both)[:2], stream(both)[2:]
        await client.request("agent", sessionId=empty, message="hello")
        before = {session: gateway.events(session) for session in (old, both, empty)}
        listed = await client.request("sessions.list")
        assert [session["id"] for session in listed["sessions"]] == [empty, both, old]
        database = gateway.root / old / "events.db"
        await client.close()
        gateway.stop()

        gateway.options = ["--keep-stream", "1s"]
        gateway.restart()
        client, late = await gateway.client(), await gateway.client()
        await client.request("sessions.switch", sessionId=old, after=0)
        sealed = lambda: list((gateway.root / old).glob("events-*.jsonl"))
        await until(lambda: not stream(old) and stream(both) == open_ and not sealed())
        await until(lambda: database.stat().st_size < 1 << 19)
        left = lambda session, gone: [e for e in before[session] if e["id"] not in gone]
        assert gateway.events(old) == left(old, [token, thinking])
        assert gateway.events(both) == left(both, ended)
        assert gateway.events(empty) == before[empty]
        # It was no activity: that is the time of the newest event.
        for session in listed["sessions"]:
            if session["id"] != empty:
                session["lastActivity"] = before[session["id"]][-1]["created_at"]
        assert await client.request("sessions.list") == listed
        # A client that reconnects with an older id gets the remaining events, in order.
        await late.request("sessions.switch", sessionId=old, after=token - 1)
        seqs = [e["id"] for e in before[old] if e["id"] > thinking]
        assert late.seqs() == [token + 1, *seqs], late.events
        # A client that stayed continues.
        title = gateway.push(old, "Old", "title")
        await client.seq(title)
        assert client.seqs()[-1] == title and client.seqs() == sorted(set(client.seqs()))

        # The stream of the open run follows once that has ended long enough ago.
        end(both, said, about)
        await until(lambda: not stream(both))
        listed = await client.request("sessions.list")
        assert [session["id"] for session in listed["sessions"]] == [both, old, empty]

        # Neither is a repair.
        listed["sessions"][1]["lastActivity"] = gateway.events(old)[-1]["created_at"]
        with open(gateway.root / old / "events.jsonl", "a") as log:
            log.write("torn")
        assert (await client.request("sessions.list"))["sessions"][0]["id"] == old
        gateway.thread("doctor", "--fix", session=old)
        assert await client.request("sessions.list") == listed


async def a_session_without_new_events_is_not_swept_again():
    with Gateway("--keep-stream", "1s") as gateway:
        client = await gateway.client()
        session = (await client.request("sessions.new"))["sessionId"]
        await client.request("agent", message="hello")
        await client.close()
        log = gateway.root / session / "events.jsonl"
        swept = gateway.root / "swept"

        async def next_sweep():
            told = swept.read_text()
            await until(lambda: swept.read_text() not in ("", told))
        await until(swept.exists)
        spoken = datetime.datetime.fromtimestamp(log.stat().st_mtime, datetime.timezone.utc).isoformat()
        # Times of this form are ordered like their texts.
        await until(lambda: swept.read_text() > spoken)
        gateway.stop()
        for path in (gateway.root / session).glob("events.db*"):
            path.unlink()
        (gateway.root / session / "events.db").write_bytes(b"no database" * 1000)
        gateway.restart()
        await next_sweep()
        await next_sweep()
        assert "its stream" not in gateway.output(), gateway.output()
        os.utime(log)
        await until(lambda: f"session {session}: its stream cannot be deleted" in gateway.output())


if __name__ == "__main__":
    run(globals())
