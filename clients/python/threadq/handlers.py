"""Handlers that are functions. ``thread`` starts the program that has them when there is an event, and keeps it."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

from . import calls, errors
from .calls import Call, Duration, Event, Narrow, options
from .errors import Asleep, NotNow, Reject

if TYPE_CHECKING:
    from .client import Thread

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
        words = options({"timeout": timeout, **which})
        with suppress(errors.TimedOut):
            return Event.of(self.thread.command("await", *self._words(), name, *words)[0])
        return None


class Answering:
    """Answers the events on stdin."""

    def __init__(self, thread: Thread, consumer: str, function: Callable[..., Any]) -> None:
        self.thread, self.consumer, self.function = thread, consumer, function
        self.wants_run = len(inspect.signature(function).parameters) > 1
        # What the handler prints must not be taken for an answer; thread adds it to the log.
        self.answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
        os.dup2(2, 1)

    def run(self) -> None:
        if inspect.iscoroutinefunction(self.function):
            return asyncio.run(self.concurrently())
        for line in sys.stdin.buffer:
            with self.answering(line) as given:
                self.function(*given)

    async def concurrently(self) -> None:
        async def handle(line: bytes) -> None:
            with self.answering(line) as given:
                await self.function(*given)

        async with asyncio.TaskGroup() as tasks:
            while line := await asyncio.to_thread(sys.stdin.buffer.readline):
                tasks.create_task(handle(line))

    @contextmanager
    def answering(self, line: bytes) -> Iterator[list[Any]]:
        """Answers an event by how the block ends, which gets the handler's arguments."""
        event = Event.of(json.loads(line))
        answer: dict[str, Any] = {"ack": event.id}
        try:
            yield [event, Run(self.thread, self.consumer, event)][:1 + self.wants_run]
        except Reject as error:
            answer = {"reject": event.id, "error": str(error)}
        except NotNow as error:
            delay = {"delay": calls.duration(error.delay)} if error.delay else {}
            answer = {"nack": event.id, "attempt": False, "error": str(error), **delay}
        except Asleep:
            answer = {"nack": event.id, "attempt": False}
        except Exception as error:
            sys.excepthook(type(error), error, error.__traceback__)
            answer = {"nack": event.id, "error": f"{type(error).__name__}: {error}"}
        self.answers.write(json.dumps(answer) + "\n")
