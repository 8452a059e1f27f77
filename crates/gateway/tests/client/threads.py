"""Reading threads and their consumers over HTTP, and acting on them."""

import asyncio
import contextlib
import datetime
import json
import pathlib
import shutil
import sqlite3
import subprocess
import threading
import time
import urllib.parse
import uuid

from harness import LONG, PATIENCE, SERVE, THREAD, Gateway, run
from look import Look, Queues, with_httpx

MANY = 2000 if LONG else 600


def until(is_so):
    """Waits until something is so."""
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


@with_httpx
async def every_thread_is_in_the_list_and_those_that_are_named_are_not_served():
    with Queues("inbox") as queues:
        look, gateway = queues.look, queues.gateway
        client = await gateway.client()
        session = (await client.request("sessions.new", title="Invoices May"))["sessionId"]
        gateway.thread("init", gateway.root / session / "agents" / "helper-1")
        listed = look.until(lambda answer: answer["total"] == 3 and not answer["unread"])
        assert [thread["kind"] for thread in listed["threads"]][0] == "thread" and not listed["read_only"]
        named, own, sub = (look.entry(id) for id in ("inbox", session, f"{session}~helper-1"))
        assert named["path"] == str(queues.dir / "inbox") and "parent" not in named and named["events"] == 0
        assert own["kind"] == "session" and own["title"] == "Invoices May" and own["path"].endswith(session)
        assert sub["kind"] == "sub_agent" and sub["parent"] == session and sub["name"] == "helper-1"
        assert look.get(f"/{session}~helper-1")["path"].endswith(f"{session}/agents/helper-1")
        assert len(look.get(limit=1)["threads"]) == 1 and not look.get(offset=3)["threads"]

        # Pending work is started in sessions, and nowhere else.
        off = {"THREAD_NOTIFIER": "off", "PATH": "/usr/bin:/bin"}
        for place in queues.dir / "inbox", gateway.root / session:
            queues.run("subscribe", "-t", place, "done", "--deliver", "stdin", "--filter", "type = 'message'", "true")
            queues.run("push", "-t", place, "hello", env=off)
        look.until_consumer(session, "done", lambda one: one["pending"] == 0 and one["runs_succeeded"] == 1)
        time.sleep(2)
        assert look.consumer("inbox", "done")["pending"] == 1
        assert not look.get("/inbox/consumers/done/runs")["runs"]
        # A push by the gateway wakes its consumers, as one on the command line does.
        look.post("/inbox/events", {"source": "me", "type": "message", "content": "again"}, 201)
        one = look.until_consumer("inbox", "done", lambda one: one["pending"] == 0)
        assert one["cursor"] == 2 and look.entry("inbox")["rate"][-2:] in ([0, 2], [1, 1], [2, 0])


@with_httpx
async def a_stalled_consumer_is_found_and_resumed():
    with Queues("inbox") as queues:
        look = queues.look
        handler = 'echo no price for anvil; test -e "$THREAD_DIR"/../priced'
        queues.thread("inbox", "subscribe", "mailer", handler, "--deliver", "stdin", "--max-attempts", "1", "--stall-after", "1",
                      "--backoff", "10ms")
        first = queues.push("inbox")
        look.until_consumer("inbox", "mailer", lambda one: one["dead"] == 1)
        second = queues.push("inbox")
        one = look.until_consumer("inbox", "mailer", lambda one: one["state"] == "stalled")
        assert one["reason"].startswith("out of attempts") and one["since"] == one["last_run"]["ended_at"]
        assert one["last_run"]["said"] == "no price for anvil" and one["last_run"]["exit"] == 1
        assert (one["pending"], one["oldest_pending_id"], one["cursor"]) == (1, second, first)
        assert any("thread resume mailer" in note for note in one["notes"])
        # A later event starts it once more, but it counts as stalled since it first gave up.
        for failed in 3, 4:
            queues.push("inbox")
            again = look.until_consumer("inbox", "mailer", lambda found: found["state"] == "stalled" and found["runs_failed"] == failed)
            assert again["since"] == one["since"] < again["last_run"]["ended_at"]
        entry = look.until(lambda answer: answer["threads"][0]["consumers"]["stalled"])["threads"][0]
        assert "mailer: stalled (out of attempts" in entry["attention"] and "dead (1 event" in entry["attention"]
        assert entry["oldest_pending_at"] == one["oldest_pending_at"] and entry["consumers"]["attention"] == 1

        (queues.dir / "priced").touch()
        assert look.post("/inbox/consumers/mailer/resume", {})["state"] in ("idle", "running")
        look.until_consumer("inbox", "mailer", lambda one: one["state"] == "idle" and one["pending"] == 0)
        assert look.post("/inbox/dead/retry", {"consumer": "mailer", "ids": [first]}) == {"consumer": "mailer", "retried": 1}
        look.until_consumer("inbox", "mailer", lambda one: one["dead"] == 0)
        look.until(lambda answer: "attention" not in answer["threads"][0] and not answer["threads"][0]["consumers"]["attention"])

        # A pause is shown also while a run continues.
        paused = look.post("/inbox/consumers/mailer/pause", {})
        assert paused["state"] == "paused" and paused["paused"]
        queues.push("inbox")
        assert look.consumer("inbox", "mailer")["pending"] == 1
        look.post("/inbox/consumers/mailer/resume", {})
        look.until_consumer("inbox", "mailer", lambda one: one["pending"] == 0)
        for verb in "pause", "resume", "stop":
            assert "'nobody'" in look.refused(404, f"/inbox/consumers/nobody/{verb}", {})


