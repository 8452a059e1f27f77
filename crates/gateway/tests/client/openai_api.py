"""OpenAI's interface with its released clients, and every frame of it with the validator of Open Responses."""

import asyncio
import base64
import json
import os
import pathlib
import random
import re
import shlex
import subprocess
import sys
import tempfile
import unicodedata

import httpx
import openai
import openresponses_types.types as types
import pydantic
from openai.types.responses import ResponseStreamEvent

from agent import answer
from agents import moves, write
from answers import ASKING, call, play, result, session_of, token, until
from attachments import PNG
from crowd import AGENT, HERE
from harness import LONG, PATIENCE, THREAD, Gateway, run
from reboots import kill_everything

PLAYER = f"{shlex.quote(sys.executable)} {shlex.quote(str(HERE / 'player.py'))} {shlex.quote(THREAD)}"
NODE = os.environ.get("GATEWAY_OPENAI")
FUNCTION = {"name": "color", "description": "Asks for a color", "parameters": {"type": "object", "properties": {}}}
FINAL = {"event": "final", "content": "done"}


def client(gateway, **options):
    options = {"max_retries": 0, "timeout": PATIENCE, **options}
    return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.token or "none", **options)


def user(text):
    return {"role": "user", "content": text if isinstance(text, str) else json.dumps(text)}


def said(text):
    return {"role": "assistant", "content": text}


async def ask(api, *messages, headers=None, **more):
    """A completion, and the session that it is in."""
    raw = await api.chat.completions.with_raw_response.create(
        model=more.pop("model", None) or await name_of(api), messages=list(messages), extra_headers=headers, **more)
    return raw.parse(), raw.headers["x-session-id"]


async def name_of(api):
    return (await api.models.list()).data[0].id


async def refused(doing):
    try:
        await doing
    except openai.APIStatusError as e:
        return e.status_code, e.body["code"], e.body["param"]
    raise AssertionError("it was carried out")


def talk(gateway, session):
    """What was said in a session: pairs of a message and its answer, which may be missing."""
    pairs, at = [], {}
    for event in gateway.events(session):
        if event["type"] == "message":
            of = event.get("metadata", {}).get("reply_to")
            if event["source"] != "self":
                at[event["id"]] = len(pairs)
                pairs.append([event["content"], None])
            elif of in at:
                pairs[at[of]][1] = event["content"]
    return pairs


def frames_of(text):
    """The frames of a stream, each checked."""
    blocks = [block for block in text.split("\n\n") if block.startswith("event:")]
    return [checked(json.loads(block.split("data: ", 1)[1])) for block in blocks]


MODELS = {}
EVENTS = pydantic.TypeAdapter(ResponseStreamEvent)


def checked(frame):
    if not MODELS:
        for name, model in vars(types).items():
            if name.endswith("StreamingEvent"):
                kind = model.model_fields["type"].annotation
                MODELS[next(iter(kind)).value] = model
    MODELS[frame["type"]].model_validate(frame)
    # As OpenAI's library reads it, but strictly.
    EVENTS.validate_python(frame)
    return frame


async def frames(gateway, path, body=None):
    headers = {"Authorization": f"Bearer {gateway.token}"}
    async with httpx.AsyncClient(timeout=PATIENCE) as http:
        if body is None:
            response = await http.get(f"{gateway.url}/v1/{path}", headers=headers)
        else:
            response = await http.post(f"{gateway.url}/v1/{path}", headers=headers, json=body)
    assert response.status_code == 200, response.text
    return frames_of(response.text)


