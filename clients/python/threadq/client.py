"""The client, for ordinary programs and for asyncio. One process of ``thread`` serves all calls but those that wait."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import selectors
import shlex
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from subprocess import Popen
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack, cast

from . import calls, errors
from .calls import CURSOR, STORED, Batch, Call, Duration, Event, EventOptions, HandlerOptions, Location, Narrow, T
from .calls import call, event, events, the
from .errors import Asleep, NotNow, Reject

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
#: Names the handler, in the environment of a program that was started for it.
STARTED_FOR = "THREADQ_HANDLER"
VERSION = "THREADQ_VERSION"
#: A step: says that it begins, under which key, and then stores the line that it gets. Without one, it fails.
STEP = 'echo "begun $THREAD_STEP_KEY" >&2; IFS= read -r result && printf "%s\\n" "$result"'


class Thread(AbstractContextManager["Thread"]):
    """A thread: a durable queue of events. Made by ``Thread.open`` and ``Thread.init``. It may be used by several threads
    of the program, and is a context manager, which closes it."""

    _session: Popen[bytes] | None = None

    def __init__(self, location: Location | None = None) -> None:
        #: Where it is, as an absolute path or location.
        self.location = "" if location is None else os.fspath(location)
        self._lock = threading.Lock()
        self._handlers: dict[str, tuple[Callable[..., Any], HandlerOptions]] = {}
        self._start()

    @classmethod
    def open(cls, location: Location | None = None) -> Thread:
        """Opens a thread by its directory or location (``postgres://…``); by default, as ``thread`` finds it."""
        return cls(location)

    @classmethod
    def init(cls, location: Location, *, if_missing: bool = False) -> Thread:
        """Makes a thread and opens it. With ``if_missing``, one that is there is opened."""
        making = call("init", the(str, "thread"), os.fspath(location), if_missing=if_missing)
        return cls(making.finish(making.start(None)))

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
               tz: str | None = None, catch_up: str | None = None, replace: bool = False,
               **rest: Unpack[EventOptions]) -> str:
        """Makes a schedule, which stores an event each time, and returns its name."""
        return self._do(event("schedule", the(str, "name"), content, "add", name, cron=cron, every=every, tz=tz,
                              catch_up=catch_up, replace=replace, **rest))

    def read(self, after: int = 0, *, since: str | None = None, tail: int | None = None, limit: int | None = None,
             **which: Unpack[Narrow]) -> list[Event]:
        """Events after an id, the oldest first: at most ``limit`` (100), or all of them since a time, or the last ``tail``."""
        after_id = None if (since or tail) and not after else after
        return self._do(call("peek", events, after=after_id, since=since, tail=tail, limit=limit, **which))

    def follow(self, after: int | None = None, **which: Unpack[Narrow]) -> Iterator[Event]:
        """Events as they come, without end: those after an id, or only new ones."""
        with call("peek", events, follow=True, after=after, **which).start(self.location) as process:
            try:
                while line := process.stdout.readline():  # type: ignore[union-attr]
                    yield Event.of(json.loads(line))
                raise calls.failure(process, process.stderr.read())  # type: ignore[union-attr]
            finally:
                process.kill()

    def subscribe(self, consumer: str, handler: str | None = None, *, deliver: str | None = None, replace: bool = False,
                  defaults: bool = False, **rest: Unpack[HandlerOptions]) -> str:
        """Registers a consumer with a handler, a command for sh; without one, the consumer pops for itself. ``replace``
        changes one that is there: options that are not given stay, or with ``defaults`` return to theirs."""
        return self._do(call("subscribe", the(str, "consumer_id"), consumer=consumer, handler=handler, deliver=deliver,
                             no_handler=handler is None and (defaults or not replace), replace=replace, defaults=defaults,
                             **rest))

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

    def dead_letters(self, consumer: str) -> list[dict[str, Any]]:
        """A consumer's dead letters: ``event_id``, ``attempts``, ``last_error`` and what else ``thread dead list`` has."""
        return self._do(Call(["dead", "list", f"--consumer={consumer}"], list))

    def retry(self, consumer: str, id: int | None = None) -> int:
        """Delivers a dead letter, or all of them, once more. Returns how many."""
        return self._do(calls.dead("retry", consumer, id))

    def discard(self, consumer: str, id: int | None = None) -> int:
        """Forgets a dead letter, or all of them; the events stay. Returns how many."""
        return self._do(calls.dead("discard", consumer, id))

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
        """Makes a function the handler of a consumer: it gets each event and, if it has two parameters, its ``Run``. The
        event is done when it returns. What it raises is a failed attempt, except NotNow and Reject. An ``async`` function
        gets up to ``batch_size`` (100) events at a time, any other one after the other; with ``concurrency=N``, N processes
        of the program share the events."""
        def register(function: F) -> F:
            self._handlers[consumer] = (function, given)
            return function
        return register

    def run(self) -> None:
        """Subscribes the handlers: from then on, ``thread`` starts this program, with the same arguments, for their events.
        A program that was started so handles events here until there are no more, and ends: it never gets further. If the
        program has changed since it was last called, handlers that are running are restarted."""
        if started_for := os.environ.pop(STARTED_FOR, None):
            if started_for not in self._handlers:
                raise errors.error_of({"code": "unknown_consumer", "suggestion": "unsubscribe it",
                                       "error": f"this program has no handler for '{started_for}'"})
            _answer(self, started_for, self._handlers[started_for][0])
            sys.exit()
        start = shlex.join([sys.executable, *sys.orig_argv[1:]])
        for consumer, (_, given) in self._handlers.items():
            # With another command, what runs is replaced.
            command = f"{STARTED_FOR}={shlex.quote(consumer)} {VERSION}={_version()} exec {start}"
            self.subscribe(consumer, command, deliver="ndjson", replace=True, defaults=True, **given)

    def close(self, *_: object) -> None:
        with self._lock:
            self._end()

    __exit__ = close

    def __del__(self) -> None:
        self._end()

    def _wait(self, call: Call[T]) -> T:
        return call.finish(call.start(self.location))

    def _do(self, call: Call[T]) -> T:
        request = json.dumps({"args": call.args, "input": call.input}).encode() + b"\n"
        with self._lock:
            # A fork has a session of its own.
            if self._session is None or self._owner != os.getpid():
                self._end()
                self._start()
            assert self._session and self._session.stdin and self._session.stdout
            try:
                self._session.stdin.write(request)
                self._session.stdin.flush()
                answer = json.loads(self._session.stdout.readline())
            except BaseException as error:
                # The answer would be taken for that of the next call. If it breaks off, or there is none, the session has ended.
                self._end()
                if not isinstance(error, (BrokenPipeError, ValueError)):
                    raise
                answer = {"exit": 1, "code": "session_ended", "error": "the session has ended",
                          "suggestion": "see whether it was done before you do it again"}
        return call.read(answer)

    def _start(self) -> None:
        """Starts the process that serves the calls, away from the terminal, whose Ctrl-C is not for it."""
        session = Call(["session"], list).start(self.location, start_new_session=True)
        if not (hello := session.stdout.readline()):  # type: ignore[union-attr]
            raise calls.failure(session, session.communicate()[1])
        self.location, self._session, self._owner = json.loads(hello)["thread"], session, os.getpid()

    def _end(self) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        if self._owner == os.getpid():
            # A fork may have its stdin, too, so that closing that is not enough.
            session.terminate()
        else:
            session.returncode = 0
        with suppress(BrokenPipeError), session:
            # Closes the pipes and waits.
            pass


