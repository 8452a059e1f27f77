"""Attachments: uploads, messages with them, stored files, and signed URLs."""

import asyncio
import base64
import hashlib
import hmac
import http.client
import json
import os
import resource
import shutil
import signal
import time
import urllib.error
import urllib.parse
import urllib.request

import agui
from agent import answer
from agui import get, session_of
from crowd import AGENT
from harness import PATIENCE, Gateway, run

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)


def upload(gateway, data, name="photo one.png", field="file"):
    boundary = "----boundary"
    body = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"; filename="{name}"\r\n'
        "Content-Type: text/html\r\n\r\n"
    ).encode() + data + f"\r\n--{boundary}--\r\n".encode()
    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    return json.loads(get(gateway, "/api/v1/agent/attachments", headers, body))


def fetch(url):
    """Fetches without a token. Returns the status, the body and the headers."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as e:
        return e.code, e.read(), e.headers


def signed(gateway, name, secret=None, **claims):
    """A URL signed with the gateway's key, or with another one."""
    secret = secret or (gateway.root / "signing-key").read_text().strip()
    now = int(time.time())
    encode = lambda data: base64.urlsafe_b64encode(data).rstrip(b"=")
    claims = {"url": name, "iat": now, "exp": now + 60, **claims}
    text = encode(b'{"alg":"HS256","typ":"JWT"}') + b"." + encode(json.dumps(claims).encode())
    token = text + b"." + encode(hmac.new(secret.encode(), text, hashlib.sha256).digest())
    return f"{gateway.url}/storage/v1/object/sign/{name}?token={token.decode()}"


