"""AG-UI streams, checked by an independent validator and by the released client."""

import asyncio
import base64
import json
import os
import pathlib
import shlex
import signal
import tempfile

from agui import adapter, client, get, skipped
from answers import (
    ASKING, FINAL, PLAYER, TOOLS, asks, call, customs, input_of, kinds, parsed, play, post, result, says, session_of,
    stream, text_of, token, until, user,
)
from harness import Gateway, run

try:
    import ag_ui_validate
except ImportError:
    ag_ui_validate = None

# Each client with the version that it requests, in its input or in the query.
VERSIONS = [({"protocolVersion": "1.0"}, ""), ({}, "?protocol=1"), ({}, "")]


def missing():
    if ag_ui_validate is None:
        print("SKIPPED: needs ag-ui-validate, of Python")
        return True


def judge(events, what):
    """Fails if a stream has errors or warnings, whatever its content."""
    validator = ag_ui_validate.create_validator()
    for event in events:
        validator.feed(event)
    validator.finalize()
    report = validator.report()
    assert (report.summary.errors, report.summary.warnings, report.internal_errors) == (0, 0, []), (
        what, [(d.rule, d.message) for d in report.diagnostics], events)
    # Namespaces and timestamps are not required, but our streams have them.
    assert not {"AGUI902", "AGUI903"} & {d.rule for d in report.diagnostics}, report.diagnostics
    assert all(isinstance(event["timestamp"], int) for event in events), events


# Events of a sub-agent may come after the result of its call.
TOLD = {"seen": '"sub_agent"'}
TWICE = {"seen": '"sub_event_id":[0-9]+,"attempt":2'}
THINKING = [{"event": "thinking", "content": "hm "}, {"event": "thinking", "content": "ha"}]
PATCH = [{"op": "add", "path": "/n", "value": 1}]
RUNS = {
    "an answer": [[token("a"), token("b"), FINAL]],
    "an answer that was not streamed": [[FINAL]],
    "an empty answer": [[{"event": "final", "content": ""}]],
    "tools": [[token("a"), call("c1", of=1), call("c2"), result("c2"), result("c1"), result("c3"), token("b"), FINAL]],
    "a tool that is called again": [[call("c1"), call("c1", of=2), result("c1"), result("c1"), call("c1"), FINAL]],
    "thinking": [[*THINKING, token("a"), *THINKING, call("c1"), *THINKING, result("c1"), {**FINAL, "total_tokens": 7}]],
    "state": [[{"event": "state", "state": {}}, {"event": "state_delta", "delta": PATCH},
               {"event": "state_delta", "delta": [{"op": "remove", "path": "/x"}]}, FINAL]],
    "a crash": [[token("a"), call("c1"), call("c2"), result("c2"), {"event": "state", "state": {"a": 1}}, {"exit": 3}],
                [*THINKING, call("c1"), {"exit": 3}],
                [call("c1"), call("c1", of=2), result("c1"), {"event": "state_delta", "delta": PATCH}, token("b"), FINAL]],
    "a final error": [[token("a"), call("c1"), {"event": "error", "error": "no"}]],
    "three crashes": [[token("a"), call("c1"), {"exit": 3}]],
    "a call that nobody answers": [[call("c1"), token("a"), FINAL]],
    "sub-agents": [[call("c1", "helper"), {"helper": "echo hello", "call": "c1"}, TOLD, FINAL]],
    "a sub-agent that fails": [[call("c1", "helper"), {"helper": "exit 3", "call": "c1"}, TOLD, FINAL]],
    "a sub-agent in the background": [[call("c1", "helper"), {"helper": "sleep 1000", "call": "c1", "background": True},
                                       TOLD, FINAL]],
    "sub-agents of two attempts": [[call("c1", "helper"), {"helper": "echo a", "call": "c1"}, TOLD, {"exit": 3}],
                                   [call("c1", "helper"), {"helper": "echo b", "call": "c1"}, TWICE, FINAL]],
}


