"""Makes the screenshots in docs/pictures: the page in typical states, with scripted agents, light and dark.

usage: as the scenarios of tests/gateway.rs are run, with PAGE_PICTURES set to the folder: pictures.py make
The long form of the tests makes them too, and discards them.
"""

import asyncio
import base64
import contextlib
import datetime
import json
import os
import pathlib
import struct
import subprocess
import tempfile
import zlib

from harness import LONG, THREAD, Gateway, fast_clock, run
from looking import Thread, card
from page import ACP, PICTURES, Browser, expect, go, plays

NAMES = ["first-minute", "code", "diff", "trace", "variants", "strip", "consumers", "charts", "events", "dead-letters", "schedule", "phone"]
SCRIPT = "#!/bin/sh\nset -e\ntar czf /backup/data.tgz /srv/data\n"
MENDED = SCRIPT.replace("tar czf", "install -d -o backup /backup\ntar --warning=no-file-changed -czf")
ANSWER = """The script runs as `backup`, who **may not read** `/srv/data`: it belongs to `root`, and its mode is 0700.

| directory | owner | mode | size |
|---|---|---|---:|
| `/srv/data` | root | 0700 | 1.2 GB |
| `/backup` | backup | 0750 | 18.4 GB |

Two ways to mend it:

1. give the directory to `backup`, which is safer:

   ```sh
   # once, as root
   chown -R backup: /srv/data && chmod 0750 /srv/data
   ```

2. let the timer check before it begins:

   ```python
   def may_read(path: str) -> bool:
       # All of it, not only the directory.
       return all(os.access(file, os.R_OK) for file in walk(path))
   ```
"""
LOOK = [
    ["think", "The job runs at night, as a user of its own. I will read the script, then try it."],
    ["call", "c1", "read", {"path": "backup.sh"}], ["result", "c1", "read", SCRIPT],
    ["call", "c2", "run", {"command": "sh backup.sh --dry-run"}],
    ["result", "c2", "run", {"exit": 1, "stderr": "tar: /srv/data: permission denied"}],
]
PLAYS = {
    "The nightly backup fails, please look.": [*LOOK, ["say", ANSWER]],
    "Which invoices of May are unpaid?": [["say", "I need to look into the ledger."], ["call", "c1", "open ledger.db", {}],
        ["ask", "c1", "sqlite3 ledger.db", {"command": "sqlite3 -readonly ledger.db"}, "reads the table `invoices`"]],
    "Mend the script, please.": [
        ["plan", [{"content": "Read the script", "priority": "high", "status": "completed"},
                  {"content": "Make the directory, and let tar go on", "priority": "high", "status": "in_progress"},
                  {"content": "Try the backup", "priority": "medium", "status": "pending"}]],
        ["call", "c1", "edit", {"path": "/srv/backup.sh"}],
        ["change", "c1", "Edit backup.sh", [{"type": "diff", "path": "/srv/backup.sh", "oldText": SCRIPT, "newText": MENDED}]]],
    "Sort the photos by year.": [["say", "Reading the dates of 2,310 photos …"], ["wait", "never"]],
    "Mend the backup.": [
        ["think", "First I read the script, then I try it."], ["wait", "1"],
        ["call", "c1", "read", {"path": "backup.sh"}], ["wait", "2"], ["result", "c1", "read", SCRIPT],
        ["call", "c2", "run", {"command": "sh backup.sh --dry-run"}], ["wait", "3"],
        ["result", "c2", "run", {"exit": 1, "stderr": "tar: /srv/data: permission denied"}],
        ["call", "c3", "chown", {"path": "/srv/data"}], ["ask", "c3", "chown -R backup /srv/data", {"command": "chown -R backup /srv/data"}, "14 files"],
        ["result", "c3", "chown", "ok"], ["say", "\n\nNow `backup` owns `/srv/data`, "], ["wait", "4"], ["say", "and the backup works."],
    ],
    "What is for lunch on Friday?": [["say", "On Friday there are lentils."]],
}
AGENT = """
[[agent]]
name = "helper"
command = "sed 's/^/You said: /'"
about = "Looks after the servers of the shop, and asks before it changes anything."
prompts = ["Why did the nightly backup fail?", "What was sold yesterday, by region?", "Write a script that rotates the logs"]
"""
DESK = {"width": 1200, "height": 760}


