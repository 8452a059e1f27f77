"""Output of agents without a message, and the commands that change their context."""

import asyncio
import json
import os
import pathlib
import shlex
import signal
import sys
import time

from agui import get
from harness import PATIENCE, THREAD, Gateway, run

FIXTURE = pathlib.Path(__file__).with_name("acp_agent.py")
AGENT = ["--agent", shlex.join([sys.executable, str(FIXTURE)]), "--protocol", "acp"]


async def what_an_agent_says_unasked_is_seen_by_everybody_and_kept():
    with Gateway(*AGENT, "--idle", "200ms") as gateway:
        client = await gateway.client()
        asked = await client.request("agent", message="later 2 the build is done")
        session = asked["sessionId"]
        other = await gateway.client()
        await other.request("sessions.switch", sessionId=session)
        for who in client, other:
            done = await who.wait(lambda e: e["event"] == "final" and e["payload"]["runId"] != asked["runId"])
            assert done["payload"]["content"] == "the build is done", done
            run_id = done["payload"]["runId"]
            frames = [e for e in who.events if e["payload"].get("runId") == run_id]
            names = [e["event"] for e in frames]
            assert frames[0]["payload"].get("status") == "started", frames
            assert names[-1] == "final" and {"tool_call", "tool_result", "token"} <= set(names), names
            call = next(e["payload"] for e in frames if e["event"] == "tool_call")
            assert (call["toolName"], call["title"], call["kind"]) == ("Bash", "Terminal", "execute"), call
            assert next(e["payload"] for e in frames if e["event"] == "tool_result")["result"] == "done"
        assert (await client.request("status"))["session"]["activeRun"] is None
        again = await gateway.client()
        switched = await again.request("sessions.switch", sessionId=session)
        for messages in switched["recentMessages"], (await again.request("sessions.history"))["messages"]:
            said = [(message["role"], message["content"], message.get("replyTo")) for message in messages]
            assert said[-1] == ("assistant", "the build is done", None), said
            assert messages[-1]["runId"] == run_id, messages
        # An AG-UI client that waits gets it as a run.
        streaming = asyncio.create_task(asyncio.to_thread(
            get, gateway, f"/api/v1/agent/events?threadId={session}&after={done['seq']}", {}))
        await client.request("agent", message="hello")
        assert b"RUN_FINISHED" in await streaming
        before = frames[0]["seq"] - 1
        text = (await asyncio.to_thread(
            get, gateway, f"/api/v1/agent/events?threadId={session}&after={before}", {})).decode()
        events = [json.loads(line[5:]) for line in text.splitlines() if line.startswith("data:")]
        kinds = [event["type"] for event in events]
        assert kinds[0] == "RUN_STARTED" and kinds[-1] == "RUN_FINISHED", kinds
        said = "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")
        assert said == "the build is done", events


async def a_clear_keeps_the_conversation_and_the_agent_forgets_it():
    with Gateway(*AGENT, "--idle", "500ms") as gateway:
        client, other = await gateway.client(), await gateway.client()

        async def ask(text):
            asked = await client.request("agent", message=text)
            done = await client.wait(lambda e: e["event"] == "final" and e["payload"]["runId"] == asked["runId"])
            return done["payload"]["content"]

        def idle():
            info = json.loads(gateway.thread("info", "--json", session=session))
            return info["subscriptions"][0]["state"] == "idle"

        assert await ask("one") == "I know: "
        session = (await client.request("status"))["session"]["id"]
        await other.request("sessions.switch", sessionId=session)
        assert await ask("two") == "I know: one;"
        before = len(client.events)
        assert "runId" not in (answer := await client.request("agent", message="/clear")) or answer["runId"] is None
        for who, at in (client, before), (other, 0):
            line = await who.wait(lambda e: e["event"] == "message" and e["payload"]["role"] == "system" and "seq" in e, at)
            assert "no longer knows" in line["payload"]["content"], line
        assert await ask("three") == "I know: "
        until = time.monotonic() + PATIENCE
        while not idle():
            assert time.monotonic() < until
            await asyncio.sleep(0.05)
        assert await ask("four") == "I know: three;", "what was said since is loaded again"
        history = (await client.request("sessions.history"))["messages"]
        said = [(message["role"], message["content"]) for message in history]
        assert ("user", "one") in said and [role for role, _ in said].count("system") == 1, said
        await client.request("agent", message="/help")
        await client.wait(lambda e: "/clear" in str(e["payload"].get("content")))


async def a_call_shows_its_tool_its_title_and_its_change():
    with Gateway(*AGENT) as gateway:
        client = await gateway.client()
        await client.request("agent", message="edit")
        await client.wait("final")
        call, result = client.named("tool_call")[-1]["payload"], client.named("tool_result")[-1]["payload"]
        assert (call["toolName"], call["title"], call["kind"]) == ("edit", "Edit /a", "edit"), call
        assert call["locations"] == [{"path": "/a"}], call
        assert result["content"] == [{"type": "diff", "path": "/a", "oldText": "x", "newText": "y"}], result


async def a_gateway_restarts_a_sub_agent_whose_processes_were_all_killed():
    sub = "echo begun; sleep 1000"
    script = (f"read x; case $x in failed*) echo heard;; *) echo task | {shlex.quote(THREAD)} agent run --background"
              f" --name helper -- sh -c {shlex.quote(sub)};; esac")
    with Gateway("--agent", shlex.join(["sh", "-c", script])) as gateway:
        client = await gateway.client()
        session = (await client.request("agent", message="hello"))["sessionId"]
        await client.wait("final")
        until = time.monotonic() + PATIENCE
        while "begun" not in "".join(log.read_text() for log in (gateway.root / session).glob("agents/*/events.jsonl")):
            assert time.monotonic() < until
            await asyncio.sleep(0.05)
        gateway.kill()
        mark = str(gateway.root / session).encode()

        def left():
            for process in pathlib.Path("/proc").glob("[0-9]*"):
                try:
                    if mark in (process / "cmdline").read_bytes() or mark in (process / "environ").read_bytes():
                        yield int(process.name)
                except OSError:
                    pass

        while pids := [pid for pid in left() if pid != os.getpid()]:
            assert time.monotonic() < until, pids
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        gateway.restart()
        client = await gateway.client()
        await client.request("sessions.switch", sessionId=session, after=0)
        told = await client.wait(lambda e: e["event"] == "message" and str(e["payload"]["content"]).startswith("failed: "))
        await client.wait(lambda e: e["event"] == "final" and e["payload"]["content"].startswith("heard"))
        said = [e for e in client.named("message") if str(e["payload"]["content"]).startswith("failed: ")]
        assert said == [told], said


if __name__ == "__main__":
    run(globals())
