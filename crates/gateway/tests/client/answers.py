"""Answers of AG-UI clients to an agent that waits for them: permissions, and results of their own tools."""

import asyncio
import base64
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from agui import get
from harness import PATIENCE, THREAD, Gateway, fast_clock, run

HERE = pathlib.Path(__file__).parent
PYTHON = shlex.quote(sys.executable)
PLAYER = f"{PYTHON} {shlex.quote(str(HERE / 'player.py'))} {shlex.quote(THREAD)}"
ACP = f"{PYTHON} {shlex.quote(str(HERE / '../../../agent/tests/agent/player.py'))}"

TOOLS = [{"name": "color", "description": "Asks for a color", "parameters": {"type": "object", "properties": {}}}]
FINAL = {"event": "final", "content": "done"}


def token(text):
    return {"event": "token", "content": text}


def call(call_id, name="ls", **arguments):
    return {"event": "tool_call", "call_id": call_id, "name": name, "arguments": arguments}


def result(call_id, name="ls"):
    return {"event": "tool_result", "call_id": call_id, "name": name, "result": "ok"}


def user(message_id, content):
    """A message; its content is text, content parts, or the steps of a player's attempts."""
    if isinstance(content, list) and isinstance(content[0], list):
        content = json.dumps(content)
    return {"id": message_id, "role": "user", "content": content}


def input_of(run_id, *messages, thread="t", **more):
    return {"threadId": thread, "runId": run_id, "messages": list(messages), "protocolVersion": "1.0", **more}


def session_of(gateway):
    return next(path.name for path in gateway.root.glob("[0-9a-f]*-*") if (path / "events.db").exists())


def post(gateway, path, body):
    return get(gateway, f"/api/v1/agent/{path}", {"Content-Type": "application/json"}, json.dumps(body).encode())


def parsed(text):
    return [json.loads(line[5:]) for line in text.splitlines() if line.startswith(b"data:")]


async def stream(gateway, body, query=""):
    """The events of a run."""
    return parsed(await asyncio.to_thread(post, gateway, f"run{query}", body))


async def refused(gateway, path, body):
    try:
        answer = await asyncio.to_thread(post, gateway, path, body)
        raise AssertionError(f"{path} {body} was carried out: {answer}")
    except urllib.error.HTTPError as e:
        return e.code, json.loads(e.read())["error"]


def kinds(events):
    return [event["type"] for event in events]


def customs(events, name):
    return [e["value"] for e in events if e["type"] == "CUSTOM" and e["name"] == f"thread.{name}"]


def text_of(events):
    return "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")


def play(gateway, *prompts):
    """The options of an agent that speaks ACP, and plays these steps."""
    steps = gateway / "steps"
    steps.write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    return ["--agent", f"{ACP} {shlex.quote(str(steps))}", "--protocol", "acp"]


def says(text):
    return {"update": {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}}


def asks(call_id="c1"):
    options = [{"optionId": "yes", "name": "Yes, do", "kind": "allow_once"},
               {"optionId": "no", "name": "No", "kind": "reject_once"}]
    tool = {"toolCallId": call_id, "title": "remove all", "kind": "execute", "rawInput": {"command": "rm -r ."}}
    return {"ask": {"toolCall": tool, "options": options}}


def done(call_id="c1"):
    return {"update": {"sessionUpdate": "tool_call_update", "toolCallId": call_id, "status": "completed",
                       "rawOutput": "removed"}}


ASKING = [says("May I? "), asks(), done(), says(" Thanks."), {"stop": "end_turn"}]


async def until(condition):
    limit = time.monotonic() + PATIENCE
    while not (found := await asyncio.to_thread(condition)):
        assert time.monotonic() < limit, condition
        await asyncio.sleep(0.02)
    return found


