"""Webhooks of others: signed by their own library or as their documentation says, repeated, forged, replayed."""

import asyncio
import datetime
import hashlib
import hmac
import json
import os
import subprocess
import tempfile
import time
import uuid

from harness import PATIENCE, SERVE, THREAD, run
from look import Queues, httpx, with_httpx
from standardwebhooks.webhooks import Webhook

SECRETS = {"CI_SECRET": "It's a Secret to Everybody", "PAY_SECRET": "whsec_of_stripe", "STANDARD_SECRET": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}
HOOKS = ["--hook", "ci=github:CI_SECRET:inbox", "--hook", "pay=stripe:PAY_SECRET:inbox", "--hook", "partner=standard:STANDARD_SECRET:inbox"]


def mac(secret, text):
    return hmac.new(SECRETS[secret].encode(), text.encode(), hashlib.sha256).hexdigest()


def github(body, id=None, kind="push"):
    return {"X-Hub-Signature-256": "sha256=" + mac("CI_SECRET", body), "X-GitHub-Delivery": id or str(uuid.uuid4()), "X-GitHub-Event": kind}


def stripe(body, at=None):
    at = int(at or time.time())
    return {"Stripe-Signature": f"t={at},v1={'0' * 64},v1={mac('PAY_SECRET', f'{at}.{body}')},v0=1"}


def standard(body, id, at=None):
    at = datetime.datetime.fromtimestamp(at or time.time(), datetime.timezone.utc)
    signature = Webhook(SECRETS["STANDARD_SECRET"]).sign(id, at, body)
    return {"webhook-id": id, "webhook-timestamp": str(int(at.timestamp())), "webhook-signature": signature}


class Hooked(Queues):
    def __init__(self, *options):
        os.environ.update(SECRETS)
        super().__init__("inbox", options=[*HOOKS, *options])
        self.sender = httpx.Client(base_url=self.gateway.url, timeout=PATIENCE, trust_env=False)

    def send(self, name, body, headers, status=200):
        answer = self.sender.post(f"/hooks/{name}", content=body, headers=headers)
        assert answer.status_code == status, (answer.status_code, answer.text)
        return answer.json()

    def stored(self):
        return [json.loads(line) for line in self.thread("inbox", "peek", "--last-event-id", "0", "--limit", "100000").splitlines()]


@with_httpx
async def signed_webhooks_become_events_once():
    with Hooked() as hooked:
        env = hooked.dir / "env"
        handler = 'cd "$THREAD_DIR/.."; env >env.new; mv env.new env; cat >/dev/null'
        hooked.thread("inbox", "subscribe", "bot", handler, "--deliver", "stdin")
        body = json.dumps({"ref": "refs/heads/main", "text": "grüße"})
        first = hooked.send("ci", body, github(body, "d-1"))
        assert first["id"] == 1 and not first["deduplicated"]
        # The consumer was woken, and does not have the secrets.
        hooked.look.until_consumer("inbox", "bot", lambda one: one["pending"] == 0)
        assert not [line for line in env.read_text().splitlines() if any(secret in line for secret in SECRETS.values())]
        again = hooked.send("ci", body, github(body, "d-1"))
        assert again == {**first, "deduplicated": True}

        # Stripe changes its body a little when it repeats an event.
        for pending in 1, 2:
            body = json.dumps({"id": "evt_1", "type": "invoice.paid", "pending_webhooks": pending})
            assert hooked.send("pay", body, stripe(body))["id"] == 2
        body = json.dumps({"type": "contact.created", "data": {}})
        assert hooked.send("partner", body, standard(body, "msg_1"))["id"] == 3
        assert hooked.send("partner", body, standard(body, "msg_1"))["deduplicated"]
        plain = "no JSON at all"
        assert hooked.send("partner", plain, standard(plain, "msg_2"))["id"] == 4

        events = hooked.stored()
        assert [(one["source"], one["type"], one.get("subtype")) for one in events] == [
            ("external:webhook:ci", "message", "push"), ("external:webhook:pay", "message", "invoice.paid"),
            ("external:webhook:partner", "message", "contact.created"), ("external:webhook:partner", "message", None)]
        assert json.loads(events[0]["content"])["text"] == "grüße"
        assert json.loads(events[1]["content"])["pending_webhooks"] == 1
        assert events[2]["metadata"]["delivery"] == "msg_1" and events[2]["metadata"]["hook"] == "partner"
        # What is signed is not necessarily an event.
        long = "x" * (4 * 1024 * 1024 + 1)
        hooked.send("ci", long, github(long), 413)
        hooked.send("ci", b"\xff\xfe", {**github("x"), "X-Hub-Signature-256": "sha256=" + hmac.new(SECRETS["CI_SECRET"].encode(), b"\xff\xfe", hashlib.sha256).hexdigest()}, 400)
        reserved = json.dumps({"id": "thread:end:1", "type": "x"})
        hooked.send("pay", reserved, stripe(reserved), 400)
        nameless = json.dumps({"type": "x"})
        hooked.send("pay", nameless, stripe(nameless), 400)
        assert len(hooked.stored()) == 4


