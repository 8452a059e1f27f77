"""The client, for ordinary programs and for asyncio. One process of ``thread`` serves all calls but those that wait."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, suppress
from typing import Any, Concatenate, ParamSpec, TypeVar, TypeVarTuple, Unpack, cast

from . import calls
from .calls import CURSOR, STORED, Batch, Call, Duration, Event, EventOptions, HandlerOptions, Narrow, T
from .calls import call, event, events, failure, the
from .errors import UnknownConsumer
from .handlers import STARTED_FOR, Answering

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
Ts = TypeVarTuple("Ts")
PIPE = subprocess.PIPE


class Thread(AbstractContextManager["Thread"]):
    """A thread: a durable queue of events. Made by ``Thread.open`` and ``Thread.init``.

    It may be used by several threads of the program, and is a context manager, which closes it.
    """

    _session: subprocess.Popen[bytes] | None = None

    def __init__(self, location: str | os.PathLike[str] | None = None) -> None:
        #: Where it is, as an absolute path or location.
        self.location = "" if location is None else os.fspath(location)
        self._lock = threading.Lock()
        self._handlers: dict[str, tuple[Callable[..., Any], HandlerOptions]] = {}
        self._start()

    @classmethod
    def open(cls, location: str | os.PathLike[str] | None = None) -> Thread:
        """Opens a thread by its directory or location (``postgres://…``); by default, as ``thread`` finds it."""
        return cls(location)

    @classmethod
    def init(cls, location: str | os.PathLike[str], *, if_missing: bool = False) -> Thread:
        """Makes a thread and opens it. With ``if_missing``, one that is there is opened."""
        return cls(_run(None, call("init", the(str, "thread"), os.fspath(location), if_missing=if_missing)))

    def push(self, content: Any, *, reply_to: int | None = None, **rest: Unpack[EventOptions]) -> int:
        """Stores an event and returns its id; it is on disk then. What is no text is stored as JSON."""
        return self._do(event("push", STORED, content, reply_to=reply_to, **rest))

    def push_many(self, contents: Iterable[Any]) -> Batch:
        """Stores all or nothing. Each is a content, or a dict with ``content`` and what else the event has."""
        return self._do(call("push", lambda out: Batch(*(out[0][name] for name in ("count", "first_id", "last_id"))),
                             batch=True, input="\n".join(map(calls.line, contents))))

    def schedule(self, content: Any, *, delay: Duration | None = None, at: str | None = None,
                 **rest: Unpack[EventOptions]) -> str:
        """Stores an event that comes later, and returns its number, such as ``s17``."""
        return self._do(event("push", the(str, "scheduled_id"), content, delay=delay, at=at, **rest))

    def repeat(self, name: str, content: Any, *, cron: str | None = None, every: Duration | None = None,
               tz: str | None = None, replace: bool = False, **rest: Unpack[EventOptions]) -> str:
        """Makes a schedule, which stores an event each time, and returns its name."""
        return self._do(event("schedule", the(str, "name"), content, "add", name, cron=cron, every=every, tz=tz,
                              replace=replace, **rest))

    def read(self, after: int = 0, *, since: str | None = None, tail: int | None = None, limit: int | None = None,
             **which: Unpack[Narrow]) -> list[Event]:
        """Events, the oldest first: at most ``limit`` (100) after an id; else all since a time, or the last ``tail``."""
        after_id = None if since or tail else after
        return self._do(call("peek", events, after=after_id, since=since, tail=tail, limit=limit, **which))

    def follow(self, after: int | None = None, **which: Unpack[Narrow]) -> Iterator[Event]:
        """Events as they come, without end: those after an id, or only new ones."""
        words = call("peek", events, follow=True, after=after, **which).words(self.location)
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=PIPE, stderr=PIPE) as process:
            assert process.stdout and process.stderr
            try:
                for line in process.stdout:
                    yield Event.of(json.loads(line))
                raise failure(process.stderr.read(), process.wait())
            finally:
                process.kill()

    def subscribe(self, consumer: str, handler: str | None = None, *, deliver: str | None = None,
                  replace: bool = False, **rest: Unpack[HandlerOptions]) -> str:
        """Registers a consumer with a handler, a command for sh; without one, the consumer pops for itself."""
        return self._do(call("subscribe", the(str, "consumer_id"), consumer=consumer, handler=handler, deliver=deliver,
                             no_handler=handler is None and not replace, replace=replace, **rest))

    def unsubscribe(self, consumer: str) -> None:
        return self._do(call("unsubscribe", lambda out: None, consumer=consumer))

    def pop(self, consumer: str, *, claim: Duration | None = None, limit: int | None = None,
            wait: Duration | None = None) -> list[Event]:
        """A consumer's next events. With ``claim``, they are this caller's for so long; see ``thread pop``."""
        popping = call("pop", events, consumer=consumer, claim=claim, limit=limit, wait=wait)
        return self._wait(popping) if wait else self._do(popping)

    def ack(self, consumer: str, *ids: int, claim: str | None = None) -> int:
        """Acknowledges events and returns the cursor."""
        return self._do(call("ack", CURSOR, *ids, consumer=consumer, claim=claim))

    def nack(self, consumer: str, id: int, *, delay: Duration | None = None, error: str | None = None,
             attempt: bool = True, claim: str | None = None) -> int:
        """Puts an event off."""
        return self._do(call("nack", CURSOR, id, consumer=consumer, delay=delay, error=error, no_attempt=not attempt,
                             claim=claim))

    def reject(self, consumer: str, id: int, *, error: str | None = None, claim: str | None = None) -> int:
        """Makes an event a dead letter."""
        return self._do(call("reject", CURSOR, id, consumer=consumer, error=error, claim=claim))

    def claim(self, consumer: str, id: int, length: Duration, *, claim: str | None = None) -> None:
        """Prolongs a claim: it ends so long from now."""
        return self._do(call("claim", lambda out: None, id, calls.duration(length), consumer=consumer, claim=claim))

    def ask(self, content: Any, *, timeout: Duration = "2m", **rest: Unpack[EventOptions]) -> Event:
        """Pushes a question and waits for its answer."""
        return self._wait(event("ask", lambda out: Event.of(out[0]), content, timeout=timeout, **rest))

    def reply(self, to: int, content: Any, **rest: Unpack[EventOptions]) -> int:
        """Answers an event."""
        return self._do(event("reply", STORED, content, to=to, **rest))

    def command(self, *words: str, input: str = "") -> list[Any]:
        """Any other command that a session runs, and what it prints with --json: ``command("dead", "list")``."""
        return self._do(Call(list(words), list, input))

    def handler(self, consumer: str, **given: Unpack[HandlerOptions]) -> Callable[[F], F]:
        """Makes a function the handler of a consumer: it gets each event and, if it has two parameters, its ``Run``.

        What it returns does not matter; the event is done then. What it raises is a failed attempt, except NotNow and
        Reject. An ``async`` function gets up to ``batch_size`` (100) events at a time, any other one after the other;
        with ``concurrency=N``, N processes of the program share the events.
        """
        def register(function: F) -> F:
            self._handlers[consumer] = (function, given)
            return function
        return register

    def run(self) -> None:
        """Subscribes the handlers: from then on, ``thread`` starts this program, with the same arguments, for their events.
        A program that was started so handles events here until there are no more, and ends: it never gets further."""
        started_for = os.environ.pop(STARTED_FOR, None)
        if started_for is None:
            start = shlex.join([sys.executable, *sys.orig_argv[1:]])
            for consumer, (_, given) in self._handlers.items():
                command = f"{STARTED_FOR}={shlex.quote(consumer)} exec {start}"
                self.subscribe(consumer, command, deliver="ndjson", replace=True, **given)
        elif started_for in self._handlers:
            Answering(self, started_for, self._handlers[started_for][0]).run()
            sys.exit()
        else:
            raise UnknownConsumer(f"this program has no handler for '{started_for}'", "unsubscribe it")

    def close(self) -> None:
        with self._lock:
            self._end()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._end()

    def _wait(self, call: Call[T]) -> T:
        return _run(self.location, call)

    def _do(self, call: Call[T]) -> T:
        with self._lock:
            # A fork has a session of its own.
            if self._session is None or self._owner != os.getpid():
                self._end()
                self._start()
            assert self._session and self._session.stdin and self._session.stdout
            try:
                self._session.stdin.write(call.request())
                self._session.stdin.flush()
                answer = json.loads(self._session.stdout.readline())
            except BaseException as error:
                # The answer would be taken for that of the next call. If it breaks off, or there is none, the session has ended.
                self._end()
                if not isinstance(error, (BrokenPipeError, ValueError)):
                    raise
                answer = {"exit": 1, "code": "session_ended", "error": "the session has ended",
                          "suggestion": "see whether it was done before you do it again"}
        return call.finish(answer)

    def _start(self) -> None:
        """Starts the process that serves the calls, away from the terminal, whose Ctrl-C is not for it."""
        words = Call(["session"], events).words(self.location)
        self._session = session = subprocess.Popen(words, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True)
        self._owner = os.getpid()
        assert session.stdout and session.stderr
        if hello := session.stdout.readline():
            self.location = json.loads(hello)["thread"]
            return
        stderr, exit = session.stderr.read(), session.wait()
        self._end()
        raise failure(stderr, exit)

    def _end(self) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        for pipe in filter(None, (session.stdin, session.stdout, session.stderr)):
            with suppress(BrokenPipeError):
                pipe.close()
        if self._owner == os.getpid():
            # A fork may have its stdin, too.
            session.terminate()
            session.wait()
        session.returncode = 0


