"""Every method, event and command, one after the other."""

import asyncio
import datetime
import json
import os
import uuid

from harness import EVENT, Gateway, Refused, run
from security import ask


async def a_client_connects_and_learns_the_methods():
    with Gateway() as gateway:
        client = await gateway.client(clientId="ada")
        assert client.hello["clientId"] == "ada"
        assert set(client.hello["supportedMethods"]) == {
            "connect", "agent", "agent.cancel", "sessions.list", "sessions.new", "sessions.switch",
            "sessions.fork", "sessions.history", "sessions.steps", "sessions.rename", "sessions.search", "sessions.delete",
            "sessions.update", "sessions.watch", "sessions.unwatch", "permission.answer", "status",
        }
        assert "already" in await client.refused("connect", version="1", clientType="test")
        other = await gateway.client()
        assigned = other.hello["clientId"]
        assert len(assigned) == 16 and int(assigned, 16), assigned


async def requests_are_answered_in_their_order():
    with Gateway() as gateway:
        client = await gateway.client()
        session = (await client.request("sessions.new"))["sessionId"]
        answered = []
        asked = [
            client.send(*request, checked=False)
            for n in range(6) for request in [
                ("agent", {"message": str(n)}), ("status", {}), ("sessions.new", {}), ("nonsense", {}),
                ("sessions.search", {"query": "x"}), ("sessions.switch", {"sessionId": session, "after": 0}),
            ]
        ]
        for n, answer in enumerate(asked):
            answer.add_done_callback(lambda _, n=n: answered.append(n))
        await asyncio.gather(*asked)
        assert answered == list(range(len(asked)))
        assert [answer.result()["ok"] for answer in asked] == [True, True, True, False, True, True] * 6


async def a_message_keeps_what_its_client_may_say_about_it():
    with Gateway() as gateway:
        client = await gateway.client()
        session = (await client.request("sessions.new"))["sessionId"]
        reserved = {"run_id": "mine", "message_id": "mine", "client": "another", "priority": "now", "reply_to": 9}
        params = {"message": "x", "metadata": {**reserved, "stage": 1}, "priority": "soon"}
        run_id = (await client.call("agent", params, checked=False))["runId"]
        assert run_id != "mine"
        payload = (await client.wait("message"))["payload"]
        assert payload["metadata"] == {"stage": 1} and payload["fromSelf"] and payload["runId"] == run_id, payload
        [stored] = gateway.events(session)
        assert stored["metadata"]["client"] == client.id and stored["metadata"].get("priority", "next") == "next", stored
        assert "reply_to" not in stored["metadata"] and stored["metadata"]["message_id"] != "mine"
        for key in "", "k" * 513:
            assert "1 to 512" in await client.refused("agent", sessionId=session, message="x", idempotencyKey=key)
        refused = await client.refused("agent", sessionId=session, message="x", idempotencyKey="thread:end:2")
        assert "keys that begin with 'thread:' are made by the programs; choose another" in refused, refused
        await client.request("agent", sessionId=session, message="x", idempotencyKey="k" * 512)
        assert len(gateway.events(session)) == 2


async def a_message_is_sent_later():
    in_time = lambda **more: (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(**more)).isoformat()
    with Gateway("--agent", "sed s/^/echo:/") as gateway:
        client = await gateway.client()
        session = (await client.request("sessions.new"))["sessionId"]
        params = {"sessionId": session, "message": "soon", "idempotencyKey": "k", "at": in_time(hours=1)}
        later = await client.request("agent", **params)
        assert (later["status"], later["scheduled"]) == ("scheduled", "s1") and later["scheduledAt"][:19] == params["at"][:19], later
        # It is stored once, however often it is sent.
        assert await client.request("agent", **params) == later
        # It is the same message from another client, with other metadata, and keeps its time.
        stranger = await gateway.client()
        moved = {**params, "metadata": {"stage": 2}, "at": in_time(hours=2)}
        assert await stranger.request("agent", **moved) == later
        assert await stranger.request("agent", sessionId=session, message="soon", idempotencyKey="k") == later
        for other in {"message": "else"}, {"priority": "later"}:
            assert "different" in await stranger.refused("agent", **{**params, **other})
        # A key is free again once what was scheduled under it is cancelled.
        freed = {**params, "idempotencyKey": "freed", "message": "first"}
        number = (await client.request("agent", **freed))["scheduled"]
        gateway.thread("scheduled", "cancel", number, session=session)
        assert (await stranger.request("agent", **{**freed, "message": "second"}))["scheduled"] != number
        await client.request("agent", message="now", at=in_time(seconds=-1))
        assert (await client.wait("final"))["payload"]["content"] == "echo:now"
        gateway.thread("scheduled", "now", "s1", session=session)
        message = (await client.wait(lambda e: e["event"] == "message" and e["payload"]["content"] == "soon"))["payload"]
        assert message["runId"] == later["runId"] and message["fromSelf"], message
        await client.wait(lambda e: e["event"] == "final" and e["payload"]["content"] == "echo:soon")
        again = await client.request("agent", **params)
        assert again["status"] == "accepted" and "scheduled" not in again and again["runId"] == later["runId"], again
        # Who is elsewhere enters the session, and gets the message when it is sent.
        other = await gateway.client()
        await other.request("agent", sessionId=session, message="from elsewhere", at=in_time(seconds=1))
        await other.wait(lambda e: e["event"] == "final" and e["payload"]["content"] == "echo:from elsewhere")
        assert [e["payload"]["content"] for e in other.events if e["event"] == "message"] == ["from elsewhere"]
        assert "a time like" in await client.refused("agent", message="x", at="tomorrow")
        refused = await client.refused("agent", message="x", at="\x1b[1m" + "y" * 10_000)
        assert "\x1b" not in refused and "y…'; give" in refused and len(refused) < 300, refused
        assert "command" in await client.refused("agent", message="/clear", at=in_time(hours=1))
        assert len([event for event in gateway.events(session) if event["type"] == "message"]) == 6