async def until(condition):
    """Waits for a condition."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.02)


async def an_image_goes_round():
    with Gateway("--agent", "cat") as gateway:
        stored = upload(gateway, PNG)
        assert stored["bucket"] == "attachments" and stored["mime_type"] == "image/png", stored
        assert stored["path"].endswith("/photo_one.png")
        assert stored["url"].startswith(f"{gateway.url}/storage/v1/object/sign/attachments/")
        status, data, headers = fetch(stored["url"])
        assert (status, data, headers["Content-Type"]) == (200, PNG, "image/png")
        assert headers["X-Content-Type-Options"] == "nosniff" and "sandbox" in headers["Content-Security-Policy"]

        ask = {
            "threadId": "pictures", "runId": "r1", "tools": [], "context": [],
            "messages": [{"id": "m1", "role": "user", "content": [
                {"type": "text", "text": "what is this?"},
                {"type": "binary", "mimeType": "image/png", "url": stored["url"]},
            ]}],
        }
        get(gateway, "/api/v1/agent/run", {"Content-Type": "application/json"}, json.dumps(ask).encode())
        [event] = [e for e in gateway.events(session_of(gateway)) if e["type"] == "message" and e["source"] != "self"]
        kept = {key: stored[key] for key in ("bucket", "path", "mime_type")}
        assert event["metadata"]["user_message_attachments"] == kept
        assert event["metadata"]["run_id"] == "r1" and event["metadata"]["message_id"] == "m1"
        plain = stored["url"].split("?")[0]
        # Stored without a signature, and without the current address of the gateway.
        assert json.loads(event["content"])[1]["url"] == urllib.parse.urlsplit(plain).path, event
        [file] = event["metadata"]["attachment_files"]
        assert open(file, "rb").read() == PNG
        [answer] = [e for e in gateway.events(session_of(gateway)) if e["type"] == "message" and e["source"] == "self"]
        assert answer["content"] == f"what is this?\n\nAttached: {file} (image/png)\n"

        # Clients of both kinds that read the message later get a new signature.
        await asyncio.sleep(1.1)
        history = json.loads(get(gateway, "/api/v1/agent/history?threadId=pictures"))["messages"]
        url = history[0]["content"][1]["url"]
        assert url.startswith(plain + "?token=") and url != stored["url"] and fetch(url)[:2] == (200, PNG)
        assert history[0]["metadata"]["user_message_attachments"] == kept
        client = await gateway.client()
        switched = await client.request("sessions.switch", sessionId=session_of(gateway), after=0)
        for content in switched["recentMessages"][0]["content"], client.named("message")[0]["payload"]["content"]:
            assert fetch(content[1]["url"])[:2] == (200, PNG)

        # Two attachments in the form of AG-UI 1.0, over the WebSocket.
        other = upload(gateway, b"plain words", "notes.txt")
        assert other["mime_type"] == "text/plain"
        parts = [
            {"type": "image", "source": {"type": "url", "value": stored["url"], "mimeType": "image/png"}},
            {"type": "document", "source": {"type": "url", "value": other["url"], "mimeType": "text/plain"}},
        ]
        await client.request("agent", message=parts)
        [*_, event] = [e for e in gateway.events(session_of(gateway)) if e["type"] == "message" and e["source"] != "self"]
        assert [a["mime_type"] for a in event["metadata"]["user_message_attachments"]] == ["image/png", "text/plain"]


async def an_image_is_sent_by_the_clients_of_both_versions():
    if agui.skipped():
        return
    with Gateway("--agent", "cat") as gateway:
        stored = upload(gateway, PNG)
        kept = {key: stored[key] for key in ("bucket", "path", "mime_type")}
        plain = stored["url"].split("?")[0]
        source = {"type": "url", "value": stored["url"], "mimeType": "image/png"}
        for version, part in [
            ("1", {"type": "image", "source": source}),
            ("0", {"type": "binary", "mimeType": "image/png", "url": stored["url"]}),
        ]:
            name = f"pictures of {version}"
            parts = [{"type": "text", "text": "what is this?"}, part]
            types, seen = await agui.client(gateway, version, name, parts, runId="r" + version)
            assert seen["error"] is None and types[-1] == "RUN_FINISHED", seen
            said, answered = json.loads(get(gateway, "/api/v1/agent/history?threadId=" + urllib.parse.quote(name)))["messages"]
            assert said["metadata"]["user_message_attachments"] == kept, said
            [text, image] = said["content"]
            url = image["url"] if version == "0" else image["source"]["value"]
            assert text["text"] == "what is this?" and image["type"] == part["type"]
            assert url.startswith(plain + "?token=") and fetch(url)[:2] == (200, PNG)
            assert answered["metadata"]["run_id"] == said["metadata"]["run_id"] == "r" + version

        # A signature is valid for an hour.
        claims = stored["url"].partition("?token=")[2].split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
        assert claims["exp"] - claims["iat"] == 3600
        name = f"attachments/{stored['path']}"
        for ago, status in (3590, 200), (3601, 403):
            now = int(time.time())
            old = signed(gateway, **{"name": name, "iat": now - ago, "exp": now - ago + 3600})
            assert fetch(old)[0] == status, ago
        refusal = {"type": "binary", "mimeType": "image/png", "url": old}
        types, seen = await agui.client(gateway, "0", "too late", [refusal])
        assert "expired" in seen["error"] and "RUN_FINISHED" not in types, seen


async def a_socket_refuses_files_that_are_none_and_makes_no_session():
    with Gateway("--agent", "cat") as gateway:
        client = await gateway.client()
        file = lambda data: {"type": "binary", "mimeType": "image/png", "data": data}
        good, foreign = file(base64.b64encode(PNG).decode()), {"type": "image", "source": {"type": "url", "value": "https://example.org/a.png", "mimeType": "image/png"}}
        own = {"type": "binary", "mimeType": "image/png", "url": f"{gateway.url}/storage/v1/object/sign/uploads/none.png?token=x"}
        for parts, why in ([file("!!")], "base64"), ([good] * 65, "64 are the most"), ([good, file("!!")], "base64"), ([good, foreign], ""), ([good, own], ""):
            refused = await client.refused("agent", message=[{"type": "text", "text": "look"}, *parts])
            assert why in refused, (why, refused)
            assert (await client.request("sessions.list"))["total"] == 0 and (await client.request("status"))["session"] is None, refused
            assert not list(gateway.root.glob("*/events.db")) and not [path for path in gateway.root.glob("storage/**/*") if path.is_file()], refused
        sent = await client.request("agent", message=[{"type": "text", "text": "look"}, *[good] * 64])
        [stored] = [event for event in gateway.events(sent["sessionId"]) if event["type"] == "message" and event["source"] != "self"]
        assert len(json.loads(stored["content"])) == 65, stored


async def an_answer_bears_the_keys_that_clients_look_for():
    with Gateway("--agent", f"{AGENT} 0", "--protocol", "ndjson") as gateway:
        ask = {"threadId": "t", "runId": "r1", "messages": [{"id": "m1", "role": "user", "content": "hello"}]}
        get(gateway, "/api/v1/agent/run", {"Content-Type": "application/json"}, json.dumps(ask).encode())
        said, answered = json.loads(get(gateway, "/api/v1/agent/history?threadId=t"))["messages"]
        assert said["id"] == said["metadata"]["message_id"] == "m1" and said["metadata"]["run_id"] == "r1"
        about = answered["metadata"]
        assert answered["content"] == answer("hello") and answered["id"] == about["message_id"]
        assert about["run_id"] == "r1" and about["reply_to"] == said["seq"] and about["total_tokens"] == 7
        assert 0 <= about["latency_ms"] < 60_000 and about["stage"] == "final", about


async def metadata_of_messages_is_kept_and_passed_on():
    with Gateway() as gateway:
        client = await gateway.client()
        session = (await client.request("sessions.new"))["sessionId"]
        given = {"stage": "final", "latency_ms": 1234, "tool_name": "search", "anything": {"deep": [1, 2.50]}}
        accepted = await client.request("agent", message="hello", metadata={**given, "run_id": "mine", "client": "x"})
        seq = gateway.ending(session, 1, "hi", run_id=accepted["runId"], message_id="m9", **given)
        await client.seq(seq)
        messages = json.loads(get(gateway, f"/api/v1/agent/history?threadId={session}"))["messages"]
        for key, value in given.items():
            assert messages[0]["metadata"][key] == value and messages[1]["metadata"][key] == value
        assert messages[0]["metadata"]["run_id"] == accepted["runId"] != "mine"
        assert messages[1]["metadata"]["message_id"] == messages[1]["id"] == "m9"
        assert client.named("final")[0]["payload"]["latencyMs"] == 1234


async def a_url_that_is_not_ours_is_refused_wherever_it_is_shown():
    with Gateway("--storage-origin", "https://files.example.org") as gateway:
        stored = upload(gateway, PNG)
        name = f"attachments/{stored['path']}"
        assert fetch(signed(gateway, name))[0] == 200
        (gateway.root / "secret.txt").write_text("secret")
        bad = {
            "expired": signed(gateway, name, exp=int(time.time()) - 1),
            "forged": signed(gateway, name, secret="another secret, as long as ours is"),
            "for another": signed(gateway, name, url="attachments/else"),
            "unsigned": f"{gateway.url}/storage/v1/object/sign/{name}",
        }
        for what, url in bad.items():
            assert fetch(url)[0] == 403, what
        for way_out in "../secret.txt", "attachments/../../secret.txt", "attachments/%2e%2e/%2e%2e/token", "..%2ftoken":
            for url in signed(gateway, way_out), signed(gateway, urllib.parse.unquote(way_out)):
                status, data, _ = fetch(url)
                assert status in (400, 401, 403, 404) and b"secret" not in data, (url, status)
        assert fetch(signed(gateway, "attachments/nothing"))[0] == 404
        client = await gateway.client()
        part = lambda url: [{"type": "binary", "mimeType": "image/png", "url": url}]
        bad["of another origin"] = stored["url"].replace(gateway.url, "https://evil.example")
        bad["nowhere in a store"] = "https://evil.example/cat.png"
        bad["out of its bucket"] = signed(gateway, "attachments/../token")
        for what, url in bad.items():
            assert "refused" in await client.refused("agent", message=part(url)), what
        # URLs of another store are parsed, but neither verified nor signed.
        theirs = "https://files.example.org/storage/v1/object/sign/photos/a/b.png"
        await client.request("agent", message=part(theirs + "?token=theirs"))
        [event] = gateway.events(session_of(gateway))
        assert event["metadata"]["user_message_attachments"]["bucket"] == "photos"
        event = await client.wait("message")
        assert event["payload"]["content"][0]["url"] == theirs


async def only_what_a_client_has_uploaded_is_signed():
    with Gateway() as gateway:
        stored = upload(gateway, PNG)
        kept = {key: stored[key] for key in ("bucket", "path", "mime_type")}
        client = await gateway.client()
        session = (await client.request("sessions.new"))["sessionId"]
        gateway.fake_agent(session)
        path = f"/storage/v1/object/sign/attachments/{stored['path']}"
        pushed = {}

        async def answers(parts, **metadata):
            run_id = (await client.request("agent", message="show me"))["runId"]
            said = (await client.wait(lambda e: e["event"] == "message" and e["payload"]["runId"] == run_id))["seq"]
            return gateway.ending(session, said, parts, run_id=run_id, **metadata)

        for origin in "", gateway.url, "https://evil.example", f"http://127.0.0.1:{gateway.port}@evil.example":
            parts = [
                {"type": "text", "text": origin},
                {"type": "binary", "mimeType": "image/png", "url": origin + path},
                {"type": "image", "source": {"type": "url", "value": origin + path, "mimeType": "image/png"}},
            ]
            pushed[await answers(parts)] = parts
            pushed[await answers(parts, user_message_attachments=[kept, kept])] = parts
            pushed[gateway.push(session, parts, kind="message")] = parts
            elsewhere = "external:mail:main:dm:x:bob"
            pushed[gateway.push(session, parts, kind="message", source=elsewhere)] = parts
        # URLs that a gateway stored under another address are handed out under the current one.
        moved = [{"type": "binary", "mimeType": "image/png", "url": "https://evil.example" + path}]
        source = f"external:gateway:test:dm:{session}:{client.id}"
        old = gateway.push(session, moved, kind="message", source=source, user_message_attachments=kept)
        await client.seq(old)

        shown = [(event["seq"], event["payload"]["content"]) for event in client.named("message", "final")]
        for messages in (
            (await client.request("sessions.history", limit=200))["messages"],
            (await client.request("sessions.switch", sessionId=session))["recentMessages"],
            json.loads(get(gateway, f"/api/v1/agent/history?threadId={session}&limit=200"))["messages"],
        ):
            shown += [(message["seq"], message["content"]) for message in messages]
        for seq, content in shown:
            if seq in pushed:
                assert content == pushed[seq], (seq, content)
            if seq == old:
                url = content[0]["url"]
                assert "token=" not in url or url.startswith(gateway.url + path + "?"), url
        assert {seq for seq, _ in shown} >= {old, *pushed}


async def an_attachment_goes_with_the_last_session_that_shows_it():
    with Gateway() as gateway:
        client = await gateway.client()
        stored, unsent = upload(gateway, PNG), upload(gateway, b"for later")
        part = {"type": "binary", "mimeType": "image/png", "url": stored["url"]}
        one, two = [(await client.request("sessions.new"))["sessionId"] for _ in range(2)]
        await client.request("agent", sessionId=one, message="look")
        for session in one, two:
            await client.request("agent", sessionId=session, message=[part])
        [_, shown] = (await client.request("sessions.history", sessionId=one))["messages"]
        early = (await client.request("sessions.fork", sessionId=one, before=shown["id"]))["sessionId"]
        fork = (await client.request("sessions.fork", sessionId=one))["sessionId"]
        # A message pushed by another program does not own the attachments that it names.
        metadata = {"user_message_attachments": {key: stored[key] for key in ("bucket", "path", "mime_type")}}
        gateway.push(early, [part], kind="message", source="external:mail:main:dm:x:bob", **metadata)
        forged = (await client.request("sessions.fork", sessionId=early))["sessionId"]

        for session in one, two:
            await client.request("sessions.delete", sessionId=session)
            assert fetch(stored["url"])[:2] == (200, PNG)
        [*_, said] = (await client.request("sessions.history", sessionId=fork))["messages"]
        assert fetch(said["content"][0]["url"])[:2] == (200, PNG)
        await client.request("sessions.delete", sessionId=fork)
        assert fetch(stored["url"])[0] == fetch(said["content"][0]["url"])[0] == 404
        left = [path.name for path in (gateway.root / "storage" / "attachments").iterdir()]
        assert left == [unsent["path"].split("/")[0]], left
        assert "deleted" in await client.refused("agent", sessionId=early, message=[part])

        # An upload that was not sent belongs to no session yet.
        for session in early, forged:
            await client.request("sessions.delete", sessionId=session)
        assert fetch(unsent["url"])[:2] == (200, b"for later")


def inline(gateway, run_id, data, thread="pictures"):
    """Sends a message with a file in it. Returns the status."""
    part = {"type": "binary", "mimeType": "application/octet-stream", "data": base64.b64encode(data).decode()}
    body = {"threadId": thread, "runId": run_id, "messages": [{"id": run_id, "role": "user", "content": [part]}]}
    try:
        get(gateway, "/api/v1/agent/run", {"Content-Type": "application/json"}, json.dumps(body).encode())
        return 200
    except urllib.error.HTTPError as e:
        return e.code


def with_small_files(kills):
    """Files are limited to 64 KiB; a larger write kills the process, or fails as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL if kills else signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, 64 * 1024))


