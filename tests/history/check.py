"""Judges a history: says whether what clients did and saw is something that SPEC.md allows.

usage: check.py LOG

It shares no code with `thread` and knows nothing of how it works. A log is NDJSON, one operation a line, in any order.
Times are seconds of the monotonic clock, which all processes of a machine share. A client stamps what it does itself:
`begin` before it asks, `end` after the answer, null if it was killed. `outcome` is ok, failed, or unknown.

  consumer  name, match {column: value}, key (a field of the content, or null), runs: one (in order, one run), kept (one
            handler, which has several events), pool or claims; limit: how many at once
  push      begin, end, outcome, batch, scheduled, synced (with --sync, and it was acknowledged in time),
            events [{content, key}], id, or count, first and last of a batch
  begin     a handler has these events: consumer, run, pid, t, events [[id, content]]
  alive     a handler works: consumer, run, t
  end       a handler is done with these ids: consumer, run, t, ids, how: ok, bad (it is to become a dead letter), or
            anything else, after which it is to come again
  claim     pop --claim: begin, end, outcome, consumer, seconds, events [[id, content, token]]
  finish    ack, nack or reject by hand or by claim: consumer, what, id, token (or null), begin, end, outcome
  schedule  name, every (seconds); with --catch-up all
  info      begin, end, last (the newest id), cursors {consumer: id}
  kill      t, pid, of
  stop      consumer, begin, end, outcome
  final     table, jsonl, followed (lines of peek, of the JSONL log, and of peek --follow from the first event on),
            dead [[consumer, id]], now (Unix time), left (processes that did not end), stuck (what was not finished)

What a stamp proves is used, and nothing else: a handler may have begun before its first stamp, and lived on after its
last. A violation is printed with the operations that prove it; then the exit code is 1.
"""

import collections
import json
import sys

from deliveries import INF, MARGIN, Deliveries, unix