async def a_permission_is_an_interrupt_and_a_resume_shows_the_rest():
    with tempfile.TemporaryDirectory() as scratch:
        prompts = [*[ASKING] * 4, [says("All right."), {"stop": "end_turn"}]]
        with Gateway(*play(pathlib.Path(scratch), *prompts)) as gateway:
            for turn, (answer, said) in enumerate([
                ({"status": "resolved", "payload": {"choice": "yes"}}, "yes Thanks."),
                ({"status": "resolved", "payload": "no"}, "no Thanks."),
                ({"status": "cancelled"}, "no Thanks."),
            ]):
                messages = [user(f"m{turn}", "go")]
                first = await stream(gateway, input_of(f"r{turn}", *messages))
                outcome = first[-1]["outcome"]
                assert outcome["type"] == "interrupt" and text_of(first) == "May I? ", first
                [interrupt] = outcome["interrupts"]
                assert interrupt["toolCallId"] == "c1" and interrupt["reason"] == "tool_call", interrupt
                assert interrupt["responseSchema"]["properties"]["choice"]["enum"] == ["yes", "no"], interrupt
                assert interrupt["metadata"]["thread"]["arguments"] == {"command": "rm -r ."} and interrupt["expiresAt"]
                resume = [{"interruptId": interrupt["id"], **answer}]
                for bad in {"choice": "maybe"}, {}, 1:
                    entry = {**resume[0], "status": "resolved", "payload": bad}
                    code, _ = await refused(gateway, "run", input_of("bad", *messages, resume=[entry]))
                    assert code == 400
                code, _ = await refused(
                    gateway, "run", input_of("bad", resume=[{"interruptId": "x", "status": "cancelled"}]))
                assert code == 404
                both = [{**resume[0], "status": "resolved", "payload": "yes"}, {"interruptId": "x", "status": "cancelled"}]
                assert (await refused(gateway, "run", input_of("bad", resume=both)))[0] == 404
                # A resume needs no message; a second one is the same.
                for _ in range(2):
                    rest = await stream(gateway, input_of(f"s{turn}", *(messages if turn else []), resume=resume))
                    assert text_of(rest) == said and rest[-1]["outcome"] == {"type": "success"}, rest
                    assert rest[0]["runId"] == f"s{turn}" and kinds(rest).count("TOOL_CALL_RESULT") == 1, rest
                    assert kinds(rest)[:3] == ["RUN_STARTED", "TOOL_CALL_START", "TOOL_CALL_END"], rest
            # A client that answers and sends a new message gets the run of that message.
            first = await stream(gateway, input_of("r", user("m", "go")))
            resume = [{"interruptId": first[-1]["outcome"]["interrupts"][0]["id"], "status": "cancelled"}]
            events = await stream(gateway, input_of("s", user("m", "go"), user("n", "then this"), resume=resume))
            assert text_of(events) == "All right." and events[-1]["outcome"] == {"type": "success"}, events
            session = session_of(gateway)
            answers = [event["content"] for event in gateway.events(session) if event["source"] == "self"
                       and event["type"] == "message"]
            assert answers[-2:] == ["May I? no Thanks.", "All right."], answers


async def somebody_else_may_answer_first():
    with tempfile.TemporaryDirectory() as scratch:
        with Gateway(*play(pathlib.Path(scratch), ASKING, ASKING, ASKING)) as gateway:
            first = await stream(gateway, input_of("r", user("m", "go")))
            [interrupt] = first[-1]["outcome"]["interrupts"]
            ask = {"threadId": "t", "requestId": interrupt["id"]}
            assert (await refused(gateway, "permission", {**ask, "choice": "maybe"}))[0] == 400
            assert (await refused(gateway, "permission", {**ask, "requestId": "x", "choice": "yes"}))[0] == 404
            assert json.loads(post(gateway, "permission", {**ask, "choice": "yes"})) == {}
            session = session_of(gateway)
            await until(lambda: any(event["content"].startswith("May I? yes") for event in gateway.events(session)))
            resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"choice": "no"}}]
            rest = await stream(gateway, input_of("s", resume=resume))
            assert text_of(rest) == "yes Thanks." and rest[-1]["outcome"] == {"type": "success"}, rest
            # Clients of 0.x see the request in a stream that continues.
            old = {**input_of("old", user("m2", "go")), "protocolVersion": "0.0.50"}
            streaming = asyncio.create_task(stream(gateway, old))
            asked = await until(lambda: [json.loads(e["content"]) for e in gateway.events(session)
                                         if e["subtype"] == "permission"][1:])
            assert json.loads(post(gateway, "permission", {**ask, "requestId": asked[0]["request_id"], "choice": "yes"})) == {}
            events = await streaming
            request, answer = customs(events, "permission")
            assert request["choices"][0]["id"] == "yes" and request["arguments"] == {"command": "rm -r ."}, request
            assert answer["choice"] == "yes" and "outcome" not in events[-1] and text_of(events).endswith("Thanks.")
            # So does a client that connects after the answer.
            seen = parsed(await asyncio.to_thread(get, gateway, "/api/v1/agent/events?threadId=t&after=0&protocol=1"))
            assert text_of(seen) == "May I? yes Thanks." and kinds(seen)[-1] == "RUN_FINISHED", seen