async def a_file_that_could_not_be_stored_can_be_sent_again():
    data = os.urandom(300_000)
    for kills in True, False:
        with Gateway("--agent", "cat") as gateway:
            # There is a session, and an attachment that fits.
            assert inline(gateway, "r0", PNG) == 200
            files = lambda: [path for path in gateway.root.glob("storage/**/*") if path.is_file()]
            before = set(files())
            gateway.kill()
            gateway.preexec = lambda: with_small_files(kills)
            gateway.restart()
            try:
                assert inline(gateway, "r1", data) == 507 and not kills
            except (OSError, http.client.HTTPException):
                assert kills and gateway.process.wait(PATIENCE) == -signal.SIGXFSZ
            gateway.kill()
            gateway.preexec = None
            gateway.restart()
            assert inline(gateway, "r2", data) == inline(gateway, "r3", data) == 200
            new = [path for path in files() if path not in before and path.parent.name != ".sessions"]
            # It is there once, whole, and nothing else is.
            assert [path.read_bytes() == data for path in new] == [True], new
            # A file of the same name and length is not the same content.
            new[0].write_bytes(bytes(len(data)))
            assert inline(gateway, "r4", data) == 200 and new[0].read_bytes() == data


async def many_send_the_same_file_at_once():
    with Gateway("--agent", "cat") as gateway:
        assert inline(gateway, "r0", PNG) == 200
        for turn in range(10):
            data = os.urandom(2_000_000)
            sent = [asyncio.to_thread(inline, gateway, f"r{turn}-{n}", data) for n in range(8)]
            assert await asyncio.gather(*sent) == [200] * 8
            found = [path for path in gateway.root.glob("storage/**/*") if path.is_file() and path.stat().st_size == len(data)]
            assert data in [path.read_bytes() for path in found]
            assert not list(gateway.root.glob("storage/**/.draft*"))


