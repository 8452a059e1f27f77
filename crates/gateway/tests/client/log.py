"""The gateway's log for its operator."""

import asyncio
import json
import re
import urllib.error

import websockets

from agui import get
from attachments import PNG, fetch, until, upload
from harness import Gateway, run
from security import ask

SECRETS = ["content-of-a-message", "content-of-an-answer", "name-of-a-file", "wrong-token", "name-of-a-run"]


def lines(gateway, *words):
    """The lines that have all of these words."""
    return [line for line in gateway.output().splitlines() if all(word in line for word in words)]


async def a_run_is_logged_when_it_begins_and_ends_and_nothing_that_is_said():
    agent = "sh -c 'cat; sleep 0.3; echo content-of-an-answer'"
    with Gateway("--agent", agent, "--attempts", "1") as gateway:
        assert lines(gateway, " INFO started", f'address="{gateway.url}"', str(gateway.root))
        client = await gateway.client()
        file = upload(gateway, PNG, "name-of-a-file.png")
        parts = [{"type": "text", "text": "content-of-a-message"},
                 {"type": "binary", "mimeType": "image/png", "url": file["url"]}]
        session = (await client.request("agent", message=parts))["sessionId"]
        await client.wait("final")
        about = f"session={session} seq="
        await until(lambda: lines(gateway, "a run ends", about))
        assert lines(gateway, " INFO a run begins", about, "attempt=1")
        [end] = lines(gateway, "a run ends", about, 'outcome="answered"')
        assert 0.3 <= float(re.search(r" seconds=([\d.]+)", end)[1]) < 60, end
        # Also runs that no client watches, and failed ones.
        said = gateway.push(session, "content-of-a-message", kind="message", source="external:test", run_id="name-of-a-run")
        await until(lambda: lines(gateway, "a run ends", f"seq={said} "))
        gateway.thread("unsubscribe", "--consumer", "agent", session=session)
        gateway.fake_agent(session)
        said = gateway.push(session, "content-of-a-message", kind="message", source="external:test")
        gateway.push(session, {"status": "started", "attempt": 1}, "run", reply_to=said)
        gateway.ending(session, content={"error": "content-of-an-answer", "retryable": False}, subtype="error", reply_to=said)
        await until(lambda: lines(gateway, "a run ends", f"seq={said} ", 'outcome="failed"'))

        # Refusals say why, and which client was refused.
        assert ask(gateway, "/metrics", Authorization="Bearer wrong-token")[0] == 401
        assert ask(gateway, "/metrics", Origin="https://evil.example")[0] == 403
        assert fetch(file["url"] + "wrong-token")[0] == 403
        bad = await gateway.client(connect=False)
        bad.send("connect", {"version": "1", "clientType": "t", "token": "wrong-token"})
        await bad.ends()
        for words in [
            ('route="/metrics"', 'reason="wrong token"'), ('route="/metrics"', "pages of this origin"),
            ("/storage/v1/object/sign/", "not signed by this gateway"), ('route="/ws"', 'reason="wrong or missing token"'),
        ]:
            await until(lambda: lines(gateway, " WARN refused address=127.0.0.1 ", *words))
        # A client that just disconnects is not refused.
        client.abort()
        metrics = lambda: get(gateway, "/metrics").decode()
        await until(lambda: re.search(r"^thread_gateway_connections 0$", metrics(), re.M))
        assert len(lines(gateway, "refused")) == 4
        gateway.stop()
        assert lines(gateway, " INFO stopped")
        for line in gateway.output().splitlines():
            assert re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z +(INFO|WARN) ", line), line
        assert gateway.token not in gateway.output() and "token=" not in gateway.output()
        assert not [word for word in SECRETS if lines(gateway, word)], gateway.output()


async def what_was_due_when_the_gateway_was_started_is_logged():
    with Gateway("--agent", "cat") as gateway:
        client = await gateway.client()
        old = (await client.request("agent", message="before"))["sessionId"]
        await client.wait("final")
        await until(lambda: lines(gateway, "a run ends", old))
        due = (await client.request("sessions.new"))["sessionId"]
        gateway.stop()
        gateway.thread("push", "--source", "external:test", "hello", session=due, env={"THREAD_NOTIFIER": "off"})
        gateway.start()
        await until(lambda: len(lines(gateway, "a run ends", due)) == 1)
        assert len(lines(gateway, "what was due has been started", f"session={due}")) == 1, gateway.output()
        # Runs that ended before are not logged again.
        assert len(lines(gateway, "a run ends", old)) == 1 and not lines(gateway, "has been started", old)


async def the_level_says_how_much_is_logged():
    for level, begins, refusals in ("off", 0, 0), ("error", 0, 0), ("warn", 0, 1), ("debug", 1, 1):
        with Gateway("--log", level, "--agent", "cat") as gateway:
            assert ask(gateway, "/metrics")[0] == 401
            client = await gateway.client()
            await client.request("agent", message="hello")
            await client.wait("final")
            if begins:
                await until(lambda: lines(gateway, "a run ends"))
            gateway.stop()
            found = lines(gateway, "started address"), lines(gateway, "refused")
            assert tuple(map(len, found)) == (begins, refusals), (level, gateway.output())


if __name__ == "__main__":
    run(globals())