def _version() -> int:
    """Of the program: when the newest of its modules was changed, those of Python and of packages left out."""
    paths = {str(getattr(module, "__file__", None)) for module in list(sys.modules.values())}
    own = [path for path in paths if not path.startswith((sys.prefix, sys.base_prefix))]
    times = [os.stat(path).st_mtime_ns for path in [sys.argv[0], *own] if os.path.isfile(path)]
    return max(times, default=0)


@dataclass(frozen=True)
class Run:
    """One event at a handler, and what is stored for it."""

    thread: Thread
    consumer: str
    event: Event

    def step(self, name: str, function: Callable[[str], Any]) -> Any:
        """Calls the function once for this event, however often the handler runs, and returns what it has returned,
        which must be JSON. The function gets a key, the same each time, for what it calls in turn."""
        call = Call(self._words("step", name, "--", "sh", "-c", STEP), lambda out: out[0])
        # Without buffers, so that what follows these lines is left to be read.
        with call.start(self.thread.location, bufsize=0, start_new_session=True) as process:
            said, begun = _until_begun(process)
            if begun:
                result = json.dumps(function(begun.split()[1].decode()))
                call = replace(call, input=f"{result}\n")
            return call.finish(process, said)

    def sleep(self, name: str, length: Duration) -> None:
        """Ends this run; the next one continues here after that time."""
        self.thread.command(*self._words("sleep", name, calls.duration(length)))

    def wait_for(self, name: str, *, timeout: Duration | None = None, **which: Unpack[Narrow]) -> Event | None:
        """Ends this run, unless such an event has come; the next one continues here. None after the timeout."""
        words = self._words("await", name, *calls.options({"timeout": timeout, **which}))
        with suppress(errors.TimedOut):
            return Event.of(self.thread.command(*words)[0])
        return None

    def _words(self, command: str, *words: str) -> list[str]:
        return [command, f"--consumer={self.consumer}", f"--event={self.event.id}", *words]


def _until_begun(process: Popen[bytes]) -> tuple[bytes, bytes]:
    """What a step says on stderr until it begins, and the line that says so: none if it fails, or was done before. Then its
    result is on stdout, and is left there."""
    said, begun = b"", b""
    with selectors.DefaultSelector() as waiting:
        for stream in (process.stdout, process.stderr):
            waiting.register(stream, selectors.EVENT_READ)  # type: ignore[arg-type]
        while not begun and process.stderr in [key.fileobj for key, _ in waiting.select()]:
            if not (line := process.stderr.readline()):
                break
            if line.startswith(b"begun "):
                begun = line
            else:
                said += line
    return said, begun


