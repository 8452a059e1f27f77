"""Refused requests: with which code, and without effect on a connected client."""

import asyncio
import http.client
import json
import os
import pathlib
import random
import re
import shutil
import stat
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse

import websockets

from agui import get
from attachments import PNG, upload
from harness import LONG, SERVE, Gateway, run



def ask(gateway, path, method="GET", body=None, **headers):
    """Sends a request. Returns the status, the headers and the body."""
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    if body is not None:
        connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body)
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read()


def login(gateway, **headers):
    """Logs in with the token. Returns the cookie, as a browser sends it."""
    status, headers, _ = ask(gateway, "/api/v1/login", "POST", b"", Authorization="Bearer " + gateway.token, **headers)
    assert status == 204, status
    # 30 days.
    assert "Max-Age=2592000" in headers["Set-Cookie"], headers["Set-Cookie"]
    return headers["Set-Cookie"].split(";")[0]


def replace_token(gateway, token):
    """Replaces the token by another one."""
    draft = gateway.root / "draft"
    draft.write_text(token)
    draft.chmod(0o600)
    draft.rename(gateway.root / "token")


async def upgrade(gateway, **headers):
    """The status of a WebSocket handshake."""
    try:
        async with websockets.connect(gateway.ws, additional_headers=headers, proxy=None):
            return 101
    except websockets.InvalidStatus as e:
        return e.response.status_code


async def the_page_exchanges_the_token_for_a_cookie_and_the_cookie_lets_in():
    with Gateway() as gateway:
        assert stat.S_IMODE((gateway.root / "token").stat().st_mode) == 0o600
        assert len(gateway.token) == 64 and (gateway.root / "address").read_text().strip() == gateway.url
        assert gateway.link == f"{gateway.url}/#token={gateway.token}"
        # The page contains no secret, and a token in its address does nothing.
        for path in "/", "/?token=" + gateway.token:
            status, headers, page = ask(gateway, path)
            assert status == 200 and b"<html" in page and "Set-Cookie" not in headers
            assert "default-src 'none'" in headers["Content-Security-Policy"]
        login = lambda **headers: ask(gateway, "/api/v1/login", "POST", b"", **headers)
        assert login()[0] == 401 and login(Authorization="Bearer wrong")[0] == 401
        status, headers, _ = login(Authorization="Bearer " + gateway.token)
        cookie = headers["Set-Cookie"]
        assert status == 204 and "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Secure" not in cookie
        cookie = cookie.split(";")[0]
        assert ask(gateway, "/metrics", Cookie=cookie)[0] == 200
        assert ask(gateway, "/metrics", Cookie=cookie.split("=")[0] + "=wrong")[0] == 401
        client = await gateway.client(token=False, headers={"Cookie": cookie})
        await client.request("status")
        client = await gateway.client(token=False, headers={"Authorization": "Bearer " + gateway.token})
        await client.request("status")


async def a_login_has_a_value_of_its_own_and_ends_when_it_is_logged_out():
    with Gateway() as gateway, Gateway(root=gateway.root) as other:
        cookie = login(gateway)
        name, _, value = cookie.partition("=")
        assert name == f"thread_{gateway.port}" and gateway.token not in cookie and len(value) == 64, cookie
        # No file in the root contains it, and it is not the token.
        files = [path for path in gateway.root.rglob("*") if path.is_file()]
        assert not [path for path in files if value in str(path) or value.encode() in path.read_bytes()]
        [kept] = (gateway.root / "logins").iterdir()
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (kept.parent, kept)]
        assert modes == [0o700, 0o600] and kept.stat().st_size == 0, modes
        assert ask(gateway, "/metrics", Authorization="Bearer " + value)[0] == 401
        bad = await gateway.client(connect=False)
        bad.send("connect", {"version": "1", "clientType": "t", "token": value})
        assert await bad.ends() == 1008
        # It is valid for every gateway on the root, and after a restart.
        at = lambda one: ask(one, "/metrics", Cookie=f"thread_{one.port}={value}")[0]
        assert at(gateway) == at(other) == 200
        gateway.kill()
        gateway.restart()
        assert at(gateway) == 200
        # Logging in again keeps it; another browser gets another value.
        assert login(gateway, Cookie=cookie) == cookie != login(gateway)

        logout = lambda **headers: ask(gateway, "/api/v1/logout", "POST", b"", **headers)
        assert logout()[0] == logout(Cookie=name + "=wrong")[0] == 401
        here = await gateway.client(token=False, headers={"Cookie": cookie})
        there = await other.client(token=False, headers={"Cookie": f"thread_{other.port}={value}"})
        stays = await gateway.client()
        status, headers, _ = logout(Cookie=cookie)
        assert status == 204 and headers["Set-Cookie"].startswith(name + "=;") and "Max-Age=0" in headers["Set-Cookie"]
        assert at(gateway) == at(other) == 401
        assert await here.ends() == await there.ends() == 1008
        await stays.request("status")
    with Gateway("--read-only") as gateway:
        cookie = login(gateway)
        assert ask(gateway, "/metrics", Cookie=cookie)[0] == 200
        assert ask(gateway, "/api/v1/logout", "POST", b"", Cookie=cookie)[0] == 204
        assert ask(gateway, "/metrics", Cookie=cookie)[0] == 401


