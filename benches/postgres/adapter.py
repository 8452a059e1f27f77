"""`thread` on PostgreSQL as a system in https://github.com/hardbyte/postgresql-job-queue-benchmarking.

usage: DATABASE_URL=postgres://… SCENARIO=long_horizon PRODUCER_RATE=100 WORKER_COUNT=8 python3 benches/postgres/adapter.py

It follows that project's contract for adapters (CONTRIBUTING_ADAPTERS.md, Runtime contract): settings come from the
environment, samples are JSON objects on stdout, TERM ends it. It needs `cargo build --release --workspace`, or `thread`
and `thread-postgres` on PATH, and nothing else. Events are pushed one by one through the socket of a worker, and handled
by a pool of kept handlers, one event each at a time."""

import collections
import datetime
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

SYSTEM = "thread"
PROGRAMS = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", pathlib.Path(__file__).resolve().parents[2] / "target"))
SCHEMA = "thread"
TABLES = [f"{SCHEMA}.{name}" for name in ("events", "consumers", "cursors", "finished", "waits", "claims", "runs")]
WINDOW = 30
PRODUCERS = 8


def now():
    return datetime.datetime.now(datetime.timezone.utc)


def text(time):
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def number(name, default):
    return float(os.environ.get(name, default))


def emit(**record):
    print(json.dumps(record), flush=True)


def handler(reports):
    """Handles events one by one, and reports how long each had waited."""
    work = number("JOB_WORK_MS", 1) / 1000
    report = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    for line in sys.stdin:
        event = json.loads(line)
        waited = now() - datetime.datetime.fromisoformat(json.loads(event["content"])["at"])
        if work:
            time.sleep(work)
        print(f'{{"ack":{event["id"]}}}', flush=True)
        report.sendto(str(waited.total_seconds() * 1000).encode(), reports)


class Figures:
    """What has happened since the last sample, and the latest waits."""

    def __init__(self):
        self.lock = threading.Lock()
        self.pushed = self.done = 0
        self.waits = collections.deque(maxlen=32768)

    def push(self):
        with self.lock:
            self.pushed += 1

    def finish(self, waited):
        with self.lock:
            self.done += 1
            self.waits.append((time.monotonic(), waited))

    def take(self):
        with self.lock:
            pushed, done, self.pushed, self.done = self.pushed, self.done, 0, 0
            since = time.monotonic() - WINDOW
            return pushed, done, sorted(waited for at, waited in self.waits if at >= since)


class Adapter:
    def __init__(self, folder):
        url = os.environ["DATABASE_URL"]
        separator = "&" if "?" in url else "?"
        self.folder, self.figures, self.ends = folder, Figures(), threading.Event()
        self.depth, self.socket = 0, f"{folder}/push"
        self.environment = {**os.environ, "PATH": f"{PROGRAMS}/release:{os.environ['PATH']}",
                            "XDG_STATE_HOME": f"{folder}/state",
                            "THREAD_DIR": f"{url}{separator}schema={SCHEMA}#long_horizon"}

    def thread(self, *words, check=True):
        ran = subprocess.run(["thread", *words], env=self.environment, check=check, stdout=subprocess.PIPE, text=True)
        return ran.stdout

    def produce(self, part):
        """Pushes one of PRODUCERS parts of what is to be pushed."""
        payload = "x" * max(0, int(number("JOB_PAYLOAD_BYTES", 256)) - 96)
        rate, fixed = number("PRODUCER_RATE", 800), os.environ.get("PRODUCER_MODE", "fixed") == "fixed"
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self.socket)
            answers, due = connection.makefile("r"), time.monotonic()
            while not self.ends.is_set():
                if fixed and rate > 0:
                    due = max(due + PRODUCERS / rate, time.monotonic() - 1)
                    self.ends.wait(max(0, due - time.monotonic()))
                elif fixed or self.depth >= number("TARGET_DEPTH", 1000):
                    self.ends.wait(0.05)
                    # An idle connection is closed after a while.
                    connection.sendall(b"\n")
                    continue
                else:
                    self.depth += 1
                content = json.dumps({"part": part, "at": now().isoformat(), "padding": payload})
                connection.sendall(json.dumps({"source": "self", "type": "message", "content": content}).encode() + b"\n")
                answer = json.loads(answers.readline() or '{"error":"the worker has ended"}')
                if "error" in answer:
                    print(f"push: {answer['error']}", file=sys.stderr)
                    return
                self.figures.push()

    def listen(self, reports):
        while not self.ends.is_set():
            self.figures.finish(float(reports.recv(64)))

    def sample(self):
        every = number("SAMPLE_EVERY_S", 5)
        while not self.ends.wait(every - time.time() % every):
            bot = json.loads(self.thread("info", "pool", "--json"))["subscriptions"][0]
            pending = bot["pending"] if bot["pending"] is not None else bot["pending_at_least"]
            self.depth = max(0, pending - bot["in_hand"]["in_flight"])
            pushed, done, waits = self.figures.take()
            at = text(now())
            metrics = [("enqueue_rate", pushed / every, every), ("completion_rate", done / every, every),
                       ("queue_depth", self.depth, 0)]
            for percent in 50, 95, 99:
                value = waits[min(len(waits) - 1, len(waits) * percent // 100)] if waits else 0.0
                metrics.append((f"claim_p{percent}_ms", value, WINDOW))
            for metric, value, window in metrics:
                emit(t=at, system=SYSTEM, kind="adapter", subject_kind="adapter", subject="", metric=metric, value=value,
                     window_s=window)

    def run(self):
        self.thread("init", self.environment["THREAD_DIR"], check=False)
        version = self.thread("--version").split()[1]
        emit(kind="descriptor", system=SYSTEM, event_tables=TABLES, extensions=[], version=version,
             schema_version=version, db_name=os.environ["DATABASE_URL"].partition("?")[0].rpartition("/")[2],
             started_at=text(now()))
        reports = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        reports.bind(f"{self.folder}/reports")
        command = f"exec {sys.executable} {os.path.abspath(__file__)} handler {self.folder}/reports"
        self.thread("subscribe", "pool", command, "--deliver", "ndjson", "--batch-size", "1", "--replace",
                    "--concurrency", str(int(number("WORKER_COUNT", 8))))
        words = ["thread", "dispatch", "--follow", "--socket", self.socket]
        worker = subprocess.Popen(words, env=self.environment, stdout=subprocess.DEVNULL)
        while not os.path.exists(self.socket):
            if worker.poll() is not None:
                sys.exit("the worker has ended")
            time.sleep(0.01)
        loops = [(self.produce, (part,)) for part in range(PRODUCERS)] + [(self.listen, (reports,)), (self.sample, ())]
        for loop, arguments in loops:
            threading.Thread(target=loop, args=arguments, daemon=True).start()
        self.ends.wait()
        worker.send_signal(signal.SIGTERM)
        worker.wait()


def main():
    if os.environ.get("SCENARIO", "long_horizon") != "long_horizon":
        sys.exit("the only scenario is long_horizon")
    folder = tempfile.mkdtemp()
    adapter = Adapter(folder)
    for one in signal.SIGTERM, signal.SIGINT:
        signal.signal(one, lambda *_: adapter.ends.set())
    try:
        adapter.run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["handler", reports]:
            handler(reports)
        case _:
            main()