async def other_clients_see_what_comes_after_an_interrupt():
    with tempfile.TemporaryDirectory() as scratch:
        go = pathlib.Path(scratch) / "go"
        steps = [*ASKING[:2], {"wait": str(go)}, *ASKING[2:]]
        with Gateway(*play(pathlib.Path(scratch), steps)) as gateway:
            text = await asyncio.to_thread(post, gateway, "run", input_of("r", user("m", "go")))
            [interrupt] = parsed(text)[-1]["outcome"]["interrupts"]
            last = [line for line in text.splitlines() if line.startswith(b"id:")][-1][3:].strip().decode()
            # A client that has seen the end of the stream gets the next one, which begins with the answer.
            events = "/api/v1/agent/events?threadId=t"
            watching = asyncio.create_task(asyncio.to_thread(get, gateway, events, {"Last-Event-ID": last}))
            resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": "yes"}]
            resumed = asyncio.create_task(stream(gateway, input_of("s", resume=resume)))
            session = session_of(gateway)
            await until(lambda: any(event["content"] == "yes" for event in gateway.events(session)))
            # A client that connects after the answer sees the whole run.
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(f"GET {events} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {gateway.token}\r\n\r\n".encode())
            seen = await asyncio.wait_for(reader.readuntil(b'"delta":"yes"'), PATIENCE)
            assert b"May I?" in seen and b"RUN_FINISHED" not in seen and b"thread.permission" in seen, seen
            go.touch()
            assert text_of(await resumed) == text_of(parsed(await watching)) == "yes Thanks."
            assert (await resumed)[0] == parsed(await watching)[0] and (await resumed)[0]["runId"] == "s"
            rest = await asyncio.wait_for(reader.readuntil(b"RUN_FINISHED"), PATIENCE)
            assert b"Thanks." in rest, rest
            writer.close()


async def a_call_of_a_clients_tool_ends_the_stream_and_its_result_continues_the_run():
    steps = [[token("Which? "), call("c1", "color", of="sky"), {"hear": True}, token("Thanks."), {"event": "final"}]]
    with Gateway("--agent", PLAYER, "--protocol", "ndjson") as gateway:
        for protocol, last in ("1.0", {"type": "success", "pendingToolCallIds": ["c1"]}), ("0", None):
            thread, messages = f"t{protocol}", [user("m", steps)]
            ask = lambda run_id, *more, **keys: {
                **input_of(run_id, *messages, *more, thread=thread, tools=TOOLS, **keys), "protocolVersion": protocol}
            first = await stream(gateway, ask("r"))
            assert first[-1].get("outcome") == last and text_of(first) == "Which? ", first
            assert kinds(first).count("TOOL_CALL_RESULT") == 0 and kinds(first)[-1] == "RUN_FINISHED"
            assistant = {"id": "a", "role": "assistant", "content": "Which? ", "toolCalls": [
                {"id": "c1", "type": "function", "function": {"name": "color", "arguments": "{}"}}]}
            answer = {"id": "x", "role": "tool", "toolCallId": "c1", "content": "blue"}
            unknown = {**answer, "toolCallId": "c9"}
            assert (await refused(gateway, "run", ask("s", assistant, unknown)))[0] == 400
            for _ in range(2):
                rest = await stream(gateway, ask("s", assistant, answer, state={"n": 1}))
                heard = json.loads(text_of(rest).removesuffix("Thanks."))
                assert heard["event"] == "tool_result" and heard["result"] == "blue" and heard["call_id"] == "c1", heard
                assert heard["state"] == {"n": 1}, heard
                assert rest[0]["runId"] == "s" and kinds(rest)[-1] == "RUN_FINISHED"
                # The client has it already.
                assert "TOOL_CALL_RESULT" not in kinds(rest), rest
            # Two runs of the client, but one in the thread, with one ending.
            session = json.loads(get(gateway, f"/api/v1/agent/history?threadId={thread}"))["messages"]
            assert [message["role"] for message in session] == ["user", "assistant"], session
            late = await stream(gateway, ask("late", assistant, answer))
            assert kinds(late)[-1] == "RUN_FINISHED" and text_of(late).endswith("Thanks."), late