async def a_completion_is_whole_or_a_stream():
    with Gateway("--agent", AGENT, "--protocol", "ndjson") as gateway:
        api = client(gateway)
        [model] = (await api.models.list()).data
        assert model.id == "agent" and (await api.models.retrieve("agent")).object == "model"
        whole, _ = await ask(api, user("hello"))
        [choice] = whole.choices
        assert choice.message.content == answer("hello") and choice.finish_reason == "stop", whole
        assert "hm" in choice.message.reasoning_content and whole.usage.total_tokens == 7, whole
        stream = await api.chat.completions.create(
            model="agent", messages=[user("hello")], stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
        assert chunks[0].choices[0].delta.role == "assistant" and len({chunk.id for chunk in chunks}) == 1
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == answer("hello") and chunks[-2].choices[0].finish_reason == "stop", chunks
        assert not chunks[-1].choices and chunks[-1].usage.total_tokens == 7, chunks[-1]


async def what_cannot_be_done_is_an_error_that_says_so():
    with Gateway("--agent", AGENT, "--protocol", "ndjson") as gateway:
        api = client(gateway)
        create = api.chat.completions.create
        about = {"model": "agent", "messages": [user("hello")]}
        for more, expected in [
            ({"model": "gpt"}, (404, "model_not_found", "model")),
            ({"n": 2}, (400, "unsupported_parameter", "n")),
            ({"logprobs": True}, (400, "unsupported_parameter", "logprobs")),
            ({"response_format": {"type": "json_object"}}, (400, "unsupported_parameter", "response_format")),
            ({"messages": []}, (400, None, "messages")),
            ({"extra_headers": {"X-Thread-Task": "title"}}, (400, "task_model_not_set", None)),
            ({"messages": [user("a"), {"role": "tool", "tool_call_id": "c", "content": "x"}]}, (400, None, None)),
        ]:
            assert await refused(create(**{**about, **more})) == expected, more
        assert await refused(api.models.retrieve("gpt")) == (404, "model_not_found", "model")
        assert (await refused(api.responses.retrieve("resp_1")))[:2] == (404, "response_not_found")
        assert (await refused(client(gateway, default_headers={"Authorization": "Bearer x"}).models.list()))[0] == 401
        assert (await refused(api.post("/nothing", cast_to=object)))[:2] == (404, "not_found")
        assert not list(gateway.root.glob("[0-9a-f]*-*/events.db"))
    with Gateway("--agent", AGENT, "--protocol", "ndjson", "--read-only") as gateway:
        api = client(gateway)
        assert (await api.models.list()).data
        assert (await refused(ask(api, user("hello"))))[:2] == (403, "read_only")


async def a_conversation_is_continued_and_a_change_of_it_is_a_copy():
    with Gateway("--agent", AGENT, "--protocol", "ndjson") as gateway:
        api = client(gateway)
        system = {"role": "system", "content": "It is Monday."}
        first, one = await ask(api, system, user("a"))
        history = [user("a"), said(first.choices[0].message.content)]
        second, same = await ask(api, *history, user("b"))
        assert same == one
        history += [user("b"), said("<think>hm</think>\n " + second.choices[0].message.content + "\n")]
        # Chat programs rewrite what users and the system say.
        rewritten = [{"role": "system", "content": "It is Tuesday."}, user("context: a"), *history[1:]]
        _, same = await ask(api, *rewritten, user("c"))
        assert same == one and [pair[0] for pair in talk(gateway, one)] == ["a", "b", "c"]
        # Tried again, and edited.
        _, other = await ask(api, *history, user("c"))
        _, edited = await ask(api, *history[:2], user("B"))
        assert len({one, other, edited}) == 3
        assert [pair[0] for pair in talk(gateway, other)] == ["a", "b", "c"]
        assert [pair[0] for pair in talk(gateway, edited)] == ["a", "B"]
        # Another user, and answers that nobody here gave.
        _, others = await ask(api, *history, user("c"), user="someone")
        _, invented = await ask(api, user("a"), said("I am another."), user("c"))
        assert len({one, other, edited, others, invented}) == 5
        assert talk(gateway, invented)[0] == ["a", "I am another."] and len(talk(gateway, others)) == 3
        _, same = await ask(api, user("a"), said("I am another."), user("c"), said(answer("c")), user("d"))
        assert same == invented


async def a_header_names_the_conversation():
    with Gateway("--agent", AGENT, "--protocol", "ndjson") as gateway:
        api = client(gateway)
        for name in "x-openwebui-chat-id", "x-session-id":
            chat = {name: f"chat of {name}"}
            _, one = await ask(api, user("a"), headers=chat)
            _, other = await ask(api, user("a"), headers={name: "another"})
            _, same = await ask(api, user("a"), said(answer("a")), user("b"), headers=chat)
            assert one == same != other
            # Tried again there: a copy, which is continued under the same name.
            _, again = await ask(api, user("a"), said(answer("a")), user("b"), headers=chat)
            assert again not in (one, other)
            past = [user("a"), said(answer("a")), user("b"), said(answer("b"))]
            _, third = await ask(api, *past, user("c"), headers=chat)
            assert third in (one, again)
        page = await gateway.client()
        session = (await page.request("sessions.new", title="on the page"))["sessionId"]
        await page.request("agent", sessionId=session, message="hello")
        await page.wait("final")
        _, same = await ask(api, user("hello"), said(answer("hello")), user("here"), headers={"x-session-id": session})
        assert same == session
        # What is said on the page belongs to the conversation.
        await page.request("agent", sessionId=session, message="there")
        await page.wait(lambda event: event["event"] == "final" and "there" in event["payload"]["content"])
        past = [pair for one in ("hello", "here", "there") for pair in (user(one), said(answer(one)))]
        _, same = await ask(api, *past, user("end"), headers={"x-session-id": session})
        assert same == session and len(talk(gateway, session)) == 4
        await page.close()


async def a_client_that_stops_reading_continues_from_what_it_has():
    with Gateway("--agent", f"{AGENT} 0.2", "--protocol", "ndjson") as gateway:
        api = client(gateway)
        stream = await api.chat.completions.create(model="agent", messages=[user("one two three")], stream=True)
        text = ""
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            if len(text) > 5:
                break
        await stream.close()
        session = session_of(gateway)
        # The run goes on; the next message interrupts it.
        _, same = await ask(api, user("one two three"), said(text), user("stop"))
        assert same == session
        events = gateway.events(session)
        assert [e["subtype"] for e in events if e.get("subtype") == "cancelled"] == ["cancelled"], events
        # What was shown of it is what the conversation has from then on.
        past = [user("one two three"), said(text), user("stop"), said(answer("stop"))]
        _, same = await ask(api, *past, user("go on"))
        assert same == session


async def a_retry_joins_the_run():
    with Gateway("--agent", f"{AGENT} 0.1", "--protocol", "ndjson") as gateway:
        api = client(gateway)
        again = {"x-stainless-retry-count": "1"}
        first, second = await asyncio.gather(
            ask(api, user("hello")),
            until_running(gateway, lambda: ask(api, user("hello"), headers=again)))
        assert first[1] == second[1] and first[0].choices[0].message.content == answer("hello")
        assert second[0].id == first[0].id
        # So it does just after the end, and another body is another request.
        assert (await ask(api, user("hello"), headers=again))[1] == first[1]
        assert (await ask(api, user("hello!"), headers=again))[1] != first[1]
        assert (await ask(api, user("hello")))[1] != first[1]


async def until_running(gateway, then):
    await until(lambda: list(gateway.root.glob("[0-9a-f]*-*/events.db")) and any(
        event.get("subtype") == "run" for event in gateway.events(session_of(gateway))))
    return await then()


async def a_failed_run_is_an_error_and_is_not_sent_again():
    with Gateway("--agent", PLAYER, "--protocol", "ndjson", "--attempts", "1") as gateway:
        api = client(gateway, max_retries=2)
        steps = [[token("so far"), {"event": "error", "error": "no more"}]]
        assert (await refused(ask(api, user(steps))))[:2] == (500, "run_failed")
        assert len(list(gateway.root.glob("[0-9a-f]*-*/events.db"))) == 1
        try:
            async for _ in await api.chat.completions.create(model="player", messages=[user(steps)], stream=True):
                pass
            raise AssertionError("it did not fail")
        except openai.APIError as e:
            assert "no more" in e.message, e
        response = await api.responses.create(model="player", input=json.dumps(steps))
        assert response.status == "failed" and "no more" in response.error.message, response


async def tools_of_the_client_are_called_and_answered():
    with Gateway("--agent", PLAYER, "--protocol", "ndjson") as gateway:
        api = client(gateway)
        steps = [[token("Which? "), call("c1", "color", shade="dark"), {"hear": True}, FINAL]]
        tools = [{"type": "function", "function": FUNCTION}]
        for stream in False, True:
            if stream:
                async with api.chat.completions.stream(model="player", messages=[user(steps)], tools=tools) as events:
                    async for _ in events:
                        pass
                    first = await events.get_final_completion()
            else:
                first, _ = await ask(api, user(steps), tools=tools)
            [choice] = first.choices
            [asked] = choice.message.tool_calls
            assert choice.finish_reason == "tool_calls" and choice.message.content == "Which? ", first
            assert asked.function.name == "color" and json.loads(asked.function.arguments) == {"shade": "dark"}
            messages = [user(steps), choice.message.to_dict()]
            messages += [{"role": "tool", "tool_call_id": asked.id, "content": "blue"}]
            # However often the result is sent, it is the same run.
            for _ in range(2):
                last, session = await ask(api, *messages, tools=tools)
                assert "blue" in last.choices[0].message.content and last.choices[0].finish_reason == "stop", last
            messages += [last.choices[0].message.to_dict(), user([[FINAL]])]
            assert (await ask(api, *messages))[1] == session
        response = await api.responses.create(
            model="player", input=json.dumps(steps), tools=[{"type": "function", **FUNCTION}])
        asked = response.output[-1]
        assert asked.type == "function_call" and response.status == "completed" and response.tools, response
        output = [{"type": "function_call_output", "call_id": asked.call_id, "output": "green"}]
        rest = await api.responses.create(model="player", previous_response_id=response.id, input=output)
        assert "green" in rest.output_text and "Which" not in rest.output_text, rest


async def a_file_in_a_message_reaches_the_agent():
    png = "data:image/png;base64," + base64.b64encode(PNG).decode()
    with Gateway("--agent", PLAYER, "--protocol", "ndjson") as gateway:
        api = client(gateway)
        parts = [{"type": "text", "text": json.dumps([[{"given": True}, FINAL]])},
                 {"type": "image_url", "image_url": {"url": png}}]
        first, session = await ask(api, {"role": "user", "content": parts})
        text = first.choices[0].message.content
        assert "attachments" in text and ".png" in text, text
        # Chat programs send it again each time.
        past = [{"role": "user", "content": parts}, said(text)]
        assert (await ask(api, *past, user([[FINAL]])))[1] == session
        # Where what they have is nobody's, it is stored in a session of its own.
        past = [{"role": "user", "content": parts}, said("Nobody said this.")]
        _, other = await ask(api, *past, user([[FINAL]]))
        [brought] = [event for event in gateway.events(other) if event["id"] == 1]
        assert other != session and brought["metadata"]["user_message_attachments"]["mime_type"] == "image/png"


async def a_permission_is_reasoning_with_a_link_and_waits():
    with tempfile.TemporaryDirectory() as scratch:
        with Gateway(*play(pathlib.Path(scratch), ASKING)) as gateway:
            api = client(gateway)
            stream = await api.chat.completions.create(model=await name_of(api), messages=[user("go")], stream=True)
            text = reasoning = ""
            async for chunk in stream:
                delta = chunk.choices[0].delta
                reasoning += getattr(delta, "reasoning_content", None) or ""
                text += delta.content or ""
                if "Permission is needed" in reasoning and not text.endswith("."):
                    session = session_of(gateway)
                    assert f"{gateway.url}/#/s/{session}" in reasoning, reasoning
                    page = await gateway.client()
                    await page.request("sessions.switch", sessionId=session)
                    asked = (await page.wait("permission"))["payload"]
                    await page.request(
                        "permission.answer", sessionId=session, requestId=asked["requestId"], choice="yes")
                    await page.close()
                    reasoning = ""
            assert text.endswith("Thanks."), text


async def responses_are_read_followed_and_continued():
    with Gateway("--agent", AGENT, "--protocol", "ndjson") as gateway:
        api = client(gateway)
        first = await api.responses.create(model="agent", input="hello", instructions="be brief")
        assert first.output_text == answer("hello") and first.status == "completed", first
        assert first.instructions == "be brief" and first.usage.total_tokens == 7
        types.ResponseResource.model_validate(first.to_dict())
        assert (await api.responses.retrieve(first.id)).to_dict() == first.to_dict()
        second = await api.responses.create(previous_response_id=first.id, input="again")
        other = await api.responses.create(previous_response_id=first.id, input="again")
        assert second.previous_response_id == first.id and second.output_text == answer("again")
        sessions = {path.name: talk(gateway, path.name) for path in gateway.root.glob("[0-9a-f]*-*")}
        pairs = [["hello", answer("hello")], ["again", answer("again")]]
        assert list(sessions.values()) == [pairs, pairs], sessions
        listed = [user("hello"), said(answer("hello")), user("again"), said(answer("again")), user("third")]
        third = await api.responses.create(model="agent", input=listed)
        assert third.output_text == answer("third") and len(list(gateway.root.glob("[0-9a-f]*-*/events.db"))) == 2
        assert (await api.responses.delete(other.id)) is None
        assert (await refused(api.responses.retrieve(other.id)))[0] == 404
        following = api.responses.create(previous_response_id=other.id, input="x")
        assert await refused(following) == (400, "previous_response_not_found", "previous_response_id")
        async with api.responses.stream(model="agent", input="hello") as events:
            seen = [event async for event in events]
            final = await events.get_final_response()
        assert final.output_text == answer("hello") and seen[0].type == "response.created"
        assert any(event.type == "response.reasoning_summary_text.delta" for event in seen)


async def a_background_response_is_read_later_and_cancelled():
    with Gateway("--agent", PLAYER, "--protocol", "ndjson") as gateway:
        api = client(gateway)
        steps = [[token("so far"), {"wait": "go"}, FINAL]]
        begun = await api.responses.create(model="player", input=json.dumps(steps), background=True)
        assert begun.status in ("queued", "in_progress") and begun.background, begun
        queued = await api.responses.create(previous_response_id=begun.id, input=json.dumps(steps), background=True)
        while (await api.responses.retrieve(begun.id)).status != "in_progress":
            await asyncio.sleep(0.02)
        assert (await api.responses.retrieve(queued.id)).status == "queued"
        assert (await api.responses.cancel(queued.id)).status == "cancelled"
        cancelled = await api.responses.cancel(begun.id)
        assert cancelled.status == "cancelled" and cancelled.output[0].status == "incomplete", cancelled
        assert cancelled.output_text == "so far"
        assert (await api.responses.cancel(begun.id)).to_dict() == cancelled.to_dict()


async def a_stream_continues_wherever_it_was_cut():
    with Gateway("--agent", PLAYER, "--protocol", "ndjson", "--keep-stream", "off", "--attempts", "3") as gateway:
        steps = [
            [{"event": "thinking", "content": "hm"}, token("lost "), {"event": "error", "error": "x", "retryable": True}],
            [{"event": "thinking", "content": "hm"}, token("a "), call("c1"), result("c1"), token("b"), token(" c"),
             {"event": "final", "content": "a b c and more", "total_tokens": 9}],
        ]
        body = {"model": "player", "input": json.dumps(steps), "stream": True}
        whole = await frames(gateway, "responses", body)
        numbers = [frame["sequence_number"] for frame in whole]
        assert numbers == sorted(set(numbers)) and whole[-1]["type"] == "response.completed", whole
        cut = [frame["item"] for frame in whole if frame["type"] == "response.output_item.done"]
        assert any(item.get("status") == "incomplete" for item in cut), cut
        path = f"responses/{whole[0]['response']['id']}?stream=true"
        for at, number in enumerate(numbers):
            rest = await frames(gateway, f"{path}&starting_after={number}")
            assert rest == whole[at + 1:], (number, rest)
            if at == len(numbers) // 2:
                gateway.kill()
                gateway.restart()
        assert await frames(gateway, path) == whole
        # Without the pieces, the whole texts stand for them.
        session = session_of(gateway)
        gateway.thread("prune", "--subtype", "token", "--before-id", "999999", "--force", session=session)
        rest = await frames(gateway, path)
        texts = [frame["text"] for frame in rest if frame["type"] == "response.output_text.done"]
        assert texts[-1].endswith("and more") and rest[-1]["response"]["status"] == "completed", rest
        assert not [frame for frame in rest if frame["type"] == "response.output_text.delta"], rest


async def ten_requests_are_queued_everything_is_killed_and_ten_are_answered():
    with Gateway("--agent", f"{AGENT} 0.05", "--protocol", "ndjson") as gateway:
        api = client(gateway, max_retries=50)
        first = await api.responses.create(model="agent", input="begin")
        queued, previous = [], first.id
        for n in range(5):
            response = await api.responses.create(previous_response_id=previous, input=f"queued {n}", background=True)
            previous = response.id
            queued.append((response.id, n))
        waiting = [asyncio.create_task(ask(api, user(f"asked {n}"), model="agent")) for n in range(5)]
        await until(lambda: len(list(gateway.root.glob("[0-9a-f]*-*/events.db"))) == 6)
        sessions = [path.name for path in gateway.root.glob("[0-9a-f]*-*") if (path / "events.db").exists()]
        kill_everything(gateway, sessions)
        gateway.restart()
        for n, (completion, _) in enumerate(await asyncio.gather(*waiting)):
            assert completion.choices[0].message.content == answer(f"asked {n}"), completion
        for id, n in queued:
            while (response := await api.responses.retrieve(id)).status in ("queued", "in_progress"):
                await asyncio.sleep(0.05)
            # An attempt that was killed is an item of its own.
            assert response.output[-1].content[0].text == answer(f"queued {n}"), response
        messages = [event["content"] for path in gateway.root.glob("[0-9a-f]*-*/events.db")
                    for event in gateway.events(path.parent.name)
                    if event["type"] == "message" and event["source"] != "self"]
        expected = ["begin"] + [f"queued {n}" for n in range(5)] + [f"asked {n}" for n in range(5)]
        assert sorted(messages) == sorted(expected), messages


def normal(text):
    return " ".join(unicodedata.normalize("NFC", text).split())


async def whatever_is_edited_the_agent_has_the_conversation_that_is_shown():
    seed = int(os.environ.get("SEED", random.randrange(10**6)))
    dice = random.Random(seed)
    rounds = int(os.environ.get("ROUNDS", 500 if LONG else 60))
    with Gateway("--agent", f"{AGENT} 0", "--protocol", "ndjson") as gateway:
        api = client(gateway)
        chats = [[]]
        for at in range(rounds):
            chat = dice.choice(chats)
            act = dice.choice(["say", "say", "say", "edit", "retry", "stop", "delete", "rewrite", "copy", "new"])
            cut = dice.randrange(len(chat) + 1)
            if act == "edit" and chat:
                del chat[cut:]
            elif act == "retry" and chat:
                text = chat.pop()[0]
            elif act == "stop" and chat:
                chat[-1][1] = chat[-1][1][:dice.randrange(1, 30)]
            elif act == "delete" and chat:
                del chat[dice.randrange(len(chat))]
            elif act == "rewrite" and chat:
                chat[cut - 1][1] += dice.choice(["", " ", "!", "<details>x</details>"])
            elif act == "copy":
                chats.append([list(pair) for pair in chat])
            elif act == "new":
                chats.append([])
            if act != "retry" or not chat:
                text = dice.choice(["a", "b", "c"])
            past = [message for pair in chat for message in (user(pair[0]), said(pair[1]))]
            completion, session = await ask(api, *past, user(text), model="agent")
            content = completion.choices[0].message.content
            assert content == answer(text), (seed, at, content)
            # The texts of the assistant, as the session has them; the last may be longer than what the chat has.
            has = await asyncio.to_thread(talk, gateway, session)
            shown = [pair for pair in chat]
            while shown and len(has) - 1 > len(shown):
                raise AssertionError((seed, at, act, has, shown))
            assert len(has) == len(shown) + 1 and has[-1][0] == text, (seed, at, act, has, shown)
            for there, here in zip(has, shown):
                # Whoever has brought it has brought details, too.
                there, here = [normal((pair[1] or "").replace("<details>x</details>", "")) for pair in (there, here)]
                is_cut = there.startswith(here) and here
                assert there == here or is_cut, (seed, at, act, there, here)
                if there != here:
                    # Only where a client has stopped reading, never in a copy.
                    assert here in [normal(answer(one))[:len(here)] for one in "abc"], (seed, at, act, there, here)
            chat.append([text, content])


async def titles_are_for_the_task_model_in_a_session_that_no_list_has():
    models = subprocess.Popen([sys.executable, HERE.parents[3] / "fixtures/model.py", "0"], stdout=subprocess.PIPE, text=True)
    with models, tempfile.TemporaryDirectory() as folder:
        url = models.stdout.readline().strip()
        file = write(folder, {"name": "loud", "command": "tr a-z A-Z", "task_model": f"openai:{url}#echo"},
                     {"name": "model", "url": f"openai:{url}#think", "task_model": "count"}, {"name": "plain", "command": "cat"})
        with Gateway("--agents", file) as gateway:
            api, chat = client(gateway), {"X-OpenWebUI-Chat-Id": "c1"}
            names = [model.id for model in (await api.models.list()).data]
            assert names == ["loud", "model", "plain", "loud.tasks", "model.tasks"], names
            reply, session = await ask(api, user("hello"), model="loud", headers=chat)
            assert reply.choices[0].message.content == "HELLO"
            title = [{"role": "system", "content": "be short"}, user("hello"), said("HELLO"), user("a title, please")]
            for model, more, told in [
                ("loud", {"X-Thread-Task": "title"}, "a title, please"), ("loud.tasks", {}, "a title, please"),
                ("model", {"X-Thread-Task": "tags"}, "3: a title, please"),
            ]:
                reply, task = await ask(api, *title, model=model, headers={**chat, **more})
                assert (reply.choices[0].message.content, task != session) == (told, True), reply
                stream = await api.chat.completions.create(model=model, messages=title, stream=True, extra_headers={**chat, **more})
                assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]) == told
            assert await refused(ask(api, user("x"), model="plain", headers={"X-Thread-Task": "title"})) == (400, "task_model_not_set", None)
            listed = (await (await gateway.client()).request("sessions.list"))["sessions"]
            assert [one["id"] for one in listed] == [session], listed
            # It ends with the chat, which goes on where it was. A template leaves nothing in the header of a message.
            reply, again = await ask(
                api, user("hello"), said("HELLO"), user("more"), model="loud", headers={**chat, "X-Thread-Task": ""})
            assert (reply.choices[0].message.content, again) == ("MORE", session)
            # What is old is deleted, by the next gateway too.
            hidden = [path for path in pathlib.Path(gateway.root).glob("7461736b-7300-8*")]
            assert len(hidden) == 6, hidden
            for path in hidden[1:]:
                os.utime(path / "events.jsonl", (0, 0))
            gateway.kill()
            gateway.restart()
            await until(lambda: not any(path.exists() for path in hidden[1:]))
            assert hidden[0].exists() and pathlib.Path(gateway.root, session).exists()
        models.kill()


