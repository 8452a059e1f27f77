"""Pages of other origins in a real browser: admitted ones can do everything, others nothing."""

import asyncio
import base64
import contextlib
import http.server
import shutil
import threading

from attachments import PNG
from harness import PATIENCE, Gateway, run
from looking import Thread

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]

# The attempts of a page. Each returns what it got, or the browser's error.
TRIES = """
const { url, token, png, verbs } = given;
const auth = { Authorization: `Bearer ${token}` };
const tries = {
  async socket() {
    const socket = new WebSocket(url.replace('http', 'ws') + '/ws');
    const frames = [];
    await new Promise((done, failed) => {
      const send = (id, method, params) => socket.send(JSON.stringify({ type: 'req', id, method, params }));
      socket.onopen = () => { send('1', 'connect', { version: '1', clientType: 'page', token }); send('2', 'agent', { message: 'hello' }); };
      socket.onmessage = ({ data }) => { const frame = JSON.parse(data); frames.push(frame); if (frame.event === 'final') done(); };
      socket.onerror = () => failed(new Error('refused'));
    });
    socket.close();
    return frames.at(-1).payload.content;
  },
  async run() {
    const messages = [{ id: 'm', role: 'user', content: 'hello' }];
    const headers = { ...auth, 'Content-Type': 'application/json' };
    const answer = await fetch(`${url}/api/v1/agent/run`, { method: 'POST', headers, body: JSON.stringify({ threadId: 't', runId: 'r', messages }) });
    const text = await answer.text();
    return text.split('\\n').filter((line) => line.startsWith('data: ')).map((line) => JSON.parse(line.slice(6)).type).at(-1);
  },
  async resume() {
    const answer = await fetch(`${url}/api/v1/agent/history?threadId=t`, { headers: { ...auth, 'Last-Event-ID': '1', 'Mcp-Session-Id': 'x' } });
    return (await answer.json()).messages.length;
  },
  async attachment() {
    const form = new FormData();
    form.append('file', new Blob([Uint8Array.from(atob(png), (c) => c.charCodeAt(0))]), 'dot.png');
    const file = await (await fetch(`${url}/api/v1/agent/attachments`, { method: 'POST', headers: auth, body: form })).json();
    const image = new Image();
    image.src = file.url;
    await image.decode();
    const bytes = await (await fetch(file.url)).arrayBuffer();
    return [file.mime_type, image.naturalWidth, bytes.byteLength];
  },
  // An error can be read like any other answer.
  async error() {
    const answer = await fetch(`${url}/metrics`, { headers: { Authorization: 'Bearer wrong' } });
    return [answer.status, (await answer.json()).error];
  },
  // A browser that has the cookie sends it for pages on other ports, too.
  async cookie() {
    return (await fetch(`${url}/metrics`, { credentials: 'include' })).status;
  },
  async cookie_on_a_socket() {
    const socket = new WebSocket(url.replace('http', 'ws') + '/ws');
    return await new Promise((done, failed) => {
      socket.onopen = () => socket.send(JSON.stringify({ type: 'req', id: '1', method: 'connect', params: { version: '1', clientType: 'page' } }));
      socket.onclose = ({ code }) => (code === 1006 ? failed(new Error('refused')) : done(code));
    });
  },
  // Requests for which a browser asks nobody: what they do counts, not what the page sees.
  async unasked() {
    const body = new FormData();
    body.append('file', new Blob(['x']), 'unasked.txt');
    await fetch(`${url}/api/v1/agent/attachments`, { method: 'POST', mode: 'no-cors', credentials: 'include', body });
    const text = { method: 'POST', mode: 'no-cors', credentials: 'include', headers: { 'Content-Type': 'text/plain' } };
    await fetch(`${url}/api/v1/agent/run`, { ...text, body: '{"threadId":"unasked","runId":"r","messages":[{"id":"m","role":"user","content":"x"}]}' });
    for (const [verb, given] of verbs) {
      await fetch(`${url}/api/v1/threads/inbox/${verb}`, { ...text, body: JSON.stringify(given) });
      await fetch(`${url}/api/v1/threads/inbox/${verb}`, { ...text, headers: {}, body: new URLSearchParams(given) });
      // A form of the page's own, which may go anywhere.
      const form = Object.assign(document.createElement('form'), { method: 'POST', enctype: 'text/plain', target: 'answer', action: `${url}/api/v1/threads/inbox/${verb}` });
      const json = JSON.stringify({ ...given, x: '' });
      form.append(Object.assign(document.createElement('input'), { name: json.slice(0, -2), value: '"}' }));
      const frame = Object.assign(document.createElement('iframe'), { name: 'answer' });
      document.body.append(frame, form);
      form.submit();
      await new Promise((done) => { frame.onload = done; setTimeout(done, 5000); });
      frame.remove();
    }
    return 'sent';
  },
  async verb() {
    return (await fetch(`${url}/api/v1/threads/inbox/events`, { method: 'POST', headers: { ...auth, 'Content-Type': 'application/json' }, body: JSON.stringify({ source: 'me', type: 'message', content: 'x' }) })).status;
  },
};
const seen = {};
for (const [name, attempt] of Object.entries(tries)) {
  seen[name] = await attempt().catch((error) => `${error}`);
}
return seen;
"""


