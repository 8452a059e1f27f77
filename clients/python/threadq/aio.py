"""The same client for asyncio. Calls may overlap; they are done in the order in which they were made."""

from __future__ import annotations

import asyncio
import json
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Concatenate, ParamSpec, Unpack, cast

from . import calls
from .calls import Call, Event, Narrow, T, options
from .client import Thread
from .errors import error_of

P = ParamSpec("P")
PIPE = asyncio.subprocess.PIPE
#: The longest line that is read: content has up to 999,000,000 bytes.
LONGEST = 1 << 31


def _of(method: Callable[Concatenate[Thread, P], T]) -> Callable[Concatenate[AsyncThread, P], Awaitable[T]]:
    """The method as it is: it returns what ``_do`` or ``_wait`` returns, which is awaitable here."""
    return cast(Any, method)


class AsyncThread:
    """A thread; see ``Thread``, whose methods these are. Made by ``await AsyncThread.open(…)``."""

    def __init__(self, session: asyncio.subprocess.Process, location: str) -> None:
        self.location = location
        self._session = session
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def open(cls, location: str | os.PathLike[str] | None = None) -> AsyncThread:
        words = Call(["session"], calls.events).words(os.fspath(location) if location is not None else None)
        session = await asyncio.create_subprocess_exec(
            *words, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True, limit=LONGEST)
        assert session.stdout and session.stderr
        if hello := await session.stdout.readline():
            return cls(session, json.loads(hello)["thread"])
        raise calls.failure(await session.stderr.read(), await session.wait())

    @classmethod
    async def init(cls, location: str | os.PathLike[str], *, if_missing: bool = False) -> AsyncThread:
        words = ["init", *options({"if_missing": if_missing}), "--", os.fspath(location)]
        return await cls.open(await _run(None, Call(words, lambda out: out[0]["thread"])))

    push, push_many, schedule, repeat = _of(Thread.push), _of(Thread.push_many), _of(Thread.schedule), _of(Thread.repeat)
    read, subscribe, unsubscribe, pop = _of(Thread.read), _of(Thread.subscribe), _of(Thread.unsubscribe), _of(Thread.pop)
    ack, nack, reject, claim = _of(Thread.ack), _of(Thread.nack), _of(Thread.reject), _of(Thread.claim)
    ask, reply, command, _settle = _of(Thread.ask), _of(Thread.reply), _of(Thread.command), _of(Thread._settle)

    async def follow(self, after: int | None = None, **which: Unpack[Narrow]) -> AsyncIterator[Event]:
        words = ["peek", "--follow", *options({"last_event_id": after, **which})]
        process = await asyncio.create_subprocess_exec(
            *Call(words, calls.events).words(self.location), stdout=PIPE, stderr=PIPE, limit=LONGEST)
        assert process.stdout and process.stderr
        try:
            async for line in process.stdout:
                yield Event.of(json.loads(line))
            raise calls.failure(await process.stderr.read(), await process.wait())
        finally:
            await _kill(process)

    async def close(self) -> None:
        assert self._session.stdin
        self._session.stdin.close()
        await self._reader
        await self._session.wait()

    async def __aenter__(self) -> AsyncThread:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _wait(self, call: Call[T]) -> T:
        return await _run(self.location, call)

    async def _do(self, call: Call[T]) -> T:
        stdin = self._session.stdin
        assert stdin
        if self._reader.done() or stdin.is_closing():
            raise _ended("open the thread again")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        stdin.write(call.request())
        return call.finish(await answer)

    async def _read(self) -> None:
        assert self._session.stdout
        async for line in self._session.stdout:
            answer = self._waiting.popleft()
            # It is done all the same if the call was cancelled.
            if not answer.done():
                answer.set_result(json.loads(line))
        for answer in self._waiting:
            if not answer.done():
                answer.set_exception(_ended("see whether it was done before you do it again"))


def _ended(suggestion: str) -> Exception:
    return error_of({"code": "session_ended", "error": "the session has ended", "suggestion": suggestion})


async def _run(location: str | None, call: Call[T]) -> T:
    """Runs a call that waits as a process of its own, which ends if the call is cancelled."""
    process = await asyncio.create_subprocess_exec(*call.words(location), stdin=PIPE, stdout=PIPE, stderr=PIPE)
    try:
        stdout, stderr = await process.communicate((call.input or "").encode())
        return call.ended(process.returncode or 0, stdout, stderr)
    finally:
        await _kill(process)


async def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.wait()