async def a_switch_reports_what_is_under_way_and_how_it_failed():
    with Gateway() as gateway:
        client, other = await gateway.client(), await gateway.client()
        session = (await client.request("sessions.new", title="Title"))["sessionId"]
        gateway.fake_agent(session)
        run_id = (await client.request("agent", message="1"))["runId"]
        seq = (await client.wait("message"))["seq"]
        about = {"run_id": run_id, "reply_to": seq}
        gateway.push(session, {"status": "started", "attempt": 1}, "run", **about)
        gateway.push(session, {"error": "at first", "retryable": True}, "error", **about)
        last = gateway.push(session, {"status": "started", "attempt": 2}, "run", **about)
        await client.seq(last)
        switched = await other.request("sessions.switch", sessionId=session)
        assert (switched["title"], switched["activeRun"], switched["recentMessages"]) == ("Title", run_id, []), switched
        # The open run comes as events.
        assert switched["lastSeq"] < seq and other.answered_at == 0
        await other.seq(last)
        assert other.seqs() == client.seqs()[client.seqs().index(seq):]
        last = gateway.ending(session, seq, {"error": "at last", "retryable": False}, "error", run_id=run_id)
        for who in client, other:
            await who.seq(last)
            failed = [e["payload"] for e in who.named("error")]
            failed = [(e["message"], e["errorCode"], e["retryable"]) for e in failed]
            expected = [("at first", "attempt_failed", True), ("at last", "run_failed", False)]
            assert failed == expected[len(expected) - len(failed):] and failed, failed
        switched = await other.request("sessions.switch", sessionId=session)
        assert (switched["lastSeq"], switched["activeRun"]) == (last, None)
        [recent] = switched["recentMessages"]
        assert (recent["role"], recent["content"], recent["seq"]) == ("user", "1", seq) and recent["timestamp"]
        status = await other.request("status")
        assert status["gateway"]["activeConnections"] == 2 and status["gateway"]["activeSessions"] == 1
        assert status["session"] == {"id": session, "messageCount": 1, "queuedRequests": 0, "activeRun": None, "clients": 2}


async def every_event_of_a_run_reaches_every_client():
    with Gateway() as gateway:
        one, two = await gateway.client(), await gateway.client()
        accepted = await one.request("agent", message="hello", metadata={"tool_name": "x"})
        session, run_id = accepted["sessionId"], accepted["runId"]
        assert accepted["status"] == "accepted" and uuid.UUID(session).version == 4
        assert (gateway.root / session / "events.db").exists()
        await two.request("sessions.switch", sessionId=session, after=0)
        [spoken] = [event for event in gateway.events(session) if event["type"] == "message"]
        assert spoken["metadata"]["run_id"] == run_id and spoken["metadata"]["tool_name"] == "x"
        assert spoken["metadata"]["client"] == one.id and spoken["content"] == "hello"
        about = {"run_id": run_id, "reply_to": spoken["id"]}
        for content, subtype, metadata in [
            ({"status": "started", "attempt": 1}, "run", about),
            ("thinking", "status", {"run_id": run_id}),
            ("hm", "thinking", {"run_id": run_id, "message_id": "m1"}),
            ({"call_id": "c1", "name": "ls", "arguments": {"path": "/"}}, "toolcall", {"run_id": run_id}),
            ({"call_id": "c1", "name": "ls", "result": ["a"]}, "toolresult", {"run_id": run_id}),
            ({"call_id": "c2", "name": "rm", "arguments": None}, "toolcall", {"run_id": run_id}),
            ({"call_id": "c2", "name": "rm", "error": "no"}, "toolresult", {"run_id": run_id}),
            ({"error": "again", "retryable": True}, "error", about),
            ({"status": "started", "attempt": 2}, "run", about),
            ("streaming", "status", {"run_id": run_id}),
            ("Hel", "token", {"run_id": run_id, "message_id": "m1"}),
            ({"event": "status", "payload": {"status": "done"}}, "sub_agent",
             {"parent_call_id": "c1", "sub_agent": "s1", "sub_event_id": 3}),
            ({"request_id": "p1", "title": "rm", "call_id": "c2",
              "choices": [{"id": "yes", "name": "Yes", "kind": "allow_once"}]}, "permission", {"run_id": run_id}),
            ("what nobody knows", "future", {}),
        ]:
            gateway.push(session, content, subtype, **metadata)
        last = gateway.ending(session, spoken["id"], "Hello", run_id=run_id, message_id="m1", total_tokens=7)
        for client in one, two:
            await client.seq(last)
            events = {(event["event"], event["seq"]): event["payload"] for event in client.events}
            names = [event["event"] for event in client.events]
            assert names == [
                "message", "status", "status", "thinking", "tool_call", "tool_result", "tool_call", "tool_result",
                "error", "status", "status", "token", "sub_agent", "permission", "final",
            ], names
            assert client.seqs() == sorted(set(client.seqs()))
            payloads = [event["payload"] for event in client.events]
            assert all(payload["sessionId"] == session for payload in payloads)
            assert payloads[0]["fromSelf"] == (client is one) and payloads[0]["role"] == "user"
            assert payloads[0]["metadata"] == {"tool_name": "x"}
            assert payloads[1] == {"status": "started", "attempt": 1, "sessionId": session, "runId": run_id}
            assert payloads[5]["result"] == ["a"] and payloads[7]["error"] == "no"
            assert payloads[8]["retryable"] is True
            assert payloads[11]["content"] == "Hel" and payloads[11]["delta"] is True
            assert payloads[12]["parentCallId"] == "c1" and payloads[12]["payload"] == {"status": "done"}
            assert payloads[13]["choices"][0]["id"] == "yes"
            final = payloads[14]
            assert (final["messageId"], final["content"], final["totalTokens"]) == ("m1", "Hello", 7)
            assert final["runId"] == run_id and events


