"""A pool of kept handlers against a consumer group of Redis Streams: the same events, handlers, windows and grouping.

usage: python3 benches/streams/compare.py [EVENTS]

It needs `redis-server` on PATH, the Python package `redis`, and `cargo build --release`. Both have eight handlers in
Python, which parse each event, do nothing, and acknowledge together what they got together."""

import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import redis

HERE = pathlib.Path(__file__).resolve().parent
PROGRAMS = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent.parent / "target")) / "release"
HANDLERS = 8


def handler():
    """Answers each line that is there."""
    rest = b""
    while data := os.read(0, 1 << 16):
        *lines, rest = (rest + data).split(b"\n")
        os.write(1, b"".join(b'{"ack":%d}\n' % json.loads(line)["id"] for line in lines))


def member(socket, name, count):
    """Reads and acknowledges until there is nothing for half a second."""
    client = redis.Redis(unix_socket_path=socket)
    while got := client.xreadgroup("group", name, {"events": ">"}, count=count, block=500):
        with client.pipeline(transaction=False) as pipe:
            for id, fields in got[0][1]:
                json.loads(fields[b"event"])
                pipe.xack("events", "group", id)
            pipe.execute()


def of_redis(lines, window, folder):
    socket = f"{folder}/socket"
    options = ["--port", "0", "--unixsocket", socket, "--dir", folder, "--save", ""]
    server = subprocess.Popen(["redis-server", *options, "--appendonly", "yes", "--appendfsync", "always"],
                              stdout=subprocess.DEVNULL)
    client = redis.Redis(unix_socket_path=socket)
    while True:
        try:
            client.ping()
            break
        except redis.ConnectionError:
            time.sleep(0.05)
    client.xgroup_create("events", "group", id="0", mkstream=True)
    with client.pipeline(transaction=False) as pipe:
        for line in lines:
            pipe.xadd("events", {"event": line})
        pipe.execute()
    began = time.monotonic()
    words = [sys.executable, __file__, "member", socket]
    members = [subprocess.Popen([*words, f"m{n}", str(window)]) for n in range(HANDLERS)]
    last = client.xinfo_stream("events")["last-generated-id"]
    while (group := client.xinfo_groups("events")[0])["pending"] or group["last-delivered-id"] != last:
        time.sleep(0.01)
    seconds = time.monotonic() - began
    for one in members:
        one.wait()
    server.terminate()
    server.wait()
    return len(lines) / seconds


def of_thread(lines, window, folder):
    environment = {**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}", "THREAD_DIR": f"{folder}/queue"}

    def thread(*words, **options):
        ran = subprocess.run(["thread", *words], env=environment, cwd=folder, check=True, capture_output=True,
                             text=True, **options)
        return ran.stdout

    thread("init", f"{folder}/queue")
    thread("push", "--lines", input="\n".join(json.loads(line)["content"] for line in lines) + "\n")
    began = time.monotonic()
    thread("subscribe", "pool", f"exec {sys.executable} {__file__} handler", "--deliver", "ndjson",
           "--concurrency", str(HANDLERS), "--batch-size", str(window))
    while json.loads(thread("info", "pool", "--json"))["subscriptions"][0]["last_acked_id"] < len(lines):
        time.sleep(0.01)
    seconds = time.monotonic() - began
    thread("stop", "pool")
    return len(lines) / seconds


def main(events):
    line = {"id": 0, "created_at": "2026-03-18T10:30:00.123Z", "source": "internal:dm:default:ada",
            "type": "message", "subtype": None}
    for window, count in (100, events), (1, events // 5):
        lines = [json.dumps({**line, "id": n + 1, "content": str(n)}) for n in range(count)]
        rates = []
        for _ in range(3):
            for measure in of_redis, of_thread:
                folder = tempfile.mkdtemp()
                rates.append(measure(lines, window, folder))
                shutil.rmtree(folder)
        theirs, ours = statistics.median(rates[0::2]), statistics.median(rates[1::2])
        print(f"window {window}: {ours:.0f} events a second, Redis Streams {theirs:.0f}: {ours / theirs:.1f} times")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["handler"]:
            handler()
        case ["member", socket, name, count]:
            member(socket, name, int(count))
        case words:
            main(int(words[0]) if words else 50_000)