async def another_token_counts_at_once():
    with Gateway() as gateway, Gateway(root=gateway.root) as other:
        by_token = lambda one, token: ask(one, "/metrics", Authorization="Bearer " + token)[0]
        cookie, old, new = login(gateway), gateway.token, "another-token-" + "x" * 20
        clients = [
            await gateway.client(), await other.client(),
            await gateway.client(token=False, headers={"Authorization": "Bearer " + old}),
            await gateway.client(token=False, headers={"Cookie": cookie}),
        ]
        session = (await clients[0].request("sessions.new"))["sessionId"]
        path = f"/api/v1/threads/{session}/events/stream"
        streams = [asyncio.create_task(asyncio.to_thread(ask, gateway, path, **headers))
                   for headers in ({"Authorization": "Bearer " + old}, {"Cookie": cookie})]
        replace_token(gateway, new)
        for one in gateway, other:
            assert (by_token(one, old), by_token(one, new)) == (401, 200)
        assert ask(gateway, "/metrics", Cookie=cookie)[0] == 401
        # Connections opened with it are closed.
        assert [await client.ends() for client in clients] == [1008] * len(clients)
        for status, _, _ in await asyncio.gather(*streams):
            assert status in (200, 401), status
        gateway.token = new
        cookie, client = login(gateway), await gateway.client()
        # Without a token, every client is refused.
        (gateway.root / "token").unlink()
        assert by_token(gateway, new) == by_token(gateway, "") == ask(gateway, "/metrics", Cookie=cookie)[0] == 401
        assert await client.ends() == 1008 and ask(gateway, "/healthz")[0] == 200
        replace_token(gateway, new)
        assert by_token(gateway, new) == ask(gateway, "/metrics", Cookie=cookie)[0] == 200


async def nothing_works_without_the_token():
    with Gateway() as gateway:
        good = await gateway.client()
        for path in "/metrics", "/api/v1/agent/history?threadId=x", "/api/v1/agent/events?threadId=x", "/nowhere":
            assert ask(gateway, path)[0] == 401, path
        assert ask(gateway, "/metrics", Authorization="Bearer wrong")[0] == 401
        assert ask(gateway, "/metrics", Authorization="Basic " + gateway.token)[0] == 401
        assert ask(gateway, "/api/v1/agent/run", "POST", b"{}")[0] == 401
        assert ask(gateway, "/api/v1/agent/attachments", "POST", b"{}")[0] == 401
        assert ask(gateway, "/healthz")[::2] == (200, b"ok\n")
        for headers, params in [
            ({}, {}), ({}, {"token": ""}), ({}, {"token": gateway.token[:-1]}), ({"Authorization": "Bearer x"}, {}),
            ({"Authorization": "Bearer " + gateway.token}, {"token": "wrong"}),
            ({"Cookie": f"thread_{gateway.port}=wrong"}, {}),
        ]:
            bad = await gateway.client(connect=False, headers=headers)
            answer = bad.send("connect", {"version": "1", "clientType": "t", **params})
            assert await bad.ends() == 1008, (headers, params)
            assert "token" in answer.result()["error"]
        # However many wrong ones there were, the right one is accepted without a delay.
        for _ in range(20):
            assert ask(gateway, "/metrics")[0] == 401
        await good.request("status")
        await (await gateway.client()).request("status")


