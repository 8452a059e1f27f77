"""A push by the client for Python against its commit alone, and against Redis Streams that syncs each write.

usage: python3 benches/clients/push.py [EVENTS]

It needs `cargo build --release`, and for the comparison `redis-server` on PATH and the Python package `redis`. All take
turns, event by event, so that they have the same disk at the same time. The commit alone is an INSERT into the table of
another thread by Python's own SQLite, with the same settings. Prints medians and the 9th decile, in milliseconds."""

import os
import pathlib
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAMS = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", HERE / "target")) / "release"
sys.path.insert(0, str(HERE / "clients/python"))
os.environ.setdefault("THREAD_PROGRAM", str(PROGRAMS / "thread"))

import threadq  # noqa: E402

CONTENT = "x" * 300


def redis_in(folder):
    """A client of a server of its own; None if there is none."""
    try:
        import redis
    except ImportError:
        return None
    if not shutil.which("redis-server"):
        return None
    options = ["--port", "0", "--unixsocket", f"{folder}/socket", "--dir", folder, "--save", ""]
    server = subprocess.Popen(["redis-server", *options, "--appendonly", "yes", "--appendfsync", "always"],
                              stdout=subprocess.DEVNULL)
    client = redis.Redis(unix_socket_path=f"{folder}/socket")
    while True:
        try:
            client.ping()
            return server, client
        except redis.ConnectionError:
            time.sleep(0.05)


def main(events):
    with tempfile.TemporaryDirectory() as folder:
        thread = threadq.Thread.init(f"{folder}/ours")
        threadq.Thread.init(f"{folder}/plain").close()
        plain = sqlite3.connect(f"{folder}/plain/events.db", isolation_level=None)
        plain.execute("PRAGMA synchronous = FULL")
        insert = "INSERT INTO events (source, type, content) VALUES ('self', 'message', ?)"
        works = {
            "push": lambda: thread.push(CONTENT, source="self"),
            "commit": lambda: plain.execute(insert, (CONTENT,)),
            "read one": lambda: thread.read(tail=1),
        }
        redis = redis_in(folder)
        if redis:
            works["XADD"] = lambda: redis[1].xadd("events", {"event": CONTENT})
        times = {name: [] for name in works}
        for _ in range(events):
            for name, work in works.items():
                began = time.perf_counter()
                work()
                times[name].append((time.perf_counter() - began) * 1000)
        for name, took in times.items():
            print(f"{name:9} {statistics.median(took):6.2f} ms, 9 of 10 below {statistics.quantiles(took, n=10)[8]:6.2f} ms")
        more = statistics.median(push - commit for push, commit in zip(times["push"], times["commit"]))
        print(f"push takes {more:.2f} ms more than its commit (goal: 0.3 ms)")
        if redis:
            print(f"push takes {statistics.median(times['push']) / statistics.median(times['XADD']):.1f} times an XADD")
            redis[0].terminate()
            redis[0].wait()
        thread.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 2_000)
