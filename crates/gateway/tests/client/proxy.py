"""The gateway behind a proxy with TLS, configured exactly as docs/SERVE.md shows."""

import asyncio
import http.client
import json
import os
import pathlib
import re
import shutil
import socket
import ssl
import subprocess
import tempfile
import time

import websockets

from attachments import PNG, until
from harness import PATIENCE, Gateway, fast_clock, run

PAGE = (pathlib.Path(os.environ["DOCS"]) / "SERVE.md").read_text()
CHAT = os.environ["THREAD_CHAT"]
# How often the agent prints something, and how soon that must arrive, in seconds.
PAUSE, SOON = 0.1, 0.1


def block(language):
    """The page's block in this language."""
    return re.search(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S)[1]


def free_port():
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return any_port.getsockname()[1]


def certify(folder):
    """Makes a certificate authority, and a certificate of it for localhost."""
    openssl = lambda *args: subprocess.run(["openssl", *args], cwd=folder, check=True, capture_output=True)
    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    openssl("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=an authority", "-days", "2")
    openssl("req", *new, "-keyout", "key.pem", "-out", "request.pem", "-subj", "/CN=localhost",
            "-addext", "subjectAltName=DNS:localhost")
    openssl("x509", "-req", "-in", "request.pem", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
            "-copy_extensions", "copy", "-out", "certificate.pem", "-days", "2")