async def a_client_that_says_something_else_gives_its_call_an_error():
    steps = [[call("c1", "color"), {"hear": True}, {"event": "final"}]]
    other = [[FINAL]]
    with Gateway("--agent", PLAYER, "--protocol", "ndjson") as gateway:
        await stream(gateway, input_of("r", user("m", steps), tools=TOOLS))
        events = await stream(gateway, input_of("s", user("m", steps), user("n", other), tools=TOOLS))
        assert text_of(events) == "done", events
        results = [json.loads(e["content"]) for e in gateway.events(session_of(gateway)) if e["subtype"] == "toolresult"]
        assert [result["error"] for result in results] == ["the user went on without it"], results


async def a_call_without_a_result_gets_an_error_after_ten_minutes():
    if not (fast := fast_clock(200)):
        return
    steps = [[call("c1", "color"), {"hear": True}, {"event": "final"}]]
    with Gateway("--agent", PLAYER, "--protocol", "ndjson") as gateway:
        client = await gateway.client()
        session = (await client.request("sessions.new"))["sessionId"]
        # The pushing process starts the agent, in its own environment: only its clock runs faster.
        about = {"run_id": "r", "message_id": "m", "run_input": {"tools": TOOLS}}
        env = {**{k: v for k, v in os.environ.items() if not k.startswith("THREAD_")}, **fast}
        push = [THREAD, "push", "--thread", str(gateway.root / session), "--source", "external:test:main:dm:x:ada",
                "--type", "message", "--metadata", json.dumps(about), "--content", json.dumps(steps)]
        subprocess.run(push, env=env, check=True, stdout=subprocess.DEVNULL)
        began = time.monotonic()
        ending = asyncio.ensure_future(client.wait("final"))
        while not ending.done():
            # It sleeps by the system's clock, and reads its own when something happens.
            await asyncio.to_thread(gateway.push, session, "tick", "tick")
            await asyncio.sleep(0.2)
        final = await ending
        assert json.loads(final["payload"]["content"])["error"] == "the client gave no result in time", final
        assert time.monotonic() - began > 600 / 200 / 2
        # A result that comes too late gets the rest of the run.
        answer = {"id": "x", "role": "tool", "toolCallId": "c1", "content": "blue"}
        rest = await stream(gateway, input_of("s", user("m", steps), answer, thread=session, tools=TOOLS))
        assert kinds(rest)[-1] == "RUN_FINISHED" and json.loads(text_of(rest))["error"], rest


async def a_call_of_a_later_attempt_is_told_apart():
    again = [call("c1"), result("c1"), call("c2", "color"), {"hear": True}, {"event": "final"}]
    steps = [[call("c1"), call("c2", "color"), {"exit": 3}], again]
    with Gateway("--agent", PLAYER, "--protocol", "ndjson") as gateway:
        ask = lambda run_id, *more: input_of(run_id, user("m", steps), *more, tools=TOOLS)
        first = await stream(gateway, ask("r"))
        assert first[-1]["outcome"]["pendingToolCallIds"] == ["c2"], first
        tool = lambda call_id: {"id": f"x{call_id}", "role": "tool", "toolCallId": call_id, "content": "red"}
        # The program has ended, and so has its call.
        session = session_of(gateway)
        await until(lambda: sum(e["subtype"] == "run" for e in gateway.events(session)) > 1)
        second = await stream(gateway, ask("s", tool("c2")))
        assert second[-1]["outcome"]["pendingToolCallIds"] == ["c2.2"], second
        calls = [event["toolCallId"] for event in second if event["type"] == "TOOL_CALL_START"]
        assert calls == ["c1", "c1.2", "c2.2"], second
        assert customs(second, "attempt") == [{"attempt": 2}] and customs(second, "attempt_failed"), second
        third = await stream(gateway, ask("u", tool("c2.2")))
        assert json.loads(text_of(third))["result"] == "red", third
        # Others see the same ids.
        client = await gateway.client()
        await client.request("sessions.switch", sessionId=session, after=0)
        ids = [event["payload"]["callId"] for event in client.named("tool_call", "tool_result")]
        assert ids == ["c1", "c2", "c1", "c2", "c1.2", "c1.2", "c2.2", "c2.2"], ids


