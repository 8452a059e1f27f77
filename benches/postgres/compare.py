"""A pool of kept handlers in PostgreSQL against graphile-worker and Procrastinate: the same work, eight at a time.

usage: python3 benches/postgres/compare.py [EVENTS]

It needs PostgreSQL's programs, Node.js with npm, the Python package `procrastinate[psycopg]` with `psycopg[binary]`, and
`cargo build --release --workspace`. graphile-worker is installed into a folder that is removed at the end. Each handler
parses its event and does nothing, in the language of the peer. First all is stored; what is measured is from the start
of the workers until everything is finished. Rows that are dead are counted without autovacuum."""

import glob
import json
import os
import pathlib
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import psycopg

HERE = pathlib.Path(__file__).resolve().parent
PROGRAMS = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent.parent / "target")) / "release"
HANDLERS = 8
GRAPHILE = "graphile-worker@0.18.0"

NODE_HANDLER = """\
let rest = "";
process.stdin.on("data", (data) => {
  const lines = (rest + data).split("\\n");
  rest = lines.pop();
  process.stdout.write(lines.map((line) => `{"ack":${JSON.parse(line).id}}\\n`).join(""));
});
"""

GRAPHILE_CONFIG = {
    "as it comes": "module.exports = {};",
    "tuned": "module.exports = { worker: { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 } };",
}


def python_handler():
    """Answers each line that is there."""
    rest = b""
    while data := os.read(0, 1 << 16):
        *lines, rest = (rest + data).split(b"\n")
        os.write(1, b"".join(b'{"ack":%d}\n' % json.loads(line)["id"] for line in lines))


class Server:
    """A server of its own, as it comes, without autovacuum."""

    def __init__(self, folder):
        bin = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
        path = f"{bin[-1]}:{os.environ['PATH']}" if bin else os.environ["PATH"]
        self.environment = {**os.environ, "PATH": path}
        # Its programs refuse to run as root.
        self.become = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
        if self.become:
            shutil.chown(folder, "postgres")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.data = f"{folder}/data"
        run = dict(env=self.environment, check=True, stdout=subprocess.DEVNULL, cwd=folder)
        subprocess.run([*self.become, "initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8"], **run)
        options = ["-p", str(self.port), "-k", folder, "-c", "autovacuum=off", "-c", "listen_addresses=127.0.0.1"]
        self.process = subprocess.Popen([*self.become, "postgres", "-D", self.data, *options], env=self.environment,
                                        stderr=subprocess.DEVNULL, cwd=folder)
        self.url = f"postgres://postgres@127.0.0.1:{self.port}/postgres"
        while True:
            try:
                self.query("SELECT 1")
                break
            except psycopg.OperationalError:
                time.sleep(0.05)

    def query(self, sql):
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(sql)
            return cursor.fetchone()[0] if cursor.description else None

    def end(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait()

    def measure(self, work):
        """Seconds, bytes of WAL and dead rows of some work."""
        dead = "SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables"
        before, lsn = self.query(dead), self.query("SELECT pg_current_wal_lsn()::text")
        began = time.monotonic()
        work()
        seconds = time.monotonic() - began
        wal = self.query(f"SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '{lsn}')::bigint")
        # Counts of sessions that have ended arrive at once.
        return seconds, wal, self.query(dead) - before


def of_thread(server, count, folder, handler, window):
    environment = {**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}", "XDG_STATE_HOME": f"{folder}/state",
                   "THREAD_DIR": f"{server.url}#queue{time.time_ns()}"}

    def thread(*words, **options):
        ran = subprocess.run(["thread", *words], env=environment, cwd=folder, check=True, capture_output=True,
                             text=True, **options)
        return ran.stdout

    thread("init", environment["THREAD_DIR"])
    thread("push", "--lines", input="".join(f'{{"n":{n}}}\n' for n in range(count)))
    thread("subscribe", "pool", handler, "--deliver", "ndjson", "--concurrency", str(HANDLERS),
           "--batch-size", str(window))
    worker = []

    def work():
        worker.append(subprocess.Popen(["thread", "dispatch", "--follow"], env=environment, cwd=folder,
                                       stdout=subprocess.DEVNULL))
        while json.loads(thread("info", "pool", "--json"))["subscriptions"][0]["last_acked_id"] < count:
            time.sleep(0.05)

    measured = server.measure(work)
    worker[0].terminate()
    worker[0].wait()
    return measured


