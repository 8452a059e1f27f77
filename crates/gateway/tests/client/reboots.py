"""All processes of a root are killed at once, as by a reboot, and the gateway is started again: each run continues."""

import asyncio
import contextlib
import json
import os
import pathlib
import shlex
import signal
import sys
import time

from crowd import processes_of
from harness import LONG, PATIENCE, THREAD, Gateway, run

PLAYER = f"{shlex.quote(sys.executable)} {shlex.quote(str(pathlib.Path(__file__).with_name('page_agent.py')))}"
ROUNDS = int(os.environ.get("ROUNDS", 50 if LONG else 3))


async def until(gateway, session, wanted):
    """Waits until this is true of a session's events, without entering it. Returns what it returned."""
    limit = time.monotonic() + PATIENCE
    while not (found := wanted(await asyncio.to_thread(gateway.events, session))):
        assert time.monotonic() < limit, gateway.thread("info", session=session)
        await asyncio.sleep(0.05)
    return found


def at(run_id, subtype, attempt=1, text=""):
    """Whether a run has such an event in an attempt, with a text in it."""
    def wanted(events):
        return [event for event in events if event.get("subtype") == subtype and text in event["content"]
                and event["metadata"].get("run_id") == run_id and event["metadata"].get("attempt") == attempt]
    return wanted


def answered(run_id):
    """Whether a run has its answer."""
    def wanted(events):
        return [event for event in events if event["type"] == "message" and event["source"] == "self"
                and event["metadata"].get("run_id") == run_id]
    return wanted


def kill_everything(gateway, sessions):
    gateway.kill()
    while at_work := [process for session in sessions for process in processes_of(session)]:
        for process in at_work:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


async def say(client, session, text):
    return (await client.request("agent", sessionId=session, message=text))["runId"]


async def running_waiting_and_asking_runs_survive_a_reboot():
    longest = 0
    with Gateway("--agent", f"{PLAYER} --acp", "--protocol", "acp") as gateway:
        (gateway.root / "programs.json").write_text(json.dumps({"thread": THREAD}))
        for n in range(ROUNDS):
            (gateway.root / "crashed").unlink(missing_ok=True)
            (gateway.root / "plays.json").write_text(json.dumps({
                "long": [["say", "working"], ["wait", f"go{n}"], ["say", " and done"]],
                "ask": [["ask", "c", "rm", {"path": "x"}, "rm x"]],
                "fail": [["exit", 1], ["say", "at last"]],
            }))
            client = await gateway.client()
            working, asking, failing = [(await client.request("sessions.new"))["sessionId"] for _ in range(3)]
            long, queued = await say(client, working, "long"), await say(client, working, "next")
            ask, fail = await say(client, asking, "ask"), await say(client, failing, "fail")
            await until(gateway, working, at(long, "token"))
            await until(gateway, asking, at(ask, "permission"))
            await until(gateway, failing, at(fail, "error"))
            kill_everything(gateway, [working, asking, failing])

            # No client enters the sessions.
            began = time.monotonic()
            gateway.restart()
            await until(gateway, working, at(long, "token", 2, "working"))
            [asked] = await until(gateway, asking, at(ask, "permission", 2))
            await until(gateway, failing, answered(fail))
            longest = max(longest, time.monotonic() - began)
            assert not answered(queued)(gateway.events(working))

            client = await gateway.client()
            (gateway.root / f"go{n}").touch()
            request_id = json.loads(asked["content"])["request_id"]
            await client.request("permission.answer", sessionId=asking, requestId=request_id, choice="once")
            answers = {}
            for session, run_id in [(working, long), (working, queued), (asking, ask), (failing, fail)]:
                [answer] = await until(gateway, session, answered(run_id))
                answers[run_id] = answer["content"]
            assert answers[long] == "working and done", answers
            assert answers[queued] == "You said: next", answers
            assert answers[ask] == "The answer was once.", answers
            assert answers[fail] == "at last", answers
            await client.close()
    print(f"{ROUNDS} reboots; all was where it had been at most {longest:.1f} s after the start of the gateway")


if __name__ == "__main__":
    run(globals())