async def a_client_stops_a_run_by_name_and_by_leaving():
    steps = [[token("working"), {"wait": "never"}]]
    with Gateway("--agent", PLAYER, "--protocol", "ndjson") as gateway:
        ask = lambda run_id, thread: input_of(run_id, user("m", steps), thread=thread)
        assert (await refused(gateway, "cancel", {"threadId": "none"}))[0] == 404
        assert (await refused(gateway, "cancel", {"thread": 1}))[0] == 400
        for name, more in ("a", {}), ("b", {"runId": "r"}):
            streaming = asyncio.create_task(stream(gateway, ask("r", name)))
            body = {"threadId": name, **more}
            async def asked():
                try:
                    return json.loads(await asyncio.to_thread(post, gateway, "cancel", body))
                except urllib.error.HTTPError as e:
                    assert e.code == 404
            while not (answer := await asked()):
                await asyncio.sleep(0.05)
            assert answer["runId"] == "r"
            events = await streaming
            assert events[-1]["outcome"] == {"type": "cancelled"} and customs(events, "cancelled"), events
        assert (await refused(gateway, "cancel", {"threadId": "a", "runId": "r"}))[0] == 404
        assert (await refused(gateway, "run?on_disconnect=stay", ask("r", "c")))[0] == 400
        # Leaving cancels the run, if that was requested.
        ends = lambda session: [e for e in gateway.events(session) if e["subtype"] == "cancelled"]
        known = {path.name for path in gateway.root.glob("[0-9a-f]*-*")}
        for query in "?on_disconnect=cancel", "":
            body = json.dumps(ask("r", f"left{query}"))
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(
                f"POST /api/v1/agent/run{query} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {gateway.token}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            await asyncio.wait_for(reader.readuntil(b"working"), PATIENCE)
            [session] = {path.name for path in gateway.root.glob("[0-9a-f]*-*")} - known
            known.add(session)
            writer.transport.abort()
            if query:
                assert "requested by a client" in (await until(lambda: ends(session)))[0]["content"]
        # The other run continues, and can be cancelled later.
        await asyncio.sleep(0.5)
        assert not ends(session)
        assert json.loads(post(gateway, "cancel", {"threadId": "left"}))["runId"] == "r"
        await until(lambda: ends(session))
        assert sum(event["subtype"] == "cancel" for event in gateway.events(session)) == 1


async def a_cancel_by_the_name_of_a_resumed_run_ends_the_original():
    steps = [[call("c1", "color"), {"hear": True}, {"wait": "never"}]]
    with Gateway("--agent", PLAYER, "--protocol", "ndjson") as gateway:
        await stream(gateway, input_of("first", user("m", steps), tools=TOOLS))
        answer = {"id": "x", "role": "tool", "toolCallId": "c1", "content": "blue"}
        streaming = asyncio.create_task(stream(gateway, input_of("second", user("m", steps), answer, tools=TOOLS)))
        session = session_of(gateway)
        await until(lambda: any(e["subtype"] == "token" for e in gateway.events(session)))
        assert json.loads(post(gateway, "cancel", {"threadId": "t", "runId": "second"}))["runId"] == "first"
        events = await streaming
        assert events[-1]["outcome"] == {"type": "cancelled"} and events[-1]["runId"] == "second", events


async def input_of_a_client_reaches_the_agent_or_is_reported():
    given = {"state": {"n": 1}, "context": [{"description": "page", "value": "home"}], "forwardedProps": {"a": 1}}
    with Gateway("--agent", PLAYER, "--protocol", "ndjson") as gateway:
        steps = [[{"given": True}, {"event": "state", "state": {"n": 2}},
                  {"event": "state_delta", "delta": [{"op": "replace", "path": "/n", "value": 3}]},
                  {"event": "state_delta", "delta": [{"op": "remove", "path": "/none"}]}, {"event": "final"}]]
        events = await stream(gateway, input_of("r", user("m", steps), tools=TOOLS, parentRunId="p", **given))
        assert json.loads(text_of(events)) == {
            "tools": TOOLS, "state": {"n": 1}, "context": given["context"], "forwarded_props": {"a": 1}}
        assert [e["snapshot"] for e in events if e["type"] == "STATE_SNAPSHOT"] == [{"n": 2}], events
        assert [e["delta"][0]["value"] for e in events if e["type"] == "STATE_DELTA"] == [3], events
        [note] = customs(events, "unsupported")
        assert note["field"] == "state_delta" and events[0]["parentRunId"] == "p", events
        # Only the client and its agent see it.
        history = json.loads(get(gateway, "/api/v1/agent/history?threadId=t"))["messages"]
        assert "run_input" not in history[0]["metadata"], history
        # Files in a message become attachments, once.
        image = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(64)).decode()
        for kind, part in [
            ("one", {"type": "image", "source": {"type": "data", "value": image, "mimeType": "image/png"}}),
            ("two", {"type": "binary", "mimeType": "image/png", "data": image, "filename": "../a b.png"}),
        ]:
            parts = [{"type": "text", "text": json.dumps([[{"given": True}, {"event": "final"}]])}, part,
                     {"type": "image", "source": {"type": "file", "value": "x", "provider": "y"}}]
            for _ in range(2):
                events = await stream(gateway, input_of(kind, user(kind, parts)))
                [file] = json.loads(text_of(events))["attachments"]
                assert file["mime_type"] == "image/png" and pathlib.Path(file["path"]).stat().st_size == 72, file
                assert any(note["field"] == "messages" for note in customs(events, "unsupported")), events
        bad = [{"type": "image", "source": {"type": "data", "value": "!", "mimeType": "image/png"}}]
        assert (await refused(gateway, "run", input_of("bad", user("bad", bad))))[0] == 400
        large = input_of("large", user("large", "x"), state={"x": "x" * 1_100_000})
        assert (await refused(gateway, "run", large))[0] == 400
        # A history that differs from the thread's is reported.
        edited = await stream(gateway, input_of("e", user("m", "old"), user("new", [[FINAL]])))
        assert [note["field"] for note in customs(edited, "unsupported")] == ["messages"], edited
        known = await stream(gateway, input_of("k", user("new", "old"), user("newer", [[FINAL]])))
        assert not customs(known, "unsupported"), known
    with Gateway("--agent", "cat") as gateway:
        more = {"messages": [{"id": "s", "role": "system", "content": "be kind"}, user("m", "hello")]}
        events = await stream(gateway, {**input_of("r", tools=TOOLS, **given), **more})
        fields = sorted(note["field"] for note in customs(events, "unsupported"))
        assert fields == ["context", "forwardedProps", "messages", "state", "tools"], events