async def what_other_programs_say_is_seen_like_anything_else():
    with Gateway() as gateway:
        client = await gateway.client()
        session = (await client.request("sessions.new"))["sessionId"]
        seq = gateway.push(session, "from outside", kind="message", source="external:mail:main:dm:x:bob")
        event = await client.seq(seq)
        assert event["payload"]["fromSelf"] is False and event["payload"]["runId"] == f"run_{seq}"
        own = gateway.push(session, "of my own accord", kind="message")
        event = await client.seq(own)
        assert (event["event"], event["payload"]["role"]) == ("message", "assistant")


async def parts_go_through_as_parts():
    with Gateway() as gateway:
        client = await gateway.client()
        parts = [{"type": "text", "text": "look"}, {"type": "custom", "any": 1}]
        session = (await client.request("agent", message=parts))["sessionId"]
        event = await client.wait("message")
        assert event["payload"]["content"] == parts
        history = await client.request("sessions.history")
        assert history["messages"][0]["content"] == parts
        listed = await client.request("sessions.list")
        assert listed["sessions"][0]["title"] == "look" and listed["sessions"][0]["id"] == session


async def a_resend_is_the_same_event():
    with Gateway() as gateway:
        client = await gateway.client()
        session = (await client.request("sessions.new"))["sessionId"]
        first = await client.request("agent", sessionId=session, message="once", idempotencyKey="k1")
        again = await client.request("agent", sessionId=session, message="once", idempotencyKey="k1")
        assert first == again
        # Another connection, with another client id.
        other = await gateway.client()
        assert await other.request("agent", sessionId=session, message="once", idempotencyKey="k1") == first
        assert "different" in await other.refused("agent", sessionId=session, message="twice", idempotencyKey="k1")
        # Another version may have derived another run from the key: the message is the same.
        gateway.push(session, "before", kind="message", source="external:gateway:old:dm:x:y", key="message:k2", run_id="run_elsewhere")
        resent = await client.request("agent", sessionId=session, message="before", idempotencyKey="k2")
        assert resent["runId"] == "run_elsewhere", resent
        assert "different" in await client.refused("agent", sessionId=session, message="after", idempotencyKey="k2")
        assert len([event for event in gateway.events(session) if event["type"] == "message"]) == 2
        assert "sessionId" in await client.refused("agent", message="x", idempotencyKey="k")
        elsewhere = (await client.request("sessions.new"))["sessionId"]
        moved = await client.request("agent", sessionId=elsewhere, message="once", idempotencyKey="k1")
        assert moved["runId"] != first["runId"]


async def senders_of_queued_messages_get_each_new_position():
    with Gateway() as gateway:
        client, other = await gateway.client(), await gateway.client()
        session = (await client.request("sessions.new"))["sessionId"]
        gateway.fake_agent(session)
        await other.request("sessions.switch", sessionId=session)
        first = await client.request("agent", message="1")
        assert first["status"] == "accepted"
        seq = (await client.wait("message"))["seq"]
        gateway.push(session, {"status": "started", "attempt": 1}, "run", run_id=first["runId"], reply_to=seq)
        second = await client.request("agent", message="2")
        third = await client.request("agent", message="3", priority="later")
        assert (second["status"], third["status"]) == ("queued", "queued")
        positions = lambda run: [e["payload"]["position"] for e in client.named("queued") if e["payload"]["runId"] == run]
        await client.wait(lambda event: event["event"] == "queued" and event["payload"]["position"] == 2)
        # A message with priority `next` goes before one with `later`.
        urgent = await other.request("agent", message="4")
        await client.wait(lambda event: event["event"] == "queued" and event["payload"]["position"] == 3)
        status = (await client.request("status"))["session"]
        assert status["activeRun"] == first["runId"] and status["queuedRequests"] == 3 and status["clients"] == 2
        gateway.ending(session, seq, "done", run_id=first["runId"])
        await client.wait(lambda e: e["event"] == "queued" and e["payload"]["runId"] == third["runId"]
                          and e["payload"]["position"] == 2, after=len(client.events) - 1)
        assert positions(second["runId"]) == [1] and positions(third["runId"]) == [2, 3, 2], client.named("queued")
        assert [e["payload"]["runId"] for e in other.named("queued")][0] == urgent["runId"]
        assert all("seq" not in event for event in client.named("queued"))
        assert client.named("queued")[0]["payload"]["requestId"] == "4"


