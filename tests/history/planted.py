"""Alters a good history in ways that SPEC.md forbids; `check.py` must find each of them.

usage: planted.py LOG
"""

import copy
import json
import sys

import check
from deliveries import MARGIN, field

PLANTED = []


def planted(rule):
    """What follows alters a history so that this rule is violated."""
    def register(alter):
        PLANTED.append((rule, alter.__name__, alter))
        return alter
    return register


class Log:
    def __init__(self, ops):
        self.ops = ops
        self.final = self.of("final")[-1]
        self.table = [json.loads(line) for line in self.final["table"]]
        self.end = max(op.get("t") or op.get("end") or 0 for op in ops)

    def of(self, kind, **fields):
        fields["op"] = kind
        return [op for op in self.ops if all(op.get(key) == value for key, value in fields.items())]

    def add(self, like, **fields):
        self.ops.append({**copy.deepcopy(like), **fields})

    def store(self, events):
        """Makes this the table and the log."""
        self.final["table"] = [json.dumps(event) for event in events]
        self.final["jsonl"] = list(self.final["table"])
        self.final["followed"] = list(self.final["table"])

    def remove(self, content):
        self.store([event for event in self.table if event["content"] != content])

    def again(self, event):
        self.store(self.table + [{**event, "id": self.table[-1]["id"] + 1}])

    def single(self, **fields):
        """Single pushes that were acknowledged."""
        return [op for op in self.of("push", outcome="ok", batch=False, scheduled=False, **fields) if op["id"]]

    def stored(self, content):
        return next(event for event in self.table if event["content"] == content)

    def ticks(self):
        return [event for event in self.table if "schedule" in event.get("metadata", {})]

    def run(self, consumer, is_keyed=False):
        """A begin of events that neither expire nor are finished by hand, the first of them with a key, and their end."""
        expiring = {event["id"] for event in self.table if "expires_at" in event.get("metadata", {})}
        other = expiring | {op["id"] for op in self.of("finish", consumer=consumer)}
        for begin in self.of("begin", consumer=consumer):
            for end in self.of("end", run=begin["run"], how="ok"):
                ids = [id for id, _ in begin["events"]]
                is_wanted = not other & set(ids) and (field(begin["events"][0][1], "k") or not is_keyed)
                if is_wanted and end["ids"] == ids and end["t"] > begin["t"]:
                    return begin, end
        raise LookupError(f"{consumer} has no such run")


@planted("lost")
def an_acknowledged_event_is_missing(log):
    log.remove(log.single()[0]["events"][0]["content"])


@planted("phantom")
def an_event_that_nobody_pushed(log):
    log.again({**log.stored(log.single()[0]["events"][0]["content"]), "content": "from nowhere"})


@planted("duplicate")
def a_push_with_a_key_is_stored_twice(log):
    push = next(op for op in log.single() if op["events"][0]["key"])
    log.again(log.stored(push["events"][0]["content"]))


@planted("duplicate")
def a_push_that_failed_is_stored(log):
    push = next(op for op in log.single() if not op["events"][0]["key"])
    push["outcome"] = "failed"


@planted("wrong id")
def a_push_prints_the_id_of_another_event(log):
    one, other = log.single()[:2]
    one["id"] = other["id"]


@planted("batch")
def a_batch_is_stored_in_part(log):
    batch = next(op for op in log.of("push", batch=True, outcome="ok") if op["count"])
    batch["outcome"] = "unknown"
    log.remove(batch["events"][-1]["content"])


@planted("id order")
def a_later_push_has_a_smaller_id(log):
    one, other = log.single(proc="quiet")[:2]
    contents = {one["id"]: other["events"][0]["content"], other["id"]: one["events"][0]["content"]}
    one["id"], other["id"] = other["id"], one["id"]
    log.store([{**event, "content": contents.get(event["id"], event["content"])} for event in log.table])


@planted("stale")
def an_acknowledged_event_is_not_seen_later(log):
    log.of("info")[-1]["last"] = 1


