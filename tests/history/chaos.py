"""Lets real processes use a thread while some of them are killed, and writes down what each did and saw.

usage: chaos.py PROGRAM DIR [SECONDS [SEED]]

PROGRAM is `thread`. DIR is made; it gets the thread and `log.ndjson`, for `check.py`, which is run on it at the end.
"""

import glob
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import check

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM, DIR = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
SECONDS = float(sys.argv[3]) if len(sys.argv) > 3 else 5
SEED = int(sys.argv[4]) if len(sys.argv) > 4 else random.randrange(10**9)
THREAD, LOG = os.path.join(DIR, "inbox"), os.path.join(DIR, "log.ndjson")
FOLLOWED = os.path.join(DIR, "followed.ndjson")
# For however busy a machine. What is waited for comes within a second on a quiet one.
LIMIT = 240
KEYS = ["ada", "bob", "eve", None]
KEY = "content ->> '$.k'"
EVERY, CLAIM, PAUSE, BACKLOG = 0.5, 0.6, 0.25, 60
# Every process of this world has it in its environment.
MARK = b"HISTORY_WORLD=" + DIR.encode()
ENVIRONMENT = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": DIR, "TMPDIR": DIR, "HISTORY_WORLD": DIR}

ending, over = threading.Event(), threading.Event()
victims = {}
failures = []
pending = {}


def note(op, **fields):
    data = b"\n" + json.dumps({"op": op, **fields}).encode() + b"\n"
    os.write(log, data)


class Call:
    """One command. Whoever may be killed is a victim while it runs."""

    def __init__(self, *args, input=None, notifier="embedded", victim=None):
        self.begin = time.monotonic()
        environment = {**ENVIRONMENT, "THREAD_DIR": THREAD, "THREAD_NOTIFIER": notifier}
        pipe = subprocess.PIPE
        child = subprocess.Popen([PROGRAM, *args], env=environment, cwd=DIR, stdout=pipe, stderr=pipe,
                                 stdin=subprocess.DEVNULL if input is None else pipe, text=True)
        if victim:
            victims[child.pid] = victim
        self.out, self.err = child.communicate(input, timeout=LIMIT)
        victims.pop(child.pid, None)
        self.end = time.monotonic()
        self.code = child.returncode
        self.outcome = "ok" if self.code == 0 else "failed" if self.code > 0 else "unknown"
        if '"outcome_unknown"' in self.err:
            self.outcome = "unknown"
        if self.code < 0:
            self.end = None
        if self.code in (2, 101) or "panicked" in self.err:
            failures.append(f"{args}: exit {self.code}: {self.err}")

    def lines(self):
        return [json.loads(line) for line in self.out.splitlines()]


