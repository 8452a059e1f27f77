"""Compares what is found on a disk after a power cut with what had been promised by then."""

import bisect
import collections
import glob
import json
import os
import sqlite3
import subprocess
import time

# A cursor that `info` printed is on the disk so much later at the latest: SPEC.md says a second.
SETTLED = 5


class Promises:
    """What was told, and after how many entries of the log it counts."""

    def __init__(self, recording):
        self.all, self.failed = [], []
        self.handled = collections.defaultdict(set)
        for told in recording.told:
            word, _, rest = told.line.partition(" ")
            if word == "handled":
                consumer, id = rest.split()
                self.handled[consumer].add(int(id))
            elif word == "info":
                settled = recording.entries_at(told.time + SETTLED)
                if settled is not None:
                    for consumer in json.loads(rest)["subscriptions"]:
                        promise = "cursor", (consumer["consumer_id"], consumer["last_acked_id"])
                        self.all.append((settled, *promise))
            elif word == "failed":
                self.failed.append(f"it failed in the guest: {rest}")
            elif word != "over":
                self.all.append((told.entries, word, rest))
        self.all.sort(key=lambda promise: promise[0])
        self.times = [promise[0] for promise in self.all]

    def by(self, entries):
        return self.all[:bisect.bisect_right(self.times, entries)]

    def numbers(self):
        return dict(collections.Counter(word for _, word, _ in self.all), handled=sum(map(len, self.handled.values())))


class Mounted:
    """A disk that is mounted, whose file system replays its journal by that."""

    def __init__(self, image, kind, folder):
        self.image, self.kind, self.folder = image, kind, folder

    def __enter__(self):
        os.makedirs(self.folder, exist_ok=True)
        # Several copies of one xfs are mounted at a time.
        options = "loop,noatime,nouuid" if self.kind == "xfs" else "loop,noatime"
        run(["mount", "-o", options, "-t", self.kind, self.image, self.folder])
        return self.folder

    def __exit__(self, *_):
        # A process that another thread of this one is about to start may have its files open for a moment.
        end = time.monotonic() + 60
        while True:
            try:
                run(["umount", self.folder])
                return
            except Wrong:
                if time.monotonic() > end:
                    raise
                time.sleep(0.01)


class Wrong(Exception):
    pass


def run(command, **more):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          errors="replace", **more)
    if done.returncode != 0:
        raise Wrong(f"{' '.join(command[:3])}: exit {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}")
    return done


def sound(image, kind):
    """The file system itself, when nothing has it mounted."""
    if kind == "ext4":
        run(["e2fsck", "-fn", image])
    elif kind == "xfs":
        run(["xfs_repair", "-n", "-f", image])


class Check:
    """Looks at a disk that a power cut has left. Subclasses say at what."""

    def __init__(self, programs, promises, kind):
        self.programs, self.promises, self.kind = programs, promises, kind

    def __call__(self, cut, image, folder):
        """What is wrong with this disk."""
        self.wrong = []
        try:
            with Mounted(image, self.kind, folder):
                pass
            sound(image, self.kind)
            with Mounted(image, self.kind, folder) as found:
                self.look(found, cut, self.promises.by(cut.upto))
            sound(image, self.kind)
        except Wrong as error:
            self.wrong.append(str(error))
        return self.wrong

    def environment(self, **more):
        path = f"{self.programs}:{os.environ['PATH']}"
        return {"PATH": path, "HOME": self.programs, "THREAD_NOTIFIER": "off", **more}

    def ask(self, inbox, *words):
        return run(["thread", *words], env=self.environment(THREAD_DIR=inbox), timeout=120)

    def lost(self, what):
        self.wrong.append(f"lost: {what}")

    def doctor(self, inbox):
        for finding in json.loads(self.ask(inbox, "doctor", "--json").stdout)["findings"]:
            if finding["check"] not in ("consumer", "scheduled", "handler", "program"):
                self.wrong.append(f"doctor: {finding}")

    def same(self, database, inbox):
        """Whether the JSONL log equals the table. Returns the rows."""
        columns = "id, created_at, source, type, subtype, content, metadata"
        table = database.execute(f"SELECT {columns} FROM events ORDER BY id").fetchall()
        lines = []
        for *fields, metadata in table:
            event = dict(zip(columns.split(", "), fields))
            line = json.dumps(event, separators=(",", ":"), ensure_ascii=False)
            lines.append(f'{line[:-1]},"metadata":{metadata}}}' if metadata else line)
        log = ""
        for part in [*sorted(glob.glob(os.path.join(inbox, "events-*.jsonl"))), os.path.join(inbox, "events.jsonl")]:
            with open(part, encoding="utf-8", errors="replace") as file:
                log += file.read()
        if log.split("\n") != lines + [""]:
            self.wrong.append(f"the JSONL log differs from the table: {difference(log, lines)}")
        if (found := database.execute("PRAGMA integrity_check").fetchall()) != [("ok",)]:
            self.wrong.append(f"integrity: {found}")
        return table