# The pixels of a picture in the 256 colours that it has most of, or the nearest of these.
PALETTE = """async (png) => {
  const bitmap = await createImageBitmap(await (await fetch(`data:image/png;base64,${png}`)).blob());
  const { width, height } = bitmap, context = new OffscreenCanvas(width, height).getContext("2d");
  context.drawImage(bitmap, 0, 0);
  const { data } = context.getImageData(0, 0, width, height), counts = new Map(), keys = new Uint32Array(width * height);
  const about = (n) => Math.min(255, ((n + 4) >> 3) << 3);
  for (let n = 0; n < keys.length; n++) {
    const key = (about(data[4 * n]) << 16) | (about(data[4 * n + 1]) << 8) | about(data[4 * n + 2]);
    keys[n] = key;
    counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  const parts = (key) => [key >> 16, (key >> 8) & 255, key & 255];
  const far = (one, other) => parts(one).reduce((sum, part, n) => sum + (part - parts(other)[n]) ** 2, 0);
  const palette = [...counts].sort(([, a], [, b]) => b - a).slice(0, 256).map(([key]) => key);
  const nearest = new Map(palette.map((key, n) => [key, n]));
  for (const key of counts.keys()) {
    if (nearest.has(key)) continue;
    nearest.set(key, palette.indexOf(palette.reduce((best, other) => (far(key, other) < far(key, best) ? other : best))));
  }
  let text = "";
  for (const key of keys) text += String.fromCharCode(nearest.get(key));
  return { width, height, palette: palette.flatMap(parts), pixels: btoa(text) };
}"""


def indexed(width, height, palette, pixels):
    """A PNG of pixels that are numbers of colours."""
    rows = base64.b64decode(pixels)
    lines = b"".join(b"\0" + rows[y * width:(y + 1) * width] for y in range(height))
    chunk = lambda name, body: struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0))
            + chunk(b"PLTE", bytes(palette)) + chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b""))


class Camera:
    """Takes each picture twice: light and dark."""

    def __init__(self, folder, dark_room):
        self.folder, self.dark_room = folder, dark_room

    async def __call__(self, tab, name, keeps=False):
        if not keeps:
            # What the pointer is at looks different.
            await tab.page.mouse.move(0, 0)
        for scheme, end in ("light", ""), ("dark", "-dark"):
            await tab.page.emulate_media(color_scheme=scheme)
            taken = base64.b64encode(await tab.page.screenshot(animations="disabled")).decode()
            found = indexed(**await self.dark_room.evaluate(PALETTE, taken))
            (self.folder / f"{name}{end}.png").write_bytes(found)
            print(name + end, len(found))
        await tab.page.emulate_media(color_scheme="light")


ITEMS = ["tea", "tea", "cup", "tea", "spoon", "cup", "anvil", "tea"]


async def shop(inbox):
    """A thread with an hour behind it, dead letters, and consumers in each state."""
    (inbox.dir / "prices").write_text("tea costs 3\ncup costs 7\nspoon costs 1\n")
    inbox.seller("seller", "--stall-after", "never", "--filter", "subtype = 'order'")
    inbox.subscribe("mailer", "sleep 0.2; echo 'no address for alice'; exit 1", "--max-attempts", "1", "--backoff", "10ms", "--filter", "subtype = 'mail'")
    inbox.subscribe("indexer", "sleep 600", "--deliver", "stdin", "--filter", "subtype = 'page'")
    inbox.subscribe("archive", "cat >>archive", "--deliver", "stdin")
    shop = ("--source", "external:shop:main:dm:alice:alice")
    # Pushed, and handled, as if it were earlier: more and more, then less.
    for minute in range(58, 2, -1):
        earlier = {**os.environ, **(fast_clock(1, behind=minute * 60) or {})}
        for n in range(1 + (minute * 7) % 5 * (minute < 40) + (minute % 3)):
            order = ["push", "-t", inbox.path, *shop, "--subtype", "order", ITEMS[(minute + n) % len(ITEMS)]]
            subprocess.run([THREAD, *order], check=True, stdout=subprocess.DEVNULL, env=earlier, cwd=inbox.dir)
        await inbox.until("seller", lambda found: found["state"] == "idle" and not found["pending"])
    push = lambda subtype, text: inbox.push(*shop, "--subtype", subtype, text)
    for n in range(12):
        push("page", f"page {n} has changed")
    push("note", json.dumps({"item": "tea", "number": 3, "to": {"name": "Alice", "city": "York"}, "gift": True}))
    for name in "Alice", "Bob", "Carol":
        push("mail", f"Dear {name}, your order is on its way.")
    await inbox.until("mailer", lambda found: found["state"] == "stalled")
    await inbox.until("archive", lambda found: found["state"] == "idle" and not found["pending"])
    inbox.do("pause", "archive")
    push("order", "spoon")
    six = datetime.datetime.now().replace(hour=18, minute=0, second=0) + datetime.timedelta(days=1)
    inbox.do("push", "--at", six.strftime("%Y-%m-%d %H:%M"), "call the dentist")
    inbox.do("push", "--in", "2h", "--subtype", "mail", "Dear Dave, is everything as you expected?")
    inbox.do("schedule", "add", "report", "--cron", "0 9 * * 1-5", "--tz", "Europe/Berlin", "what was sold yesterday, by region")
    inbox.do("schedule", "add", "pulse", "--every", "15m", "look whether anything is stuck")