async def a_run_is_cancelled_by_its_name():
    with Gateway() as gateway:
        client, other = await gateway.client(), await gateway.client()
        session = (await client.request("sessions.new"))["sessionId"]
        gateway.fake_agent(session)
        run_id = (await client.request("agent", message="1"))["runId"]
        seq = (await client.wait("message"))["seq"]
        payload = await other.request("agent.cancel", runId=run_id, sessionId=session)
        assert payload == {"message": "Cancellation requested"}
        [cancel] = [event for event in gateway.events(session) if event["subtype"] == "cancel"]
        assert cancel["metadata"]["run_id"] == run_id and cancel["source"].startswith("external:gateway:")
        gateway.ending(session, seq, "somebody asked", "cancelled", run_id=run_id)
        event = await client.wait("cancelled")
        assert event["payload"]["message"] == "somebody asked" and event["payload"]["runId"] == run_id
        assert "no run" in await client.refused("agent.cancel", runId=run_id)
        assert "no run" in await client.refused("agent.cancel", runId="run_none")
        fresh = await gateway.client()
        assert "no session" in await fresh.refused("agent.cancel", runId=run_id)


async def a_permission_is_answered_once():
    with Gateway() as gateway:
        client = await gateway.client()
        session = (await client.request("sessions.new"))["sessionId"]
        choices = [{"id": "a", "name": "Allow", "kind": "allow_once"}, {"id": "r", "name": "Reject", "kind": "reject_once"}]
        about = await gateway.begun(client, session)
        gateway.push(session, {"request_id": "p1", "title": "rm", "call_id": "c", "choices": choices}, "permission", **about)
        event = await client.wait("permission")
        assert event["payload"]["choices"] == choices
        ask = {"sessionId": session, "requestId": "p1"}
        assert "choices" in await client.refused("permission.answer", **ask, choice="x")
        assert await client.request("permission.answer", **ask, choice="a") == {}
        answered = await client.wait(lambda e: e["event"] == "permission" and "choice" in e["payload"])
        assert answered["payload"]["choice"] == "a"
        assert "no permission" in await client.refused("permission.answer", **ask, choice="r")
        assert "no permission" in await client.refused("permission.answer", sessionId=session, requestId="p2", choice="a")
        [stored] = [event for event in gateway.events(session) if event["subtype"] == "permission_answer"]
        assert json.loads(stored["content"]) == {"request_id": "p1", "choice": "a"}