async def whatever_an_agent_does_is_a_valid_stream():
    if missing():
        return
    with Gateway("--agent", PLAYER, "--protocol", "ndjson") as gateway:
        async def check(name, attempts, version, query):
            body = {**input_of("r", user("m", attempts), thread=f"{name}{version}{query}")}
            del body["protocolVersion"]
            events = await stream(gateway, {**body, **version}, query)
            judge(events, name)
            return name, version or query, events

        checks = [check(name, attempts, *version) for name, attempts in RUNS.items() for version in VERSIONS]
        seen = {(name, str(version)): events for name, version, events in await asyncio.gather(*checks)}
        of = lambda name: seen[name, str(VERSIONS[0][0])]
        calls = [event["toolCallId"] for event in of("a crash") if event["type"] == "TOOL_CALL_START"]
        assert calls == ["c1", "c2", "c1.2", "c1.3"], calls
        # Changes by a failed attempt are undone.
        assert [e["snapshot"] for e in of("a crash") if e["type"] == "STATE_SNAPSHOT"] == [{"a": 1}, {}]
        assert kinds(of("a final error"))[-1] == kinds(of("three crashes"))[-1] == "RUN_ERROR"
        assert of("thinking")[-1]["usage"] == [{"totalTokens": 7}]
        assert customs(of("a tool that is called again"), "tool_call")[0]["arguments"] == {"of": 2}
        [finished] = [e for e in of("sub-agents") if e["type"] == "SUBAGENT_FINISHED"]
        assert finished.get("result", "hello\n") == "hello\n" and finished["outcome"] == {"type": "success"}, finished
        assert "SUBAGENT_ERROR" in kinds(of("a sub-agent that fails"))
        [background] = [e for e in of("a sub-agent in the background") if e["type"].startswith("SUBAGENT_F")]
        assert background["outcome"] == {"type": "suspended"}, background
        started = [e for e in of("sub-agents of two attempts") if e["type"] == "SUBAGENT_STARTED"]
        assert [e["parentToolCallId"] for e in started] == ["c1", "c1.2"] and started[0]["name"] == "helper", started


async def cancels_interrupts_and_resumed_streams_are_valid():
    if missing():
        return
    with Gateway("--agent", PLAYER, "--protocol", "ndjson") as gateway:
        for version, query in VERSIONS:
            thread = f"cancel{version}{query}"
            steps = [[*THINKING, token("a"), call("c1"), {"wait": "never"}]]
            body = {**input_of("r", user("m", steps), thread=thread), **version}
            if not version:
                del body["protocolVersion"]
            known = set(gateway.root.glob("[0-9a-f]*-*"))
            streaming = asyncio.create_task(stream(gateway, body, query))
            [made] = await until(lambda: [path for path in gateway.root.glob("[0-9a-f]*-*")
                                          if path not in known and (path / "events.db").exists()])
            await until(lambda: any(e["subtype"] == "toolcall" for e in gateway.events(made.name)))
            post(gateway, "cancel", {"threadId": thread})
            events = await streaming
            judge(events, thread)
            # Resumed at any event, the stream is the same.
            protocol = query.removeprefix("?") or f"protocol={version.get('protocolVersion', '0')}"
            whole = await asyncio.to_thread(get, gateway, f"/api/v1/agent/events?threadId={thread}&after=0&{protocol}".replace(
                "{", "%7B").replace("}", "%7D").replace("'", "%27").replace(" ", "%20"))
            assert parsed(whole) == events, (parsed(whole), events)
    with tempfile.TemporaryDirectory() as scratch:
        with Gateway(*play(pathlib.Path(scratch), *[ASKING] * 3)) as gateway:
            for turn, (version, query) in enumerate(VERSIONS[:2]):
                body = {**input_of(f"r{turn}", user(f"m{turn}", "go")), **version}
                if not version:
                    del body["protocolVersion"]
                first = await stream(gateway, body, query)
                judge(first, "an interrupt")
                [interrupt] = first[-1]["outcome"]["interrupts"]
                resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"choice": "yes"}}]
                rest = await stream(gateway, {**body, "runId": f"s{turn}", "resume": resume}, query)
                judge(rest, "its resume")
                assert "TOOL_CALL_RESULT" in kinds(rest)


async def a_stream_is_whole_wherever_it_is_resumed():
    if missing():
        return
    with Gateway("--agent", PLAYER, "--protocol", "ndjson") as gateway:
        for name in "a crash", "sub-agents", "thinking", "state":
            body = input_of("r", user("m", RUNS[name]), thread=name)
            text = await asyncio.to_thread(post, gateway, "run", body)
            whole = parsed(text)
            seen = []
            for block in text.split(b"\n\n"):
                lines = block.splitlines()
                seen.extend(json.loads(line[5:]) for line in lines if line.startswith(b"data:"))
                ids = [line[3:].strip().decode() for line in lines if line.startswith(b"id:")]
                if not ids or seen[-1]["type"] in ("RUN_FINISHED", "RUN_ERROR"):
                    continue
                path = f"/api/v1/agent/events?threadId={name.replace(' ', '%20')}"
                rest = parsed(await asyncio.to_thread(get, gateway, path, {"Last-Event-ID": ids[-1]}))
                assert seen + rest == whole, (name, ids, rest)