@with_httpx
async def dead_letters_are_retried_by_reason_and_some_are_discarded():
    with Queues("inbox") as queues:
        look = queues.look
        handler = """read -r line; case $line in
            *apple*) test -e "$THREAD_DIR"/../apples || { echo no apples; exit 1; };;
            *pear*) echo no pears; exit 65;; esac"""
        queues.thread("inbox", "subscribe", "cook", handler, "--deliver", "stdin", "--max-attempts", "1", "--batch-size", "1")
        for content in "apple", "pear", "soup", "apple", "pear", "apple":
            queues.push("inbox", content)
        page = look.until(lambda answer: answer["total"] == 5, "/inbox/dead")
        assert [letter["id"] for letter in page["dead"]] == [6, 5, 4, 2, 1]
        reason = "exit 1: no apples"
        assert page["reasons"] == [
            {"consumer": "cook", "reason": reason, "count": 3},
            {"consumer": "cook", "reason": "exit 65: no pears", "count": 2},
        ]
        assert page["dead"][0]["event"]["content"] == "apple" and page["dead"][0]["attempts"] == 1
        # Page by page it is the same.
        seen, before = [], {}
        while True:
            part = look.get("/inbox/dead", limit=2, **before)
            seen += [letter["id"] for letter in part["dead"]]
            if "next_before" not in part:
                break
            before = {"before": part["next_before"]}
        assert seen == [6, 5, 4, 2, 1]
        assert look.get("/inbox/dead", reason=reason, limit=1)["total"] == 3
        assert look.get("/inbox/dead", consumer="other")["total"] == 0

        for body in {}, {"ids": [1], "all": True}, {"ids": [1], "reason": reason}, {"all": False}, {"al": True}, {"ids": ["1"]}:
            look.refused(400, "/inbox/dead/retry", {"consumer": "cook", **body})
        # An id that is not a dead letter: nothing is changed.
        assert "event 3 " in look.refused(404, "/inbox/dead/discard", {"consumer": "cook", "ids": [2, 3]})
        assert look.get("/inbox/dead")["total"] == 5

        (queues.dir / "apples").touch()
        assert look.post("/inbox/dead/retry", {"consumer": "cook", "reason": reason})["retried"] == 3
        page = look.until(lambda answer: answer["total"] == 2, "/inbox/dead")
        assert look.get("/inbox/events/2")["dead"][0]["reason"] == "exit 65: no pears"
        assert look.post("/inbox/dead/discard", {"consumer": "cook", "ids": [2]})["discarded"] == 1
        assert [letter["id"] for letter in look.get("/inbox/dead")["dead"]] == [5]
        handled = look.get("/inbox/events/5")["handled"]
        assert [(one["consumer"], one["outcome"]) for one in handled] == [("cook", "dead")]
        assert look.post("/inbox/dead/discard", {"consumer": "cook", "all": True})["discarded"] == 1
        assert look.post("/inbox/dead/discard", {"consumer": "cook", "all": True})["discarded"] == 0
        assert look.refused(404, "/inbox/dead/discard", {"consumer": "nobody", "all": True})
        queues.thread("inbox", "subscribe", "popper", "true", "--filter", "0")
        assert "pops for itself" in look.refused(409, "/inbox/dead/retry", {"consumer": "popper", "all": True})