def _answer(thread: Thread, consumer: str, function: Callable[..., Any]) -> None:
    """Answers the events on stdin, each by how the function ends."""
    wants_run = len(inspect.signature(function).parameters) > 1
    # What the handler prints must not be taken for an answer; thread adds it to the log.
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)

    @contextmanager
    def answering(line: bytes) -> Iterator[list[Any]]:
        event = Event.of(json.loads(line))
        answer: dict[str, Any] = {"ack": event.id}
        try:
            yield [event, Run(thread, consumer, event)][:1 + wants_run]
        except Reject as error:
            answer = {"reject": event.id, "error": str(error)}
        except NotNow as error:
            delay = {} if error.delay is None else {"delay": calls.duration(error.delay)}
            answer = {"nack": event.id, "attempt": False, "error": str(error), **delay}
        except Asleep:
            answer = {"nack": event.id, "attempt": False}
        except Exception as error:
            print(f"event {event.id}:", file=sys.stderr)
            sys.excepthook(type(error), error, error.__traceback__)
            answer = {"nack": event.id, "error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")

    async def handle(line: bytes) -> None:
        with answering(line) as given:
            await function(*given)

    async def concurrently() -> None:
        async with asyncio.TaskGroup() as tasks:
            while line := await asyncio.to_thread(sys.stdin.buffer.readline):
                tasks.create_task(handle(line))

    if inspect.iscoroutinefunction(function):
        return asyncio.run(concurrently())
    for line in sys.stdin.buffer:
        with answering(line) as given:
            function(*given)


def _of(method: Callable[Concatenate[Thread, P], T]) -> Callable[Concatenate[AsyncThread, P], Awaitable[T]]:
    """The method as it is: it returns what ``_do`` or ``_wait`` returns, which is awaitable in an ``AsyncThread``."""
    return cast("Callable[Concatenate[AsyncThread, P], Awaitable[T]]", method)


class AsyncThread(AbstractAsyncContextManager["AsyncThread"]):
    """A ``Thread`` for asyncio, with the same methods. Made by ``await AsyncThread.open(…)``. Calls may overlap; they are
    done in the order in which they were made."""

    def __init__(self, thread: Thread) -> None:
        self.location, self._thread = thread.location, thread
        self._make_pools()

    def _make_pools(self) -> None:
        # One thread of the program makes all calls, so that they keep their order. What waits has one each.
        self._caller, self._waiters = ThreadPoolExecutor(1), ThreadPoolExecutor(sys.maxsize)

    @classmethod
    async def open(cls, location: Location | None = None) -> AsyncThread:
        return cls(await asyncio.to_thread(Thread.open, location))

    @classmethod
    async def init(cls, location: Location, *, if_missing: bool = False) -> AsyncThread:
        return cls(await asyncio.to_thread(Thread.init, location, if_missing=if_missing))

    push, push_many, schedule, repeat = _of(Thread.push), _of(Thread.push_many), _of(Thread.schedule), _of(Thread.repeat)
    read, subscribe, unsubscribe, pop = _of(Thread.read), _of(Thread.subscribe), _of(Thread.unsubscribe), _of(Thread.pop)
    ack, nack, reject, claim = _of(Thread.ack), _of(Thread.nack), _of(Thread.reject), _of(Thread.claim)
    ask, reply, command = _of(Thread.ask), _of(Thread.reply), _of(Thread.command)
    dead_letters, retry, discard = _of(Thread.dead_letters), _of(Thread.retry), _of(Thread.discard)

    async def follow(self, after: int | None = None, **which: Unpack[Narrow]) -> AsyncIterator[Event]:
        with call("peek", events, follow=True, after=after, **which).start(self.location) as process:
            try:
                while line := await self._in(self._waiters, process.stdout.readline):  # type: ignore[union-attr]
                    yield Event.of(json.loads(line))
                raise calls.failure(process, process.stderr.read())  # type: ignore[union-attr]
            finally:
                process.kill()

    async def close(self, *_: object) -> None:
        await self._in(self._caller, self._thread.close)
        for pool in (self._caller, self._waiters):
            pool.shutdown(wait=False)
        # As with a Thread, a further call opens it again. These have no threads until then.
        self._make_pools()

    __aexit__ = close

    async def _do(self, call: Call[T]) -> T:
        # It is still done if the wait for it is cancelled.
        return await asyncio.shield(self._in(self._caller, lambda: self._thread._do(call)))

    async def _wait(self, call: Call[T]) -> T:
        process = call.start(self.location)
        try:
            return await self._in(self._waiters, lambda: call.finish(process))
        finally:
            process.kill()

    def _in(self, pool: ThreadPoolExecutor, work: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(pool, work)
