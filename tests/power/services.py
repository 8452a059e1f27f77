"""What is found of a gateway's sessions, and of PostgreSQL, after a power cut."""

import collections
import json
import os
import pwd
import signal
import sqlite3
import subprocess
import time

from check import Check, Wrong, run

# How long a server or an agent may take, in seconds.
PATIENCE = 300


class Gateway(Check):
    """Each question that was answered is there with its answer. After a dispatch, each question that is there ends, and
    none ends twice."""

    # How many questions had no ending on the disk.
    continued = 0

    def look(self, found, cut, promised):
        self.root = os.path.join(found, "root")
        for name in sorted(os.listdir(self.root)) if os.path.isdir(self.root) else []:
            # What has no database yet is no thread.
            if os.path.exists(os.path.join(self.root, name, "events.db")):
                self.session(os.path.join(self.root, name))
        for _, word, text in promised:
            if word == "token":
                self.token(text)
            elif word == "chat":
                self.chat(*text.split(" ", 1))

    def session(self, session):
        pushed = self.ask(session, "push", "--type", "record", "after the cut")
        if pushed.stderr:
            self.wrong.append(f"the next push: {pushed.stderr}")
        asked = self.read(session)[0]
        Gateway.continued += len(self.open(session))
        environment = self.environment(THREAD_DIR=session, THREAD_NOTIFIER="embedded")
        run(["thread", "dispatch"], env=environment, timeout=PATIENCE)
        end = time.monotonic() + PATIENCE
        while self.open(session) and time.monotonic() < end:
            time.sleep(0.05)
        if self.open(session):
            self.wrong.append(f"a question does not end: {self.ask(session, 'info').stdout}")
        run(["thread-agent", "stop"], env=environment, timeout=PATIENCE)
        self.doctor(session)
        questions, endings = self.read(session)
        if questions != asked:
            self.wrong.append(f"the questions {asked} have become {questions}")
        for question, number in collections.Counter(endings).items():
            if number != 1:
                self.wrong.append(f"{question} ends {number} times")
        database = sqlite3.connect(os.path.join(session, "events.db"))
        self.same(database, session)
        database.close()

    def open(self, session):
        """Whether there is a question without an ending."""
        questions, endings = self.read(session)
        return set(questions) - set(endings)

    def read(self, session):
        """The ids of all questions, and for each ending that of its question."""
        database = sqlite3.connect(os.path.join(session, "events.db"))
        try:
            asked = database.execute("SELECT id FROM events WHERE type = 'message' AND source != 'self'").fetchall()
            endings = database.execute(
                "SELECT metadata ->> 'reply_to' FROM events WHERE source = 'self' AND type = 'message' OR "
                "subtype = 'cancelled' OR subtype = 'error' AND NOT content ->> 'retryable'").fetchall()
        finally:
            database.close()
        return [id for id, in asked], [int(id) for id, in endings]

    def token(self, token):
        path = os.path.join(self.root, "token")
        if not os.path.exists(path) or open(path, encoding="ascii").read().strip() != token:
            self.lost("the token")

    def chat(self, session, answer):
        path = os.path.join(self.root, session, "events.db")
        if not os.path.exists(path):
            return self.lost(f"the session {session}")
        text = json.loads(answer)["choices"][0]["message"]["content"]
        database = sqlite3.connect(path)
        found = database.execute(
            "SELECT count(*) FROM events WHERE source = 'self' AND type = 'message' AND content = ?", (text,)).fetchone()
        database.close()
        if found != (1,):
            self.lost(f"the answer {text!r}, or it is there twice")


class Postgres(Check):
    """A thread in PostgreSQL, whose data is on the disk."""

    def look(self, found, cut, promised):
        data = os.path.join(found, "postgres")
        user = pwd.getpwnam("postgres")

        def demote():
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)

        with open(os.path.join(self.programs, "server"), "w+", encoding="utf-8") as log:
            server = subprocess.Popen(
                [os.path.join(postgres_programs(), "postgres"), "-D", data, "-k", "/tmp", "-c", "listen_addresses=",
                 "-c", f"port={PORT}"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=demote)
            try:
                end = time.monotonic() + PATIENCE
                while subprocess.run(["pg_isready", "-q", "-h", "/tmp", "-p", str(PORT)]).returncode != 0:
                    if time.monotonic() > end or server.poll() is not None:
                        log.seek(0)
                        raise Wrong(f"PostgreSQL does not start: {log.read()[-2000:]}")
                    time.sleep(0.05)
                self.thread(f"postgres:///postgres?host=/tmp&port={PORT}&user=postgres#inbox", promised)
            finally:
                server.send_signal(signal.SIGINT)
                server.wait()

    def thread(self, inbox, promised):
        if not any(word == "server" for _, word, _ in promised):
            return
        self.ask(inbox, "push", "after the cut")
        self.doctor(inbox)
        lines = self.ask(inbox, "peek", "--since", "beginning", "--limit", "1000000").stdout.splitlines()
        events = {event["id"]: event for event in map(json.loads, lines)}
        for content, number in collections.Counter(event["content"] for event in events.values()).items():
            if number > 1:
                self.wrong.append(f"stored {number} times: {content[:30]!r}")
        for _, word, text in promised:
            told = {"push": lambda: [json.loads(text)], "session": lambda: json.loads(text)["out"]}.get(word, list)()
            for event in told:
                kept = events.get(event["id"], {})
                if any(kept.get(key) != event[key] for key in ("created_at", "source", "content")):
                    self.lost(f"event {event['id']}, {event['content'][:20]!r}")


PORT = 54399


def postgres_programs():
    """The folder of the newest PostgreSQL here, or None."""
    root = "/usr/lib/postgresql"
    there = sorted(os.listdir(root), key=float) if os.path.isdir(root) else []
    return os.path.join(root, there[-1], "bin") if there else None


def prepare(disk):
    """Makes an empty PostgreSQL on a disk that is mounted there."""
    data = os.path.join(disk, "postgres")
    os.mkdir(data, 0o700)
    user = pwd.getpwnam("postgres")
    os.chown(data, user.pw_uid, user.pw_gid)
    initdb = os.path.join(postgres_programs(), "initdb")
    run(["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups", initdb, "-D", data, "-U", "postgres",
         "-A", "trust", "-E", "UTF8", "--locale=C"], env={"PATH": os.environ["PATH"]}, cwd="/")