@with_httpx
async def steps_are_seen_and_forgotten_and_an_event_of_a_pool_is_tried_at_once():
    with Queues("inbox") as queues:
        look = queues.look
        handler = """set -e; cat >/dev/null
            thread step note -- sh -c 'echo $THREAD_EVENT_ID >>"$THREAD_DIR"/../noted; echo noted'
            thread sleep pause 10m
            test -e "$THREAD_DIR"/../open"""
        queues.thread("inbox", "subscribe", "pool", handler, "--deliver", "stdin", "--concurrency", "2", "--backoff", "1h")
        asleep = queues.push("inbox", "first")
        detail = lambda id: look.get(f"/inbox/events/{id}")
        standing = lambda id: detail(id)["handled"][0]
        look.until(lambda answer: "wait" in answer["handled"][0], f"/inbox/events/{asleep}")
        note, pause = detail(asleep)["steps"]
        assert (note["name"], note["kind"], note["state"], note["consumer"]) == ("note", "step", "done", "pool")
        assert "ended" in note and "until" not in note and note["words"].startswith("sh -c")
        assert (pause["name"], pause["kind"], pause["state"], pause["words"]) == ("pause", "sleep", "waiting", "10m")
        wait = standing(asleep)["wait"]
        assert wait["is_asleep"] and wait["attempts"] == 0 and wait["until"] == pause["until"]
        assert standing(asleep)["outcome"] == "pending"

        # A step that is forgotten is done again by the next run.
        forget = lambda **body: look.post("/inbox/consumers/pool/forget_step", {"event": asleep, **body})
        assert forget(name="note")["name"] == "pool"
        assert [step["name"] for step in detail(asleep)["steps"]] == ["pause"]
        assert "note" in look.refused(404, "/inbox/consumers/pool/forget_step", {"event": asleep, "name": "note"})
        look.refused(400, "/inbox/consumers/pool/forget_step", {"event": asleep})
        look.refused(404, "/inbox/consumers/nobody/forget_step", {"event": asleep, "name": "pause"})
        assert forget(name="pause")["name"] == "pool"
        look.post("/inbox/consumers/pool/resume", {"event": asleep})
        look.until(lambda answer: len(answer["steps"]) == 2 and "wait" in answer["handled"][0], f"/inbox/events/{asleep}")
        assert (queues.dir / "noted").read_text() == f"{asleep}\n" * 2

        # One that is finished before an earlier one is done, not pending.
        (queues.dir / "open").touch()
        quick = ["subscribe", "quick", 'grep -q second || test -e "$THREAD_DIR"/../go', "--deliver", "stdin", "--batch-size", "1", "--concurrency", "2", "--backoff", "1h"]
        queues.thread("inbox", *quick)
        held, done = queues.push("inbox", "held"), queues.push("inbox", "second")
        of = lambda answer: next(one for one in answer["handled"] if one["consumer"] == "quick")
        look.until(lambda answer: of(answer)["outcome"] == "acknowledged", f"/inbox/events/{done}")
        look.until(lambda answer: of(answer).get("wait", {}).get("attempts") == 1, f"/inbox/events/{held}")
        assert not of(detail(held))["wait"]["is_asleep"]
        (queues.dir / "go").touch()
        look.post("/inbox/consumers/quick/resume", {"event": held})
        look.until(lambda answer: of(answer)["outcome"] == "acknowledged", f"/inbox/events/{held}")
        look.refused(409, "/inbox/consumers/quick/resume", {"event": held})
        # What is done is given again.
        runs = look.consumer("inbox", "quick")["runs_succeeded"]
        look.post("/inbox/consumers/quick/redo", {"event": held})
        look.until_consumer("inbox", "quick", lambda one: one["runs_succeeded"] == runs + 1 and one["dead"] == 0)
        look.refused(404, "/inbox/consumers/quick/redo", {"event": 999})
        look.refused(409, "/inbox/consumers/pool/redo", {"event": asleep})
        queues.thread("inbox", "subscribe", "plain", "true", "--deliver", "stdin")
        assert "everything up to one event" in look.refused(409, "/inbox/consumers/plain/resume", {"event": held})


@with_httpx
async def dead_letters_of_kept_handlers_are_retried():
    with Queues("inbox") as queues:
        look = queues.look
        handler = f"""while read -r line; do id=$(printf '%s' "$line" | sed 's/.*"id":\\([0-9]*\\).*/\\1/')
            if test -e "$THREAD_DIR"/../open; then echo "{{\\"ack\\":$id}}"; else echo "{{\\"nack\\":$id,\\"error\\":\\"closed\\"}}"; fi; done"""
        queues.thread("inbox", "subscribe", "kept", handler, "--deliver", "ndjson", "--max-attempts", "1", "--stall-after", "never")
        id = queues.push("inbox")
        look.until(lambda answer: answer["total"] == 1, "/inbox/dead")
        (queues.dir / "open").touch()
        assert look.post("/inbox/dead/retry", {"consumer": "kept", "ids": [id]})["retried"] == 1
        look.until(lambda answer: answer["total"] == 0, "/inbox/dead")


@with_httpx
async def a_cursor_is_moved_and_what_follows_is_handled_again():
    with Queues("inbox") as queues:
        look = queues.look
        queues.thread("inbox", "subscribe", "all", 'cat >>"$THREAD_DIR"/../seen', "--deliver", "stdin")
        for _ in range(3):
            queues.push("inbox")
        done = lambda one: one["pending"] == 0 and one["state"] == "idle"
        look.until_consumer("inbox", "all", done)
        look.post("/inbox/consumers/all/pause", {})
        seek = lambda to: look.post("/inbox/consumers/all/seek", {"to": to})
        assert (seek("earliest")["cursor"], seek("latest")["cursor"], seek(1)["cursor"], seek("2")["cursor"]) == (0, 3, 1, 2)
        assert (seek("1h")["cursor"], seek("2000-01-01")["cursor"], seek(99)["cursor"]) == (0, 0, 3)
        for to in -1, 1.5, None, "", "yesterday", "-1", "9" * 30, [], {}, "1" * 5000 + "h":
            look.refused(400, "/inbox/consumers/all/seek", {"to": to})
        look.refused(400, "/inbox/consumers/all/seek", {})
        assert look.consumer("inbox", "all")["cursor"] == 3
        before = len((queues.dir / "seen").read_text().splitlines())
        seek(1)
        look.post("/inbox/consumers/all/resume", {})
        look.until_consumer("inbox", "all", done)
        assert len((queues.dir / "seen").read_text().splitlines()) == before + 2