async def sessions_are_made_listed_named_searched_and_removed():
    with Gateway() as gateway:
        client, other = await gateway.client(), await gateway.client()
        made = [await client.request("sessions.new", title=title) for title in ("One", "Two", "Three")]
        ids = [session["sessionId"] for session in made]
        assert [session["title"] for session in made] == ["One", "Two", "Three"]
        await client.request("agent", sessionId=ids[0], message="The needle is here", priority="later")
        untitled = (await client.request("sessions.new"))["sessionId"]
        text = "A first message that is rather long, longer than sixty characters in any case"
        await client.request("agent", message=text)
        page = await client.request("sessions.list")
        assert page["total"] == 4
        assert [session["id"] for session in page["sessions"]] == [untitled, ids[0], ids[2], ids[1]]
        assert page["sessions"][0]["title"] == text[:60].strip()
        first = page["sessions"][1]
        assert (first["title"], first["lastMessage"], first["messageCount"]) == ("One", "The needle is here", 1)
        page = await client.request("sessions.list", limit=1, offset=2)
        assert [session["title"] for session in page["sessions"]] == ["Three"] and page["total"] == 4
        assert (await client.request("sessions.list", offset=10**9))["sessions"] == []

        await other.request("sessions.switch", sessionId=ids[1])
        renamed = await client.request("sessions.rename", sessionId=ids[1], title="Deux")
        assert renamed == {"sessionId": ids[1], "title": "Deux"}
        event = await other.wait("title")
        assert event["payload"]["title"] == "Deux" and event["seq"]
        assert (await client.request("sessions.list", limit=1))["sessions"][0]["title"] == "Deux"

        # All words have to occur, in whatever place; what is quoted is a phrase.
        both = await client.request("sessions.search", query="one  \"needle IS\"")
        assert [(session["id"], "needle" in session["match"]) for session in both["sessions"]] == [(ids[0], True)]
        for query in "needle two", '"is needle"', "one \"needle here\"":
            assert (await client.request("sessions.search", query=query))["sessions"] == [], query
        found = await client.request("sessions.search", query="NEEDLE")
        assert [session["id"] for session in found["sessions"]] == [ids[0]]
        assert "needle" in found["sessions"][0]["match"]
        said = (await client.request("sessions.history", sessionId=ids[0]))["messages"][0]
        assert found["sessions"][0]["matchSeq"] == said["seq"]
        # What tools were given and returned, and errors, are searched too; a title has no place.
        about = {"run_id": said["runId"]}
        for kind, content in ("toolcall", {"call_id": "c", "name": "read", "arguments": {"path": ["/srv/\"quoted\".conf"]}}), \
                ("toolresult", {"call_id": "c", "name": "read", "error": "permission\ndenied"}), \
                ("toolresult", {"call_id": "d", "name": "read", "result": {"port": 8080}}), ("error", {"error": "exploded", "retryable": True}):
            seq = gateway.push(ids[0], json.dumps(content), kind, **about)
            for query in {"toolcall": ['/SRV/"quoted"'], "toolresult": ["8080"] if "result" in content else ["denied"], "error": ["exploded"]}[kind]:
                found = (await client.request("sessions.search", query=query))["sessions"]
                assert [(one["id"], one["matchSeq"]) for one in found] == [(ids[0], seq)], (query, found)
        assert "matchSeq" not in (await client.request("sessions.search", query="three"))["sessions"][0]
        assert [s["id"] for s in (await client.request("sessions.search", query="deux"))["sessions"]] == [ids[1]]
        assert (await client.request("sessions.search", query="nowhere"))["sessions"] == []
        assert len((await client.request("sessions.search", date_filter="today"))["sessions"]) == 4
        assert (await client.request("sessions.search", date_filter="last_week"))["total"] == 0
        assert len((await client.request("sessions.search", date_filter="this_week", limit=2))["sessions"]) == 2
        today = datetime.datetime.now().replace(hour=12)
        last_week = today - datetime.timedelta(days=today.weekday() + 3)
        for session, day in (ids[0], today - datetime.timedelta(days=1)), (ids[2], last_week):
            os.utime(gateway.root / session / "events.jsonl", (day.timestamp(),) * 2)
        for days, expected in ("yesterday", ids[0]), ("last_week", ids[2]):
            found = [s["id"] for s in (await client.request("sessions.search", date_filter=days))["sessions"]]
            assert expected in found and untitled not in found, (days, found)
        found = await client.request("sessions.search", date_filter="yesterday", query="needle")
        assert [session["id"] for session in found["sessions"]] == [ids[0]]

        gateway.fake_agent(ids[1])
        assert await client.request("sessions.delete", sessionId=ids[1]) == {"sessionId": ids[1]}
        assert not (gateway.root / ids[1]).exists()
        event = await other.wait("error")
        assert event["payload"]["errorCode"] == "session_deleted"
        assert (await other.request("status"))["session"] is None
        assert "unknown session" in await client.refused("sessions.switch", sessionId=ids[1])
        assert (await client.request("sessions.list"))["total"] == 3


async def a_session_that_is_moved_away_is_gone_for_its_clients():
    with Gateway() as gateway:
        client = await gateway.client()
        session = (await client.request("sessions.new"))["sessionId"]
        (gateway.root / session).rename(gateway.root / "elsewhere")
        event = await client.wait("error")
        assert event["payload"]["errorCode"] == "session_deleted" and event["payload"]["sessionId"] == session
        assert (await client.request("status"))["session"] is None
        (gateway.root / "elsewhere").rename(gateway.root / session)
        await client.request("agent", sessionId=session, message="back")


async def history_is_read_page_by_page():
    with Gateway() as gateway:
        client = await gateway.client()
        session = (await client.request("sessions.new"))["sessionId"]
        batch = []
        for n in range(1, 26):
            batch.append({"source": "external:a:b:c:d:e", "type": "message", "content": f"q{n}"})
            batch += [{"source": "self", "type": "record", "subtype": "token", "content": "t"}] * 200
            batch.append({"source": "self", "type": "message", "content": f"a{n}", "metadata": {"message_id": f"m{n}"}})
        gateway.thread("push", "--batch", session=session, stdin="\n".join(map(json.dumps, batch)))
        page = await client.request("sessions.history")
        assert len(page["messages"]) == 20 and page["hasMore"]
        assert [m["content"] for m in page["messages"]][-2:] == ["q25", "a25"]
        assert [m["role"] for m in page["messages"]][-2:] == ["user", "assistant"]
        collected, before = [], None
        while True:
            more = {} if before is None else {"before": before}
            page = await client.request("sessions.history", sessionId=session, limit=7, **more)
            collected = [m["content"] for m in page["messages"]] + collected
            # By id or by seq, so that both are tested.
            before = page["messages"][0]["id"] if len(collected) % 2 else page["messages"][0]["seq"]
            if not page["hasMore"]:
                break
        assert collected == [text for n in range(1, 26) for text in (f"q{n}", f"a{n}")]
        assert "no message" in await client.refused("sessions.history", before="nonsense")
        assert len((await client.request("sessions.history", limit=200))["messages"]) == 50
        for limit in 0, 201:
            assert "1 to 200" in await client.refused("sessions.history", limit=limit)
        # It misses nothing by a switch to where it is, so it is to have seen everything before.
        await client.seq(len(batch))
        switched = await client.request("sessions.switch", sessionId=session)
        assert switched["lastSeq"] == len(batch) and len(switched["recentMessages"]) == 20
        assert switched["activeRun"] is None and switched["title"] == "q1"