async def a_stream_that_continues_a_run_is_whole_wherever_it_is_resumed():
    if missing():
        return
    background = {"helper": "sleep 1000", "call": "s2", "background": True}
    steps = [[call("s2", "helper"), background, TOLD, call("s1", "helper"), call("c1", "color"), call("c2", "color"), {"hear": True},
              {"helper": "echo hello", "call": "s1"}, token("a"), {"hear": True}, *THINKING, token("b"), {"event": "final"}]]
    with Gateway("--agent", PLAYER, "--protocol", "ndjson") as gateway:
        tool = lambda call_id: {"id": f"x{call_id}", "role": "tool", "toolCallId": call_id, "content": "red"}
        asks = [input_of("r", user("m", steps), tools=TOOLS),
                input_of("s", user("m", steps), tool("c1"), tools=TOOLS),
                input_of("u", user("m", steps), tool("c1"), tool("c2"), tools=TOOLS)]
        for body, pending in zip(asks, (["c1"], ["c2"], None)):
            blocks = (await asyncio.to_thread(post, gateway, "run", body)).split(b"\n\n")
            whole = parsed(b"\n".join(blocks))
            judge(whole, body["runId"])
            assert whole[-1]["outcome"].get("pendingToolCallIds") == pending, whole
            for at, block in enumerate(blocks):
                if not block.startswith(b"id:") or b"RUN_FINISHED" in block:
                    continue
                last = block.splitlines()[0][3:].strip().decode()
                text = await asyncio.to_thread(
                    get, gateway, "/api/v1/agent/events?threadId=t", {"Last-Event-ID": last})
                assert parsed(b"\n".join(blocks[:at + 1])) + parsed(text) == whole, (last, text, whole)
        # Open messages and calls are opened again.
        assert kinds(whole)[:4] == ["RUN_STARTED", "TOOL_CALL_START", "TOOL_CALL_END", "SUBAGENT_STARTED"], whole
        assert [event["content"] for event in whole if event["type"] == "TOOL_CALL_RESULT"] == ["hello\n"], whole


async def answers_with_content_parts_are_valid():
    if missing():
        return
    image = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(64)).decode()
    shown = {"update": {"sessionUpdate": "agent_message_chunk", "content": {
        "type": "image", "data": image, "mimeType": "image/png"}}}
    with tempfile.TemporaryDirectory() as scratch:
        steps = [says("Look: "), shown, says("nice"), {"stop": "end_turn"}]
        with Gateway(*play(pathlib.Path(scratch), steps, steps)) as gateway:
            parts = [{"type": "text", "text": "an image"},
                     {"type": "image", "source": {"type": "data", "value": image, "mimeType": "image/png"}}]
            for turn in range(2):
                events = await stream(gateway, input_of(f"r{turn}", user(f"m{turn}", parts)))
                judge(events, "parts")
                assert text_of(events) == "Look: nice", events
                [answer] = customs(events, "parts")
                assert [part["type"] for part in answer["parts"]] == ["text", "image", "text"], answer


async def the_released_clients_answer_interrupts_and_calls():
    if skipped():
        return
    with tempfile.TemporaryDirectory() as scratch:
        with Gateway(*play(pathlib.Path(scratch), *[ASKING] * 3)) as gateway:
            for version, query in ("1", ""), ("0", "?protocol=1"):
                _, seen = await client(gateway, version, f"interrupt {version}", "go", query=query,
                                       turns=[{"resume": {"choice": "yes"}}])
                assert seen["error"] is None, seen
                assert kinds(seen["events"]).count("RUN_FINISHED") == 2 and not seen["pending"], seen
                assert text_of(seen["events"]) == "May I? yes Thanks.", seen
                [tool] = [call for m in seen["messages"] for call in m.get("toolCalls") or []]
                assert json.loads(tool["function"]["arguments"]) == {"command": "rm -r ."}, seen["messages"]
                assert [m["content"] for m in seen["messages"] if m["role"] == "tool"] == ["removed"], seen["messages"]
    steps = [[call("c1", "color", of="sky"), {"hear": True}, token("Thanks."), {"event": "final"}]]
    with Gateway("--agent", PLAYER, "--protocol", "ndjson") as gateway:
        for version, query in ("1", ""), ("0", "?protocol=1"), ("0", ""):
            _, seen = await client(gateway, version, f"tools {version}{query}", json.dumps(steps), query=query,
                                   tools=TOOLS, turns=[{"answer": "blue"}])
            assert seen["error"] is None, seen
            assert text_of(seen["events"]).endswith("Thanks.") and '"result":"blue"' in text_of(seen["events"]), seen
            assert [m["content"] for m in seen["messages"] if m["role"] == "tool"] == ["blue"], seen["messages"]
            assert len([call for m in seen["messages"] for call in m.get("toolCalls") or []]) == 1, seen["messages"]


if __name__ == "__main__":
    run(globals())
