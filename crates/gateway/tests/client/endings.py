"""Endings of runs: only an event under the run's key ends it, whatever else is pushed in the agent's name."""

import asyncio
import json
import os
import shlex

from agui import get
from harness import THREAD, Gateway, run

# Pushes a message on the side, as any program that an agent runs may, then waits for a line before it answers.
BUSY = f"{shlex.quote(THREAD)} reply 'working on it' >&2 && cat go"


def conclude(gateway, answer):
    """Lets a busy agent answer. Waits until it is ready to read."""
    with open(gateway.root / "go", "w") as go:
        go.write(answer)


async def what_an_agent_says_by_the_way_ends_nothing():
    with Gateway("--agent", BUSY) as gateway:
        os.mkfifo(gateway.root / "go")
        client = await gateway.client()
        first = await client.request("agent", message="do it")
        remark = await client.wait(lambda e: e["payload"].get("content") == "working on it")
        assert (remark["event"], remark["payload"].get("role")) == ("message", "assistant"), remark
        assert remark["payload"]["fromSelf"] is False
        assert (await client.request("status"))["session"]["activeRun"] == first["runId"]
        second = await client.request("agent", message="and then this")
        assert second["status"] == "queued", second
        await client.wait("queued")
        # A client that enters now sees the same run.
        other = await gateway.client()
        switched = await other.request("sessions.switch", sessionId=first["sessionId"])
        assert switched["activeRun"] == first["runId"], switched
        await asyncio.to_thread(conclude, gateway, "done")
        await client.wait("final")
        await asyncio.to_thread(conclude, gateway, "done too")
        for who in client, other:
            await who.wait(lambda e: e["event"] == "final" and e["payload"]["runId"] == second["runId"])
            finals = [(e["payload"]["runId"], e["payload"]["content"]) for e in who.named("final")]
            assert finals == [(first["runId"], "done"), (second["runId"], "done too")], finals
        history = (await client.request("sessions.history"))["messages"]
        said = [(message["role"], message["content"]) for message in history]
        assert said.count(("assistant", "working on it")) == 2 and ("assistant", "done") in said, said


async def an_ag_ui_stream_continues_to_the_answer():
    with Gateway("--agent", BUSY) as gateway:
        os.mkfifo(gateway.root / "go")
        ask = {"threadId": "t", "runId": "r", "messages": [{"id": "m", "role": "user", "content": "do it"}]}
        streaming = asyncio.create_task(asyncio.to_thread(
            get, gateway, "/api/v1/agent/run", {"Content-Type": "application/json"}, json.dumps(ask).encode()))
        await asyncio.to_thread(conclude, gateway, "the answer")
        text = (await streaming).decode()
        events = [json.loads(line[5:]) for line in text.splitlines() if line.startswith("data:")]
        kinds = [event["type"] for event in events]
        assert kinds[0] == "RUN_STARTED" and kinds[-1] == "RUN_FINISHED" and kinds.count("RUN_FINISHED") == 1, kinds
        said = "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")
        assert said.endswith("the answer"), said


async def only_the_key_makes_an_ending():
    with Gateway() as gateway:
        client = await gateway.client()
        session = (await client.request("sessions.new"))["sessionId"]
        gateway.fake_agent(session)
        run_id = (await client.request("agent", message="1"))["runId"]
        seq = (await client.wait("message"))["seq"]
        about = {"run_id": run_id, "reply_to": seq}
        gateway.push(session, {"status": "started", "attempt": 1}, "run", **about, attempt=1)
        foreign = "external:mail:main:dm:x:bob"
        for last in (
            gateway.push(session, "not the answer", kind="message", **about),
            gateway.push(session, "not the answer", kind="message", key="end:of the world", **about),
            gateway.push(session, "whim", "cancelled", **about),
            gateway.push(session, {"error": "no", "retryable": False}, "error", **about),
            # The key of another message, which has no run.
            gateway.push(session, "not the answer", kind="message", key=f"end:{seq + 1}", **about),
            gateway.push(session, "neither", kind="message", source=foreign, run_id=run_id),
        ):
            status = (await client.request("status"))["session"]
            assert status["activeRun"] == run_id, (last, status)
        await client.seq(last)
        assert not client.named("final"), client.seen()
        seq = gateway.ending(session, seq, "the answer", run_id=run_id)
        assert (await client.seq(seq))["event"] == "final"
        assert [event["payload"]["content"] for event in client.named("final")] == ["the answer"]


if __name__ == "__main__":
    run(globals())