async def the_agent_that_a_request_names_answers_it():
    with tempfile.TemporaryDirectory() as folder:
        file = write(folder, {"name": "loud", "command": "tr a-z A-Z"}, {"name": "plain", "command": "cat"})
        with Gateway("--agents", file) as gateway:
            api = client(gateway)
            text = lambda reply: reply.choices[0].message.content.strip()
            first, session = await ask(api, user("a"), model="loud")
            past = [user("a"), said(text(first)), user("b")]
            second, same = await ask(api, *past, model="plain")
            assert (text(first), text(second), same) == ("A", "b", session)
            assert moves(gateway, session) == ["plain"]
            # Tried again with the other one: a copy is moved, and the session stays with its agent.
            again, copy = await ask(api, *past, model="loud")
            assert text(again) == "B" and copy != session and moves(gateway, session) == ["plain"], again
            # Several agents are asked the same, and give the same answer: each continues its own session.
            names = ["loud", "plain"] * 2
            ends = [await ask(api, user("1"), model=name, headers={"X-Session-Id": "both"}) for name in names[:2]]
            more = [user("1"), said("1"), user("x")]
            nexts = [await ask(api, *more, model=name, headers={"X-Session-Id": "both"}) for name in names[1:3]]
            assert [text(reply) for reply, _ in nexts] == ["x", "X"], nexts
            assert [id for _, id in nexts] == [ends[1][1], ends[0][1]], (ends, nexts)
            # A response that continues another without naming an agent is the session's agent's.
            one = await api.responses.create(model="plain", input="a")
            other = await api.responses.create(previous_response_id=one.id, input="b")
            assert (one.output_text.strip(), other.output_text.strip()) == ("a", "b")
            named = await api.responses.create(previous_response_id=other.id, input="c", model="loud")
            assert named.output_text.strip() == "C", named