class Pusher:
    def __init__(self, name):
        self.name, self.random, self.count = name, random.Random(f"{SEED} {name}"), 0

    def event(self, **more):
        self.count += 1
        content = {"m": f"{self.name}-{self.count}", "k": self.random.choice(KEYS), **more}
        return {key: value for key, value in content.items() if value is not None}

    def push(self, events, keys, options=(), batch=False, synced=False, scheduled=False, kind=None):
        """A push; what was cut short is repeated if it has a key."""
        contents = [json.dumps(event) for event in events]
        kind = kind or ("record" if self.random.random() < 0.3 else "message")
        for _ in range(20):
            options = list(options)
            if batch:
                lines = [{"content": content, "idempotency_key": key} if key else {"content": content}
                         for content, key in zip(contents, keys)]
                what, input = ["--batch"], "".join(json.dumps(line) + "\n" for line in lines)
            else:
                what, input = ["--idempotency-key", keys[0]] if keys[0] else [], contents[0]
            notifier = self.random.choice(["embedded", "embedded", "off"])
            call = Call("push", "--json", "--type", kind, "--source", self.name, *what, *options, input=input,
                        notifier=notifier, victim="pusher")
            said = call.lines()[0] if call.outcome == "ok" or (synced and call.code in (1, 3) and call.out) else {}
            # The wait is over, and the event stored.
            outcome = "ok" if said and call.outcome == "failed" else call.outcome
            note("push", proc=self.name, begin=call.begin, end=call.end, outcome=outcome, batch=batch,
                 scheduled=scheduled, synced=synced and call.code == 0, id=said.get("id"), count=said.get("count"),
                 first=said.get("first_id"), last=said.get("last_id"), code=call.code, err=call.err[-300:],
                 events=[{"content": content, "key": key} for content, key in zip(contents, keys)])
            if outcome == "ok" or not keys[0]:
                return

    def key(self):
        return f"{self.name}:{self.count}"

    def step(self):
        what = self.random.random()
        if what < 0.3:
            self.push([self.event()], [None])
        elif what < 0.5:
            self.push([self.event()], [self.key()])
        elif what < 0.7:
            events = [self.event() for _ in range(self.random.randint(2, 6))]
            keyed = self.random.random() < 0.7
            keys = [f"{self.key()}:{n}" if keyed else None for n in range(len(events))]
            self.push(events, keys, batch=True)
        elif what < 0.8:
            self.push([self.event()], [self.key()], ["--in", f"{self.random.randint(1, 900)}ms"], scheduled=True)
        elif what < 0.86:
            self.push([self.event()], [None], ["--expires", self.random.choice(["0s", "300ms"])])
        elif what < 0.92:
            self.push([self.event(bad=True)], [self.key()])
        else:
            self.push([self.event()], [None], ["--sync", "2s"], synced=True)

    def work(self):
        while not ending.wait(self.random.uniform(0, PAUSE)):
            if max(pending.values(), default=0) < BACKLOG:
                self.step()

    def quiet(self):
        """So that there is one of each, however slow the machine is and whatever was killed."""
        for kind in ("message", "record"):
            self.push([self.event(k="ada")], [None], kind=kind)
            self.push([self.event(k="ada")], [self.key()], kind=kind)
            self.push([self.event(), self.event()], [None, None], kind=kind, batch=True)


def puller(name):
    """Takes events by claims, and handles, puts off or forgets them; in the end it only handles them."""
    chance = random.Random(f"{SEED} {name}")
    while not over.is_set():
        calm = ending.is_set()
        seconds = 60 if calm else CLAIM
        call = Call("pop", "team", "--claim", f"{round(seconds * 1000)}ms", "--wait", "200ms", "--limit", "1",
                    victim="puller")
        events = [[line["id"], line["content"], line["claim"]] for line in call.lines()] if call.outcome == "ok" else []
        if call.code and not over.is_set():
            time.sleep(0.05)
        note("claim", proc=name, begin=call.begin, end=call.end, outcome=call.outcome, consumer="team",
             seconds=seconds, events=events)
        for id, content, token in events:
            what = "ack" if calm else chance.choices(["ack", "nack", None], [90, 6, 4])[0]
            what = "reject" if json.loads(content).get("bad") else what
            if not calm and chance.random() < 0.05:
                time.sleep(CLAIM)
            if what:
                token = token if what != "ack" or chance.random() < 0.5 else None
                options = ["--claim", token] if token else []
                ended = Call(what, "team", str(id), "--json", *options, victim="puller")
                note("finish", proc=name, consumer="team", what=what, id=id, token=token, begin=ended.begin,
                     end=ended.end, outcome=ended.outcome, err=ended.err[-200:])


def observe():
    call = Call("info", "--json")
    if call.outcome == "ok":
        found = call.lines()[0]
        cursors = {consumer["consumer_id"]: consumer["last_acked_id"] for consumer in found["subscriptions"]}
        note("info", begin=call.begin, end=call.end, last=found["last_event_id"], cursors=cursors)
        # Null if it took long to count them.
        pending.update((consumer["consumer_id"], consumer["pending"] or 0) for consumer in found["subscriptions"])
        return found
    failures.append(f"info: exit {call.code}: {call.err}")