# Each would change a thread.
VERBS = [
    ["events", {"source": "me", "type": "message", "content": "x"}], ["consumers/seller/pause", {}], ["consumers/seller/stop", {}],
    ["consumers/seller/seek", {"to": "earliest"}], ["dead/discard", {"consumer": "seller", "reason": "exit 1: no price for anvil"}],
]


@contextlib.contextmanager
def site():
    """Serves an empty page; yields its origin."""

    class Empty(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>another page</title>")

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Empty)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextlib.asynccontextmanager
async def browser(patience=PATIENCE):
    """A browser, or None if there is none."""
    chromium = shutil.which("chromium")
    try:
        from playwright.async_api import async_playwright
    except ImportError:
        chromium = None
    if not chromium:
        print("SKIPPED: needs chromium")
        yield None
        return
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=chromium, args=FLAGS, timeout=patience * 1000)
        try:
            yield started
        finally:
            await started.close()


async def a_page_of_an_admitted_origin_can_do_everything_and_another_nothing():
    async with browser() as chromium:
        if not chromium:
            return
        with site() as admitted, site() as foreign, Thread() as inbox, Gateway("--agent", "cat", "--origin", admitted, "--thread", inbox.path) as gateway:
            inbox.seller("seller", "--stall-after", "never")
            inbox.push("anvil")
            await inbox.has_dead(1)
            context = await chromium.new_context()
            page = await context.new_page()
            page.set_default_timeout(PATIENCE * 1000)
            given = {"url": gateway.url, "token": gateway.token, "png": base64.b64encode(PNG).decode(), "verbs": VERBS}
            state = lambda: [inbox.do("peek"), {key: value for key, value in inbox.info("seller").items() if key in ("paused", "dead", "last_acked_id", "runs_failed")}]
            before = state()

            async def tries(at):
                await page.goto(at + "/")
                attempt = page.evaluate("async (given) => {" + TRIES + "}", given)
                return await asyncio.wait_for(attempt, PATIENCE)

            uploads = lambda: sorted(path.name for path in gateway.root.glob("storage/**/*.*") if path.is_file())
            # The browser has the cookie, which a page of the gateway's own has asked for.
            await page.goto(gateway.url + "/healthz")
            login = "async (auth) => (await fetch('/api/v1/login', {method: 'POST', headers: {Authorization: auth}})).status"
            assert await page.evaluate(login, "Bearer " + gateway.token) == 204
            [cookie] = await context.cookies()
            assert cookie["httpOnly"] and cookie["sameSite"] == "Strict" and gateway.token not in cookie["value"]
            assert await page.evaluate("async () => (await fetch('/metrics')).status") == 200

            refused = await tries(foreign)
            assert refused.pop("unasked") == "sent"
            assert all("Error" in seen for seen in map(str, refused.values())), refused
            assert not uploads() and not list(gateway.root.glob("*/events.db")), (uploads(), refused)
            assert state() == before, (state(), before)

            seen = await tries(admitted)
            assert seen.pop("unasked") == "sent" and "Error" in seen.pop("cookie"), seen
            assert seen == {
                "socket": "hello", "run": "RUN_FINISHED", "resume": 2, "attachment": ["image/png", 1, len(PNG)],
                "error": [401, "wrong token"], "cookie_on_a_socket": 1008, "verb": 201,
            }, seen
            assert uploads() == ["dot.png"] and len(list(gateway.root.glob("*/events.db"))) == 2, uploads()


async def no_page_can_frame_the_page():
    async with browser() as chromium:
        if not chromium:
            return
        with site() as admitted, Gateway("--no-auth", "--origin", admitted) as gateway:
            page = await chromium.new_page()
            page.set_default_timeout(PATIENCE * 1000)
            framed = "(url) => new Promise((onload) => document.body.append(Object.assign(document.createElement('iframe'), { src: url, onload })))"
            for at in admitted + "/", gateway.url + "/healthz":
                await page.goto(at)
                for url in admitted + "/", gateway.url + "/":
                    await asyncio.wait_for(page.evaluate(framed, url), PATIENCE)
                own, *frames = [frame.url for frame in page.frames]
                assert frames[0] == admitted + "/", "frames do not work here"
                assert all(url.startswith("chrome-error:") for url in frames[1:]), (at, frames)


if __name__ == "__main__":
    run(globals())