def _run(location: str | None, call: Call[T]) -> T:
    """Runs a call that waits as a process of its own."""
    done = subprocess.run(call.words(location), input=call.input.encode(), capture_output=True)
    return call.ended(done.returncode, done.stdout, done.stderr)


def _of(method: Callable[Concatenate[Thread, P], T]) -> Callable[Concatenate[AsyncThread, P], Awaitable[T]]:
    """The method as it is: it returns what ``_do`` or ``_wait`` returns, which is awaitable in an ``AsyncThread``."""
    return cast("Callable[Concatenate[AsyncThread, P], Awaitable[T]]", method)


class AsyncThread(AbstractAsyncContextManager["AsyncThread"]):
    """A ``Thread`` for asyncio, with the same methods. Made by ``await AsyncThread.open(…)``.

    Calls may overlap; they are done in the order in which they were made.
    """

    def __init__(self, thread: Thread) -> None:
        self.location, self._thread = thread.location, thread
        # One thread of the program makes all calls, so that they keep their order.
        self._caller = ThreadPoolExecutor(1)

    @classmethod
    async def open(cls, location: str | os.PathLike[str] | None = None) -> AsyncThread:
        return cls(await asyncio.to_thread(Thread.open, location))

    @classmethod
    async def init(cls, location: str | os.PathLike[str], *, if_missing: bool = False) -> AsyncThread:
        return cls(await asyncio.to_thread(Thread.init, location, if_missing=if_missing))

    push, push_many, schedule, repeat = _of(Thread.push), _of(Thread.push_many), _of(Thread.schedule), _of(Thread.repeat)
    read, subscribe, unsubscribe, pop = _of(Thread.read), _of(Thread.subscribe), _of(Thread.unsubscribe), _of(Thread.pop)
    ack, nack, reject, claim = _of(Thread.ack), _of(Thread.nack), _of(Thread.reject), _of(Thread.claim)
    ask, reply, command = _of(Thread.ask), _of(Thread.reply), _of(Thread.command)

    async def follow(self, after: int | None = None, **which: Unpack[Narrow]) -> AsyncIterator[Event]:
        async with self._process(call("peek", events, follow=True, after=after, **which)) as process:
            assert process.stdout and process.stderr
            async for line in process.stdout:
                yield Event.of(json.loads(line))
            raise failure(await process.stderr.read(), await process.wait())

    async def close(self) -> None:
        await self._call(self._thread.close)

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _call(self, function: Callable[[Unpack[Ts]], T], *args: Unpack[Ts]) -> T:
        # It is still done if the wait for it is cancelled.
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._caller, function, *args))

    async def _do(self, call: Call[T]) -> T:
        return await self._call(self._thread._do, call)

    async def _wait(self, call: Call[T]) -> T:
        async with self._process(call) as process:
            stdout, stderr = await process.communicate(call.input.encode())
            return call.ended(process.returncode or 0, stdout, stderr)

    @asynccontextmanager
    async def _process(self, call: Call[T]) -> AsyncIterator[asyncio.subprocess.Process]:
        """A process of its own, for a call that waits; it ends with the call. Its lines may have any length."""
        words = call.words(self.location)
        process = await asyncio.create_subprocess_exec(*words, stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=1 << 31)
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