@with_httpx
async def forgeries_and_replays_are_refused():
    with Hooked() as hooked:
        body, now = json.dumps({"id": "evt_1", "type": "x"}), time.time()
        good = github(body)
        forged = [
            ("ci", {}), ("ci", {**good, "X-Hub-Signature-256": "sha256=" + "0" * 64}), ("ci", {**good, "X-Hub-Signature-256": mac("CI_SECRET", body)}),
            ("ci", github(body + " ")), ("ci", {"Authorization": f"Bearer {hooked.gateway.token}"}), ("ci", stripe(body)),
            ("pay", {}), ("pay", good), ("pay", stripe(body, now - 400)), ("pay", stripe(body, now + 400)), ("pay", stripe(body + " ")),
            ("pay", {"Stripe-Signature": "t=,v1="}), ("pay", {"Stripe-Signature": stripe(body, now)["Stripe-Signature"].replace("v1", "v0")}),
            ("partner", {}), ("partner", standard(body, "m", now - 400)), ("partner", standard(body, "m", now + 400)),
            ("partner", {**standard(body, "m"), "webhook-id": "n"}), ("partner", standard(body + " ", "m")),
            ("partner", {**standard(body, "m"), "webhook-timestamp": str(-(2 ** 63))}), ("partner", {**standard(body, "m"), "webhook-signature": "v1,"}),
        ]
        for name, headers in forged:
            answer = hooked.send(name, body, headers, 401)
            assert answer["code"] == "unauthorized", (name, headers)
        hooked.send("nobody", body, good, 404)
        assert hooked.stored() == []
        assert hooked.look.figure("wrong_tokens_total") >= len(forged)
        # A token does not make up for a signature, and a signature is no token.
        assert hooked.sender.get("/api/v1/threads", headers=good).status_code == 401
        log = hooked.gateway.output()
        assert "a webhook is refused" in log and not [secret for secret in SECRETS.values() if secret in log]
    with Hooked("--read-only") as hooked:
        hooked.send("ci", body, github(body), 403)


@with_httpx
async def webhooks_that_are_repeated_until_they_are_taken_are_stored_once_each():
    with Hooked() as hooked:
        count = 200

        async def send(client, n):
            body = json.dumps({"id": f"evt_{n}", "type": "x"})
            while True:
                try:
                    answer = await client.post(f"{hooked.gateway.url}/hooks/pay", content=body, headers=stripe(body))
                    if answer.status_code == 200:
                        return answer.json()["id"]
                    assert answer.status_code == 503, answer.text
                except httpx.HTTPError:
                    pass
                await asyncio.sleep(0.02)

        async def disturb():
            took = 0
            while True:
                # Where starting takes long, it is up for longer.
                await asyncio.sleep(max(0.3, took))
                began = time.monotonic()
                hooked.gateway.kill()
                await asyncio.to_thread(hooked.gateway.restart)
                took = time.monotonic() - began

        async with httpx.AsyncClient(timeout=PATIENCE, trust_env=False, limits=httpx.Limits(max_connections=40)) as client:
            trouble = asyncio.create_task(disturb())
            # Each is sent twice.
            ids = await asyncio.gather(*[send(client, n % count) for n in range(2 * count)])
            trouble.cancel()
            await asyncio.gather(trouble, return_exceptions=True)
        assert ids[:count] == ids[count:] and len(set(ids)) == count
        assert len(hooked.stored()) == count


@with_httpx
async def what_is_wrong_with_a_hook_is_said_at_the_start():
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([THREAD, "init", f"{scratch}/inbox"], check=True, stdout=subprocess.DEVNULL)
        env = {**os.environ, "SHORT": "x", "GOOD": "long enough", "NOT64": "whsec_not base64"}
        for hooks, why in [
            (["ci=github:MISSING:inbox"], "MISSING is not set"), (["ci=github:SHORT:inbox"], "shorter than 8"), (["ci=standard:NOT64:inbox"], "base64"),
            (["ci=github:GOOD:other"], "no thread 'other'"), (["ci=github:GOOD:inbox", "ci=stripe:GOOD:inbox"], "given twice"),
            (["ci=gitlab:GOOD:inbox"], "gitlab"), (["ci"], "NAME=github"),
        ]:
            words = [word for hook in hooks for word in ("--hook", hook)]
            done = subprocess.run([SERVE, "--root", f"{scratch}/root", "--listen", "127.0.0.1:0", "--thread", f"{scratch}/inbox", *words],
                                  env=env, capture_output=True, text=True, timeout=PATIENCE)
            assert done.returncode == 2 and done.stderr.startswith("Error: ") and why in done.stderr, (hooks, done)


if __name__ == "__main__":
    run(globals())
