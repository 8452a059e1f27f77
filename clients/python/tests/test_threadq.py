"""Tests of the client, with the real program: python3 -m unittest discover -s tests

THREAD_PROGRAM names the program, if it is not installed. THREAD_TEST_LOCATION, such as postgres://…/db?schema=x, is where
threads are made instead of directories.
"""

import asyncio
import http.server
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

import threadq
from threadq import AsyncThread, Event, Thread, errors

HERE = pathlib.Path(__file__).parent
PATIENCE = 120
#: Where threads are made.
ELSEWHERE = os.environ.get("THREAD_TEST_LOCATION")


def wait_for(what, look):
    end = time.monotonic() + PATIENCE
    while not (found := look()):
        assert time.monotonic() < end, f"timed out waiting for {what}"
        time.sleep(0.02)
    return found


class WithThread(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.location = f"{ELSEWHERE}#{self.id()}" if ELSEWHERE else self.folder / "inbox"
        self.thread = Thread.init(self.location)
        self.addCleanup(self.thread.close)
        self.addCleanup(self.quiet)
        os.environ["XDG_STATE_HOME"] = str(self.folder / "state")

    def quiet(self):
        """No handler is left when the folder goes."""
        for consumer in self.thread.command("info")[0]["subscriptions"]:
            self.thread.unsubscribe(consumer["consumer_id"])

        def is_of_this_test(pid):
            try:
                words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                return str(self.location).encode() in words and b"session" not in words
            except OSError:
                return False

        wait_for("handlers to end", lambda: not any(map(is_of_this_test, filter(str.isdigit, os.listdir("/proc")))))


class Events(WithThread):
    def test_what_is_pushed_is_read(self):
        odd = "two\nlines, \"quoted\" \u2028 \0 -- 🧵"
        self.assertEqual(self.thread.push(odd, source="self", type="record", subtype="-x", meta={"a": [1, None]}), 1)
        self.assertEqual(self.thread.push({"n": 1}, reply_to=1), 2)
        self.assertEqual(self.thread.push(""), 3)
        first, second, third = self.thread.read()
        self.assertEqual((first.content, first.source, first.type, first.subtype), (odd, "self", "record", "-x"))
        self.assertEqual(first.metadata, {"a": [1, None]})
        self.assertEqual((second.json(), second.metadata), ({"n": 1}, {"reply_to": 1}))
        self.assertEqual((third.id, third.content, third.metadata), (3, "", None))
        self.assertEqual([event.id for event in self.thread.read(1, limit=1)], [2])
        self.assertEqual([event.id for event in self.thread.read(tail=1)], [3])
        for which in {"since": "1h"}, {"tail": 2}:
            self.assertEqual([event.id for event in self.thread.read(2, **which)], [3])
        self.assertEqual([event.id for event in self.thread.read(since="1h", type="record")], [1])
        self.assertEqual([event.id for event in self.thread.read(meta={"reply_to": "1"})], [2])

    def test_content_of_any_size(self):
        long = "é" * 3_000_000
        self.thread.push(long)
        self.assertEqual(self.thread.read()[0].content, long)

    def test_a_key_stores_once(self):
        self.assertEqual([self.thread.push("x", key="k"), self.thread.push("x", key="k")], [1, 1])
        with self.assertRaises(errors.IdempotencyConflict) as raised:
            self.thread.push("y", key="k")
        self.assertEqual((raised.exception.code, raised.exception.exit), ("idempotency_conflict", 1))
        self.assertIn("use a new key", raised.exception.suggestion)

    def test_many_at_once_or_none(self):
        many = self.thread.push_many(["one", {"n": 2}, {"content": "three", "subtype": "s", "meta": {"a": 1}, "key": "k"}])
        self.assertEqual((many.count, many.first_id, many.last_id), (3, 1, 3))
        self.assertEqual(self.thread.read()[2].metadata, {"a": 1})
        with self.assertRaises(errors.EventInvalid):
            self.thread.push_many(["four", {"content": "five", "type": "odd"}])
        self.assertEqual(len(self.thread.read()), 3)

    def test_later_and_again(self):
        self.assertEqual(self.thread.schedule("x", delay=3600), "s1")
        self.assertEqual(self.thread.schedule("x", at="2100-01-01T00:00:00Z", key="k"), "s2")
        self.assertEqual(self.thread.repeat("daily", "good morning", cron="0 9 * * *", tz="Europe/Berlin"), "daily")
        self.assertEqual(len(self.thread.command("scheduled")), 2)
        self.assertEqual(self.thread.command("schedule", "list")[0]["tz"], "Europe/Berlin")
        # Or a process would wait for them.
        for id in ("s1", "s2"):
            self.thread.command("scheduled", "cancel", id)
        self.thread.command("schedule", "remove", "daily")

    def test_followers_see_what_comes(self):
        self.thread.push("before")
        for after, expected in ((0, ["before", "a", "b"]), (None, ["c"])):
            following = self.thread.follow(after)
            seen = []
            reader = threading.Thread(target=lambda: seen.extend(next(following).content for _ in expected))
            reader.start()
            if after is None:
                # It begins with what comes once it has looked.
                wait_for("c", lambda: self.thread.push("c") and (seen or None))
            else:
                self.thread.push_many(["a", "b"])
            reader.join(PATIENCE)
            self.assertEqual(seen, expected)
            following.close()

    def test_a_question_is_answered(self):
        answers = []
        asking = threading.Thread(target=lambda: answers.append(self.thread.ask("ready?", timeout=PATIENCE)))
        asking.start()
        question = wait_for("the question", self.thread.read)[0]
        self.thread.reply(question.id, "yes")
        asking.join(PATIENCE)
        self.assertEqual((answers[0].content, answers[0].metadata["reply_to"]), ("yes", question.id))
        with self.assertRaises(errors.TimedOut):
            self.thread.ask("anybody?", timeout=0.01)


class Consumers(WithThread):
    def test_claims_are_one_programs(self):
        self.thread.subscribe("team", concurrency=3, key="content")
        self.thread.push_many(["a", "a", "b", "c"])
        a, b = self.thread.pop("team", claim="1h", limit=2)
        self.assertEqual((a.content, b.content), ("a", "b"))
        c, = self.thread.pop("team", claim=60.5, limit=9)
        self.assertEqual(self.thread.pop("team", claim="1h"), [])
        self.thread.claim("team", a.id, "2h", claim=a.claim)
        self.assertEqual(self.thread.ack("team", a.id, claim=a.claim), 1)
        with self.assertRaises(errors.ClaimOver):
            self.thread.ack("team", a.id, claim=a.claim)
        self.thread.nack("team", b.id, delay="1h", error="busy", attempt=False, claim=b.claim)
        self.thread.reject("team", c.id, error="bad")
        self.assertEqual(self.thread.dead_letters("team")[0]["last_error"], "bad")
        with self.assertRaises(errors.NotADeadLetter):
            self.thread.discard("team", a.id)
        self.assertEqual([self.thread.discard("team", c.id), self.thread.discard("team")], [1, 0])
        self.assertEqual(self.thread.dead_letters("team"), [])
        second, = self.thread.pop("team", claim="1h", wait=PATIENCE)
        self.assertEqual(second.id, 2)

    def test_a_consumer_in_order(self):
        self.thread.subscribe("bot")
        self.thread.push_many(["a", "b"])
        self.assertEqual([event.content for event in self.thread.pop("bot")], ["a", "b"])
        self.assertEqual(self.thread.ack("bot", 2), 2)
        self.assertEqual(self.thread.pop("bot", wait=0.05), [])
        self.thread.unsubscribe("bot")
        with self.assertRaises(errors.UnknownConsumer):
            self.thread.pop("bot")

    def test_warnings_go_to_the_log(self):
        self.thread.subscribe("bot")
        self.thread.push("x")
        self.thread.ack("bot", 1)
        with self.assertLogs("threadq", "WARNING") as logged:
            self.thread.ack("bot", 0)
        self.assertIn("not moved back", logged.output[0])


class Sessions(WithThread):
    def test_each_error_of_the_specification_has_a_class(self):
        spec = HERE.parents[2] / "SPEC.md"
        section = spec.read_text().split("### Error codes")[1].split("\n## ")[0]
        rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `") and "`code`" not in line]
        self.assertEqual({*re.findall(r"`(\w+)`", " ".join(rows))} | {"session_ended"}, set(errors.CODES))
        self.assertEqual(errors.NotADeadLetter.__name__, "NotADeadLetter")
        self.assertTrue(issubclass(errors.Usage, threadq.ThreadError))
        with self.assertRaises(AttributeError):
            errors.NoSuchError

    def test_what_cannot_be_opened(self):
        with self.assertRaises(errors.NotAThread):
            Thread.open(self.folder / "nowhere")
        with self.assertRaises(errors.AlreadyAThread):
            Thread.init(self.location)
        Thread.init(self.location, if_missing=True).close()

    def test_wrong_arguments_are_errors(self):
        for wrong in (lambda: self.thread.read(filter="nosuch = 1"), lambda: self.thread.push("x", type="odd"),
                      lambda: self.thread.command("frobnicate")):
            with self.assertRaises(threadq.ThreadError) as raised:
                wrong()
            self.assertEqual(raised.exception.exit, 2)

    def test_a_session_that_was_killed_is_replaced(self):
        self.thread.push("x")
        os.kill(self.thread._session.pid, signal.SIGKILL)
        with self.assertRaises(errors.SessionEnded):
            self.thread.push("x")
        self.assertGreater(self.thread.push("x"), 1)

    @unittest.skipIf(ELSEWHERE, "folders are moved")
    def test_a_session_that_cannot_be_replaced_is_an_error_each_time(self):
        os.kill(self.thread._session.pid, signal.SIGKILL)
        self.location.rename(self.folder / "away")
        with self.assertRaises(errors.SessionEnded):
            self.thread.push("x")
        for _ in range(2):
            with self.assertRaises(errors.NotAThread):
                self.thread.push("x")
        (self.folder / "away").rename(self.location)
        self.assertEqual(self.thread.push("x"), 1)

    def test_threads_and_forks_share_it(self):
        pushing = [threading.Thread(target=lambda: [self.thread.push("x") for _ in range(10)]) for _ in range(4)]
        for one in pushing:
            one.start()
        for one in pushing:
            one.join(PATIENCE)
        if (pid := os.fork()) == 0:
            os._exit(0 if self.thread.push("of the child") == 41 else 1)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.assertEqual(self.thread.push("x"), 42)


class Asyncio(WithThread):
    def test_calls_overlap_and_keep_their_order(self):
        async def use():
            async with await AsyncThread.open(self.location) as thread:
                ids = await asyncio.gather(*(thread.push(str(n)) for n in range(50)))
                self.assertEqual(ids, list(range(1, 51)))
                cancelled = asyncio.create_task(thread.push("cancelled"))
                await asyncio.sleep(0)
                cancelled.cancel()
                self.assertEqual(await thread.push("after"), 52)
                with self.assertRaises(errors.UnknownConsumer):
                    await thread.pop("nobody")
                self.assertEqual((await thread.read(tail=1))[0].content, "after")
                await thread.subscribe("team", concurrency=1)
                event, = await thread.pop("team", claim="1h")
                self.assertEqual(await thread.ack("team", event.id, claim=event.claim), 1)
                seen = [event.id async for event in first(thread.follow(49), 3)]
                self.assertEqual(seen, [50, 51, 52])
                asking = asyncio.create_task(thread.ask("ready?", timeout=PATIENCE))
                async for event in first(thread.follow(52), 1):
                    await thread.reply(event.id, "yes")
                self.assertEqual((await asking).content, "yes")
                # More at once than asyncio has threads by default.
                many = [asyncio.create_task(thread.ask(f"{n}?", subtype="many", timeout=PATIENCE)) for n in range(40)]
                async for event in first(thread.follow(54, subtype="many"), len(many)):
                    await thread.reply(event.id, event.content)
                self.assertEqual([(await one).content for one in many], [f"{n}?" for n in range(40)])
                waiting = asyncio.create_task(thread.ask("and now?"))
                await asyncio.sleep(0.1)
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
                return thread

        async def use_again(thread):
            self.assertGreater(await thread.push("after it was closed"), 52)
            os.kill(thread._thread._session.pid, signal.SIGKILL)
            with self.assertRaises(errors.SessionEnded):
                await thread.push("x")
            await thread.push("x")
            await thread.close()

        before = set(threading.enumerate())
        thread = asyncio.run(use())
        asyncio.run(use_again(thread))
        wait_for("its threads to end", lambda: set(threading.enumerate()) <= before)


async def first(events, count):
    async for event in events:
        yield event
        count -= 1
        if not count:
            return


PROGRAM = """
import asyncio, pathlib, sys
from threadq import NotNow, Reject, Thread
thread = Thread.open(sys.argv[1])

@thread.handler("plain", filter="subtype = 'plain'", idle="1s", backoff="50ms", max_attempts=2)
def plain(event):
    print("this is no answer")
    with open("seen", "a") as file:
        print(event.content, file=file)
    if event.content == "reject":
        raise Reject("never")
    if event.content == "fail":
        raise ValueError("odd")
    if event.content == "later" and not pathlib.Path("later").exists():
        pathlib.Path("later").touch()
        raise NotNow("busy", delay="10ms")

@thread.handler("soon", filter="subtype = 'soon'", idle="1s", backoff="1h")
def soon(event):
    if not pathlib.Path("soon").exists():
        pathlib.Path("soon").touch()
        raise NotNow(delay=0)

@thread.handler("version", filter="subtype = 'version'")
def version(event):
    thread.push("old", subtype="said")

@thread.handler("both", filter="subtype = 'both'", idle="1s")
async def both(event, run):
    barrier[0] += 1
    while barrier[0] < 2:
        await asyncio.sleep(0.01)
barrier = [0]

@thread.handler("steps", filter="subtype = 'steps'", idle="1s", concurrency=2, backoff="50ms")
def steps(event, run):
    def charge(key):
        with open("charged", "a") as file:
            print(key, file=file)
        if not pathlib.Path("tried").exists():
            pathlib.Path("tried").touch()
            raise ValueError("the bank is closed")
        return {"receipt": event.content, "key": key}
    receipt = run.step("charge", charge)
    run.sleep("a while", 0.05)
    approval = run.wait_for("approval", subtype="approval", meta={"order": event.content}, timeout="1h")
    nobody = run.wait_for("nobody", subtype="nobody", timeout="10ms")
    run.step("ship", lambda key: run.thread.push([receipt, approval.content, nobody], subtype="done", key=key))

@thread.handler("large", filter="subtype = 'large'", idle="1s", backoff="50ms")
def large(event, run):
    made = [run.step("make", lambda key: "x" * 300_000 + key) for _ in range(2)]
    run.thread.push([len(made[0]) > 300_000, made[0] == made[1]], subtype="made")

thread.run()
"""


@unittest.skipIf(ELSEWHERE, "handlers there are started by a dispatch")
class HandlersThatAreFunctions(WithThread):
    def setUp(self):
        super().setUp()
        (self.folder / "program.py").write_text(PROGRAM)
        path = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "program.py", str(self.location)]
        subprocess.run(command, cwd=self.folder, check=True, env={**os.environ, "PYTHONPATH": path})
        os.environ["PYTHONPATH"] = path
        # With that variable, which the handlers inherit from who pushes.
        self.thread.close()

    def state(self, consumer):
        return next(one for one in self.thread.command("info")[0]["subscriptions"] if one["consumer_id"] == consumer)

    def test_each_event_is_answered(self):
        self.thread.push_many([{"content": content, "subtype": "plain"}
                               for content in ("one", "reject", "fail", "later", "two")])
        dead = wait_for("dead letters", lambda: len(dead := self.thread.dead_letters("plain")) == 2 and dead)
        self.assertEqual([one["last_error"] for one in dead], ["never", "ValueError: odd"])
        seen = wait_for("all", lambda: len(seen := (self.folder / "seen").read_text().split()) == 7 and seen)
        self.assertEqual(seen[:5], ["one", "reject", "fail", "later", "two"])
        self.assertEqual(sorted(seen), ["fail", "fail", "later", "later", "one", "reject", "two"])
        wait_for("the cursor", lambda: self.state("plain")["last_acked_id"] == 5)
        log = subprocess.run([threadq.calls.program(), "logs", "-t", str(self.location), "plain"], capture_output=True, text=True).stdout
        self.assertRegex(log, "event 3:\n(.*\n)+.*ValueError: odd")
        self.assertEqual(self.thread.retry("plain", dead[1]["event_id"]), 1)
        wait_for("the retry", lambda: self.thread.dead_letters("plain")[1]["attempts"] > dead[1]["attempts"])

    def test_with_a_delay_of_zero_an_event_is_given_again_at_once(self):
        self.thread.push("", subtype="soon")
        wait_for("the cursor", lambda: self.state("soon")["last_acked_id"] == 1)

    def test_an_async_function_has_several_at_a_time(self):
        self.thread.push_many([{"content": "", "subtype": "both"}] * 2)
        wait_for("both", lambda: self.state("both")["last_acked_id"] == 2)

    def test_a_program_that_was_changed_replaces_the_one_that_runs(self):
        program = self.folder / "program.py"
        self.thread.push("", subtype="version")
        self.assertEqual(wait_for("the old one", lambda: self.thread.read(subtype="said"))[0].content, "old")
        program.write_text(PROGRAM.replace('"old"', '"new"').replace(', backoff="1h"', ""))
        subprocess.run([sys.executable, "program.py", str(self.location)], cwd=self.folder, check=True)
        self.thread.push("", subtype="version")
        said = wait_for("the new one", lambda: len(said := self.thread.read(subtype="said")) == 2 and said)
        self.assertEqual(said[1].content, "new")
        # An option that was removed from it, too.
        self.assertEqual(self.state("soon")["backoff"], self.state("version")["backoff"])

    def test_a_large_result_of_a_step_comes_again(self):
        self.thread.push("", subtype="large")
        made = wait_for("the results", lambda: self.thread.read(subtype="made"))
        self.assertEqual([one.json() for one in made], [[True, True]])

    def test_steps_are_done_once(self):
        order = self.thread.push("order-7", subtype="steps")
        wait_for("the wait", lambda: any(step["name"] == "approval" for step in self.thread.command("step", "--list")))
        self.thread.push("fine", subtype="approval", meta={"order": "order-7"})
        done = wait_for("the end", lambda: self.thread.read(subtype="done"))[0].json()
        charged = (self.folder / "charged").read_text().split()
        self.assertEqual(len(charged), 2)
        self.assertEqual(done, [{"receipt": "order-7", "key": charged[0]}, "fine", None])
        self.assertEqual(charged[0], charged[1])
        # The last step is stored after what it has pushed.
        wait_for("the steps", lambda: {step["name"]: step["state"] for step in self.thread.command(
            "step", "--list", "--consumer=steps", f"--event={order}") if step["state"] != "done"} == {"nobody": "timed_out"})


@unittest.skipIf(ELSEWHERE, "handlers there are started by a dispatch")
class TheExample(WithThread):
    def test_an_inbox_for_webhooks(self):
        got = []

        class Target(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                content = self.rfile.read(int(self.headers["Content-Length"])).decode()
                got.append((self.path, content))
                self.send_response(400 if self.path == "/bad" else 500 if got.count(("/once", content)) == 1 else 200)
                self.end_headers()

            def log_message(self, *_):
                pass

        target = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Target)
        self.addCleanup(target.server_close)
        threading.Thread(target=target.serve_forever, daemon=True).start()
        self.addCleanup(target.shutdown)
        program = HERE.parents[2] / "examples/inbox.py"
        self.thread.close()
        inbox = subprocess.Popen(
            [sys.executable, program, f"http://127.0.0.1:{target.server_port}", "0"], cwd=self.folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(HERE.parent)})
        self.addCleanup(lambda: (inbox.kill(), inbox.wait(), inbox.stdout.close(), self.thread.command("schedule", "remove", "nightly")))
        port = inbox.stdout.readline().split()[-1]

        def post(path, content, id):
            headers = {"webhook-id": id}
            request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", content.encode(), headers)
            return urllib.request.urlopen(request, timeout=PATIENCE).read().strip()

        self.assertEqual([post("/a", "one", "x"), post("/a", "one", "x"), post("/bad", "two", "y")], [b"1", b"1", b"2"])
        post("/once", "three", "z")
        with self.assertRaises(urllib.error.HTTPError) as raised:
            post("/a", "other", "x")
        self.assertEqual(raised.exception.code, 409)
        raised.exception.close()
        wait_for("what was tried again", lambda: got.count(("/once", "three")) == 2)
        self.assertEqual(sorted(set(got)), [("/a", "one"), ("/bad", "two"), ("/once", "three")])
        wait_for("a dead letter", lambda: self.thread.command("dead", "list"))
        self.assertEqual(self.thread.command("schedule", "list")[0]["cron"], "0 2 * * *")
        self.thread.push("", subtype="night")
        digest = wait_for("the digest", lambda: (self.folder / "digest.txt").exists() and (self.folder / "digest.txt").read_text())
        self.assertIn(": 3 webhooks, 1 could not be handed on\n  2: HTTP Error 400: Bad Request\n", digest)


if __name__ == "__main__":
    unittest.main()