def of_graphile(server, count, folder, config):
    pathlib.Path(folder, "graphile.config.js").write_text(config)
    tasks = pathlib.Path(folder, "tasks")
    tasks.mkdir(exist_ok=True)
    (tasks / "work.js").write_text("module.exports = async (payload) => { JSON.stringify(payload); };")
    command = [f"{folder}/node_modules/.bin/graphile-worker", "-c", server.url]
    subprocess.run([*command, "--schema-only"], cwd=folder, check=True, capture_output=True)
    server.query(f"SELECT count(graphile_worker.add_job('work', json_build_object('n', n))) FROM generate_series(1, {count}) n")
    return server.measure(lambda: subprocess.run([*command, "--once", "-j", str(HANDLERS)], cwd=folder, check=True,
                                                 capture_output=True))


PROCRASTINATE_APP = """\
import procrastinate
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo={url!r}))

@app.task(name="work")
async def work(n):
    pass
"""


def of_procrastinate(server, count, folder, options):
    pathlib.Path(folder, "peer.py").write_text(PROCRASTINATE_APP.format(url=server.url))
    environment = {**os.environ, "PYTHONPATH": folder}
    command = [sys.executable, "-m", "procrastinate", "--app=peer.app"]
    if not server.query("SELECT to_regclass('procrastinate_jobs')"):
        subprocess.run([*command, "schema", "--apply"], env=environment, check=True, capture_output=True)
    server.query("INSERT INTO procrastinate_jobs (queue_name, task_name, args) "
                 f"SELECT 'default', 'work', jsonb_build_object('n', n) FROM generate_series(1, {count}) n")
    worker = [*command, "worker", "--one-shot", "--concurrency", str(HANDLERS), *options]
    return server.measure(lambda: subprocess.run(worker, env=environment, check=True, capture_output=True))


def main(events):
    folder = tempfile.mkdtemp()
    os.chmod(folder, 0o755)
    data = tempfile.mkdtemp()
    server = Server(data)
    try:
        subprocess.run(["npm", "install", "--no-fund", "--no-audit", "--loglevel=error", "--prefix", folder, GRAPHILE],
                       check=True)
        pathlib.Path(folder, "handler.js").write_text(NODE_HANDLER)
        node, python = f"exec node {folder}/handler.js", f"exec {sys.executable} {__file__} handler"
        contests = [
            ("Node.js", node, "graphile-worker, as it comes",
             lambda: of_graphile(server, events, folder, GRAPHILE_CONFIG["as it comes"])),
            ("Node.js", node, "graphile-worker, tuned",
             lambda: of_graphile(server, events, folder, GRAPHILE_CONFIG["tuned"])),
            ("Python", python, "Procrastinate, as it comes", lambda: of_procrastinate(server, events // 5, folder, [])),
            ("Python", python, "Procrastinate, tuned",
             lambda: of_procrastinate(server, events // 5, folder, ["--delete-jobs=always"])),
        ]
        for language, handler, name, peer in contests:
            rows = {}
            for _ in range(3):
                for window in 100, 1:
                    measured = of_thread(server, events, folder, handler, window)
                    rows.setdefault(f"thread, window {window}", []).append((*measured, events))
                done = events if "graphile" in name else events // 5
                rows.setdefault(name, []).append((*peer(), done))
            print(f"\n{HANDLERS} handlers in {language}", flush=True)
            for who, all in rows.items():
                rate = statistics.median(done / seconds for seconds, _, _, done in all)
                wal = statistics.median(wal / done for _, wal, _, done in all)
                dead = statistics.median(dead / done for _, _, dead, done in all)
                print(f"{who:32} {rate:8.0f} events a second {wal:8.0f} bytes of WAL an event "
                      f"{dead:6.2f} dead rows an event", flush=True)
    finally:
        server.end()
        shutil.rmtree(folder)
        shutil.rmtree(data, ignore_errors=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["handler"]:
            python_handler()
        case words:
            main(int(words[0]) if words else 20_000)