@with_httpx
async def a_running_handler_is_stopped():
    with Queues("inbox") as queues:
        look = queues.look
        queues.thread("inbox", "subscribe", "slow", "echo begun; trap '' TERM; sleep 3600", "--deliver", "stdin")
        queues.push("inbox")
        one = look.until_consumer("inbox", "slow", lambda one: one["state"] == "running" and "pid" in one.get("run", {}))
        assert pathlib.Path(f"/proc/{one['run']['pid']}").exists() and one["run"]["attempt"] == 1
        run = f"/inbox/consumers/slow/runs/{one['run']['id']}"
        under_way = look.until(lambda answer: answer.get("output") == "begun\n", run)
        assert under_way["outcome"] == "running" and "ended_at" not in under_way and under_way["first_event"] == 1
        stopped = look.post("/inbox/consumers/slow/stop", {"kill_after_ms": 200})
        assert stopped["state"] == "stalled" and stopped["reason"] == "stopped"
        until(lambda: not pathlib.Path(f"/proc/{one['run']['pid']}").exists())
        # It is the same run, under the same address.
        assert look.get(run)["outcome"] == "stopped" and look.get(run)["output"].startswith("begun\n")
        assert "not running" in look.refused(409, "/inbox/consumers/slow/stop", {})
        look.post("/inbox/consumers/slow/resume", {})
        look.until_consumer("inbox", "slow", lambda one: one["state"] == "running")
        skipped = look.post("/inbox/consumers/slow/stop", {"skip": True, "kill_after_ms": 200})
        assert skipped["cursor"] == 1 and skipped["pending"] == 0


@with_httpx
async def a_run_has_its_output_and_an_event_what_became_of_it():
    with Queues("inbox") as queues:
        look = queues.look
        say = lambda subtype, content: f"thread push --type record --subtype {subtype} '{json.dumps(content)}' >/dev/null"
        handler = "; ".join([
            "cat >/dev/null",
            say("toolcall", {"call_id": "c", "name": "read", "arguments": {}}),
            say("toolresult", {"call_id": "c", "name": "read", "result": 1}),
            say("mine", "x"),
            "head -c 300000 /dev/zero | tr '\\0' y; echo; printf 'the end\\377'; exit 3",
        ])
        path = f"{pathlib.Path(THREAD).parent}:/usr/bin:/bin"
        queues.thread("inbox", "subscribe", "worker", handler, "--deliver", "stdin", "--max-attempts", "1", "--batch-size", "1",
                      "--filter", "type = 'message'", "--env", f"PATH={path}", "--env", "SECRET=hunter2")
        queues.push("inbox", "hello")
        look.until_consumer("inbox", "worker", lambda one: one["dead"] == 1)
        assert "hunter2" not in json.dumps(look.get("/inbox"))
        assert look.consumer("inbox", "worker")["settings"]["env"] == ["PATH", "SECRET"]
        [run] = look.get("/inbox/consumers/worker/runs")["runs"]
        assert (run["outcome"], run["exit"], run["events"], run["first_event"]) == ("dead", 3, 1, 1)
        whole = look.get(f"/inbox/consumers/worker/runs/{run['id']}")
        assert whole["output"].startswith("yyy") and whole["output"].endswith("y\nthe end\ufffd")
        assert whole["output_truncated"] and 300_000 < whole["output_bytes"] < 300_020
        assert [event["content"] for event in whole["handled"]] == ["hello"]
        assert [event["id"] for event in whole["stored"]] == [2, 3, 4]
        trace = look.get("/inbox/events/1/trace")
        assert trace["event"]["content"] == "hello" and not trace["is_truncated"]
        bars = [(bar["kind"], bar["depth"], bar["label"], bar.get("ended")) for bar in trace["bars"]]
        worker, waiting, tried, dead = trace["bars"]
        assert bars == [("consumer", 0, "worker", "dead"), ("waiting", 1, "", None), ("run", 1, "attempt 1", "dead"),
                        ("dead", 1, "exit 3: the end\ufffd", "dead")], bars
        assert waiting["at_ms"] == 0 and tried["at_ms"] == waiting["duration_ms"] and tried["run"] == run["id"]
        assert tried["given"] == "the end\ufffd" and dead["at_ms"] >= tried["at_ms"] + tried["duration_ms"] - 1
        # Nothing was done about an event that nobody wants.
        assert look.get("/inbox/events/2/trace")["bars"] == []
        look.refused(404, "/inbox/events/99/trace")
        for missing in "0", "x", "-1", "1" * 40, "%20":
            look.refused(404, f"/inbox/consumers/worker/runs/{missing}")
        assert look.refused(404, "/inbox/consumers/nobody/runs")
        # Pages of many runs.
        for _ in range(6):
            queues.push("inbox", "more")
        look.until(lambda answer: len(answer["runs"]) == 7, "/inbox/consumers/worker/runs")
        seen, before = [], {}
        while before is not None:
            part = look.get("/inbox/consumers/worker/runs", limit=3, **before)
            seen += [(run["started_at"], run["id"]) for run in part["runs"]]
            before = {"before": part["next_before"]} if "next_before" in part else None
        assert len(set(seen)) == 7 and seen == sorted(seen, reverse=True)
        # Those of a time, also if they began before it.
        ids = lambda **which: [run["id"] for run in look.get("/inbox/consumers/worker/runs", **which)["runs"]]
        ended = look.until(lambda answer: all("ended_at" in run for run in answer["runs"]), "/inbox/consumers/worker/runs")["runs"]
        last = ended[2]["ended_at"]
        assert ids(**{"from": last}) == [run["id"] for run in ended if run["ended_at"] >= last]
        look.refused(400, "/inbox/consumers/worker/runs", **{"from": "yesterday"})