async def a_context_is_a_block_for_agents_of_the_client_protocol():
    with tempfile.TemporaryDirectory() as scratch:
        agent = pathlib.Path(scratch) / "agent.py"
        agent.write_text(ECHO)
        with Gateway("--agent", f"{PYTHON} {shlex.quote(str(agent))}", "--protocol", "acp") as gateway:
            context = [{"description": "page", "value": "home"}]
            events = await stream(gateway, input_of("r", user("m", "hello"), context=context, tools=TOOLS))
            blocks = json.loads(text_of(events))
            assert "[page]\nhome" in blocks[0]["text"] and blocks[-1]["text"] == "hello", blocks
            assert [note["field"] for note in customs(events, "unsupported")] == ["tools"], events


# An agent that answers with its prompt.
ECHO = '''
import json, sys
def send(**message): print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "initialize": send(id=message["id"], result={"protocolVersion": 1})
    elif message["method"] == "session/new": send(id=message["id"], result={"sessionId": "s"})
    else:
        text = json.dumps(message["params"]["prompt"])
        content = {"type": "text", "text": text}
        update = {"sessionUpdate": "agent_message_chunk", "content": content}
        send(method="session/update", params={"sessionId": "s", "update": update})
        send(id=message["id"], result={"stopReason": "end_turn"})
'''


async def a_position_in_the_queue_is_reported():
    with Gateway("--agent", PLAYER, "--protocol", "ndjson") as gateway:
        slow = [[token("slow"), {"wait": "go"}, FINAL]]
        first = asyncio.create_task(stream(gateway, input_of("a", user("a", slow))))
        session = await until(lambda: next((path.name for path in gateway.root.glob("[0-9a-f]*-*")
                                            if (path / "events.db").exists()), None))
        await until(lambda: any(e["subtype"] == "token" for e in gateway.events(session)))
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        body = json.dumps(input_of("b", user("b", [[FINAL]])))
        writer.write(
            f"POST /api/v1/agent/run HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {gateway.token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        said = await asyncio.wait_for(reader.readuntil(b'"position":1'), PATIENCE)
        assert b"RUN_STARTED" in said and b"thread.queued" in said, said
        (gateway.root / session / "go").touch()
        assert text_of(await first) == "slowdone"
        await asyncio.wait_for(reader.readuntil(b"RUN_FINISHED"), PATIENCE)
        writer.close()


if __name__ == "__main__":
    run(globals())
