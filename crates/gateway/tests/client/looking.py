"""Shared by the scenarios of Queues: a thread with real handlers, and a page that shows it."""

import asyncio
import contextlib
import json
import pathlib
import subprocess
import tempfile
import time

from harness import THREAD, Gateway
from page import Browser

# Fails on an item without a price, and prints that last.
SELL = """item=$(sed 's/.*"content":"\\([^"]*\\)".*/\\1/')
grep -q "^$item costs" prices || { echo "looking for $item"; echo "no price for $item"; exit 1; }
grep "^$item costs" prices
"""


class Thread:
    """A thread of its own, with handlers that are stopped at the end."""

    def __init__(self, name="inbox"):
        self.scratch = tempfile.TemporaryDirectory(prefix="thread-look-")
        self.dir = pathlib.Path(self.scratch.name)
        self.path = self.dir / name
        subprocess.run([THREAD, "init", self.path], check=True, stdout=subprocess.DEVNULL)
        (self.dir / "sell.sh").write_text(SELL)
        (self.dir / "prices").write_text("tea costs 3\n")

    def do(self, *args, stdin=None, expected=0, thread=...):
        place = [] if thread is None else ["--thread", self.path if thread is ... else thread]
        done = subprocess.run([THREAD, *args, *place], input=stdin, capture_output=True, text=True, cwd=self.dir)
        assert done.returncode == expected, (args, done)
        return done.stdout

    def push(self, *args, **given):
        return int(self.do("push", *args, **given))

    def batch(self, events):
        self.do("push", "--batch", stdin="".join(json.dumps(event) + "\n" for event in events))

    def subscribe(self, name, command, *options):
        self.do("subscribe", name, command, *options)

    def seller(self, name="seller", *options):
        """A consumer that makes a dead letter of an item without a price at once."""
        self.subscribe(name, "sh sell.sh", "--deliver", "stdin", "--batch-size", "1", "--max-attempts", "1", "--backoff", "10ms", *options)

    def info(self, name=None):
        found = json.loads(self.do("info", "--json"))["subscriptions"]
        return next(one for one in found if one["consumer_id"] == name) if name else found

    async def until(self, name, wanted):
        """Waits until the consumer is as `wanted` says."""
        began = time.monotonic()
        while not wanted(found := self.info(name)):
            assert time.monotonic() < began + 60, found
            await asyncio.sleep(0.05)
        return found

    async def has_dead(self, count, name="seller"):
        return await self.until(name, lambda found: found["dead"] == count and found["state"] in ("idle", "stalled"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for consumer in self.info():
            name = consumer["consumer_id"]
            for verb in ["pause"], ["stop", "--kill-after", "1s"]:
                subprocess.run([THREAD, *verb, "--consumer", name, "--thread", self.path], capture_output=True)
        while True:
            try:
                return self.scratch.cleanup()
            except OSError:
                time.sleep(0.1)


@contextlib.asynccontextmanager
async def looking(*options, thread=None, **of):
    """A thread, a gateway that shows it and has no agent, and a page that was opened by the link."""
    with Thread() as inbox, Gateway("--thread", inbox.path, *options) as gateway:
        if thread:
            thread(inbox)
        async with Browser() as browser:
            yield inbox, gateway, browser, await enter(browser, gateway, **of)


async def enter(browser, gateway, path="", **of):
    tab = await browser.tab(gateway, enter=False, **of)
    await tab.open(f"#token={gateway.token}")
    await tab.locator(".look").wait_for()
    if path:
        await tab.open(path)
    return tab


def button(tab, name, within=None):
    return (within or tab.page).get_by_role("button", name=name, exact=True)


def card(tab, name):
    return tab.locator(".consumer", has=tab.page.get_by_role("heading", name=name, exact=True))


def events(count, **more):
    return [{"source": f"external:ci:{n % 7}", "type": "record" if n % 10 else "message", "subtype": "build", "content": f"number {n}", **more} for n in range(1, count + 1)]