async def the_steps_of_runs_are_read_page_by_page():
    with Gateway() as gateway:
        client = await gateway.client()
        session = (await client.request("sessions.new"))["sessionId"]
        about = await gateway.begun(client, session)
        for n in range(5):
            gateway.push(session, f"{n}", "thinking", **about)
            gateway.push(session, f"{n}", "token", **about)
            gateway.push(session, "!", "token", **about)
            gateway.push(session, {"call_id": f"c{n}", "name": "n", "arguments": "x" * 300_000}, "toolcall", **about)
        gateway.push(session, "the rest of the answer", "token", **about)
        gateway.push(session, "done", "status", **about)
        gateway.push(session, "the agent's own", "session")
        last = gateway.ending(session, 1, "answer", **about)
        await client.seq(last)
        # What was said between steps is one piece there; what was said last is the end of the answer.
        said = {"!", "the rest of the answer"}
        live = [e for e in client.events if e.get("seq") and e["event"] not in ("message", "final") and e["payload"].get("content") not in said]
        for event in live:
            if event["event"] == "token":
                event["payload"]["content"] += "!"
        assert all(e["time"].endswith("Z") for e in live) and "time" not in client.company[0], client.company
        steps = lambda **params: client.request("sessions.steps", **params)
        # About a mebibyte at once, however many are requested.
        pages, before = [], None
        while not pages or pages[-1]["hasMore"]:
            pages.append(await steps(limit=1000, **({"before": before} if before else {})))
            for event in pages[-1]["events"]:
                EVENT.validate(event)
            before = pages[-1]["events"][0]["seq"]
        assert len(pages) == 2, [len(page["events"]) for page in pages]
        assert [e for page in reversed(pages) for e in page["events"]] == live
        page = await steps(sessionId=session, after=live[2]["seq"], before=live[5]["seq"], limit=1)
        assert page == {"events": [live[4]], "hasMore": True}
        assert await steps(after=live[3]["seq"], before=live[4]["seq"]) == {"events": [], "hasMore": False}
        assert "1 to 1000" in await client.refused("sessions.steps", limit=1001)


async def what_the_agent_says_is_not_divided_by_what_others_do():
    with Gateway() as gateway:
        client = await gateway.client()
        session = (await client.request("sessions.new"))["sessionId"]
        about = await gateway.begun(client, session)
        first = gateway.push(session, "Let me ", "token", **about)
        await client.request("sessions.rename", sessionId=session, title="Ours")
        gateway.push(session, "see.", "token", **about)
        call = gateway.push(session, {"call_id": "c", "name": "ls", "arguments": {}}, "toolcall", **about)
        gateway.push(session, {"call_id": "c", "name": "ls", "result": "x"}, "toolresult", **about)
        gateway.push(session, "There is o", "token", **about)
        # Output from before the agent noticed the request is stored after it.
        await client.request("agent.cancel", sessionId=session, runId=about["run_id"])
        gateway.push(session, "ne file", "token", **about)
        last = gateway.ending(session, 1, "cancelled by test", "cancelled", partial="Let me see.There is one file", **about)
        await client.seq(last)
        steps = lambda **params: client.request("sessions.steps", **params)
        whole = (await steps())["events"]
        assert [e["seq"] for e in whole] == sorted(e["seq"] for e in whole), whole
        said = lambda events: [(e["seq"], e["payload"]["content"]) for e in events if e["event"] == "token"]
        # What was said last is the end of the answer, which history has whole.
        assert said(whole) == [(first, "Let me see.")], whole
        [*_, answer] = (await client.request("sessions.history"))["messages"]
        assert answer["role"] == "cancelled" and answer["content"] == "Let me see.There is one file", answer
        # Wherever a page ends. (The request to cancel is shown to no client, so no page consists of it alone.)
        for limit in range(2, 9):
            pages, before = [], last + 1
            while not pages or pages[0]["hasMore"]:
                pages.insert(0, await steps(limit=limit, before=before))
                before = pages[0]["events"][0]["seq"]
            events = [event for page in pages for event in page["events"]]
            texts = said(events)
            assert (first, "Let me see.") in texts and texts[1:] in ([], [(texts[-1][0], "There is one file")]), (limit, texts)
            assert [e for e in events if e["event"] != "token"] == [e for e in whole if e["event"] != "token"], limit
        assert said((await steps(after=first, before=call))["events"])[-1][1] == "see."