@with_httpx
async def events_are_browsed_from_the_newest_on():
    with Queues("inbox") as queues:
        look = queues.look
        lines = "".join(json.dumps({"source": "me", "type": "message", "content": {"n": n}}) + "\n" for n in range(1, 121))
        queues.thread("inbox", "push", "--batch", stdin=lines)
        seen, before = [], {}
        while before is not None:
            page = look.get("/inbox/events", limit=50, **before)
            seen += [event["id"] for event in page["events"]]
            before = {"before": page["next_before"]} if "next_before" in page else None
        assert seen == list(range(120, 0, -1))
        ids = lambda **params: [event["id"] for event in look.get("/inbox/events", **params)["events"]]
        assert ids(after=117) == [120, 119, 118] and ids(before=3) == [2, 1] and ids(before=50, after=47) == [49, 48]
        assert ids(filter="content ->> '$.n' % 40 = 0") == [120, 80, 40]
        assert ids(filter="content ->> '$.n' % 40 = 0", before=80) == [40] and ids(filter="0") == []
        for filter in "nonsense(", "1; DROP TABLE events", "(SELECT 1)", "load_extension('x')":
            assert "filter" in look.refused(400, "/inbox/events", filter=filter)
            assert "filter" in look.refused(400, "/inbox/events/stream", filter=filter)
        for params in {"before": "x"}, {"limit": "-1"}, {"limit": "many"}, {"after": "1.5"}:
            look.refused(400, "/inbox/events", **params)
        # A filter that fails on an event is reported.
        text = queues.push("inbox", "no JSON")
        failing = "CASE WHEN json_valid(content) THEN content ->> '$.n' = 120 ELSE json_extract('{}', content) END"
        page = look.get("/inbox/events", filter=failing)
        assert [event["id"] for event in page["events"]] == [120]
        assert page["filter_failures"] == {"events": 1, "message": "bad JSON path: 'no JSON'"}

        # Whatever the size of an event.
        content = "ä" * 1_500_000
        large = queues.push("inbox", content, "--meta", f"long={'x' * 5000}")
        shown = look.get("/inbox/events", limit=1)["events"][0]
        assert shown["content"] == "ä" * 2048 and shown["content_bytes"] == 3_000_000
        assert "metadata" not in shown and shown["metadata_bytes"] > 5000
        event = look.get(f"/inbox/events/{large}")
        assert event["event"]["content"] == "ä" * (512 * 1024) and event["event"]["metadata"]["long"].startswith("xx")
        assert event["previous"] == text and "next" not in event
        assert look.http.get(event["content_url"]).text == content
        assert look.get(f"/inbox/events/{text}")["next"] == large
        for missing in 0, -1, 999, 2**63 - 1:
            look.refused(404, f"/inbox/events/{missing}")
            look.refused(404, f"/inbox/events/{missing}/content")


@with_httpx
async def an_event_is_stored_once_and_only_if_it_is_one():
    with Queues("inbox") as queues:
        look = queues.look
        event = {"source": "me", "type": "record", "subtype": "note", "content": "ä\n\u0000", "metadata": {"a": [1]}}
        stored = look.post("/inbox/events", {**event, "idempotency_key": "k"}, 201)
        again = look.post("/inbox/events", {**event, "idempotency_key": "k"}, 201)
        assert (stored["deduplicated"], again["deduplicated"], again["id"]) == (False, True, stored["id"])
        kept = look.get(f"/inbox/events/{stored['id']}")["event"]
        assert {key: kept[key] for key in event} == event
        assert "key" in look.refused(409, "/inbox/events", {**event, "content": "other", "idempotency_key": "k"})
        reserved = look.refused(400, "/inbox/events", {**event, "idempotency_key": "thread:end:2"})
        assert "keys that begin with 'thread:' are made by the programs; choose another" in reserved, reserved
        bad = [
            {**event, "type": "other"}, {**event, "source": ""}, {**event, "source": "a\nb"}, {**event, "meta": 1},
            {**event, "metadata": []}, {"source": "me", "type": "message"}, {**event, "idempotency_key": ""},
            {**event, "content": {}}, [], "x", None,
        ]
        for body in bad:
            look.refused(400, "/inbox/events", body if body is not None else [])
        assert look.http.post("/api/v1/threads/inbox/events", content=b"{}").status_code == 415
        assert look.http.post("/api/v1/threads/inbox/events", json={**event, "content": "x" * 3_000_000}).status_code == 413
        assert look.get("/inbox")["events"] == 1