def load(path):
    """The operations of a log. A line that a kill cut off says nothing; each line begins with a newline of its own."""
    ops = []
    with open(path, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                ops.append(json.loads(line))
            except ValueError:
                continue
    return ops


class History:
    def __init__(self, ops):
        self.ops = collections.defaultdict(list)
        for op in ops:
            self.ops[op["op"]].append(op)
        self.final = self.ops["final"][-1]
        self.table = [json.loads(line) for line in self.final["table"]]
        self.events = {event["id"]: event for event in self.table}
        self.violations = []

    def bad(self, rule, text, *proof):
        self.violations.append((rule, text, proof))

    def check(self):
        self.pushes()
        self.real_time()
        self.log()
        for schedule in self.ops["schedule"]:
            self.schedule(schedule)
        for consumer in self.ops["consumer"]:
            Deliveries(self, consumer).check()
        for what in self.final["left"]:
            self.bad("left", "a process did not end", what)
        for what in self.final["stuck"]:
            self.bad("stuck", "this was not finished, though nobody disturbed it any more", what)
        return self.violations

    # What was pushed, and what is stored.

    def pushes(self):
        self.attempts = collections.defaultdict(list)
        for op in self.ops["push"]:
            for event in op["events"]:
                self.attempts[event["content"]].append((op, event["key"]))
        ids = self.ids = collections.defaultdict(list)
        names = {schedule["name"] for schedule in self.ops["schedule"]}
        for event in self.table:
            ids[event["content"]].append(event["id"])
            made = (event.get("metadata") or {}).get("schedule") in names
            if event["content"] not in self.attempts and not made:
                self.bad("phantom", "an event is stored that nobody pushed", event)
        for content, attempts in self.attempts.items():
            found = ids[content]
            proof = [op for op, _ in attempts] + [self.events[id] for id in found]
            keyed = attempts[0][1] is not None
            ok = sum(op["outcome"] == "ok" for op, _ in attempts)
            most = sum(op["outcome"] != "failed" for op, _ in attempts)
            if len(found) < (min(ok, 1) if keyed else ok):
                self.bad("lost", "an event was acknowledged and is not stored", *proof)
            if len(found) > (min(most, 1) if keyed else most):
                why = "more often than it may be: once under its key" if keyed else "though no push can have stored it"
                self.bad("duplicate", "an event is stored " + why, *proof)
            for op, _ in attempts:
                if op.get("id") is not None and op["id"] not in found:
                    self.bad("wrong id", "a push printed an id under which another event or none is stored", *proof)
        for op in self.ops["push"]:
            if op["batch"]:
                self.batch(op)

    def batch(self, op):
        found = [id for event in op["events"] for id in self.ids[event["content"]]]
        if len(found) not in (0, len(op["events"])):
            return self.bad("batch", "a batch is stored in part", op, *(self.events[id] for id in found))
        if found:
            between = sorted(id for id in self.events if found[0] <= id <= found[-1])
            if found != between:
                self.bad("batch", "the events of a batch are not together, or not in its order", op, found, between)
            if op.get("count") and (op["first"], op["last"], op["count"]) != (found[0], found[-1], len(found)):
                self.bad("batch", "a batch printed other ids than it has", op, found)

    def real_time(self):
        """Ids rise in the order of commits: what began after another was acknowledged has a greater id."""
        latest, latest_op = -INF, None
        acked = []
        for event in self.table:
            attempts = [op for op, _ in self.attempts[event["content"]] if op["outcome"] != "failed"]
            done = [op for op in attempts if op["outcome"] == "ok" and not op["scheduled"]]
            if done:
                first = min(done, key=lambda op: op["end"])
                acked.append((first["end"], event["id"], first))
                if latest > first["end"]:
                    text = "a push that began after another was acknowledged has a smaller id"
                    self.bad("id order", text, first, latest_op, event)
            if attempts and min(op["begin"] for op in attempts) > latest:
                latest_op = min(attempts, key=lambda op: op["begin"])
                latest = latest_op["begin"]
        acked.sort(key=lambda item: item[:2])
        newest, push, at = 0, None, 0
        for op in sorted(self.ops["info"], key=lambda op: op["begin"]):
            while at < len(acked) and acked[at][0] < op["begin"]:
                newest, push = max((newest, push), acked[at][1:], key=lambda item: item[0])
                at += 1
            if op["last"] < newest:
                self.bad("stale", f"event {newest} was acknowledged, and `info` did not know it later", push, op)

    def log(self):
        ids = [event["id"] for event in self.table]
        if any(one >= other for one, other in zip(ids, ids[1:])):
            self.bad("table", "the ids of the table do not rise", ids)
        table = self.final["table"]
        for what in ("jsonl", "followed"):
            lines = self.final[what]
            if table != lines:
                at = next((n for n, (a, b) in enumerate(zip(table, lines)) if a != b), min(len(table), len(lines)))
                self.bad(what, f"this differs from the table from line {at + 1} on", table[at:][:1], lines[at:][:1])

    def schedule(self, schedule):
        made = [event for event in self.table if (event.get("metadata") or {}).get("schedule") == schedule["name"]]
        times = [unix(event["metadata"]["scheduled_for"]) for event in made]
        for n, event in enumerate(made):
            if unix(event["created_at"]) < times[n] - MARGIN:
                self.bad("schedule", "a schedule made an event before its time", event)
            step = times[n] - times[n - 1] if n else schedule["every"]
            if abs(step - schedule["every"]) > 0.0015:
                what = "fired twice for a time" if step <= 0 else "left out a time, or kept another one"
                self.bad("schedule", "a schedule " + what, made[n - 1], event)


def main():
    history = History(load(sys.argv[1]))
    violations = history.check()
    printed = collections.Counter()
    for rule, text, proof in violations:
        printed[rule] += 1
        if printed[rule] > 5:
            continue
        print(f"{rule}: {text}")
        for op in proof:
            print("   ", json.dumps(op)[:600])
    counts = ", ".join(f"{len(ops)} {kind}" for kind, ops in sorted(history.ops.items()) if kind != "final")
    print(f"{len(history.table)} events; {counts}: {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