async def what_has_had_no_session_for_a_day_is_deleted():
    with Gateway() as gateway:
        client = await gateway.client()
        names = ["sent", "unsent", "orphaned", "new"]
        stored = {name: upload(gateway, name.encode()) for name in names}
        sessions = {}
        for name in "sent", "orphaned":
            part = {"type": "binary", "mimeType": "text/plain", "url": stored[name]["url"]}
            sessions[name] = (await client.request("sessions.new"))["sessionId"]
            await client.request("agent", sessionId=sessions[name], message=[part])
        await client.close()
        gateway.stop()
        shutil.rmtree(gateway.root / sessions["orphaned"])
        folders = {name: (gateway.root / "storage" / "attachments" / stored[name]["path"]).parent for name in names}
        earlier = time.time() - 25 * 3600
        for name in "sent", "unsent", "orphaned":
            os.utime(folders[name] / ".sessions", (earlier, earlier))
        # The remains of a deletion that a crash interrupted.
        (folders["new"].parent / ".deleted-x").mkdir()
        gateway.restart()
        await until(lambda: len(list(folders["new"].parent.iterdir())) == 2)
        for name in names:
            status = 200 if name in ("sent", "new") else 404
            assert fetch(stored[name]["url"])[0] == status, name


async def what_is_uploaded_is_what_its_bytes_say():
    with Gateway() as gateway:
        for data, name, kind in [
            (PNG, "x.html", "image/png"), (b"<html><script>1</script>", "x.png", "text/plain"),
            (b"\0\1\2", "x.txt", "application/octet-stream"), (b"%PDF-1.7\n", "../../x", "application/pdf"),
            (b"", "..", "text/plain"), ("ä".encode() * 3000, "\"; x=\"", "text/plain"),
        ]:
            stored = upload(gateway, data, name)
            assert stored["mime_type"] == kind and ".." not in stored["path"], stored
            status, back, headers = fetch(stored["url"])
            assert (status, back) == (200, data) and headers["Content-Type"] == kind
        whole = bytes(25 * 1024 * 1024)
        assert upload(gateway, whole)["mime_type"] == "application/octet-stream"
        # A client that sends far too much can also read why it is refused.
        for more in b"x", whole:
            try:
                upload(gateway, whole + more)
                raise AssertionError("too large, and taken")
            except urllib.error.HTTPError as e:
                assert e.code == 413 and json.loads(e.read())["error"]
        assert "token=" not in gateway.output()


if __name__ == "__main__":
    run(globals())