async def queues(shot, browser, inbox):
    with Gateway(*ACP, "--thread", inbox.path) as gateway:
        plays(gateway, **PLAYS)
        tab = await browser.tab(gateway, viewport=DESK, locale="en-GB")
        session = await tab.new("Mend the backup.")
        for name, seconds in ("1", 3), ("2", 1), ("3", 6):
            await asyncio.sleep(seconds)
            go(gateway, name)
        await tab.locator(".permission.open").wait_for()
        await asyncio.sleep(9)
        await tab.get_by_role("button", name="Allow once").click()
        await tab.answer("Now backup owns").wait_for()
        await asyncio.sleep(2)
        go(gateway, "4")
        await tab.answer("and the backup works.").wait_for()
        await tab.page.set_viewport_size({"width": 1400, "height": 760})
        await tab.open(f"#/s/{session}?trace=1")
        await tab.locator("tr.is-tool button.line", has_text="run").first.click()
        await tab.locator(".card-of .links").wait_for()
        await shot(tab, "trace")
        await tab.page.set_viewport_size(DESK)
        await tab.open("#/look/inbox")
        await expect(card(tab, "mailer").locator(".state")).to_be_visible()
        await tab.locator(".chart").first.wait_for()
        await shot(tab, "consumers")
        await tab.locator("h2", has_text="What is to come").evaluate("(e) => e.scrollIntoView({ block: 'start' })")
        await shot(tab, "schedule")
        await tab.locator(".compared").get_by_role("link", name="seller").click()
        await tab.locator("h2", has_text="Over time").evaluate("(e) => e.scrollIntoView({ block: 'start' })")
        await tab.get_by_role("slider", name="How long runs of seller took").wait_for()
        await tab.get_by_role("slider", name="Events", exact=True).hover(position={"x": 620, "y": 60})
        await shot(tab, "charts", keeps=True)
        await tab.open("#/look/inbox/events")
        await tab.locator(".list-box .row", has_text="York").click()
        await tab.locator(".event .plain-list").wait_for()
        await shot(tab, "events")
        await tab.open("#/look/inbox/dead")
        await tab.locator(".letters li").first.wait_for()
        await shot(tab, "dead-letters")


async def firsts(shot, tab):
    await tab.locator(".prompts").wait_for()
    await shot(tab, "first-minute")
    await tab.new("What was sold yesterday?")
    for text in "What was sold yesterday, by region?", "What was sold on Monday, by region?":
        await tab.answer("You said").wait_for()
        await tab.locator(".exchange").hover()
        await tab.locator(".exchange").get_by_role("link", name="Edit").click()
        await tab.say(text)
        await tab.answer(text).wait_for()
    await expect(tab.locator(".variants .figure")).to_have_text("3/3")
    await tab.get_by_role("link", name="Previous variant").click()
    await tab.answer("yesterday, by region").wait_for()
    await tab.locator(".exchange").hover()
    await shot(tab, "variants", keeps=True)


async def chats(shot, browser):
    with Gateway(*ACP) as gateway:
        plays(gateway, **PLAYS)
        tab = await browser.tab(gateway, viewport=DESK, locale="en-GB")
        await tab.new("What is for lunch on Friday?")
        await tab.answer("lentils").wait_for()
        await tab.new("Which invoices of May are unpaid?")
        await tab.locator(".permission.open").wait_for()
        await tab.new("Sort the photos by year.")
        await tab.answer("Reading").wait_for()
        await tab.say("And mark those without a date.")
        await tab.say("Then tell me how many there are.", priority="later")
        await expect(tab.locator(".strip li")).to_have_count(2)
        await shot(tab, "strip")
        await tab.new("The nightly backup fails, please look.")
        await tab.locator(".answer .t-keyword").first.wait_for()
        await expect(tab.locator(".session.running")).to_have_count(1)
        await expect(tab.locator(".session.asks")).to_have_count(1)
        await shot(tab, "code")
        await tab.page.set_viewport_size({"width": 1500, "height": 760})
        await tab.new("Mend the script, please.")
        await tab.locator(".permission.open .diff.two .line").first.wait_for()
        await shot(tab, "diff")
        phone = await browser.tab(gateway, viewport={"width": 390, "height": 760}, has_touch=True, is_mobile=True, locale="en-GB")
        await phone.open(f"#/s/{tab.session()}")
        await phone.locator(".permission.open .diff .line").first.wait_for()
        await shot(phone, "phone")


async def make():
    with contextlib.ExitStack() as stack:
        if PICTURES or LONG:
            await make_in(pathlib.Path(PICTURES or stack.enter_context(tempfile.TemporaryDirectory())))


async def make_in(folder):
    async with Browser() as browser:
        # A page of no origin, whose policy lets it read pictures.
        shot = Camera(folder, await browser.chromium.new_page())
        await chats(shot, browser)
        with tempfile.TemporaryDirectory() as scratch:
            file = pathlib.Path(scratch, "agents.toml")
            file.write_text(AGENT)
            with Gateway("--agents", file) as gateway:
                await firsts(shot, await browser.tab(gateway, viewport=DESK, locale="en-GB"))
        with Thread() as inbox:
            await shop(inbox)
            await queues(shot, browser, inbox)
    made = {path.stem for path in folder.glob("*.png")}
    assert made == {f"{name}{end}" for name in NAMES for end in ("", "-dark")}, made


if __name__ == "__main__":
    run(globals())
