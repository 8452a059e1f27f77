"""Handlers that are functions. ``thread`` starts the program that has them when there is an event, and keeps it."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from . import calls, errors
from .calls import Call, Duration, Event, HandlerOptions, Narrow, options
from .errors import Asleep, NotNow, Reject

if TYPE_CHECKING:
    from .client import Thread

F = TypeVar("F", bound=Callable[..., Any])
#: Names the handler, in the environment of a program that was started for it.
STARTED_FOR = "THREADQ_HANDLER"
#: A step: says that it begins, under which key, and then stores the line that it gets.
STEP = 'echo "begun $THREAD_STEP_KEY" >&2; IFS= read -r result && printf "%s\\n" "$result"'


@dataclass(frozen=True)
class Run:
    """One event at a handler, and what is stored for it."""

    thread: Thread
    consumer: str
    event: Event

    def _words(self) -> list[str]:
        return [f"--consumer={self.consumer}", f"--event={self.event.id}"]

    def step(self, name: str, function: Callable[[str], Any]) -> Any:
        """Calls the function once for this event, however often the handler runs, and returns what it has returned,
        which must be JSON. The function gets a key, the same each time, for what it calls in turn."""
        call = Call(["step", *self._words(), name, "--", "sh", "-c", STEP], lambda out: out[0])
        words, pipe = call.words(self.thread.location), subprocess.PIPE
        with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True) as process:
            assert process.stdin and process.stdout and process.stderr
            first = process.stderr.readline()
            if first.startswith(b"begun "):
                try:
                    result = json.dumps(function(first.split()[1].decode()))
                    process.stdin.write(result.encode() + b"\n")
                finally:
                    # Without a line, the step has failed, and nothing is stored.
                    process.stdin.close()
                first = b""
            stdout, stderr = process.stdout.read(), first + process.stderr.read()
            return call.ended(process.wait(), stdout, stderr)

    def sleep(self, name: str, length: Duration) -> None:
        """Ends this run; the next one continues here after that time."""
        self.thread.command("sleep", *self._words(), name, calls.duration(length))

    def wait_for(self, name: str, *, timeout: Duration | None = None, **which: Unpack[Narrow]) -> Event | None:
        """Ends this run, unless such an event has come; the next one continues here. None after the timeout."""
        try:
            words = options({"timeout": timeout, **which})
            return Event.of(self.thread.command("await", *self._words(), name, *words)[0])
        except errors.TimedOut:
            return None


class Handlers:
    """The part of ``Thread`` that is about handlers."""

    def __init__(self) -> None:
        self._handlers: dict[str, tuple[Callable[..., Any], HandlerOptions]] = {}

    def handler(self, consumer: str, **options: Unpack[HandlerOptions]) -> Callable[[F], F]:
        """Makes a function the handler of a consumer: it gets each event and, if it has two parameters, its ``Run``.

        What it returns does not matter; the event is done then. What it raises is a failed attempt, except NotNow and
        Reject. An ``async`` function gets up to ``batch_size`` (100) events at a time, any other one after the other;
        with ``concurrency=N``, N processes of the program share the events.
        """
        def register(function: F) -> F:
            self._handlers[consumer] = (function, options)
            return function
        return register

    def run(self) -> None:
        """Subscribes the handlers: from then on, ``thread`` starts this program, with the same arguments, for their events.
        In a program that was started so, it handles events until there are no more. Call it last."""
        started_for = os.environ.pop(STARTED_FOR, None)
        if started_for is not None:
            if started_for not in self._handlers:
                raise errors.UnknownConsumer(f"this program has no handler for '{started_for}'", "unsubscribe it")
            return _Answering(self, started_for, self._handlers[started_for][0]).run()
        for consumer, (_, options) in self._handlers.items():
            start = shlex.join([sys.executable, *sys.orig_argv[1:]])
            command = f"{STARTED_FOR}={shlex.quote(consumer)} exec {start}"
            self.subscribe(consumer, command, deliver="ndjson", replace=True, **options)  # type: ignore[attr-defined]


class _Answering:
    """Answers the events on stdin."""

    def __init__(self, thread: Any, consumer: str, function: Callable[..., Any]) -> None:
        self.thread, self.consumer, self.function = thread, consumer, function
        self.wants_run = len(inspect.signature(function).parameters) > 1
        # What the handler prints must not be taken for an answer; thread adds it to the log.
        self.answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
        os.dup2(2, 1)

    def run(self) -> None:
        if inspect.iscoroutinefunction(self.function):
            return asyncio.run(self.concurrently())
        for line in sys.stdin.buffer:
            event = Event.of(json.loads(line))
            try:
                self.call(event)
                self.answer({"ack": event.id})
            except Exception as error:
                self.answer(refusal(event, error))

    async def concurrently(self) -> None:
        async def handle(event: Event) -> None:
            try:
                await self.call(event)
                self.answer({"ack": event.id})
            except Exception as error:
                self.answer(refusal(event, error))

        tasks: set[asyncio.Task[None]] = set()
        while line := await asyncio.to_thread(sys.stdin.buffer.readline):
            task = asyncio.create_task(handle(Event.of(json.loads(line))))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)

    def call(self, event: Event) -> Any:
        return self.function(event, *([Run(self.thread, self.consumer, event)] if self.wants_run else []))

    def answer(self, answer: dict[str, Any]) -> None:
        self.answers.write(json.dumps(answer) + "\n")


def refusal(event: Event, error: Exception) -> dict[str, Any]:
    """The answer for an event whose handler has raised an error."""
    said = {"error": f"{type(error).__name__}: {error}" if not isinstance(error, (NotNow, Reject)) else str(error)}
    if isinstance(error, Reject):
        return {"reject": event.id, **said}
    if isinstance(error, NotNow):
        return {"nack": event.id, "attempt": False, **said, **({"delay": error.delay} if error.delay else {})}
    if isinstance(error, Asleep):
        return {"nack": event.id, "attempt": False}
    sys.excepthook(type(error), error, error.__traceback__)
    return {"nack": event.id, **said}
