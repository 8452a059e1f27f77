"""What a consumer was given, and whether SPEC.md allows it; see `check.py` for the operations."""

import bisect
import collections
import datetime
import json

INF = float("inf")
# Claims are measured by another clock, in whole milliseconds.
MARGIN = 0.05
# A piece of work: `lo` to `hi` is when somebody certainly had the event; `asked` is before it was given.
Piece = collections.namedtuple("Piece", "id content run asked lo hi op")


def unix(text):
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def field(content, name):
    """What `content ->> '$.name'` is."""
    try:
        return json.loads(content).get(name) if name else None
    except (ValueError, AttributeError):
        return None


class Deliveries:
    """What one consumer was given, and what became of it."""

    def __init__(self, history, consumer):
        self.history, self.consumer, self.name = history, consumer, consumer["name"]
        self.bad = lambda rule, text, *proof: history.bad(rule, f"{self.name}: {text}", *proof)
        wanted = consumer["match"].items()
        self.matching = [e["id"] for e in history.table if all(e[column] == value for column, value in wanted)]
        of = lambda kind: [op for op in history.ops[kind] if op.get("consumer") == self.name]
        self.dead = {id for name, id in history.final["dead"] if name == self.name}
        self.finishes, self.claims, self.ends = of("finish"), of("claim"), of("end")
        # By event: when it may have been finished first, and when it certainly was; and the operation.
        self.finished, self.acked = {}, {}
        # Those that were finished while a handler had them, perhaps before it could note that.
        self.by_hand = {op["id"] for op in self.finishes} if consumer["runs"] != "claims" else set()
        self.pieces = self.of_claims() if consumer["runs"] == "claims" else self.of_handlers(of)
        self.pieces.sort(key=lambda piece: piece.lo)

    def of_handlers(self, of):
        lives, ends, pieces = {}, {}, []
        for op in of("begin") + of("alive") + self.ends:
            lives[op["run"]] = max(lives.get(op["run"], 0), op["t"])
        for op in sorted(self.ends, key=lambda op: op["t"]):
            for id in op["ids"]:
                ends.setdefault((op["run"], id), []).append(op["t"])
        for op in of("begin"):
            for id, content in op["events"]:
                after = [t for t in ends.get((op["run"], id), ()) if t >= op["t"]]
                hi = after[0] if after else lives[op["run"]]
                pieces.append(Piece(id, content, op["run"], op["t"], op["t"], hi, op))
        return pieces

    def of_claims(self):
        releases = collections.defaultdict(list)
        for op in self.finishes:
            releases[op["id"]].append(op)
        pieces = []
        for op in self.claims:
            for id, content, token in op["events"]:
                over = op["begin"] + op["seconds"] - MARGIN
                # A release without a token is for whoever has the event.
                mine = [r["begin"] for r in releases[id] if r["token"] in (None, token) and r["begin"] >= op["begin"]]
                pieces.append(Piece(id, content, token, op["begin"], op["end"], min([over] + mine), op))
        return pieces

    def check(self):
        self.contents()
        self.finishing()
        self.overlaps()
        self.order()
        self.after()
        self.tokens()
        self.ended()

    def contents(self):
        matching = set(self.matching)
        for piece in self.pieces:
            event = self.history.events.get(piece.id)
            if event is None or event["content"] != piece.content:
                self.bad("content", "was given what is not stored so", piece.op, event)
            elif piece.id not in matching:
                self.bad("filter", "was given an event that its filter does not match", piece.op, event)

    def when(self, id):
        """The earliest moment at which it may have been finished."""
        return self.finished.get(id, (INF, None))[0]

    def may_be_finished(self, id, t, op):
        if t < self.when(id):
            self.finished[id] = (t, op)

    def finishing(self):
        good = set()
        for op in self.ends:
            for id in op["ids"] if op["how"] in ("ok", "bad") else ():
                self.may_be_finished(id, op["t"], op)
                good |= {id} if op["how"] == "ok" else set()
        rejected = {id for op in self.ends if op["how"] == "bad" for id in op["ids"]}
        for op in self.finishes:
            if op["what"] != "nack" and op["outcome"] != "failed":
                self.may_be_finished(op["id"], op["begin"], op)
                (good if op["what"] == "ack" else rejected).add(op["id"])
                if op["outcome"] == "ok" and op["end"] < self.acked.get(op["id"], (INF,))[0]:
                    self.acked[op["id"]] = (op["end"], op)
        now = self.history.final["now"]
        for id in self.matching:
            event = self.history.events[id]
            expires = (event.get("metadata") or {}).get("expires_at")
            if expires and unix(expires) < now:
                self.may_be_finished(id, -INF, None)
                continue
            if id not in good and id not in self.dead:
                given = [piece.op for piece in self.pieces if piece.id == id]
                self.bad("not handled", "an event was never handled, and is no dead letter", event, *given)
        for id in sorted(self.dead - rejected):
            self.bad("dead", "a dead letter that nobody rejected", self.history.events.get(id, id))

    def overlaps(self):
        """At most one at a time for an event and for a key, and in all as many as the limit says."""
        groups = collections.defaultdict(list)
        for piece in self.pieces:
            groups["event", piece.id].append(piece)
            key = field(piece.content, self.consumer["key"])
            if key is not None:
                # One that was finished by hand holds back no other, though its run goes on.
                by_hand = piece.id in self.by_hand
                hi = min(piece.hi, max(piece.lo, self.when(piece.id))) if by_hand else piece.hi
                groups["key", str(key)].append(piece._replace(hi=hi))
            if self.consumer["runs"] == "one":
                groups["consumer", self.name].append(piece)
        for (what, value), pieces in groups.items():
            last = None
            for piece in pieces:
                # A run of a consumer in order has several events; no run has several of a key, nor one twice.
                others = last and (what != "consumer" or piece.run != last.run)
                if others and last.hi > piece.lo and piece.hi > last.lo:
                    self.bad(f"two at once: {what}", f"two had {what} {value} at the same time", last.op, piece.op)
                last = piece if last is None or piece.hi > last.hi else last
        # By run, of a handler; by event, of claims and of a kept handler.
        of = (lambda piece: piece.run) if self.consumer["runs"] == "pool" else (lambda piece: (piece.run, piece.id))
        moments = []
        for piece in self.pieces:
            if piece.hi > piece.lo and self.consumer["runs"] != "one":
                moments += [(piece.lo, 1, of(piece), piece.op), (piece.hi, 0, of(piece), piece.op)]
        had = collections.Counter()
        for _, starts, who, op in sorted(moments, key=lambda moment: moment[:2]):
            had[who] += 1 if starts else -1
            if not had[who]:
                del had[who]
            if len(had) > self.consumer["limit"]:
                self.bad("too many", f"{len(had)} at once, of {self.consumer['limit']}", op, list(had))
        if self.consumer["runs"] == "kept":
            runs = collections.defaultdict(lambda: [INF, 0])
            for piece in self.pieces:
                life = runs[piece.run]
                life[:] = min(life[0], piece.lo), max(life[1], piece.hi)
            lives = sorted((lo, hi, run) for run, (lo, hi) in runs.items())
            for (lo, hi, run), (next_lo, _, other) in zip(lives, lives[1:]):
                if next_lo < hi:
                    self.bad("two at once: handler", "two kept handlers at the same time", run, other)

    def order(self):
        """An event is given once all before it are finished: all of the consumer, or all of its key."""
        group = lambda content: 0 if self.consumer["runs"] == "one" else field(content, self.consumer["key"])
        # By group: its ids, and up to each of them the latest moment at which one was finished first.
        groups = collections.defaultdict(lambda: ([], [(-INF, 0)]))
        for id in self.matching:
            ids, latest = groups[group(self.history.events[id]["content"])]
            ids.append(id)
            latest.append(max(latest[-1], (self.when(id), id)))
        groups.pop(None, None)
        for piece in self.pieces:
            ids, latest = groups.get(group(piece.content), ([], []))
            together = {event[0] for event in piece.op["events"]}
            place = bisect.bisect_left(ids, piece.id)
            while place and ids[place - 1] in together:
                place -= 1
            if ids and latest[place][0] > piece.lo:
                before = latest[place][1]
                text = f"event {piece.id} was given before event {before} was finished"
                self.bad("order", text, piece.op, *self.finished.get(before, (0, self.history.events[before]))[1:])

    def after(self):
        """Nothing is given after its acknowledgment. A cursor passes only what was finished, and never goes back."""
        seen = [(op["end"], op["cursors"][self.name], op) for op in self.history.ops["info"]]
        seen.sort(key=lambda item: item[:2])
        # The highest cursor up to each of them.
        highest = []
        for end, cursor, op in seen:
            known = [(e, c, o) for e, c, o in highest[-1:] if e < op["begin"]]
            if known and cursor < known[0][1]:
                self.bad("cursor", "the cursor went back", known[0][2], op)
            highest.append(max(highest[-1:] + [(end, cursor, op)], key=lambda item: item[1]))
            for id in self.matching[: bisect.bisect_right(self.matching, cursor)]:
                if self.when(id) > end:
                    text = f"the cursor passed event {id}, which nobody had finished"
                    self.bad("cursor", text, op, self.finished.get(id))
        if self.consumer["runs"] != "claims":
            matching = set(self.matching)
            for op in self.history.ops["push"]:
                for id in [op["id"]] if op.get("synced") and op["id"] in matching else []:
                    if self.when(id) > op["end"]:
                        self.bad("sync", f"event {id} counted as acknowledged, and nobody had finished it", op)
                    self.acked[id] = min(self.acked.get(id, (INF,)), (op["end"], op), key=lambda item: item[0])
        ends = [end for end, _, _ in seen]
        for piece in self.pieces:
            end, op = self.acked.get(piece.id, (INF, None))
            place = bisect.bisect_left(ends, piece.asked)
            if end >= piece.asked and place and highest[place - 1][1] >= piece.id:
                end, op = highest[place - 1][0], highest[place - 1][2]
            if end < piece.asked and piece.id not in self.by_hand:
                self.bad("after its end", f"event {piece.id} was given after it was acknowledged", op, piece.op)

    def tokens(self):
        """What a claim does after its time is refused."""
        claims = {token: op for op in self.claims for _, _, token in op["events"]}
        for op in self.finishes:
            claim = claims.get(op["token"])
            if claim and op["outcome"] == "ok" and op["begin"] > claim["end"] + claim["seconds"] + MARGIN:
                self.bad("claim over", "a claim did something after its time", claim, op)

    def ended(self):
        """A run is over when `stop` returns. Otherwise one on stdin goes to its end, whoever else is killed."""
        over = {op["run"] for op in self.ends}
        killed = {op["pid"] for op in self.history.ops["kill"]}
        stops = [op for op in self.history.ops["stop"] if op["consumer"] == self.name]
        for piece in self.pieces:
            for stop in stops:
                if stop["outcome"] == "ok" and piece.lo < stop["begin"] and piece.hi > stop["end"]:
                    self.bad("stop", "a run went on after it was stopped", stop, piece.op)
            excused = piece.op.get("pid") in killed or any(stop["end"] > piece.lo for stop in stops)
            if self.consumer["runs"] in ("one", "pool") and piece.run not in over and not excused:
                self.bad("ended", "a handler came to no end, and nobody killed it", piece.op)
