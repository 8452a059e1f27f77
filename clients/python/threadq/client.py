"""The client for ordinary programs. One process of ``thread`` serves all calls of a ``Thread`` but those that wait."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterable, Iterator
from typing import Any, Unpack

from . import calls
from .calls import Batch, Call, Duration, Event, EventOptions, HandlerOptions, Narrow, T, event, events, options
from .errors import error_of
from .handlers import Handlers


class Thread(Handlers):
    """A thread: a durable queue of events. Made by ``Thread.open`` and ``Thread.init``.

    It may be used by several threads of the program, and is a context manager, which closes it.
    """

    def __init__(self, location: str | os.PathLike[str] | None = None) -> None:
        super().__init__()
        #: Where it is, as an absolute path or location.
        self.location = os.fspath(location) if location is not None else ""
        self._lock = threading.Lock()
        self._session: subprocess.Popen[bytes] | None = None
        self._start()

    @classmethod
    def open(cls, location: str | os.PathLike[str] | None = None) -> Thread:
        """Opens a thread by its directory or location (``postgres://…``); by default, as ``thread`` finds it."""
        return cls(location)

    @classmethod
    def init(cls, location: str | os.PathLike[str], *, if_missing: bool = False) -> Thread:
        """Makes a thread and opens it. With ``if_missing``, one that is there is opened."""
        words = ["init", *options({"if_missing": if_missing}), "--", os.fspath(location)]
        return cls(_run(None, Call(words, lambda out: out[0]["thread"])))

    def push(self, content: Any, *, reply_to: int | None = None, **rest: Unpack[EventOptions]) -> int:
        """Stores an event and returns its id; it is on disk then. What is no text is stored as JSON."""
        return self._do(event(["push"], content, {"reply_to": reply_to, **rest}, lambda out: out[0]["id"]))

    def push_many(self, contents: Iterable[Any]) -> Batch:
        """Stores all or nothing. Each is a content, or a dict with ``content`` and what else the event has."""
        return self._do(Call(["push", "--batch"], lambda out: Batch(out[0]["count"], out[0]["first_id"], out[0]["last_id"]),
                             "".join(map(calls.line, contents))))

    def schedule(self, content: Any, *, delay: Duration | None = None, at: str | None = None,
                 **rest: Unpack[EventOptions]) -> str:
        """Stores an event that comes later, and returns its number, such as ``s17``."""
        return self._do(event(["push"], content, {"delay": delay, "at": at, **rest}, lambda out: out[0]["scheduled_id"]))

    def repeat(self, name: str, content: Any, *, cron: str | None = None, every: Duration | None = None,
               tz: str | None = None, replace: bool = False, **rest: Unpack[EventOptions]) -> str:
        """Makes a schedule, which stores an event each time, and returns its name."""
        when = {"cron": cron, "every": every, "tz": tz, "replace": replace}
        return self._do(event(["schedule", "add", name], content, {**when, **rest}, lambda out: out[0]["name"]))

    def read(self, after: int = 0, *, since: str | None = None, tail: int | None = None, limit: int | None = None,
             **which: Unpack[Narrow]) -> list[Event]:
        """Events, the oldest first: at most ``limit`` (100) after an id, since a time, or the last ``tail``."""
        start = {"since": since, "tail": tail, "last_event_id": None if since or tail else after}
        return self._do(Call(["peek", *options({**start, "limit": limit, **which})], events))

    def follow(self, after: int | None = None, **which: Unpack[Narrow]) -> Iterator[Event]:
        """Events as they come, without end: those after an id, or only new ones."""
        words = Call(["peek", "--follow", *options({"last_event_id": after, **which})], events).words(self.location)
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout and process.stderr
            try:
                for line in process.stdout:
                    yield Event.of(json.loads(line))
                raise calls.failure(process.stderr.read(), process.wait())
            finally:
                process.kill()

    def subscribe(self, consumer: str, handler: str | None = None, *, deliver: str | None = None,
                  replace: bool = False, **rest: Unpack[HandlerOptions]) -> str:
        """Registers a consumer with a handler, a command for sh; without one, the consumer pops for itself."""
        given = {"handler": handler, "no_handler": handler is None and not replace, "deliver": deliver, "replace": replace}
        words = options({"consumer": consumer, **given, **rest}, {"start": "from"})
        return self._do(Call(["subscribe", *words], lambda out: out[0]["consumer_id"]))

    def unsubscribe(self, consumer: str) -> None:
        return self._do(Call(["unsubscribe", *options({"consumer": consumer})], lambda out: None))

    def pop(self, consumer: str, *, claim: Duration | None = None, limit: int | None = None,
            wait: Duration | None = None) -> list[Event]:
        """A consumer's next events. With ``claim``, they are this caller's for so long; see ``thread pop``."""
        words = options({"consumer": consumer, "claim": claim, "limit": limit, "wait": wait})
        call = Call(["pop", *words], events)
        return self._wait(call) if wait else self._do(call)

    def ack(self, consumer: str, *ids: int, claim: str | None = None) -> int:
        """Acknowledges events and returns the cursor."""
        return self._settle(["ack", *options({"consumer": consumer, "claim": claim}), "--", *map(str, ids)])

    def nack(self, consumer: str, id: int, *, delay: Duration | None = None, error: str | None = None,
             attempt: bool = True, claim: str | None = None) -> int:
        """Puts an event off."""
        given = {"consumer": consumer, "delay": delay, "error": error, "no_attempt": not attempt, "claim": claim}
        return self._settle(["nack", *options(given, {}), str(id)])

    def reject(self, consumer: str, id: int, *, error: str | None = None, claim: str | None = None) -> int:
        """Makes an event a dead letter."""
        return self._settle(["reject", *options({"consumer": consumer, "error": error, "claim": claim}), str(id)])

    def claim(self, consumer: str, id: int, length: Duration, *, claim: str | None = None) -> None:
        """Prolongs a claim: it ends so long from now."""
        words = [*options({"consumer": consumer, "claim": claim}), str(id), calls.duration(length)]
        return self._do(Call(["claim", *words], lambda out: None))

    def ask(self, content: Any, *, timeout: Duration = "2m", **rest: Unpack[EventOptions]) -> Event:
        """Pushes a question and waits for its answer."""
        return self._wait(event(["ask"], content, {"timeout": timeout, **rest}, lambda out: Event.of(out[0])))

    def reply(self, to: int, content: Any, **rest: Unpack[EventOptions]) -> int:
        """Answers an event."""
        return self._do(event(["reply"], content, {"to": to, **rest}, lambda out: out[0]["id"]))

    def command(self, *words: str, input: str | None = None) -> list[Any]:
        """Any other command that a session runs, and what it prints with --json: ``command("dead", "list")``."""
        return self._do(Call(list(words), lambda out: out, input))

    def close(self) -> None:
        with self._lock:
            self._end()

    def __enter__(self) -> Thread:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_session", None):
            self._end()

    def _settle(self, words: list[str]) -> int:
        return self._do(Call(words, lambda out: out[0]["last_acked_id"]))

    def _wait(self, call: Call[T]) -> T:
        return _run(self.location, call)

    def _do(self, call: Call[T]) -> T:
        with self._lock:
            # A fork has a session of its own.
            if self._owner != os.getpid():
                self._end()
            if self._session is None:
                self._start()
            answer = self._exchange(call.request())
        return call.finish(answer)

    def _exchange(self, line: bytes) -> Any:
        session = self._session
        assert session and session.stdin and session.stdout
        try:
            session.stdin.write(line)
            session.stdin.flush()
            if answer := session.stdout.readline():
                return json.loads(answer)
        except BrokenPipeError:
            pass
        except BaseException:
            # The answer would be taken for that of the next call.
            self._end()
            raise
        self._end()
        raise error_of({"code": "session_ended", "error": "the session has ended",
                        "suggestion": "see whether it was done before you do it again"})

    def _start(self) -> None:
        """Starts the process that serves the calls, away from the terminal, whose Ctrl-C is not for it."""
        pipe, words = subprocess.PIPE, Call(["session"], events).words(self.location)
        self._session = session = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
        self._owner = os.getpid()
        assert session.stdout and session.stderr
        if hello := session.stdout.readline():
            self.location = json.loads(hello)["thread"]
            return
        stderr, exit = session.stderr.read(), session.wait()
        self._end()
        raise calls.failure(stderr, exit)

    def _end(self) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        for pipe in (session.stdin, session.stdout, session.stderr):
            try:
                pipe and pipe.close()
            except BrokenPipeError:
                pass
        if self._owner == os.getpid():
            # A fork may have its stdin, too.
            session.terminate()
            session.wait()
        session.returncode = 0


def _run(location: str | None, call: Call[T]) -> T:
    """Runs a call that waits as a process of its own."""
    done = subprocess.run(call.words(location), input=(call.input or "").encode(), capture_output=True)
    return call.ended(done.returncode, done.stdout, done.stderr)