@planted("jsonl")
def a_line_of_the_log_differs(log):
    log.final["jsonl"][1] = log.final["jsonl"][1].replace('"type":"', '"type":"x')


@planted("jsonl")
def a_line_of_the_log_is_missing(log):
    del log.final["jsonl"][-1]


@planted("followed")
def a_reader_gets_an_event_twice(log):
    log.final["followed"].insert(1, log.final["followed"][0])


@planted("schedule")
def a_schedule_fires_twice_for_a_time(log):
    log.again(log.ticks()[-1])


@planted("schedule")
def a_schedule_leaves_a_time_out(log):
    gone = log.ticks()[1]["id"]
    log.store([event for event in log.table if event["id"] != gone])


@planted("schedule")
def a_schedule_fires_before_its_time(log):
    tick = log.ticks()[0]
    tick["created_at"] = "2001-01-01T00:00:00.000Z"
    log.store(log.table)


@planted("two at once: event")
def two_runs_have_one_event(log):
    begin, end = log.run("pool")
    log.add(begin, run="another", t=(begin["t"] + end["t"]) / 2)


@planted("two at once: key")
def two_runs_have_one_key(log):
    begin, end = log.run("pool", is_keyed=True)
    key = field(begin["events"][0][1], "k")
    other = next(event for event in log.table if event["type"] == "message" and event["id"] != begin["events"][0][0]
                 and field(event["content"], "k") == key)
    log.add(begin, run="another", t=(begin["t"] + end["t"]) / 2, events=[[other["id"], other["content"]]])


@planted("two at once: key")
def one_handler_has_two_of_a_key(log):
    begin, end = log.run("kept", is_keyed=True)
    key = field(begin["events"][0][1], "k")
    other = next(event for event in log.table if event["type"] == "record" and event["id"] != begin["events"][0][0]
                 and field(event["content"], "k") == key)
    log.add(begin, t=(begin["t"] + end["t"]) / 2, events=[[other["id"], other["content"]]])


@planted("two at once: consumer")
def two_runs_of_a_consumer_that_is_no_pool(log):
    begin, end = log.run("ordered")
    last = log.table[-1]
    log.add(begin, run="another", t=(begin["t"] + end["t"]) / 2, events=[[last["id"], last["content"]]])


@planted("two at once: handler")
def two_kept_handlers(log):
    begin, end = log.run("kept")
    last = [event for event in log.table if event["type"] == "record"][-1]
    log.add(begin, run="another", t=(begin["t"] + end["t"]) / 2, events=[[last["id"], last["content"]]])


@planted("two at once: event")
def an_event_is_claimed_twice_before_the_first_claim_is_over(log):
    claim, ack = claimed(log)
    middle = (claim["end"] + min(ack["begin"], claim["begin"] + claim["seconds"] - MARGIN)) / 2
    log.add(claim, begin=middle, end=middle, events=[[*claim["events"][0][:2], "another"]])


@planted("claim over")
def a_claim_ends_an_event_after_its_time(log):
    claim, ack = claimed(log)
    ack.update(begin=claim["end"] + 2 * claim["seconds"], end=claim["end"] + 3 * claim["seconds"],
               token=claim["events"][0][2])


def claimed(log):
    for claim in log.of("claim"):
        for id, _, token in claim["events"]:
            acks = [op for op in log.of("finish", consumer="team", id=id) if op["begin"] >= claim["begin"]]
            ack = min(acks, key=lambda op: op["begin"], default=None)
            is_mine = ack and ack["outcome"] == "ok" and ack["what"] == "ack" and ack["token"] in (None, token)
            if is_mine and claim["end"] < ack["begin"] < claim["begin"] + claim["seconds"] - MARGIN:
                return claim, ack
    raise LookupError("nothing was claimed and acknowledged in time")


@planted("too many")
def more_are_claimed_than_the_limit_says(log):
    log.of("consumer", name="team")[0]["limit"] = 0