async def other_origins_and_other_names_are_refused():
    with Gateway("--origin", "https://chat.example.org") as gateway:
        good = await gateway.client()
        auth = {"Authorization": "Bearer " + gateway.token}
        own = f"http://127.0.0.1:{gateway.port}"
        for origin, admitted in [
            (own, True), ("https://chat.example.org", True), ("http://chat.example.org", False),
            ("https://evil.example", False), ("null", False), (f"http://127.0.0.1:{gateway.port + 1}", False),
            (own + ".evil.example", False),
        ]:
            assert await upgrade(gateway, Origin=origin) == (101 if admitted else 403), origin
            assert ask(gateway, "/metrics", Origin=origin, **auth)[0] == (200 if admitted else 403), origin
        # A foreign host name that resolves to this machine.
        rebound = {"Host": f"evil.example:{gateway.port}", "Origin": f"http://evil.example:{gateway.port}", **auth}
        for path in "/", "/metrics", "/ws", "/storage/v1/object/sign/a/b":
            assert ask(gateway, path, **rebound)[0] == 403, path
            assert ask(gateway, path, Host=f"evil.example:{gateway.port}")[0] == 403, path
        # Load balancers use host names of their own.
        assert ask(gateway, "/healthz", Host="10.0.0.7.example")[::2] == (200, b"ok\n")
        # One parser takes it for a port, another for a user name.
        for host in "127.0.0.1:80@evil.example", "127.0.0.1:http", "127.0.0.1:99999", "[::1]:1@evil.example", "localhost:":
            assert ask(gateway, "/metrics", Host=host, **auth)[0] in (400, 403), host
        assert ask(gateway, "/metrics", Host="chat.example.org", **auth)[0] == 200
        assert ask(gateway, "/metrics", Host=f"localhost:{gateway.port}", **auth)[0] == 200
        await good.request("status")


async def pages_of_a_named_origin_need_the_token_and_get_no_cookies():
    page = {"Origin": "https://app.example.org"}
    with Gateway("--origin", page["Origin"]) as gateway:
        auth = {"Authorization": "Bearer " + gateway.token}
        asked = "authorization,content-type,last-event-id,mcp-session-id,mcp-protocol-version"
        preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": asked}
        allowed = lambda headers: headers["Access-Control-Allow-Origin"]
        for path in "/api/v1/agent/run", "/api/v1/agent/attachments", "/api/v1/agent/events?threadId=x":
            status, headers, _ = ask(gateway, path, "OPTIONS", **page, **preflight)
            assert status == 200 and allowed(headers) == page["Origin"] and headers["Access-Control-Max-Age"]
            assert "POST" in headers["Access-Control-Allow-Methods"]
            assert headers["Access-Control-Allow-Headers"].lower() == asked
            headers = ask(gateway, path, "OPTIONS", Origin="https://evil.example", **preflight)[1]
            assert allowed(headers) is None, path
        # The page may read the answer, refusals included, and no cache gives one page's answer to another.
        for status, path, headers in [
            (200, "/metrics", auth), (401, "/metrics", {}), (404, "/nowhere", auth), (403, "/storage/v1/object/sign/a/b", {}),
        ]:
            found, headers, _ = ask(gateway, path, **page, **headers)
            assert found == status and allowed(headers) == page["Origin"], (path, found)
            assert "origin" in headers["Vary"].lower() and headers["Access-Control-Allow-Credentials"] is None
        status, headers, _ = ask(gateway, "/metrics", Origin="https://evil.example", **auth)
        assert status == 403 and allowed(headers) is None and "origin" in headers["Vary"].lower()
        # The cookie is for the gateway's own pages, also where a browser sends it from another one.
        cookie = {"Cookie": login(gateway)}
        assert ask(gateway, "/metrics", **cookie)[0] == 200
        assert ask(gateway, "/metrics", **page, **cookie)[0] == 401
        for site, expected in ("same-origin", 200), ("none", 200), ("same-site", 401), ("cross-site", 401):
            assert ask(gateway, "/metrics", Sec_Fetch_Site=site, **cookie)[0] == expected, site
        bad = await gateway.client(connect=False, headers={**page, **cookie})
        bad.send("connect", {"version": "1", "clientType": "t"})
        assert await bad.ends() == 1008
        good = await gateway.client(headers={**page, **cookie})
        await good.request("status")
        # Behind a proxy, a named origin may be the gateway's own.
        assert ask(gateway, "/metrics", Host="app.example.org", **page, **cookie)[0] == 200