async def the_example_of_the_documentation_gets_an_answer():
    page = (pathlib.Path(os.environ["DOCS"]) / "SERVE.md").read_text()
    example = re.search(r"^```python\n(.*?)^```$", page, re.M | re.S)[1]
    with Gateway("--agent", AGENT, "--protocol", "ndjson") as gateway:
        example = example.replace("https://chat.example.org", gateway.url).replace("/srv/thread", str(gateway.root))
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", example, stdout=asyncio.subprocess.PIPE)
        assert (await process.communicate())[0].decode().strip() == answer("Hello")


async def the_npm_client_streams_calls_and_continues():
    if not NODE:
        print("SKIPPED: needs openai, of npm")
        return
    with Gateway("--agent", PLAYER, "--protocol", "ndjson") as gateway:
        steps = [[token("Which? "), call("c1", "color"), {"hear": True}, FINAL]]
        process = await asyncio.create_subprocess_exec(
            "node", str(HERE / "openai_api.mjs"), NODE, gateway.url, gateway.token, json.dumps(steps),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        seen = json.loads(out)
        assert seen["text"].startswith("Which? ") and seen["finish"] == "tool_calls", seen
        assert "blue" in seen["last"] and seen["status"] == "completed" and "response.completed" in seen["types"], seen


if __name__ == "__main__":
    run(globals())