@with_httpx
async def what_is_scheduled_is_cancelled_or_made_an_event_now():
    with Queues("inbox") as queues:
        look = queues.look
        at = (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        later = {"source": "me", "type": "message", "at": at}
        first, second = (look.post("/inbox/events", {**later, "content": text}, 201) for text in ("one", "two"))
        assert (first["scheduled"], second["scheduled"], second["scheduled_at"]) == ("s1", "s2", at)
        found = look.get("/inbox")
        assert (found["scheduled"], [one["id"] for one in found["to_come"]]) == (2, ["s1", "s2"])
        # The list of all threads counts them, too.
        look.until(lambda answer: answer["threads"][0].get("scheduled") == 2, "")
        assert look.post("/inbox/scheduled/s1/cancel", {}) == {"scheduled": "s1"}
        made = look.post("/inbox/scheduled/s2/now", {})
        assert look.get(f"/inbox/events/{made['id']}")["event"]["content"] == "two" and not made["deduplicated"]
        for verb in "cancel", "now":
            for gone in "s1", "s2", "s3":
                assert f"no scheduled event {gone}" in look.refused(404, f"/inbox/scheduled/{gone}/{verb}", {})
            assert "as in s17" in look.refused(400, f"/inbox/scheduled/17/{verb}", {})
        found = look.get("/inbox")
        assert (found["events"], found["scheduled"], "to_come" in found) == (1, 0, False)


@with_httpx
async def a_live_tail_continues_after_it_was_cut():
    with Queues("inbox") as queues:
        look = queues.look
        queues.push("inbox", "before")
        received = []

        def read(most, **options):
            """Reads so many events."""
            with look.stream("/inbox/events/stream", **options) as source:
                for event in source.iter_sse():
                    if event.event == "event":
                        data = look.is_a("Event", event.data)
                        assert data["id"] == int(event.id)
                        received.append(data["content"])
                        most -= 1
                    if most == 0:
                        return event.id

        # From now on, without earlier events.
        first = asyncio.create_task(asyncio.to_thread(read, 3))
        while look.figure("uptime_seconds") < 0 or not first.done() and not received:
            queues.push("inbox", "ping")
            await asyncio.sleep(0.2)
        while not first.done():
            queues.push("inbox", "ping")
            await asyncio.sleep(0.05)
        last = await first
        assert received == ["ping"] * 3
        newest = queues.push("inbox", "missed")
        received.clear()
        await asyncio.to_thread(read, newest - int(last), headers={"Last-Event-ID": last})
        assert received[-1] == "missed" and len(received) == newest - int(last)
        # With many concurrent writers: no gap and no duplicate, in pages of any length.
        received.clear()
        reading = asyncio.create_task(asyncio.to_thread(read, 1000, after=newest))
        for part in range(10):
            lines = "".join(json.dumps({"source": "me", "type": "message", "content": f"{part * 100 + n}"}) + "\n" for n in range(100))
            await asyncio.to_thread(queues.thread, "inbox", "push", "--batch", stdin=lines)
        await asyncio.wait_for(reading, PATIENCE)
        assert received == [str(n) for n in range(1000)]

        # Only matching events come; the id says how far the stream has got.
        with look.stream("/inbox/events/stream", after=0, filter="content = '999'") as source:
            found = next(source.iter_sse())
            assert json.loads(found.data)["content"] == "999"
        with look.http.stream("GET", "/api/v1/threads/inbox/events/stream", params={"after": 0, "filter": "0"}) as answer:
            assert answer.headers["content-type"] == "text/event-stream" and answer.headers["x-accel-buffering"] == "no"
            lines = answer.iter_lines()
            assert next(lines) == f"id: {newest + 1000}" and next(lines) == ""
        # A removed thread is reported as gone.
        with look.stream("/inbox/events/stream") as source:
            (queues.dir / "inbox").rename(queues.dir / "elsewhere")
            last = list(source.iter_sse())[-1]
            assert last.event == "failed" and json.loads(last.data)["error"], last
        look.refused(404, "/inbox/events/stream")


@with_httpx
async def a_slow_filter_is_cut_off_and_delays_no_other_request():
    with Queues("inbox", "other") as queues:
        look = queues.look
        content = "a" * 300_000
        for _ in range(60):
            queues.push("inbox", content)
        slow = f"content LIKE '%{'a' * 300}b'"
        asked, quick = [], []

        def ask():
            began = time.monotonic()
            answer = look.http.get("/api/v1/threads/inbox/events", params={"filter": slow})
            asked.append((answer.status_code, answer.json(), time.monotonic() - began))

        threads = [threading.Thread(target=ask) for _ in range(3)]
        [thread.start() for thread in threads]
        while any(thread.is_alive() for thread in threads):
            began = time.monotonic()
            look.get("/other")
            quick.append(time.monotonic() - began)
        assert max(quick) < 3, quick
        for status, answer, took in asked:
            assert took < PATIENCE, took
            if status == 200:
                assert answer["events"] == [] and answer["incomplete"]["searched_to"] > 1, answer
                assert answer["next_before"] == answer["incomplete"]["searched_to"]
            else:
                assert status == 400 and "takes too long" in answer["error"] and " - " in answer["error"], answer
        # A stream says how far it has got, or ends.
        params = {"after": 0, "filter": slow}
        with look.http.stream("GET", "/api/v1/threads/inbox/events/stream", params=params) as answer:
            first = next(line for line in answer.iter_lines() if line and not line.startswith(":"))
            assert first.startswith("id: ") or first == "event: failed", first


@with_httpx
async def read_only_allows_only_reading():
    with Queues("inbox", options=["--read-only"]) as queues:
        look, gateway = queues.look, queues.gateway
        queues.thread("inbox", "subscribe", "bot", "true", "--filter", "type = 'message'")
        queues.push("inbox")
        assert look.get()["read_only"] and look.get("/inbox")["read_only"] and look.get("/inbox")["events"] == 1
        writes = [path for path, methods in look.description["paths"].items() if "post" in methods]
        assert len(writes) > 10
        for path in [path.format(thread="inbox", consumer="bot", name="x", id="x", scheduled="s1") for path in writes if not path.endswith("/login")]:
            answer = look.http.post(path, json={})
            assert answer.status_code == 403 and "--read-only" in answer.text, (path, answer.text)
        # Its thread is unchanged, and conversations can be read too.
        assert look.get("/inbox")["events"] == 1 and not look.consumer("inbox", "bot")["paused"]
        session = str(uuid.uuid4())
        gateway.thread("init", gateway.root / session)
        client = await gateway.client()
        assert [one["id"] for one in (await client.request("sessions.list"))["sessions"]] == [session]
        await client.request("sessions.switch", sessionId=session)
        await client.request("agent", message="/status")
        for method, params in [
            ("agent", {"message": "hello"}), ("agent", {"message": "/new"}), ("agent", {"message": "/clear"}), ("sessions.new", {}),
            ("sessions.rename", {"sessionId": session, "title": "x"}), ("sessions.delete", {"sessionId": session}),
            ("sessions.fork", {"sessionId": session}), ("agent.cancel", {"runId": "x"}),
            ("permission.answer", {"sessionId": session, "requestId": "p", "choice": "c"}),
        ]:
            assert "--read-only" in await client.refused(method, **params), method
        assert gateway.events(session) == []
        assert look.http.post("/api/v1/login").status_code == 204


@with_httpx
async def strangers_and_hostile_ids_get_nowhere():
    with Queues("inbox", "secret", options=[]) as queues:
        look, gateway = queues.look, queues.gateway
        session = str(uuid.uuid4())
        gateway.thread("init", gateway.root / session)
        (gateway.root / session / "agents").mkdir()
        (gateway.root / session / "agents" / "link").symlink_to(queues.dir / "secret")
        ids = [
            "..", "%2e%2e", "..%2F..%2Finbox", "%2Fetc%2Fpasswd", "inbox%2F", "inbox%00", "%FF", "nothing", "INBOX", "~",
            f"{session}~", f"{session}~..", f"{session}~link", f"{session}~..%2F..%2F{session}", f"{session}%2F",
            str(uuid.uuid4()), f"{uuid.uuid4()}~x", "token", "x" * 5000, urllib.parse.quote(str(queues.dir / "secret"), safe=""),
        ]
        # The paths unchanged, not as a client normalizes them.
        for id in ids:
            for method, tail in ("GET", ""), ("GET", "/events"), ("GET", "/watch"), ("GET", "/events/stream"), ("POST", "/events"):
                status, body = raw(gateway, method, f"/api/v1/threads/{id}{tail}")
                assert status in (400, 404), (id, tail, status, body)
                assert set(json.loads(body)) == {"error", "code"}, body
        for consumer in "..%2F..%2Fx", "%00", "%2e%2e", "a%0Ab":
            for tail in "runs", "runs/1":
                assert raw(gateway, "GET", f"/api/v1/threads/inbox/consumers/{consumer}/{tail}")[0] == 404
        # Without the token, with another, from another page, under another name.
        # Senders of webhooks have no token: they sign.
        for path in [path for path in look.description["paths"] if not path.startswith("/hooks/")]:
            path = path.format(thread="inbox", event="1", consumer="c", run="1", session=session, id="1", scheduled="s1")
            for headers in {}, {"Authorization": "Bearer x"}, {"Cookie": f"thread_{gateway.port}=x"}:
                assert raw(gateway, "GET", path, token=False, **headers)[0] == 401, path
            for headers in {"Origin": "https://evil.example"}, {"Host": "evil.example"}:
                assert raw(gateway, "GET", path, **headers)[0] == 403, path
        assert raw(gateway, "GET", "/api/v1/openapi.json", token=False)[0] == 401


def raw(gateway, method, path, token=True, **headers):
    """Sends a request without normalizing its path. Returns the status and the body."""
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=PATIENCE)
    connection.putrequest(method, path, skip_host="Host" in headers)
    body = b"{}" if method == "POST" else b""
    own = {"Authorization": f"Bearer {gateway.token}"} if token else {}
    for name, value in {**own, "Content-Type": "application/json", "Content-Length": len(body), **headers}.items():
        connection.putheader(name, str(value))
    connection.endheaders(body)
    answer = connection.getresponse()
    return answer.status, answer.read()