def cron():
    """Dispatches and looks; sometimes acknowledges an event of the pool by hand, or stops a consumer."""
    chance = random.Random(f"{SEED} cron")
    while not over.wait(0.3):
        Call("dispatch", victim="dispatch")
        found = observe()
        if not ending.is_set() and found and found["last_event_id"] and chance.random() < 0.2:
            id = chance.randint(1, found["last_event_id"])
            call = Call("ack", "pool", str(id), "--json")
            note("finish", proc="cron", consumer="pool", what="ack", id=id, token=None, begin=call.begin, end=call.end,
                 outcome=call.outcome)
        if not ending.is_set() and chance.random() < 0.15:
            name = chance.choice(["ordered", "pool", "kept"])
            call = Call("stop", name, "--kill-after", "1s")
            note("stop", consumer=name, begin=call.begin, end=call.end, outcome=call.outcome)
            Call("resume", name)


def inhabitants():
    """The processes of this world, without this one."""
    for path in glob.glob("/proc/[0-9]*/environ"):
        pid = int(path.split("/")[2])
        try:
            with open(path, "rb") as file:
                if pid != os.getpid() and MARK in file.read().split(b"\0"):
                    yield pid
        except OSError:
            continue


def kill(pid, what):
    """Kills it with -9 if it still is of this world: a number may have been used again."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            if MARK not in file.read().split(b"\0"):
                return
        # Noted before, as it may be the last thing that happens to somebody's note.
        note("kill", t=time.monotonic(), pid=pid, of=what)
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        pass
    finally:
        os.close(handle)


def killer():
    chance = random.Random(f"{SEED} killer")
    while not ending.wait(chance.uniform(0.02, 0.2)):
        mine = list(victims.items())
        if chance.random() < 0.4 and mine:
            pid, what = chance.choice(mine)
            # At any moment of its short life.
            time.sleep(chance.uniform(0, 0.02))
            kill(pid, what)
            continue
        others = [pid for pid in inhabitants() if parent(pid) != os.getpid()]
        handlers = [pid for pid in others if "handler.py" in command(pid)]
        supervisors = [pid for pid in others if pid not in handlers]
        chosen = handlers if handlers and chance.random() < 0.5 else supervisors
        if chosen:
            kill(chance.choice(chosen), "handler" if chosen is handlers else "supervisor or timer")


def parent(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rsplit(")", 1)[1].split()[1])
    except OSError:
        return os.getpid()


def guarded(work):
    def run(*args):
        try:
            work(*args)
        except Exception as error:  # A failure of this driver, which must not pass for silence.
            failures.append(f"{getattr(work, '__name__', work)}: {error!r}")
            ending.set()
    return run


def subscribe(name, runs, match, key, limit, *options):
    note("consumer", name=name, match=match, key=key, runs=runs, limit=limit)
    where = " AND ".join(f"{column} = '{value}'" for column, value in match.items())
    call = Call("subscribe", name, *options, "--filter", where, "--max-attempts", "never", "--backoff", "50ms,200ms")
    assert call.code == 0, call.err


def handler(how):
    quoted = " ".join("'" + word.replace("'", "'\\''") + "'" for word in
                      [sys.executable, "-IS", os.path.join(HERE, "handler.py"), how, LOG])
    return ["exec " + quoted, "--deliver", how]


def settled():
    """What is not finished yet."""
    Call("dispatch")
    found = observe()
    for consumer in found["subscriptions"] if found else []:
        # A stop took effect after the resume that followed it.
        if consumer["state"] == "stalled":
            Call("resume", consumer["consumer_id"])
    scheduled = Call("scheduled", "list", "--json")
    stuck = [f"{name}: {count} pending" for name, count in pending.items() if count != 0]
    return stuck + [line["scheduled_id"] for line in scheduled.lines()]


def until_none(what, wait):
    """What is left of it in the end."""
    since = time.monotonic()
    while left := what():
        if time.monotonic() - since > LIMIT:
            break
        time.sleep(wait)
    return left


def main():
    global log
    os.makedirs(DIR)
    log = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    print(f"chaos: seed {SEED}, {SECONDS:g} s, {LOG}", flush=True)
    assert Call("init", THREAD).code == 0
    subscribe("ordered", "one", {}, None, 1, *handler("stdin"), "--batch-size", "8")
    subscribe("pool", "pool", {"type": "message"}, "k", 4, *handler("stdin"), "--concurrency", "4", "--key", KEY)
    subscribe("kept", "kept", {"type": "record"}, "k", 3, *handler("ndjson"), "--batch-size", "3", "--key", KEY,
              "--idle", "300ms")
    subscribe("team", "claims", {"type": "message"}, "k", 3, "--no-handler", "--concurrency", "3", "--key", KEY)
    assert Call("schedule", "add", "tick", "--every", f"{round(EVERY * 1000)}ms", "--catch-up", "all", "--type",
                "record", '{"m": "tick"}').code == 0
    note("schedule", name="tick", every=EVERY)

    follower = subprocess.Popen([PROGRAM, "-t", THREAD, "peek", "--last-event-id", "0", "--follow"], cwd=DIR,
                                stdin=subprocess.DEVNULL, env=ENVIRONMENT, stdout=open(FOLLOWED, "w"))
    start = lambda work, *args: threads.append(threading.Thread(target=guarded(work), args=args)) or threads[-1].start()
    threads = []
    for n in range(3):
        start(Pusher(f"pusher-{n}").work)
    start(killer)
    disturbing = list(threads)
    start(cron)
    for n in range(2):
        start(puller, f"puller-{n}")
    ending.wait(SECONDS)
    ending.set()
    for thread in disturbing:
        thread.join()
    until_none(lambda: len(Call("peek", "-n", "3", "--meta", "schedule=tick").lines()) < 3, 0.1)
    Call("schedule", "remove", "tick")
    # Also brings the JSONL log up to date, if the last one was killed.
    Pusher("quiet").quiet()
    stuck = until_none(settled, 0.1)
    over.set()
    for thread in threads:
        thread.join()
    finish(stuck, follower)


def finish(stuck, follower):
    table = Call("peek", "--last-event-id", "0", "--limit", "1000000000").out.splitlines()
    sealed = sorted(glob.glob(os.path.join(THREAD, "events-*.jsonl")))
    jsonl = [line for path in [*sealed, os.path.join(THREAD, "events.jsonl")] for line in lines_of(path)]
    if until_none(lambda: len(lines_of(FOLLOWED)) < len(table), 0.02):
        stuck.append("peek --follow")
    follower.terminate()
    follower.wait()
    dead = [[line["consumer_id"], line["event_id"]] for line in Call("dead", "list", "--json").lines()]
    left = until_none(lambda: sorted(inhabitants()), 0.05)
    note("final", table=table, jsonl=jsonl, followed=lines_of(FOLLOWED), dead=dead,
         now=time.time(), stuck=stuck,
         left=[f"{pid}: {command(pid)}" for pid in left])


def lines_of(path):
    with open(path, encoding="utf-8", newline="\n") as file:
        return file.read().split("\n")[:-1]


def command(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "?"


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        main()
    finally:
        ending.set()
        over.set()
        # No process survives, whatever happened. Where there is no thread any more, none starts another.
        if os.path.exists(THREAD):
            os.rename(THREAD, THREAD + "-over")
        while pids := list(inhabitants()):
            for pid in pids:
                kill(pid, "left")
            time.sleep(0.05)
    for failure in failures:
        print("failed:", failure)
    sys.argv[1:] = [LOG]
    sys.exit(check.main() or bool(failures))