async def the_list_says_what_a_session_needs():
    with Gateway() as gateway:
        client = await gateway.client()
        session = (await client.request("sessions.new"))["sessionId"]

        async def needs():
            [listed] = (await client.request("sessions.list"))["sessions"]
            return listed.get("state"), listed.get("since")

        assert await needs() == (None, None)
        gateway.fake_agent(session)
        run_id = (await client.request("agent", message="go"))["runId"]
        said = await client.wait("message")
        assert await needs() == ("waiting", said["time"])
        about = {"run_id": run_id}
        began = gateway.push(session, {"status": "started", "attempt": 1}, "run", reply_to=said["seq"], **about)
        began = (await client.seq(began))["time"]
        assert await needs() == ("running", began)
        choices = [{"id": "y", "name": "Yes", "kind": "allow_once"}]
        gateway.push(session, {"request_id": "p", "title": "rm", "call_id": None, "choices": choices}, "permission", **about)
        assert await needs() == ("asks", began)
        await client.wait("permission")
        await client.request("permission.answer", sessionId=session, requestId="p", choice="y")
        assert await needs() == ("running", began)
        # It looks like the end of the run, but is not.
        gateway.push(session, {"error": "no", "retryable": False}, "error", reply_to=said["seq"], **about)
        assert await needs() == ("running", began)
        gateway.ending(session, said["seq"], {"error": "no", "retryable": False}, "error", **about)
        assert await needs() == ("failed", None)
        run_id = (await client.request("agent", message="again"))["runId"]
        assert (await needs())[0] == "waiting"
        said = await client.wait(lambda e: e["payload"].get("content") == "again")
        gateway.ending(session, said["seq"], "answer", run_id=run_id)
        assert await needs() == (None, None)


async def nothing_is_before_the_beginning():
    with Gateway() as gateway:
        client = await gateway.client()
        session = (await client.request("agent", message="hello"))["sessionId"]
        await client.wait("message")
        newest = (await client.request("sessions.history"))["messages"]
        for before in -2**63, -2**63 + 1, -1, 0, 1:
            try:
                page = await client.call("sessions.history", {"before": before}, checked=False)
                assert page["messages"] == [] and page["hasMore"] is False, (before, page)
            except Refused as e:
                assert "before" in str(e) or "no message" in str(e), (before, e)
            status, _, body = ask(gateway, f"/api/v1/agent/history?threadId={session}&before={before}",
                                  Authorization="Bearer " + gateway.token)
            assert status == 400 or status == 200 and json.loads(body)["messages"] == [], (before, status, body)
        page = await client.request("sessions.history", before=2**63 - 1)
        assert page["messages"] == newest and newest


async def a_switch_with_after_leaves_no_gap_and_no_double():
    with Gateway() as gateway:
        writer, reader = await gateway.client(), await gateway.client()
        session = (await writer.request("sessions.new"))["sessionId"]
        stop = asyncio.Event()

        async def write():
            n = 0
            while not stop.is_set():
                lines = [json.dumps({"source": "self", "type": "record", "subtype": "token", "content": f"t{n + i}"})
                         for i in range(50)]
                await asyncio.to_thread(gateway.thread, "push", "--batch", session=session, stdin="\n".join(lines))
                n += 50

        writing = asyncio.create_task(write())
        await reader.request("sessions.switch", sessionId=session)
        for _ in range(20):
            await reader.wait("token", after=len(reader.events))
            if len(reader.events) % 3:
                await reader.close()
                events, seen = reader.events, reader.events[-1]["seq"]
                reader = await gateway.client()
                # Sometimes it enters another session first.
                if len(events) % 2:
                    await reader.request("sessions.new")
                # The events after a switch continue the list of those before.
                switched = await reader.request("sessions.switch", sessionId=session, after=seen)
                assert reader.events == [] or reader.events[0]["seq"] == seen + 1
                assert switched["lastSeq"] >= seen
                reader.events = events + reader.events
            else:
                # A switch to the current session: no gaps, no duplicates.
                await reader.request("sessions.switch", sessionId=session)
        stop.set()
        await writing
        last = gateway.push(session, "end", "token")
        await reader.seq(last)
        seqs = reader.seqs()
        wrong = [(a, b) for a, b in zip(seqs, seqs[1:]) if b != a + 1]
        assert not wrong and seqs[-1] == last, wrong
        # An id that does not exist yet counts as the newest.
        await reader.request("sessions.switch", sessionId=session, after=10**12)
        last = gateway.push(session, "end", "token")
        await reader.seq(last)


async def all_clients_that_enter_at_the_same_moment_get_the_events():
    with Gateway() as gateway:
        clients = [await gateway.client() for _ in range(20)]
        for _ in range(5):
            session = (await clients[0].request("sessions.new"))["sessionId"]
            await clients[0].request("sessions.new")
            elsewhere = (await clients[0].request("status"))["session"]["id"]
            for client in clients:
                await client.request("sessions.switch", sessionId=elsewhere)
            # Until the session has no follower.
            while (await clients[0].request("status"))["gateway"]["activeSessions"] > 1:
                await asyncio.sleep(0.05)
            await asyncio.gather(*(client.request("sessions.switch", sessionId=session) for client in clients))
            # A new follower reads once without a notification, so the second event needs one.
            for content in "first " + session, "second " + session:
                await asyncio.to_thread(gateway.push, session, content, "token")
                for client in clients:
                    await client.wait(lambda event: event["payload"].get("content") == content)