@with_httpx
async def a_locked_and_a_damaged_thread_make_no_other_wait():
    with Queues("locked", "damaged", "good") as queues:
        look = queues.look
        queues.push("good")
        database = queues.dir / "damaged" / "events.db"
        database.write_bytes(b"no database" * 1000)
        holder = sqlite3.connect(queues.dir / "locked" / "events.db", isolation_level=None, timeout=PATIENCE)
        holder.execute("PRAGMA locking_mode = EXCLUSIVE")
        holder.execute("BEGIN IMMEDIATE")
        holder.execute("INSERT INTO events (source, type, content) VALUES ('me', 'message', 'x')")
        with contextlib.closing(holder):
            broken = lambda answer: all("error" in thread for thread in answer["threads"][:2])
            listed = look.until(broken)
            locked, damaged, good = listed["threads"]
            assert "locked" in locked["error"]["message"] and " - " in damaged["error"]["message"], listed
            assert "events" not in damaged and good["events"] == 1
            for _ in range(10):
                began = time.monotonic()
                look.get()
                queues.push("good")
                look.get("/good")
                assert time.monotonic() - began < 5
            assert "locked" in look.refused(503, "/locked")
            assert look.refused(500, "/damaged")
            with look.stream("/locked/watch") as source:
                assert "locked" in json.loads(next(source.iter_sse()).data)["error"]["message"]
            holder.execute("ROLLBACK")
        assert look.until(lambda answer: "error" not in answer["threads"][0])["threads"][0]["events"] == 0
        assert look.get("/locked")["events"] == 0


