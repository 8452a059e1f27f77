"""A handler of `chaos.py`: notes what it is given, works a moment, and notes how that ended.

usage: handler.py stdin|ndjson LOG
"""

import json
import os
import random
import select
import sys
import time

HOW, LOG = sys.argv[1:3]
CONSUMER = os.environ["THREAD_CONSUMER"]
RUN = f"{CONSUMER}-{os.getpid()}-{time.monotonic()}"
log = os.open(LOG, os.O_WRONLY | os.O_APPEND)


def note(op, **fields):
    fields = {"op": op, "consumer": CONSUMER, "run": RUN, "pid": os.getpid(), "t": time.monotonic(), **fields}
    # Begins with a newline, because a kill may have cut off the line before.
    os.write(log, b"\n" + json.dumps(fields).encode() + b"\n")


def outcome(content):
    """Mostly it goes well. What is bad is always bad."""
    try:
        if json.loads(content).get("bad"):
            return "bad"
    except (ValueError, AttributeError):
        pass
    return random.choices(["ok", "failed", "later"], [94, 4, 2])[0]


def work():
    time.sleep(random.choice([0, 0, 0.01, 0.05, 0.15]))
    note("alive")


def stdin():
    events = [json.loads(line) for line in sys.stdin]
    note("begin", events=[[event["id"], event["content"]] for event in events])
    work()
    hows = {outcome(event["content"]) for event in events}
    how = next(how for how in ("bad", "failed", "later", "ok") if how in hows)
    # A batch with a bad event comes again, one event at a time.
    note("end", ids=[event["id"] for event in events], how="split" if how == "bad" and len(events) > 1 else how)
    sys.exit({"ok": 0, "bad": 65, "failed": 1, "later": 75}[how])


def ndjson():
    had, rest, is_open = {}, b"", True
    while is_open or had:
        while is_open and select.select([0], [], [], None if not had else 0)[0]:
            data = os.read(0, 65536)
            is_open = data != b""
            *lines, rest = (rest + data).split(b"\n")
            for event in map(json.loads, lines):
                note("begin", events=[[event["id"], event["content"]]])
                had[event["id"]] = event["content"]
        if not had:
            continue
        work()
        if random.random() < 0.01:
            os._exit(3)
        id = random.choice(list(had))
        how = outcome(had.pop(id))
        # Not a work of its own, so that what was answered is not had any more.
        note("end", ids=[id], how=how)
        answer = {"ok": {"ack": id}, "bad": {"reject": id}, "failed": {"nack": id}}
        answer["later"] = {"nack": id, "attempt": False, "delay": "50ms"}
        sys.stdout.write(json.dumps(answer[how]) + "\n")
        sys.stdout.flush()


if HOW == "stdin":
    stdin()
else:
    ndjson()