async def the_public_url_is_where_clients_come():
    public = "https://chat.example.org"
    for option, fails in ("--public-url", public + "/x"), ("--public-url", "x"), ("--trusted-proxy", "x"), ("--log", "x"):
        with tempfile.TemporaryDirectory() as root:
            done = subprocess.run([SERVE, "--root", root, option, fails], capture_output=True, text=True, timeout=60)
            assert done.returncode == 2 and done.stderr.startswith("Error: ") and " - " in done.stderr, done
    with Gateway("--public-url", public + "/") as gateway:
        assert gateway.link == f"{public}/#token={gateway.token}"
        # Programs on this machine still find the gateway itself.
        assert gateway.url == f"http://127.0.0.1:{gateway.port}"
        auth = {"Authorization": "Bearer " + gateway.token}
        # Proxies differ in the Host that they send.
        for host in "chat.example.org", f"127.0.0.1:{gateway.port}":
            assert ask(gateway, "/metrics", Host=host, Origin=public, **auth)[0] == 200
            for foreign in "http://chat.example.org", "https://evil.example":
                assert ask(gateway, "/metrics", Host=host, Origin=foreign, **auth)[0] == 403
        assert await upgrade(gateway, Origin=public) == 101
        status, headers, _ = ask(gateway, "/api/v1/login", "POST", b"", Host="chat.example.org", Origin=public, **auth)
        assert status == 204 and headers["Set-Cookie"].endswith("; Secure")
        assert upload(gateway, PNG)["url"].startswith(public + "/storage/")


async def every_error_over_http_is_json():
    with Gateway() as gateway:
        auth = {"Authorization": "Bearer " + gateway.token}
        json_body = {"Content-Type": "application/json", **auth}
        for status, path, method, body, headers in [
            (400, "/ws", "GET", None, {}),
            (400, "/api/v1/agent/run", "POST", b"{", json_body),
            (400, "/api/v1/agent/run", "POST", b"{}", json_body),
            (400, "/api/v1/agent/history", "GET", None, auth),
            (400, "/api/v1/agent/attachments", "POST", b"x", auth),
            (401, "/metrics", "GET", None, {}),
            (403, "/metrics", "GET", None, {"Origin": "https://evil.example"}),
            (403, "/storage/v1/object/sign/a/b?token=x", "GET", None, {}),
            (404, "/nowhere", "GET", None, auth),
            (404, "/api/v1/agent/history?threadId=x", "GET", None, auth),
            (405, "/metrics", "DELETE", None, auth),
            (405, "/", "POST", b"", {}),
            (413, "/api/v1/agent/run", "POST", b" " * (9 << 20), json_body),
            (415, "/api/v1/agent/run", "POST", b"{}", auth),
        ]:
            found, answered, text = ask(gateway, path, method, body, **headers)
            assert found == status and answered["Content-Type"] == "application/json", (path, found, text)
            told = json.loads(text)
            assert list(told) == ["error", "code"] and all(told.values()) and len(text) == int(answered["Content-Length"]), told
            assert (answered["WWW-Authenticate"] == "Bearer") == (status == 401)
        assert ask(gateway, "/metrics", "DELETE", **auth)[1]["Allow"]
        gateway.root.rename(str(gateway.root) + "-away")
        assert json.loads(ask(gateway, "/healthz")[2])["error"]
        pathlib.Path(str(gateway.root) + "-away").rename(gateway.root)