@with_httpx
async def fifty_watching_clients_cost_one_look_a_second():
    with Queues("inbox") as queues:
        look = queues.look
        queues.thread("inbox", "subscribe", "none", "true", "--filter", "0")
        queues.push("inbox")
        look.get()
        with contextlib.ExitStack() as stack:
            sources = [stack.enter_context(look.stream(path)).iter_sse() for path in ["/watch"] * 25 + ["/inbox/watch"] * 25]
            # The client has enough connections for all.
            first = await asyncio.gather(*(asyncio.to_thread(next, source) for source in sources))
            assert {event.event for event in first} == {"threads", "thread"}
            forms = {"threads": "ThreadList", "thread": "Thread"}
            assert all(look.is_a(forms[event.event], event.data) for event in first)
            # Quiet threads are not opened at all, or after ten seconds.
            began, before = time.monotonic(), look.figure("looks_total")
            time.sleep(5)
            assert look.figure("looks_total") - before <= 2
            before, pushed = look.figure("looks_total"), time.monotonic()
            while time.monotonic() - pushed < 5:
                queues.push("inbox")
            took = time.monotonic() - pushed
            looks = look.figure("looks_total") - before
            # One look for the list and one for the thread, each second.
            assert 4 <= looks <= 2 * (took + 2), (looks, took)
            newest = queues.push("inbox")

            def until_newest(source):
                for event in source:
                    data = json.loads(event.data)
                    if (data["threads"][0] if "threads" in data else data)["last_event_id"] == newest:
                        return True

            assert all(await asyncio.gather(*(asyncio.to_thread(until_newest, source) for source in sources)))
        # The list and a thread in one.
        for thread, wanted in ("inbox", {"threads", "thread"}), ("nobody", {"threads"}):
            with look.stream("/watch", thread=thread) as source:
                seen = set()
                for event in source.iter_sse():
                    seen.add(look.is_a(forms[event.event], event.data) and event.event)
                    if seen == wanted:
                        break
        # Without watching clients, there are no looks.
        time.sleep(2.5)
        before = look.figure("looks_total")
        for _ in range(5):
            queues.push("inbox")
            time.sleep(0.5)
        assert look.figure("looks_total") == before


@with_httpx
async def thousands_of_sessions_are_listed_without_being_opened():
    with Queues() as queues:
        look, gateway = queues.look, queues.gateway
        template = queues.dir / "template"
        queues.run("init", template)
        queues.run("push", "-t", template, "hello")
        for _ in range(MANY):
            shutil.copytree(template, gateway.root / str(uuid.uuid4()))
        began = time.monotonic()
        first = look.get()
        assert time.monotonic() - began < 10 and len(first["threads"]) == 200
        while (page := look.http.get("/api/v1/threads", params={"limit": 1}).json())["unread"]:
            assert time.monotonic() - began < 10 * PATIENCE, page
            time.sleep(0.2)
        assert page["total"] == MANY
        print(f"{MANY} sessions were all read after {time.monotonic() - began:.1f} s")
        # The worker looks at them all too; then nothing changes.
        before = -1
        while before != (before := look.figure("looks_total")):
            time.sleep(2)
            look.http.get("/api/v1/threads", params={"limit": 1})
        before, times = look.figure("looks_total"), []
        for _ in range(5):
            time.sleep(1)
            began = time.monotonic()
            answer = look.http.get("/api/v1/threads", params={"limit": 1000, "offset": MANY // 2})
            times.append(time.monotonic() - began)
            page = answer.json()
            assert len(page["threads"]) == MANY // 2 and page["unread"] == 0
        looks = look.figure("looks_total") - before
        assert looks <= 5 and max(times) < 5, (looks, times)
        print(f"a list of {MANY} sessions took {min(times):.3f} to {max(times):.3f} s")
        # Only threads that have changed are opened.
        one = page["threads"][0]["id"]
        gateway.push(one, "news")
        assert look.until(lambda answer: answer["threads"][0]["id"] == one)["threads"][0]["events"] == 2
        assert look.figure("looks_total") - before <= 10
        gateway.stop()
        for session in gateway.root.glob("*-*-*-*-*"):
            shutil.rmtree(session)


@with_httpx
async def a_thread_that_cannot_be_shown_is_reported_at_the_start():
    with Queues("inbox") as queues:
        (queues.dir / "other").mkdir()
        queues.run("init", queues.dir / "other" / "inbox")
        start = lambda *threads: subprocess.run(
            [SERVE, "--root", queues.dir / "root", "--listen", "127.0.0.1:0", *(f"--thread={one}" for one in threads)],
            cwd=queues.dir, capture_output=True, text=True, timeout=PATIENCE,
        )
        for threads, code, why in [
            (["nowhere"], 1, "thread init"),
            (["other"], 1, "thread init"),
            (["inbox", "other/inbox"], 2, "--thread NAME=other/inbox"),
            (["a b=inbox"], 2, "another name"),
            (["watch=inbox"], 2, "another name"),
            (["postgres://db/x"], 1, "thread-postgres"),
        ]:
            done = start(*threads)
            assert done.returncode == code and done.stderr.startswith("Error: ") and " - " in done.stderr, done
            assert why in done.stderr and done.stderr.count("\n") == 1, done.stderr
        with Gateway("--thread", "inbox", "--thread", "more=other/inbox", cwd=queues.dir) as gateway:
            assert [thread["id"] for thread in Look(gateway).get()["threads"]] == ["inbox", "more"]
            assert "no agent" not in gateway.output()


if __name__ == "__main__":
    run(globals())