class Proxied:
    """A gateway, and a proxy in front of it. `seconds` is the proxy's timeout for the gateway, if not its default."""

    def __init__(self, name, *options, env=None, seconds=None):
        self.scratch = tempfile.TemporaryDirectory(prefix="thread-proxy-")
        self.dir, self.port = pathlib.Path(self.scratch.name), free_port()
        certify(self.dir)
        self.url = f"https://localhost:{self.port}"
        self.gateway = Gateway("--public-url", self.url, "--trusted-proxy", "127.0.0.1", *options, env=env)
        self.context = ssl.create_default_context(cafile=self.dir / "ca.pem")
        self.process = {"nginx": self.nginx, "caddy": self.caddy}[name](seconds)

    def nginx(self, seconds):
        server = block("nginx").replace("listen 443", f"listen {self.port}").replace("chat.example.org;", "localhost;")
        server = re.sub(r"/etc/letsencrypt/\S+/fullchain.pem", "certificate.pem", server)
        server = re.sub(r"/etc/letsencrypt/\S+/privkey.pem", "key.pem", server)
        server = server.replace("127.0.0.1:3336", f"127.0.0.1:{self.gateway.port}")
        paths = "".join(f"{name}_temp_path {name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        timeout = f"proxy_read_timeout {seconds}s;" if seconds else ""
        (self.dir / "nginx.conf").write_text(
            f"daemon off; master_process off; pid pid; error_log error.log;"
            f"events {{}} http {{ access_log off; {timeout} {paths} {server} }}"
        )
        return self.run(["nginx", "-p", self.dir, "-c", "nginx.conf", "-e", self.dir / "error.log"])

    def caddy(self, _):
        site = block("caddyfile").replace("chat.example.org {", f"{self.url} {{\n    tls certificate.pem key.pem")
        site = site.replace("127.0.0.1:3336", f"127.0.0.1:{self.gateway.port}")
        (self.dir / "Caddyfile").write_text("{\n    admin off\n    auto_https disable_redirects\n}\n" + site)
        return self.run(["caddy", "run", "--config", "Caddyfile"])

    def run(self, command):
        env = {"PATH": os.environ["PATH"] + ":/usr/sbin", "HOME": str(self.dir)}
        with open(self.dir / "output", "wb") as output:
            return subprocess.Popen(command, cwd=self.dir, env=env, stdout=output, stderr=output)

    async def __aenter__(self):
        self.gateway.__enter__()
        try:
            await until(self.answers)
        except BaseException:
            self.end(True)
            raise
        return self

    def answers(self):
        assert self.process.poll() is None, self.output()
        try:
            return self.ask("/healthz")[0] == 200
        except OSError:
            return False

    async def __aexit__(self, failed, *_):
        self.end(failed)

    def end(self, failed):
        self.process.terminate()
        self.process.wait(PATIENCE)
        if failed:
            print(self.output())
        self.gateway.__exit__(failed)
        self.scratch.cleanup()

    def output(self):
        logs = [self.dir / name for name in ("output", "error.log")]
        return "".join(log.read_text() for log in logs if log.exists())

    def ask(self, path, method="GET", body=None, source="127.0.0.1", **headers):
        """Sends a request. Returns the status, the headers and the body."""
        connection = http.client.HTTPSConnection(
            "localhost", self.port, timeout=PATIENCE, context=self.context, source_address=(source, 0))
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()

    def bearer(self):
        return {"Authorization": "Bearer " + self.gateway.token}

    def dial(self, source=None, **headers):
        """Opens a WebSocket, as `Client.connect` wants it."""
        return lambda _: websockets.connect(
            self.url.replace("https", "wss") + "/ws", ssl=self.context, additional_headers=headers, max_size=None,
            open_timeout=PATIENCE, ping_interval=None, proxy=None, **({"local_addr": (source, 0)} if source else {}),
        )

    async def client(self, **headers):
        return await self.gateway.client(dial=self.dial(Origin=self.url, **headers))


def has(program):
    if shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin"):
        return True
    print(f"SKIPPED: needs {program}")
    return False


def prompt(delays):
    """Whether tokens arrived at once, and not all of them at the end. Other programs may delay some."""
    ordered = sorted(delays)
    print(f"said and seen within {ordered[0] * 1000:.0f} to {ordered[-1] * 1000:.0f} ms, half of it within "
          f"{ordered[len(ordered) // 2] * 1000:.0f} ms")
    return len(delays) > 10 and min(delays[: len(delays) // 2]) < SOON


async def works_behind(name):
    talk = f"while read line; do for n in $(seq 20); do date +%s.%N; sleep {PAUSE}; done; done"
    async with Proxied(name, "--agent", f"sh -c '{talk}'") as proxied:
        # Tokens arrive at once, by WebSocket and as a stream over HTTP.
        client = await proxied.client()
        seen, known = [], len(client.events)
        await client.request("agent", message="go\n")
        while True:
            event = await client.wait(lambda e: e["event"] in ("token", "final"), after=known)
            known = client.events.index(event) + 1
            if event["event"] == "final":
                break
            seen.append(time.time() - float(event["payload"]["content"].split()[-1]))
        assert prompt(seen), seen
        body = {"threadId": "t", "runId": "r", "messages": [{"id": "m", "role": "user", "content": "go\n"}]}
        delays, kinds = await asyncio.to_thread(stream, proxied, json.dumps(body))
        assert prompt(delays) and kinds[0] == "RUN_STARTED" and kinds[-1] == "RUN_FINISHED", (delays, kinds)

        # All URLs that are handed out have the public address.
        assert proxied.gateway.link == f"{proxied.url}/#token={proxied.gateway.token}"
        status, headers, _ = proxied.ask("/api/v1/login", "POST", Origin=proxied.url, **proxied.bearer())
        assert status == 204 and headers["Set-Cookie"].endswith("; Secure")
        by_cookie = await proxied.gateway.client(
            token=False, dial=proxied.dial(Origin=proxied.url, Cookie=headers["Set-Cookie"].split(";")[0]))
        await by_cookie.request("status")
        # The largest attachment allowed, and a larger one.
        for size, expected in (24 << 20, 200), (28 << 20, 413):
            status, told = upload(proxied, PNG + bytes(size))
            assert status == expected, (size, status, told)
        file = upload(proxied, PNG)[1]
        assert file["url"].startswith(proxied.url + "/storage/"), file
        parts = [{"type": "binary", "mimeType": "image/png", "url": file["url"]}]
        session = (await client.request("agent", message=parts))["sessionId"]
        status, _, history = proxied.ask(f"/api/v1/agent/history?threadId={session}", **proxied.bearer())
        [url] = re.findall(r'"(https?://[^"]*/storage/[^"]*)"', json.dumps(json.loads(history)["messages"][-1]["content"]))
        assert url.startswith(proxied.url + "/") and proxied.ask(url.removeprefix(proxied.url))[2] == PNG
        # A page of another origin, and another host name.
        assert proxied.ask("/metrics", Origin="https://evil.example", **proxied.bearer())[0] == 403
        assert proxied.ask("/healthz")[::2] == (200, b"ok\n")

        # `thread chat`, with the authority trusted by the system, named, and unknown.
        chat = lambda *args, **env: subprocess.run(
            [CHAT, "--url", proxied.url, "--sessions", *args], capture_output=True, text=True, timeout=PATIENCE,
            env={"PATH": os.environ["PATH"], "HOME": str(proxied.dir), "THREAD_TOKEN": proxied.gateway.token, **env})
        authority = str(proxied.dir / "ca.pem")
        for done in chat("--ca", authority), chat(SSL_CERT_FILE=authority):
            assert done.returncode == 0 and session in done.stdout, done
        done = chat()
        assert done.returncode == 1 and "is not trusted" in done.stderr, done
        await client.request("agent.cancel", runId=(await client.wait("message", after=known))["payload"]["runId"])


def stream(proxied, body):
    """Posts a run. Returns how long after it was said each token came, and the kinds of all events."""
    connection = http.client.HTTPSConnection("localhost", proxied.port, timeout=PATIENCE, context=proxied.context)
    connection.request("POST", "/api/v1/agent/run", body, {"Content-Type": "application/json", **proxied.bearer()})
    answer, delays, kinds = connection.getresponse(), [], []
    assert answer.status == 200, answer.read()
    assert answer.headers["Cache-Control"] == "no-cache, no-transform", answer.headers
    for line in answer:
        if line.startswith(b"data: "):
            event = json.loads(line[6:])
            kinds.append(event["type"])
            if event["type"] == "TEXT_MESSAGE_CONTENT":
                delays.append(time.time() - float(event["delta"].split()[-1]))
    return delays, kinds


def upload(proxied, data):
    head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="f.png"\r\n\r\n'
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    body = head + data + b"\r\n--b--\r\n"
    status, _, told = proxied.ask("/api/v1/agent/attachments", "POST", body, **kind, **proxied.bearer())
    return status, json.loads(told) if status == 200 else told


async def behind_nginx_everything_works_with_the_lines_of_the_page():
    if has("nginx") and has("openssl"):
        await works_behind("nginx")


async def behind_caddy_everything_works_with_the_lines_of_the_page():
    if has("caddy") and has("openssl"):
        await works_behind("caddy")


async def a_quiet_connection_stays_open_through_the_proxy():
    if not (has("nginx") and has("openssl") and (env := fast_clock(20))):
        return
    # As if the proxy waited for a minute, which is its default.
    async with Proxied("nginx", env=env, seconds=3) as proxied:
        client = await proxied.client()
        done, _ = await asyncio.wait([client.closed], timeout=6)
        assert not done, client.closed.result()
        await client.request("status")


async def limits_are_for_the_clients_of_a_proxy():
    if not (has("nginx") and has("openssl")):
        return
    async with Proxied("nginx") as proxied:
        quiet = await proxied.gateway.client(connect=False, dial=proxied.dial(source="127.0.0.3"))
        told = lambda: re.findall(r"refused address=(\S+) .*took its place", proxied.gateway.output())
        crowd = []
        # More than one address may have. They are few enough to leave room for all others.
        while len(crowd) < 200 and not told():
            crowd.append(await proxied.gateway.client(connect=False, dial=proxied.dial(source="127.0.0.2")))
        assert set(told()) == {"127.0.0.2"} and len(crowd) < 200, (told(), len(crowd))
        await crowd[0].ends()
        # It may have been closed for being silent in the meantime, but its place was not taken.
        assert not quiet.closed.done() or quiet.closed.result()[0] == 1008, quiet.closed
        assert proxied.ask("/metrics", source="127.0.0.4")[0] == 401
        await until(lambda: 'refused address=127.0.0.4 route="/metrics"' in proxied.gateway.output())


if __name__ == "__main__":
    run(globals())