async def without_a_token_only_on_a_loopback_address():
    refused = lambda *options: subprocess.run([SERVE, *options], capture_output=True, text=True, timeout=60)
    with tempfile.TemporaryDirectory() as root:
        done = refused("--root", root, "--no-auth", "--listen", "0.0.0.0:0")
        assert done.returncode == 2 and done.stderr.startswith("Error: ") and " - " in done.stderr, done
        for code, *options in [
            (2, "--nonsense"), (2, "--no-auth", "--public-url", "https://chat.example.org"), (2, "--origin", "x"), (2, "--agent", " "), (2, "--listen", "x"), (2, "--storage", "s4://x"),
            (2, "--agent", "cat", "--protocol", "x"), (2, "--protocol", "acp"), (2, "--max-connections", "0"),
            (2, "--agent", "cat 'x"), (2, "--agent", "cat ("), (1, "--agent", "nowhere-to-be-found -x"),
            (1, "--agent", "/dev/null"), (1, "--root", "/dev/null"), (1, "--listen", "192.0.2.1:1"),
        ]:
            done = refused(*(() if "--root" in options else ("--root", root)), *options)
            [told] = done.stderr.splitlines()
            assert done.returncode == code and told.startswith("Error: ") and " - " in told, (options, done)
            assert not done.stdout, done
    with Gateway("--no-auth") as gateway:
        assert gateway.link.endswith("/") and not (gateway.root / "token").exists()
        client = await gateway.client()
        await client.request("status")
        assert ask(gateway, "/metrics")[0] == 200
        assert await upgrade(gateway, Origin="https://evil.example") == 403


async def a_root_that_vanishes_is_not_recreated_and_loses_nothing():
    with tempfile.TemporaryDirectory() as scratch:
        root = pathlib.Path(scratch) / "of" / "sessions"
        with Gateway(root=root, cwd=scratch) as gateway:
            assert stat.S_IMODE(root.stat().st_mode) == 0o700
            client = await gateway.client()
            session = (await client.request("agent", message="before"))["sessionId"]
            root.rename(scratch + "/elsewhere")
            for method, params in ("sessions.new", {}), ("sessions.list", {}), ("agent", {"message": "lost?"}):
                # Clients do not learn its path on the disk.
                assert scratch not in await client.refused(method, **params), method
            try:
                taken = upload(gateway, PNG)
                raise AssertionError(f"{taken} was stored, and the root is {'there' if root.exists() else 'gone'}")
            except urllib.error.HTTPError as e:
                assert e.code >= 500 and scratch not in e.read().decode()
            assert ask(gateway, "/healthz")[0] == 503 and not root.exists()
            assert "sessions.new: " in gateway.output() and str(root) in gateway.output()
            pathlib.Path(scratch + "/elsewhere").rename(root)
            assert ask(gateway, "/healthz")[0] == 200
            await client.request("sessions.new")
            await client.request("agent", sessionId=session, message="after")
            said = [event["content"] for event in gateway.events(session) if event["type"] == "message"]
            assert said == ["before", "after"], said


async def a_damaged_session_hinders_no_other():
    with Gateway() as gateway:
        client = await gateway.client()
        good, bad, linked = [(await client.request("sessions.new", title=name))["sessionId"] for name in "abc"]
        gateway.stop()
        for left in (gateway.root / bad).glob("events.db-*"):
            left.unlink()
        (gateway.root / bad / "events.db").write_bytes(b"garbage" * 5000)
        (gateway.root / linked / "events.db").unlink()
        (gateway.root / linked / "events.db").symlink_to(gateway.root / good / "events.db")
        gateway.start()
        client = await gateway.client()
        for session in bad, linked:
            for method in "sessions.switch", "sessions.history", "sessions.rename", "sessions.delete":
                told = await client.refused(method, sessionId=session, title="x")
                # The path is for the log.
                assert told and str(gateway.root) not in told, (method, told)
            assert str(gateway.root) not in await client.refused("agent", sessionId=session, message="x")
            status, _, told = ask(gateway, f"/api/v1/agent/history?threadId={session}",
                                  Authorization="Bearer " + gateway.token)
            assert status >= 400 and str(gateway.root).encode() not in told, told
        assert str(gateway.root / bad) in gateway.output()
        await client.request("agent", sessionId=good, message="needle")
        assert good in [s["id"] for s in (await client.request("sessions.list"))["sessions"]]
        assert [s["id"] for s in (await client.request("sessions.search", query="needle"))["sessions"]] == [good]
        assert (gateway.root / bad / "events.db").read_bytes() == b"garbage" * 5000
        assert ask(gateway, "/healthz")[0] == 200
        # If a session's directory is a symbolic link, its target is left alone.
        away = gateway.root / "away"
        (gateway.root / good).rename(away)
        (gateway.root / good).symlink_to(away)
        await client.request("sessions.delete", sessionId=good)
        assert (away / "events.db").exists() and not (gateway.root / good).exists()
        for session in bad, linked:
            shutil.rmtree(gateway.root / session)


