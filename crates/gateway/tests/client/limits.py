"""Events that are larger or nested deeper than clients can be expected to handle."""

import asyncio
import json
import sys
import os
import subprocess
import urllib.error
import urllib.parse
import urllib.request

from agui import get
from harness import LONG, THREAD, Gateway, most_memory, run, stays_within

CHAT = os.environ.get("THREAD_CHAT")
MEBIBYTE = 1024 * 1024
# Parts that are nested deeper are handed out as text.
DEEPEST = 32
ELSEWHERE = "external:mail:main:dm:x:bob"


def fetched(gateway, url, timeout=60, **headers):
    """The content at a URL, or the status with which it is refused."""
    request = urllib.request.Request(urllib.parse.urljoin(gateway.url + "/", url), headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.read()
    except urllib.error.HTTPError as e:
        return e.code


def is_a_placeholder(message, size):
    """Checks the placeholder for a message of `size` bytes."""
    content, large = message["content"], message.get("large")
    assert isinstance(content, str) and 0 < len(content) < 1000, str(content)[:200]
    assert large and set(large) == {"bytes", "url"} and large["bytes"] == size, large


async def an_event_over_a_mebibyte_is_a_placeholder_whose_url_has_the_whole():
    with Gateway() as gateway:
        client = await gateway.client()
        session = (await client.request("sessions.new"))["sessionId"]
        gateway.fake_agent(session)
        run_id = (await client.request("agent", message="go"))["runId"]
        about = {"run_id": run_id}
        # Two bytes each: the limit is in bytes.
        text = "ä" * 600_000
        result = json.dumps({"call_id": "c", "name": "cat", "result": "x" * 2_000_000})
        large = {}
        for kind, subtype, source, content in [
            ("message", None, ELSEWHERE, text),
            ("message", None, "self", "y" * (MEBIBYTE + 1)),
            ("record", "token", "self", "z" * 1_500_000),
            ("record", "toolresult", "self", result),
        ]:
            seq = gateway.push(session, content, subtype, kind=kind, source=source, **about)
            large[seq] = (kind, subtype, source, content)
        whole = gateway.push(session, "w" * MEBIBYTE, kind="message", source=ELSEWHERE)
        last = gateway.push(session, "and on", "token", **about)
        late = await gateway.client()
        await late.request("sessions.switch", sessionId=session, after=0)
        for who in client, late:
            await who.seq(last)
            assert (await who.seq(whole))["payload"]["content"] == "w" * MEBIBYTE
            for seq, (kind, subtype, source, content) in large.items():
                event, size = await who.seq(seq), len(content.encode())
                payload = event["payload"]
                assert len(json.dumps(event)) < 2000 and payload["runId"], str(event)[:200]
                if kind == "message":
                    assert event["event"] == "message"
                    assert payload["role"] == ("assistant" if source == "self" else "user"), payload
                    is_a_placeholder(payload, size)
                    url = payload["large"]["url"]
                else:
                    assert event["event"] == "large", event["event"]
                    told = [payload[key] for key in ("source", "type", "subtype", "bytes")]
                    assert told == [source, kind, subtype, size], payload
                    url = payload["url"]
                assert await asyncio.to_thread(fetched, gateway, url) == 401
                data = await asyncio.to_thread(fetched, gateway, url, Authorization="Bearer " + gateway.token)
                assert data == content.encode(), (url, data if isinstance(data, int) else len(data))
        # The same wherever messages are listed.
        pages = [
            (await client.request("sessions.history"))["messages"],
            json.loads(get(gateway, f"/api/v1/agent/history?threadId={session}"))["messages"],
        ]
        ended = gateway.ending(session, (await client.wait("message"))["seq"], "done", **about)
        await client.seq(ended)
        pages.append((await client.request("sessions.switch", sessionId=session))["recentMessages"])
        for page in pages:
            # A page has about as much text as the message before the last one.
            shown = {message["seq"]: message for message in page}
            for seq, (kind, _, _, content) in large.items():
                if kind == "message" and (seq in shown or page is not pages[2]):
                    is_a_placeholder(shown[seq], len(content.encode()))


async def an_answer_of_any_size_is_whole_in_history():
    with Gateway() as gateway:
        client = await gateway.client()
        session = (await client.request("sessions.new"))["sessionId"]
        gateway.fake_agent(session)
        run_id = (await client.request("agent", message="go"))["runId"]
        said = (await client.wait("message"))["seq"]
        text = "x" * 3_000_000
        answer = gateway.ending(session, said, text, run_id=run_id)
        await client.seq(answer)
        page = await client.request("sessions.history")
        assert [message["content"] for message in page["messages"]] == [text] and page["hasMore"] is True
        page = await client.request("sessions.history", before=answer)
        assert [message["seq"] for message in page["messages"]] == [said] and page["hasMore"] is False
        [*_, message] = json.loads(get(gateway, f"/api/v1/agent/history?threadId={session}"))["messages"]
        assert message["content"] == text
        # A page has no room for another message besides it.
        next = gateway.push(session, "next", kind="message")
        page = await client.request("sessions.history")
        assert [message["seq"] for message in page["messages"]] == [next] and page["hasMore"] is True
        # What is entered is the session as the gateway knows it.
        await client.seq(next)
        switched = await client.request("sessions.switch", sessionId=session)
        assert [message["seq"] for message in switched["recentMessages"]] == [next]


def nested(depth):
    """Content parts that are nested so deep, the array and the part included."""
    inside = "end"
    for _ in range(depth - 2):
        inside = [inside]
    return [{"type": "custom", "inside": inside}]


def depth(value):
    if isinstance(value, (dict, list)):
        return 1 + max((depth(inner) for inner in (value.values() if isinstance(value, dict) else value)), default=0)
    return 0


def said_in(content):
    """The parts in the content of a message that is a text, one part of text, or the parts themselves."""
    if isinstance(content, list) and content[0]["type"] != "text":
        return content
    parts = json.loads(content if isinstance(content, str) else content[0]["text"])
    return parts if isinstance(parts, list) else [parts]


async def an_answer_that_is_nested_too_deep_is_text():
    sys.setrecursionlimit(10_000)
    with Gateway() as gateway:
        client = await gateway.client()
        session = (await client.request("sessions.new"))["sessionId"]
        gateway.fake_agent(session)
        for deep in DEEPEST // 2, DEEPEST + 8, 125, 126, 127, 400:
            parts = nested(deep)
            assert depth(parts) == deep
            text = json.dumps(parts)
            run_id = (await client.request("agent", message=f"{deep} deep"))["runId"]
            said = (await client.wait(lambda e: e["payload"].get("content") == f"{deep} deep"))["seq"]
            event = await client.seq(gateway.ending(session, said, text, run_id=run_id))
            content = event["payload"]["content"]
            assert event["event"] == "final" and said_in(content) == parts, (deep, content)
            assert (depth(content) <= 2) == (deep > DEEPEST), (deep, content)
            [*_, message] = (await client.request("sessions.history"))["messages"]
            assert message["content"] == content, deep
            # The same for events that another program pushes.
            event = await client.seq(gateway.push(session, text, kind="message", source=ELSEWHERE))
            assert event["payload"]["content"] == content, deep
        # And for messages that a client sends.
        await client.request("agent", message=nested(60))
        event = await client.wait(lambda e: e["payload"].get("fromSelf") and "custom" in str(e["payload"]["content"]))
        assert depth(event["payload"]["content"]) <= 2, event


async def thread_chat_gets_an_answer_of_any_depth():
    if not CHAT:
        return print("SKIPPED: needs thread-chat")
    with Gateway("--agent", "cat answer") as gateway:
        for deep in 10, 126, 127, 300:
            (gateway.root / "answer").write_text(json.dumps(nested(deep)))
            env = {**os.environ, "THREAD_TOKEN": gateway.token, "XDG_STATE_HOME": str(gateway.root), "TERM": "dumb"}
            chat = await asyncio.create_subprocess_exec(
                CHAT, "--url", gateway.url, "--new", "hello", stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
            try:
                out, err = await asyncio.wait_for(chat.communicate(), 15)
            except TimeoutError:
                chat.kill()
                await chat.wait()
                raise AssertionError(f"thread chat still waits for an answer that is {deep} deep") from None
            assert chat.returncode == 0 and b"custom" in out, (deep, chat.returncode, out, err)


async def a_session_with_a_gigantic_event_is_entered_in_little_memory():
    size = 300_000_000 if LONG else 200_000_000
    with Gateway() as gateway:
        client = await gateway.client()
        session = (await client.request("sessions.new"))["sessionId"]
        await client.request("agent", message="before it")
        # Pushed by another program.
        args = ["--thread", gateway.root / session, "--source", ELSEWHERE, "--type", "message", "--content-file", "-"]
        text = b"gigantic " * (size // 9)
        huge = await asyncio.to_thread(subprocess.run, [THREAD, "push", *args], input=text, capture_output=True)
        huge = int(huge.stdout)
        last = gateway.push(session, "after it", kind="message", source=ELSEWHERE)
        readers = [await gateway.client() for _ in range(10)]
        async def enters(reader, more):
            await reader.request("sessions.switch", sessionId=session, **more)
            await reader.request("sessions.history")
            if more:
                await reader.seq(last)
                is_a_placeholder((await reader.seq(huge))["payload"], len(text))
        ways = [{"after": 0} if n % 2 else {} for n in range(10)]
        await stays_within(gateway, 150, asyncio.gather(*map(enters, readers, ways)))
        await client.seq(last)
        found = await client.request("sessions.search", query="after it")
        assert [found["id"] for found in found["sessions"]] == [session]
        assert (await client.request("sessions.list"))["sessions"][0]["messageCount"] == 3
        url = (await readers[1].seq(huge))["payload"]["large"]["url"]
        fetching = asyncio.to_thread(fetched, gateway, url, Authorization="Bearer " + gateway.token)
        assert await stays_within(gateway, 150, fetching) == text
        print(f"an event of {size // 10**6} MB entered by ten clients: {most_memory(gateway)} MB")


if __name__ == "__main__":
    run(globals())