async def a_client_sees_only_the_session_it_is_in():
    with Gateway() as gateway:
        client = await gateway.client()
        one = (await client.request("sessions.new"))["sessionId"]
        two = (await client.request("sessions.new"))["sessionId"]
        gateway.push(one, "unseen", "token")
        seq = gateway.push(two, "seen", "token")
        await client.wait(lambda event: event["event"] == "token")
        assert [event["payload"]["content"] for event in client.named("token")] == ["seen"] and seq
        # Sending a message to another session enters it.
        await client.request("agent", sessionId=one, message="here")
        gateway.push(two, "unseen", "token")
        gateway.push(one, "seen too", "token")
        await client.wait(lambda event: event["payload"].get("content") == "seen too")
        assert [event["payload"]["content"] for event in client.named("token")] == ["seen", "seen too"]


async def commands_are_answered_to_their_sender_alone_and_not_stored():
    with Gateway() as gateway:
        client, other = await gateway.client(), await gateway.client()

        async def say(text):
            at = len(client.events)
            payload = await client.request("agent", message=text)
            assert payload["status"] == "accepted" and payload["runId"] is None
            event = await client.wait(lambda e: e["event"] == "message" and e["payload"]["role"] == "system", after=at)
            assert "seq" not in event
            return event["payload"]["content"]

        assert "/new [@agent] [title]" in await say("/help")
        assert "no sessions" in await say("/sessions")
        assert "no session" in await say("/history")
        assert "new session" in await say("/new First one")
        [one] = [s["id"] for s in (await client.request("sessions.list"))["sessions"]]
        await other.request("sessions.switch", sessionId=one)
        assert await say("/history") == "Nothing has been said yet."
        gateway.fake_agent(one)
        run_id = (await client.request("agent", message="hello"))["runId"]
        await client.wait(lambda e: e["payload"].get("content") == "hello")
        assert "user: hello" in await say("/history 5")
        assert "1 to 200" in await say("/history many")
        assert "No run" in await say("/cancel")
        seq = [e["seq"] for e in client.events if e["payload"].get("content") == "hello"][0]
        gateway.push(one, {"status": "started", "attempt": 1}, "run", run_id=run_id, reply_to=seq)
        assert run_id in await say("/cancel")
        assert run_id in await say("/status")
        assert "new session" in await say("/new")
        listed = await say("/sessions")
        assert listed.splitlines()[1].startswith("2. First one") or listed.splitlines()[0].startswith("1. First one")
        number = [line for line in listed.splitlines() if "First one" in line][0][0]
        assert "First one" in await say(f"/session {number}")
        assert (await client.request("status"))["session"]["id"] == one
        assert "First one" in await say(f"/session {one}")
        assert "Name a session" in await say("/session 99")
        await client.request("agent", message="//literally")
        await client.wait(lambda e: e["payload"].get("content") == "/literally")
        # Other text that begins with a slash is an ordinary message.
        others = ["/nonsense", "/etc/hosts is empty", "/", "/ help", "/helpful", "//", "/HELP"]
        for text in others:
            assert (await client.request("agent", message=text))["runId"], text
        said = [event["content"] for event in gateway.events(one) if event["type"] == "message"]
        assert said == ["hello", "/literally", *(text.replace("//", "/") for text in others)], said
        await other.wait(lambda e: e["payload"].get("content") == "/literally")
        assert not [e for e in other.events if e["payload"].get("role") == "system"]


async def later_errors_are_responses_and_the_connection_stays():
    with Gateway() as gateway:
        client = await gateway.client()
        nowhere = str(uuid.uuid4())
        assert "unknown method 'nonsense'" in await client.refused("nonsense")
        for method in "sessions.switch", "sessions.delete", "sessions.rename", "sessions.history", "status":
            assert "unknown session" in await client.refused(method, sessionId=nowhere, title="x"), method
            assert "unknown session" in await client.refused(method, sessionId="../..", title="x"), method
        assert "unknown session" in await client.refused("agent", sessionId=nowhere, message="x")
        for method, params in [
            ("agent", {}), ("agent", {"message": 1}), ("agent", {"message": ""}), ("agent", {"message": []}),
            ("agent", {"message": [{"text": "x"}]}), ("agent", {"message": "x", "metadata": 1}),
            ("agent.cancel", {}), ("sessions.list", {"limit": 0}), ("sessions.list", {"limit": 101}),
            ("sessions.list", {"limit": "x"}), ("sessions.list", {"offset": -1}), ("sessions.search", {"limit": 101}),
            ("permission.answer", {}), ("agent", {"message": "x", "idempotencyKey": 1}), ("sessions.new", {"title": " "}), ("sessions.switch", {}),
            ("sessions.search", {"date_filter": "never"}), ("sessions.rename", {"sessionId": nowhere, "title": ""}),
        ]:
            assert "bad params" in await client.refused(method, **params), (method, params)
        assert (await client.request("sessions.list"))["total"] == 0
        assert (await client.request("status"))["gateway"]["activeConnections"] == 1


async def from_self_survives_a_reconnect():
    with Gateway() as gateway:
        client = await gateway.client(clientId="Ada's phone")
        session = (await client.request("agent", message="mine"))["sessionId"]
        await client.wait("message")
        await client.close()
        client, other = await gateway.client(clientId="Ada's phone"), await gateway.client(clientId="ada")
        for who, own in (client, True), (other, False):
            await who.request("sessions.switch", sessionId=session, after=0)
            assert [e["payload"]["fromSelf"] for e in who.named("message")] == [own]


if __name__ == "__main__":
    run(globals())