@planted("order")
def an_event_is_given_before_an_older_one(log):
    begin = log.of("begin", consumer="ordered")[0]
    last = log.table[-1]
    log.add(begin, run="another", t=begin["t"] - 1, events=[[last["id"], last["content"]]])


@planted("order")
def an_event_is_given_before_an_older_one_of_its_key(log):
    of = [event for event in log.table if event["type"] == "message" and field(event["content"], "k") == "ada"]
    begin = next(op for op in log.of("begin", consumer="pool") if op["events"][0][0] == of[-2]["id"])
    log.add(begin, run="another", t=begin["t"] - 1, events=[[of[-1]["id"], of[-1]["content"]]])


@planted("after its end")
def an_event_is_given_after_its_acknowledgment(log):
    begin = log.of("begin", consumer="ordered")[0]
    log.add(begin, run="another", t=log.end + 1)


@planted("after its end")
def an_event_is_claimed_after_its_acknowledgment(log):
    claim, _ = claimed(log)
    log.add(claim, begin=log.end + 1, end=log.end + 1)


@planted("not handled")
def a_delivery_is_lost(log):
    begin, _ = log.run("pool")
    id = begin["events"][0][0]
    log.ops[:] = [op for op in log.ops if op.get("consumer") != "pool" or id not in
                  [op.get("id"), *op.get("ids", ()), *(event[0] for event in op.get("events", ()))]]


@planted("cursor")
def a_cursor_passes_what_was_not_handled(log):
    first = min(log.of("info"), key=lambda op: op["begin"])
    first["cursors"]["ordered"] = log.table[-1]["id"]


@planted("cursor")
def a_cursor_goes_back(log):
    last = max(log.of("info"), key=lambda op: op["begin"])
    log.add(last, begin=log.end + 1, end=log.end + 1, cursors={**last["cursors"], "kept": 0})


@planted("sync")
def a_push_waits_for_an_acknowledgment_that_did_not_come(log):
    push = log.single()[-1]
    push.update(synced=True, end=push["begin"])


@planted("dead")
def a_dead_letter_that_nobody_rejected(log):
    end = log.of("end", consumer="ordered", how="ok")[0]
    log.final["dead"].append(["ordered", end["ids"][0]])


@planted("content")
def another_content_is_delivered(log):
    log.of("begin", consumer="kept")[0]["events"][0][1] = "changed"


@planted("filter")
def an_event_is_delivered_that_the_filter_does_not_match(log):
    begin = log.of("begin", consumer="pool")[0]
    record = next(event for event in log.table if event["type"] == "record")
    log.add(begin, run="another", t=log.end, events=[[record["id"], record["content"]]])


@planted("ended")
def a_handler_comes_to_no_end(log):
    log.ops.remove(max(log.of("end", consumer="pool", how="ok"), key=lambda op: op["t"]))


@planted("stop")
def a_run_goes_on_after_it_was_stopped(log):
    begin, end = log.run("pool")
    times = {"begin": begin["t"] + (end["t"] - begin["t"]) / 3, "end": end["t"] - (end["t"] - begin["t"]) / 3}
    log.ops.append({"op": "stop", "consumer": "pool", "outcome": "ok", **times})


@planted("left")
def a_process_is_left(log):
    log.final["left"] = ["1: thread"]


@planted("stuck")
def an_event_is_not_finished_in_the_end(log):
    log.final["stuck"] = ["pool: 1 pending"]


def main():
    good = check.load(sys.argv[1])
    failed = [f"the good history: {rule}: {text}" for rule, text, _ in check.History(copy.deepcopy(good)).check()]
    for rule, name, alter in PLANTED:
        log = Log(copy.deepcopy(good))
        alter(log)
        found = {rule for rule, _, _ in check.History(log.ops).check()}
        if rule not in found:
            failed.append(f"{name}: found {sorted(found)}, not {rule!r}")
    print("\n".join(failed + [f"{len(PLANTED)} planted violations, {len(failed)} failures"]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