async def a_root_that_others_may_write_is_refused():
    for mode, is_used in (0o700, True), (0o750, True), (0o755, True), (0o777, False), (0o1777, False), (0o772, False):
        with tempfile.TemporaryDirectory() as scratch:
            root = pathlib.Path(scratch) / "sessions"
            root.mkdir()
            root.chmod(mode)
            if is_used:
                with Gateway(root=root) as gateway:
                    await (await gateway.client()).request("agent", message="hello")
                    warned = [line for line in gateway.output().splitlines()
                              if line.startswith("Warning: ") and str(root) in line]
                    assert len(warned) == (1 if mode & 0o077 else 0), (oct(mode), gateway.output())
                    assert all(" - " in line for line in warned), warned
                continue
            command = [SERVE, "--root", root, "--listen", "127.0.0.1:0"]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=5)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"a root of mode {mode:o} is used") from None
            [told] = done.stderr.splitlines()
            assert done.returncode == 1 and told.startswith("Error: ") and " - " in told and str(root) in told, done
            assert not done.stdout and not list(root.iterdir()), (mode, list(root.iterdir()))


async def sessions_are_private():
    umask = os.umask(0o022)
    try:
        with Gateway("--agent", "cat") as gateway:
            os.umask(umask)
            client = await gateway.client()
            session = (await client.request("agent", message="hello"))["sessionId"]
            await client.wait("final")
            upload(gateway, PNG)
            body = {"threadId": "t", "runId": "r", "messages": [{"id": "m", "role": "user", "content": "hello"}]}
            get(gateway, "/api/v1/agent/run", {"Content-Type": "application/json"}, json.dumps(body).encode())
            found = {}
            for path in gateway.root.rglob("*"):
                at = path.lstat()
                expected = 0o700 if stat.S_ISDIR(at.st_mode) else 0o600
                if stat.S_IMODE(at.st_mode) & 0o077:
                    found[str(path.relative_to(gateway.root))] = oct(stat.S_IMODE(at.st_mode))
                if path.name in (session, "events.db", "events.jsonl"):
                    assert stat.S_IMODE(at.st_mode) == expected, (path, oct(at.st_mode))
            # The address is not secret.
            found.pop("address", None)
            assert not found, found
    finally:
        os.umask(umask)


def memory(gateway):
    status = open(f"/proc/{gateway.process.pid}/status").read()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1])


