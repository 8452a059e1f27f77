"""Commands of the program ``thread``: their arguments, where it is, and what becomes of what it prints."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from subprocess import PIPE, Popen
from typing import Any, Generic, TypedDict, TypeVar

from .errors import Asleep, ThreadError, error_of

T = TypeVar("T")
#: ``"1h30m"``, seconds, or a timedelta.
Duration = str | int | float | timedelta
#: Where a thread is: a directory, or ``postgres://…``.
Location = str | os.PathLike[str]


@dataclass(frozen=True)
class Event:
    """An event, as it is stored. ``claim`` is set by ``pop(claim=…)``."""

    id: int
    created_at: str
    source: str
    type: str
    subtype: str | None
    content: str
    metadata: Any = None
    claim: str | None = None

    def json(self) -> Any:
        """The content, read as JSON."""
        return json.loads(self.content)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Event:
        return cls(**{name: row.get(name) for name in cls.__dataclass_fields__})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Batch:
    """What ``push_many`` has stored; the ids are None if nothing new was."""

    count: int
    first_id: int | None
    last_id: int | None


#: Which events. ``meta`` compares fields of the metadata; ``filter`` is an SQL condition.
Narrow = TypedDict("Narrow", {
    "type": str, "subtype": str, "source": str, "meta": Mapping[str, str], "filter": str}, total=False)
#: What an event has besides its content. ``key``, an idempotency key: it is stored once under it.
EventOptions = TypedDict("EventOptions", {
    "source": str, "type": str, "subtype": str, "meta": Mapping[str, Any], "key": str, "expires": Duration}, total=False)
#: Options of ``thread subscribe``; see its help. ``start`` is its ``--from``.
HandlerOptions = TypedDict("HandlerOptions", {
    "filter": str, "key": str, "concurrency": int, "batch_size": int, "max_attempts": int | str, "backoff": str,
    "timeout": Duration, "idle": Duration, "probe": Duration, "stall_after": int | str, "ahead": int,
    "start": int | str, "env": Mapping[str, str], "clear_env": bool, "cwd": str}, total=False)


@dataclass(frozen=True)
class Call(Generic[T]):
    """A command, with how to read its result and what it reads from stdin."""

    args: list[str]
    result: Callable[[list[Any]], T]
    input: str = ""

    def start(self, location: str | None, **more: Any) -> Popen[bytes]:
        """Starts it as a process of its own, for ``finish``."""
        command, *rest = self.args
        words = [program(), command, "--json", *([f"--thread={location}"] if location else []), *rest]
        return Popen(words, stdin=PIPE, stdout=PIPE, stderr=PIPE, **more)

    def finish(self, process: Popen[bytes], said: bytes = b"") -> T:
        """The result of the process, which has said this on stderr so far. It never outlives this."""
        with process:
            try:
                stdout, stderr = process.communicate(self.input.encode())
            finally:
                process.kill()
        if process.returncode not in (0, 75):
            raise failure(process, said + stderr)
        return self.read({"exit": process.returncode, "out": [json.loads(line) for line in stdout.splitlines()]})

    def read(self, answer: Mapping[str, Any]) -> T:
        """The result, from the answer of a session."""
        for line in answer.get("notices", ()):
            level = logging.WARNING if line.startswith("Warning") else logging.INFO
            logging.getLogger("threadq").log(level, line)
        if answer["exit"] == 75:
            raise Asleep
        if answer["exit"]:
            raise error_of(answer, answer["exit"])
        return self.result(answer["out"])


def call(command: str, result: Callable[[list[Any]], T], *words: object, input: str = "", **given: Any) -> Call[T]:
    return Call([command, *options(given), "--", *map(str, words)], result, input)


def event(command: str, result: Callable[[list[Any]], T], content: Any, *words: str, meta: Any = None,
          **given: Any) -> Call[T]:
    """A command that makes an event."""
    given["metadata"] = None if meta is None else json.dumps(meta)
    return Call([command, *words, "--content-file=-", *options(given, OF_EVENTS)], result, text(content))


def dead(what: str, consumer: str, id: int | None) -> Call[int]:
    """A command on one of a consumer's dead letters, or on all."""
    which = "--all" if id is None else f"--event-id={id}"
    return Call(["dead", what, f"--consumer={consumer}", which], the(int, "count"))


def failure(process: Popen[bytes], stderr: bytes) -> ThreadError:
    """The error in the last line of what a process has written to stderr."""
    exit = process.wait()
    try:
        return error_of(json.loads(stderr.splitlines()[-1]), exit)
    except (IndexError, ValueError):
        return error_of({"error": stderr.decode(errors="replace").strip() or f"thread ended with exit code {exit}"}, exit)


def program() -> str:
    """The program that THREAD_PROGRAM names, else the one that came with this package, else the one on PATH."""
    own = os.path.join(sysconfig.get_path("scripts"), "thread")
    if found := os.environ.get("THREAD_PROGRAM") or (own if os.access(own, os.X_OK) else shutil.which("thread")):
        return found
    raise error_of({"code": "spawn_failed", "error": "the program 'thread' is not installed",
                    "suggestion": "install it, or set THREAD_PROGRAM to its path"})


DURATIONS = {"expires", "timeout", "idle", "probe", "delay", "every", "claim", "wait"}
#: What options are called here in general, and in commands that make an event.
RENAMED, OF_EVENTS = {"start": "from", "after": "last-event-id"}, {"key": "idempotency-key", "delay": "in"}


def options(given: Mapping[str, Any], renamed: Mapping[str, str] = RENAMED) -> list[str]:
    """Options of the command line. Those that are None or False are left out."""
    words = []
    for name, value in given.items():
        flag = "--" + renamed.get(name, name).replace("_", "-")
        if isinstance(value, Mapping):
            words += [f"{flag}={key}={text}" for key, text in value.items()]
        elif value is True:
            words.append(flag)
        elif value is not None and value is not False:
            words.append(f"{flag}={duration(value) if name in DURATIONS else value}")
    return words


def duration(length: Duration) -> str:
    if isinstance(length, timedelta):
        length = length.total_seconds()
    return length if isinstance(length, str) else f"{max(0, round(length * 1000))}ms"


def text(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def line(event: Any) -> str:
    """A line of a batch."""
    event = event if isinstance(event, Mapping) and "content" in event else {"content": event}
    names = {"meta": "metadata", "key": "idempotency_key"}
    return json.dumps({names.get(name, name): text(value) if name == "content" else value for name, value in event.items()})


def the(kind: Callable[[Any], T], name: str) -> Callable[[list[Any]], T]:
    """A field of what was printed, as a result."""
    return lambda out: kind(out[0][name])


def events(out: list[Any]) -> list[Event]:
    return [Event.of(row) for row in out]


STORED, CURSOR = the(int, "id"), the(int, "last_acked_id")