class Inbox(Check):
    """A thread with pushers, consumers and schedules."""

    def look(self, found, cut, promised):
        self.found = found
        self.inbox = inbox = os.path.join(found, "inbox")
        if not os.path.exists(os.path.join(inbox, "events.db")):
            if promised:
                self.wrong.append("lost: the thread")
            self.ask(inbox, "init", inbox)
        # Any command may be the first.
        first = [("push", "first"), ("info", "--json"), ("peek", "--since", "beginning"), ()][cut.seed % 4]
        if first and not self.ask(inbox, *first).stderr == "":
            self.wrong.append("the first command warned")
        pushed = self.ask(inbox, "push", "--json", "after the cut")
        if pushed.stderr:
            self.wrong.append(f"the next push: {pushed.stderr}")
        for consumer in json.loads(self.ask(inbox, "info", "--json").stdout)["subscriptions"]:
            # Otherwise the doctor waits for what is pending.
            self.ask(inbox, "pause", consumer["consumer_id"])
        self.doctor(inbox)
        database = sqlite3.connect(os.path.join(inbox, "events.db"))
        try:
            self.database(database, inbox, promised)
        except sqlite3.Error as error:
            self.wrong.append(f"the database: {error}")
        finally:
            database.close()

    def database(self, database, inbox, promised):
        rows = lambda sql: database.execute(sql).fetchall()
        table = self.same(database, inbox)
        self.events = {row[0]: row for row in table}
        self.contents = collections.Counter(row[5] for row in table)
        self.cursors = dict(rows("SELECT consumer_id, last_acked_id FROM consumer_progress"))
        self.consumers = {name for name, in rows("SELECT consumer_id FROM subscriptions")}
        tables = {name for name, in rows("SELECT name FROM sqlite_master WHERE type = 'table'")}
        self.later = dict(rows("SELECT id, content FROM scheduled")) if "scheduled" in tables else {}
        self.schedules = {name for name, in rows("SELECT name FROM schedules")} if "schedules" in tables else set()
        finished = rows("SELECT consumer_id, first_id, last_id FROM finished") if "finished" in tables else []
        self.finished = [(name, 1, cursor) for name, cursor in self.cursors.items()] + finished
        self.dead = set(rows("SELECT consumer_id, event_id FROM dead_letters"))
        for _, word, what in promised:
            getattr(self, "had_" + word)(what)
        self.batches()
        self.repeated()
        for consumer, handled in self.promises.handled.items():
            ranges = [(a, b) for name, a, b in self.finished if name == consumer]
            ids = {id for a, b in ranges for id in range(a, b + 1) if id in self.events}
            if not ids <= handled:
                self.wrong.append(f"{consumer} is past events that it has not handled: {sorted(ids - handled)[:5]}")

    def had_init(self, _):
        pass

    def had_consumer(self, name):
        if name not in self.consumers:
            self.lost(f"the consumer {name}")

    def had_session(self, text):
        answer = json.loads(text)
        if answer["exit"] != 0:
            self.wrong.append(f"a push failed: {text[:300]}")
        for event in answer["out"]:
            self.had_event(event)

    def had_push(self, text):
        self.had_event(json.loads(text))

    def had_event(self, event):
        row = self.events.get(event["id"])
        if row is None or (row[1], row[2], row[5]) != (event["created_at"], event["source"], event["content"]):
            self.lost(f"event {event['id']}, {event['content'][:20]!r}")

    def had_early(self, content):
        if not self.contents[content]:
            self.lost(f"{content[:20]!r}, which was acknowledged")

    def had_batch(self, text):
        name, number, size, told = text.split(" ", 3)
        told = json.loads(told)
        wanted = [f"batch {name} {number} of {size}: {at}" for at in range(1, int(size) + 1)]
        ids = range(told["first_id"], told["last_id"] + 1)
        if [self.events[id][5] if id in self.events else None for id in ids] != wanted:
            self.lost(f"batch {number} of {name}, or a part of it")

    def had_ack(self, text):
        told = json.loads(text)
        self.had_cursor((told["consumer_id"], told["last_acked_id"]))

    def had_cursor(self, told):
        consumer, cursor = told
        if self.cursors.get(consumer, 0) < cursor:
            self.lost(f"the cursor {cursor} of {consumer}: it is at {self.cursors.get(consumer, 0)}")

    def had_schedule(self, name):
        if name not in self.schedules:
            self.lost(f"the schedule {name}")

    def had_later(self, text):
        number, told = text.split(" ", 1)
        content = f"later {number}"
        id = int(json.loads(told)["scheduled_id"][1:])
        if (self.later.get(id) == content) + self.contents[content] != 1:
            self.lost(f"{content!r}, which was scheduled, or it is there twice")

    def had_dead(self, told):
        consumer, id = told.split()
        if (consumer, int(id)) not in self.dead:
            self.lost(f"the dead letter {told}")

    def is_finished(self, consumer, id):
        return any(name == consumer and first <= id <= last for name, first, last in self.finished)

    def had_finished(self, told):
        consumer, id = told.split()
        if not self.is_finished(consumer, int(id)):
            self.lost(f"that {consumer} has finished {id}")

    def had_step(self, told):
        id, name = told.split()
        listed = self.ask(self.inbox, "step", "--list", "--json", "--consumer", "team", "--event", id).stdout
        done = {step["name"] for step in map(json.loads, listed.splitlines()) if step["state"] == "done"}
        # A step is kept until its event is finished.
        if name not in done and not self.is_finished("team", int(id)):
            self.lost(f"the step {name} of event {id}")

    def had_backup(self, told):
        number, told = told.split(" ", 1)
        copy = os.path.join(self.found, "copies", number)
        if not os.path.exists(os.path.join(copy, "events.db")):
            return self.lost(f"the backup {number}")
        database = sqlite3.connect(os.path.join(copy, "events.db"))
        try:
            if len(self.same(database, copy)) != json.loads(told)["event_count"]:
                self.lost(f"events of the backup {number}")
        finally:
            database.close()

    def batches(self):
        """A batch is there completely or not at all, also if it was not acknowledged."""
        found = collections.Counter()
        for content in self.contents:
            if content.startswith("batch "):
                found[content.split(":")[0]] += 1
        for name, number in found.items():
            if number != int(name.split()[-1]):
                self.wrong.append(f"a part of a batch: {name} has {number} events")

    def repeated(self):
        times = collections.Counter()
        for content, number in self.contents.items():
            if number > 1 and content not in ("after the cut", "first", "the clock"):
                self.wrong.append(f"stored {number} times: {content[:30]!r}")
        for row in self.events.values():
            metadata = json.loads(row[6]) if row[6] else {}
            if "schedule" in metadata:
                times[metadata["schedule"], metadata["scheduled_for"]] += 1
        for time, number in times.items():
            if number > 1:
                self.wrong.append(f"the schedule's time {time} has {number} events")


def difference(log, lines):
    for at, (a, b) in enumerate(zip(log.split("\n"), lines + [""])):
        if a != b:
            return f"line {at + 1} is {a[:100]!r}, not {b[:100]!r}"
    return f"{log.count(chr(10))} lines instead of {len(lines)}"
