"""AG-UI with its released clients, 1.0 and 0.x."""

import asyncio
import json
import os
import pathlib
import shlex
import signal
import tempfile
import time
import urllib.error
import urllib.request

from agent import answer
from crowd import AGENT
from harness import PATIENCE, Gateway, run

HERE = pathlib.Path(__file__).parent
MODULES = {"1": os.environ.get("GATEWAY_AGUI_1"), "0": os.environ.get("GATEWAY_AGUI_0")}


def skipped():
    if not all(MODULES.values()):
        print("SKIPPED: needs @ag-ui/client, of npm")
        return True


async def client(gateway, version, threadId, message, **options):
    """Runs a client to its end. Returns the types of events it saw, and all it printed."""
    options = {"threadId": threadId, "message": message, "version": version, **options}
    process = await asyncio.create_subprocess_exec(
        "node", str(HERE / "agui.mjs"), MODULES[version], gateway.url, gateway.token, json.dumps(options),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    # The released client warns of what it does not know.
    assert process.returncode == 0 and (version == "0" or b"[ag-ui]" not in err), err.decode()
    seen = json.loads(out)
    return [event["type"] for event in seen["events"]], seen


def get(gateway, path, headers={}, data=None):
    headers = {"Authorization": f"Bearer {gateway.token}", **headers}
    request = urllib.request.Request(gateway.url + path, data, headers)
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        limit, parts = time.monotonic() + 2 * PATIENCE, []
        while part := answer.read1():
            parts.append(part)
            # A stream that does not end still has keep-alive comments.
            assert time.monotonic() < limit, b"".join(parts)
        return b"".join(parts)


def session_of(gateway):
    sessions = [path.name for path in gateway.root.glob("[0-9a-f]*") if (path / "events.db").exists()]
    return sessions[0] if sessions else None


async def a_run_with_reasoning_and_tools_streams_to_both_versions():
    if skipped():
        return
    with Gateway("--agent", AGENT, "--protocol", "ndjson") as gateway:
        for version in "1", "0":
            types, seen = await client(gateway, version, f"thread of {version}", "hello")
            assert seen["error"] is None and types[0] == "RUN_STARTED" and types[-1] == "RUN_FINISHED", seen
            reasoning = [kind for kind in types if kind.startswith(("REASONING", "THINKING"))]
            assert len(reasoning) == 5 and types.count("TOOL_CALL_RESULT") == 1, types
            text = "".join(e["delta"] for e in seen["events"] if e["type"] == "TEXT_MESSAGE_CONTENT")
            assert text == answer("hello")
            [call] = [call for m in seen["messages"] for call in m.get("toolCalls") or []]
            assert json.loads(call["function"]["arguments"]) == {"text": "hello"}
            assert seen["messages"][-1]["role"] == "assistant" and seen["messages"][-1]["content"] == text
            if version == "1":
                assert seen["events"][-1]["outcome"] == {"type": "success"}


async def a_stream_that_was_cut_is_resumed_at_its_last_event():
    if skipped():
        return
    with Gateway("--agent", AGENT, "--protocol", "ndjson") as gateway:
        for version in "1", "0":
            # With a slow disk, the adapter writes fewer and longer chunks.
            together = lambda types: [a for a, b in zip(types, types[1:] + [""]) if a != b or "CONTENT" not in a]
            whole, _ = await client(gateway, version, "whole" + version, "hello")
            for at in 1, 2, 3, 5, 7, 9:
                types, seen = await client(gateway, version, f"cut{version}{at}", "hello", cut=at)
                assert seen["error"] is None and together(types) == together(whole), (at, types)
                text = "".join(e["delta"] for e in seen["events"] if e["type"] == "TEXT_MESSAGE_CONTENT")
                assert text == answer("hello")


async def a_killed_adapter_is_a_pause_and_a_final_error_is_an_error():
    if skipped():
        return
    with Gateway("--agent", f"{AGENT} 0.2", "--protocol", "ndjson") as gateway:
        # With `cut`, the stream is resumed while the adapter is dead.
        for version, options in ("1", {}), ("0", {}), ("1", {"cut": 4}):
            known = set(gateway.root.glob("*-*-*"))
            running = asyncio.create_task(client(gateway, version, f"killed {version} {options}", "hello", **options))
            while not (made := [path for path in gateway.root.glob("[0-9a-f]*-*-*") if path not in known]):
                await asyncio.sleep(0.05)
            session = made[0].name
            while not any(event["subtype"] == "token" for event in gateway.events(session)):
                await asyncio.sleep(0.05)
            os.kill(adapter(gateway.root / session), signal.SIGKILL)
            types, seen = await running
            assert seen["error"] is None and types[-1] == "RUN_FINISHED", seen
            assert types.count("RUN_STARTED") == 1, types
            names = [event["name"] for event in seen["events"] if event["type"] == "CUSTOM"]
            assert "thread.attempt_failed" in names and "thread.attempt" in names, names
            assert seen["messages"][-1]["content"] == answer("hello")
    with tempfile.TemporaryDirectory() as scratch:
        program = pathlib.Path(scratch) / "agent"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        with Gateway("--agent", shlex.quote(str(program))) as gateway:
            program.unlink()
            await every_run_fails(gateway)


async def every_run_fails(gateway):
    for version in "1", "0":
        types, seen = await client(gateway, version, "failed" + version, "hello")
        assert types[-1] == "RUN_ERROR" and "RUN_FINISHED" not in types, seen


def adapter(thread):
    """The process id of the adapter that works on a thread."""
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().split(b"\0")
            environment = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if command[0].endswith(b"thread-agent") and f"THREAD_DIR={thread}".encode() in environment:
            return int(process.name)
    raise AssertionError("no adapter")


async def a_run_that_is_cancelled_is_finished_as_such():
    if skipped():
        return
    with Gateway("--agent", f"{AGENT} 0.5", "--protocol", "ndjson") as gateway:
        running = asyncio.create_task(client(gateway, "1", "cancelled", "hello", runId="run one"))
        other = await gateway.client()
        while not (listed := (await other.request("sessions.list"))["sessions"]):
            await asyncio.sleep(0.05)
        await other.request("sessions.switch", sessionId=listed[0]["id"], after=0)
        await other.wait("token")
        await other.request("agent.cancel", runId="run one")
        types, seen = await running
        assert types[-1] == "RUN_FINISHED" and seen["events"][-1]["outcome"] == {"type": "cancelled"}, seen
        # The client's disconnect has not cancelled the run.
        [event] = [event for event in other.named("message")]
        assert event["payload"]["messageId"] == "m1" and event["payload"]["runId"] == "run one"


async def the_same_run_is_one_run_and_bad_input_is_refused():
    with Gateway("--agent", "cat") as gateway:
        ask = {
            "threadId": "my own name", "runId": "r1", "tools": [], "context": [], "protocolVersion": "1.0",
            "messages": [
                {"id": "a", "role": "user", "content": "old"},
                {"id": "b", "role": "assistant", "content": "old answer"},
                {"id": "c", "role": "user", "content": "hello"},
            ],
        }
        post = lambda body: get(gateway, "/api/v1/agent/run", {"Content-Type": "application/json"},
                                json.dumps(body).encode())
        first, second = [await asyncio.to_thread(post, ask) for _ in range(2)]
        assert first == second and b"RUN_FINISHED" in first and b"\nid: 1\ndata: " in first, first
        history = json.loads(get(gateway, "/api/v1/agent/history?threadId=my%20own%20name"))
        assert [(m["role"], m["content"]) for m in history["messages"]] == [("user", "hello"), ("assistant", "hello")]
        assert history["messages"][0]["metadata"]["run_id"] == "r1"
        different = {**ask, "messages": [{"id": "c", "role": "user", "content": "other"}]}
        for body, status in [
            (different, 409), ({**ask, "threadId": ""}, 400), ({**ask, "runId": 1}, 400), ({**ask, "messages": []}, 400),
            ({**ask, "messages": [{"id": "c", "role": "user", "content": ""}]}, 400), ([], 400),
        ]:
            try:
                await asyncio.to_thread(post, body)
                raise AssertionError(body)
            except urllib.error.HTTPError as e:
                assert e.code == status and json.loads(e.read())["error"], (body, e.code)
        # Resumed after the end of a run, a stream waits for the next one.
        waiting = asyncio.create_task(asyncio.to_thread(
            get, gateway, "/api/v1/agent/events?threadId=my%20own%20name", {"Last-Event-ID": "1000"}))
        await asyncio.sleep(0.3)
        client = await gateway.client()
        await client.request("agent", sessionId=session_of(gateway), message="again")
        events = [json.loads(line[5:]) for line in (await waiting).splitlines() if line.startswith(b"data:")]
        assert events[0]["type"] == "RUN_STARTED" and events[-1]["type"] == "RUN_FINISHED"


async def ids_that_only_look_alike_when_joined_are_different():
    with Gateway("--agent", "cat") as gateway:
        ids = [("a:b", "c"), ("a", "b:c"), ("1:a:b", "c"), ("a/b", "c"), ("a", "b/c"), ("a%3Ab", "c")]
        texts = []
        for n, (run_id, message_id) in enumerate(ids):
            message = {"id": message_id, "role": "user", "content": f"message {n}"}
            body = json.dumps({"threadId": "t", "runId": run_id, "messages": [message]}).encode()
            try:
                stream = await asyncio.to_thread(
                    get, gateway, "/api/v1/agent/run", {"Content-Type": "application/json"}, body)
            except urllib.error.HTTPError as e:
                raise AssertionError(f"{run_id} and {message_id}: {e.code} {e.read()}") from None
            assert f"message {n}".encode() in stream, stream
            texts.append(f"message {n}")
        # A client's own key does not collide with theirs either.
        client = await gateway.client()
        for key in "agui:a:b:c", "agui:1:a1:c":
            texts.append(key)
            await client.request("agent", sessionId=session_of(gateway), message=key, idempotencyKey=key)
        said = [event["content"] for event in gateway.events(session_of(gateway))
                if event["type"] == "message" and event["source"] != "self"]
        assert said == texts, said


async def a_stream_whose_run_is_not_over_never_ends_well():
    with Gateway("--agent", f"{AGENT} 0.5", "--protocol", "ndjson") as gateway:
        ask = {"threadId": "t", "runId": "r", "messages": [{"id": "a", "role": "user", "content": "hello"}]}
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        body = json.dumps(ask)
        writer.write(
            f"POST /api/v1/agent/run HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {gateway.token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        await asyncio.wait_for(reader.readuntil(b"RUN_STARTED"), 60)
        code, took = await asyncio.to_thread(gateway.stop)
        assert code == 0 and took < 2, took
        rest = await asyncio.wait_for(reader.read(), 60)
        # Not the last chunk, which would complete the body.
        assert not rest.endswith(b"0\r\n\r\n"), rest


if __name__ == "__main__":
    run(globals())