async def frames_that_make_no_sense_do_no_harm():
    end = time.monotonic() + float(os.environ.get("FUZZ_SECONDS", 30 * 60 if LONG else 4))
    dice = random.Random(int(os.environ.get("SEED", "1")))
    methods = ["agent", "agent.cancel", "sessions.list", "sessions.new", "sessions.switch", "sessions.history",
               "sessions.rename", "sessions.search", "sessions.delete", "permission.answer", "status", "connect", ""]
    keys = ["sessionId", "message", "limit", "offset", "title", "query", "date_filter", "after", "before", "runId",
            "requestId", "choice", "priority", "metadata", "idempotencyKey", "token", "version", "type", "id"]

    def value(sessions, depth=0):
        kinds = [None, True, 0, -1, 2**63, 1.5, "", "\0", "\u202e", "x" * dice.randrange(3000), "/" + "x" * 5, "//x",
                 "/history 5", "../..", "' OR 1=1 --", dice.choice(sessions or ["none"]), dice.random() * 10**9]
        if depth < 3 and dice.random() < 0.2:
            return [value(sessions, depth + 1) for _ in range(dice.randrange(4))]
        if depth < 3 and dice.random() < 0.2:
            return {dice.choice(keys): value(sessions, depth + 1) for _ in range(dice.randrange(4))}
        return dice.choice(kinds)

    with Gateway() as gateway:
        good = await gateway.client()
        await good.request("agent", message="hello")
        first, frames, closed = None, 0, 0
        while time.monotonic() < end:
            bad = await gateway.client(headers={})
            sessions = [s["id"] for s in (await good.request("sessions.list", limit=100))["sessions"]]
            # Few sessions, so that the disk does not dominate.
            for session in sessions[20:]:
                await good.request("sessions.delete", sessionId=session)
            for _ in range(60):
                params = {dice.choice(keys): value(sessions) for _ in range(dice.randrange(5))}
                frame = json.dumps({"type": "req", "id": value(sessions) if dice.random() < 0.02 else "0",
                                    "method": dice.choice(methods), "params": params})
                if dice.random() < 0.02:
                    at = dice.randrange(len(frame))
                    frame = frame[:at] + chr(dice.randrange(0x2FF)) + frame[at + 1:]
                try:
                    bad.answers["0"] = asyncio.get_running_loop().create_future()
                    await bad.socket.send(frame)
                    await asyncio.wait_for(bad.answers["0"], 30)
                except (websockets.ConnectionClosed, ConnectionError, KeyError):
                    closed += 1
                    break
                frames += 1
            await bad.close()
            await good.request("status")
            if first is None and frames > 500:
                first = memory(gateway)
        last = memory(gateway)
        assert first is None or last < first + 16_000, (first, last)
        assert gateway.process.poll() is None and "panicked" not in gateway.output()
        print(f"{frames} frames, {closed} connections closed, {first} KiB then {last} KiB")


def check_format(text):
    """Checks the format with the parser of Prometheus."""
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError:
        return print("SKIPPED: needs prometheus-client, of Python")
    families = list(text_string_to_metric_families(text))
    assert len(families) > 10
    for family in families:
        assert family.type in ("counter", "gauge") and family.documentation, family
        # What agents take is there once one has said so.
        assert family.samples or family.name.endswith(("_tokens", "_cost")), family
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter") and sample.value >= 0, sample


async def figures_are_those_of_the_sessions():
    with Gateway() as gateway:
        client = await gateway.client()
        session = (await client.request("sessions.new"))["sessionId"]
        gateway.fake_agent(session)
        runs = [(await client.request("agent", message=str(n)))["runId"] for n in range(4)]
        seqs = [(await client.wait(lambda e: e["payload"].get("content") == str(n)))["seq"] for n in range(4)]
        about = lambda n: {"run_id": runs[n], "reply_to": seqs[n]}
        gateway.ending(session, content="answer", **about(0))
        gateway.push(session, {"error": "no", "retryable": True}, "error", **about(1))
        gateway.ending(session, content={"error": "no", "retryable": False}, subtype="error", **about(1))
        gateway.push(session, {"status": "started", "attempt": 1}, "run", **about(2))

        def figures():
            text = get(gateway, "/metrics").decode()
            check_format(text)
            found = re.findall(r"^thread_gateway_(\w+)(?:\{outcome=\"(\w+)\"\})? (\S+)$", text, re.M)
            return {name + outcome: float(number) for name, outcome, number in found}

        now = figures()
        expected = {
            "connections": 1, "sessions": 1, "sessions_active": 1, "sessions_unread": 0, "runs_totalanswered": 1,
            "runs_totalfailed": 1, "runs_totalcancelled": 0, "runs_active": 1, "queue_length": 1,
        }
        assert {key: now[key] for key in expected} == expected, now
        await asyncio.sleep(1.1)
        gateway.ending(session, content="why", subtype="cancelled", **about(2))
        later = figures()
        assert later["runs_totalcancelled"] == 1 and later["runs_active"] == 0
        assert later["oldest_pending_seconds"] > now["oldest_pending_seconds"] + 1 > 1


if __name__ == "__main__":
    run(globals())
