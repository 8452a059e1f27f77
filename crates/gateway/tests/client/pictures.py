"""Makes the screenshots in docs/pictures: the page in typical states, with scripted agents.

usage: as the scenarios of tests/gateway.rs are run, with PAGE_PICTURES set to the folder: pictures.py make
The long form of the tests makes them too, and discards them.
"""

import asyncio
import collections
import contextlib
import pathlib
import struct
import tempfile
import zlib

from harness import Gateway, run
from looking import Thread, card
from page import ACP, LONG, PICTURES, Browser, expect, go, plays

NAMES = {"first-minute", "variants", "talk", "tool-call", "permission", "queue", "look", "dead-letters", "run", "trace", "phone"}
SCRIPT = "#!/bin/sh\nset -e\ntar czf /backup/data.tgz /srv/data\n"
MENDED = SCRIPT.replace("tar czf", "install -d -o backup /backup\ntar --warning=no-file-changed -czf")
ANSWER = [
    ["say", "The script runs as `backup`, who **may not read** `/srv/data`: its owner is `root`, and its mode is 0700.\n\n"],
    ["say", "Two ways to mend it:\n\n1. give the directory to `backup`\n2. let `tar` run as root\n\n"],
    ["say", "The first one is safer. I would run\n\n```sh\nchown -R backup /srv/data\n```\n\nand try the backup ag"],
]
LOOK = [
    ["think", "The job runs at night, as a user of its own. I will read the script, then try it."],
    ["call", "c1", "read", {"path": "backup.sh"}], ["result", "c1", "read", SCRIPT],
    ["call", "c2", "run", {"command": "sh backup.sh --dry-run"}],
    ["result", "c2", "run", {"exit": 1, "stderr": "tar: /srv/data: permission denied"}],
]
PLAYS = {
    "The nightly backup fails, please look.": [
        *LOOK, ["call", "c3", "reader", {"task": "Who owns /srv/data?"}],
        ["sub", "c3", "reader", "echo root owns it"], *ANSWER, ["wait", "never"],
    ],
    "Which invoices of May are unpaid?": [["say", "I need to look into the ledger."], ["call", "c1", "open ledger.db", {}],
        ["ask", "c1", "sqlite3 ledger.db", {"command": "sqlite3 -readonly ledger.db"}, "reads the table `invoices`"]],
    "Mend the rights.": [
        ["plan", [{"content": "Read the script", "priority": "high", "status": "completed"},
                  {"content": "Give the directory to its user", "priority": "high", "status": "in_progress"},
                  {"content": "Try the backup", "priority": "medium", "status": "pending"}]],
        ["call", "c1", "edit", {"path": "/srv/backup.sh"}],
        ["change", "c1", "Edit backup.sh", [{"type": "diff", "path": "/srv/backup.sh", "oldText": SCRIPT, "newText": MENDED}]]],
    "Sort the photos by year.": [["say", "Reading the dates …"], ["wait", "never"]],
    "Mend the backup.": [
        ["think", "First I read the script, then I try it."], ["wait", "1"],
        ["call", "c1", "read", {"path": "backup.sh"}], ["wait", "2"], ["result", "c1", "read", SCRIPT],
        ["call", "c2", "run", {"command": "sh backup.sh --dry-run"}], ["wait", "3"],
        ["result", "c2", "run", {"exit": 1, "stderr": "tar: /srv/data: permission denied"}],
        ["call", "c3", "chown", {"path": "/srv/data"}], ["ask", "c3", "chown -R backup /srv/data", {"command": "chown -R backup /srv/data"}, "14 files"],
        ["result", "c3", "chown", "ok"], ["say", "Now `backup` owns `/srv/data`, "], ["wait", "4"], ["say", "and the backup works."],
    ],
    "What is for lunch on Friday?": [["say", "On Friday there are lentils."]],
}


def smaller(png):
    """A picture of Chromium's (8 bits, RGB or RGBA) with at most 256 colours."""
    chunks, at = [], 8
    while at < len(png):
        length = int.from_bytes(png[at:at + 4], "big")
        chunks.append((png[at + 4:at + 8], png[at + 8:at + 8 + length]))
        at += 12 + length
    width, height, _, kind = struct.unpack(">IIBB", chunks[0][1][:10])
    data = zlib.decompress(b"".join(body for name, body in chunks if name == b"IDAT"))
    size = {2: 3, 6: 4}[kind]
    pixels, above = [], bytearray(width * size)
    for y in range(height):
        start = y * (width * size + 1)
        filtering, line = data[start], bytearray(data[start + 1:start + 1 + width * size])
        for x in range(width * size):
            left, up = line[x - size] if x >= size else 0, above[x]
            corner = above[x - size] if x >= size else 0
            near = min((left, up, corner), key=lambda c: abs(left + up - corner - c))
            line[x] = (line[x] + (0, left, up, (left + up) // 2, near)[filtering]) & 255
        pixels += [tuple(min(255, (c + 4) // 8 * 8) for c in line[x:x + 3]) for x in range(0, width * size, size)]
        above = line
    palette = [colour for colour, _ in collections.Counter(pixels).most_common(256)]
    nearest = {colour: n for n, colour in enumerate(palette)}
    for colour in set(pixels) - set(palette):
        nearest[colour] = min(range(len(palette)), key=lambda n: sum((a - b) ** 2 for a, b in zip(colour, palette[n])))
    lines = b"".join(b"\0" + bytes(nearest[p] for p in pixels[y * width:(y + 1) * width]) for y in range(height))
    whole = lambda name, body: struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
    return (png[:8] + whole(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0))
            + whole(b"PLTE", bytes(c for colour in palette for c in colour))
            + whole(b"IDAT", zlib.compress(lines, 9)) + whole(b"IEND", b""))


async def shop(inbox):
    """A thread with dead letters, and with a stalled, a running and a paused consumer."""
    inbox.seller("seller", "--stall-after", "never", "--filter", "subtype = 'order'")
    inbox.subscribe("mailer", "sleep 0.3; echo 'no address for alice'; exit 1", "--max-attempts", "1", "--backoff", "10ms", "--filter", "subtype = 'mail'")
    inbox.subscribe("indexer", "sleep 600", "--deliver", "stdin", "--filter", "subtype = 'page'")
    inbox.subscribe("archive", "cat >>archive", "--deliver", "stdin")
    push = lambda subtype, text: inbox.push("--source", "external:shop:main:dm:alice:alice", "--subtype", subtype, text)
    for n in range(12):
        push("page", f"page {n} has changed")
    for item in ["anvil"] * 4 + ["rope", "rope", "tea", "saw"]:
        push("order", item)
    for name in "Alice", "Bob", "Carol":
        push("mail", f"Dear {name}, your order is on its way.")
    await inbox.has_dead(7)
    await inbox.until("mailer", lambda found: found["state"] == "stalled")
    await inbox.until("archive", lambda found: found["last_acked_id"] == 23)
    inbox.do("pause", "archive")


async def looks(folder, browser, inbox):
    with Gateway(*ACP, "--thread", inbox.path) as gateway:
        plays(gateway, **PLAYS)
        tab = await browser.tab(gateway, viewport={"width": 1000, "height": 680}, locale="en-GB")
        shot = lambda name: tab.page.screenshot(path=folder / f"{name}.png")
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
        await tab.open("#/look/inbox")
        await expect(card(tab, "mailer").locator(".state")).to_contain_text("stalled")
        await asyncio.sleep(1)
        await shot("look")
        await tab.open("#/look/inbox/dead")
        await tab.locator(".letters li").first.wait_for()
        await shot("dead-letters")
        await tab.open(f"#/look/{session}/c/agent")
        await tab.locator(".runs a").last.click()
        await tab.locator(".trace tbody tr").last.wait_for()
        await asyncio.sleep(1)
        await shot("run")
        await tab.page.set_viewport_size({"width": 1300, "height": 680})
        await tab.open(f"#/s/{session}?trace=1")
        await tab.locator("tr.is-tool button.line", has_text="run").first.click()
        await tab.locator(".card-of .links").wait_for()
        await asyncio.sleep(1)
        await shot("trace")


AGENT = """
[[agent]]
name = "helper"
command = "sed 's/^/You said: /'"
about = "Looks after the servers of the shop, and asks before it changes anything."
prompts = ["Why did the nightly backup fail?", "What was sold yesterday, by region?", "Write a script that rotates the logs"]
"""


async def firsts(folder, tab):
    await tab.locator(".prompts").wait_for()
    await tab.page.screenshot(path=folder / "first-minute.png")
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
    await asyncio.sleep(0.5)
    await tab.page.screenshot(path=folder / "variants.png")


async def make():
    with contextlib.ExitStack() as stack:
        if PICTURES or LONG:
            await make_in(pathlib.Path(PICTURES or stack.enter_context(tempfile.TemporaryDirectory())))


async def make_in(folder):
    with Thread() as inbox:
        await shop(inbox)
        async with Browser() as browser:
            await looks(folder, browser, inbox)
    with tempfile.TemporaryDirectory() as scratch:
        file = pathlib.Path(scratch, "agents.toml")
        file.write_text(AGENT)
        with Gateway("--agents", file) as gateway:
            async with Browser() as browser:
                await firsts(folder, await browser.tab(gateway, viewport={"width": 1000, "height": 680}, locale="en-GB"))
    with Gateway(*ACP) as gateway:
        plays(gateway, **PLAYS)
        async with Browser() as browser:
            tab = await browser.tab(gateway, viewport={"width": 1000, "height": 680}, locale="en-GB")
            shot = lambda name, tab=tab: tab.page.screenshot(path=folder / f"{name}.png")
            await tab.new("What is for lunch on Friday?")
            await tab.answer("lentils").wait_for()
            await tab.new("Which invoices of May are unpaid?")
            await tab.locator(".permission.open").wait_for()
            await tab.new("Sort the photos by year.")
            await tab.answer("Reading").wait_for()
            await tab.new("The nightly backup fails, please look.")
            await tab.answer("backup ag").wait_for()
            await expect(tab.locator(".session.running")).to_have_count(2)
            await expect(tab.locator(".session.asks")).to_have_count(1)
            await asyncio.sleep(1.5)
            await shot("talk")
            await tab.locator(".tool", has_text="run").first.locator("summary").click()
            await tab.locator(".tool", has_text="run").first.scroll_into_view_if_needed()
            await shot("tool-call")
            await tab.new("Sort the photos by year.")
            await tab.answer("Reading").wait_for()
            await tab.say("And mark those without a date.")
            await tab.say("Then tell me how many there are.", priority="later")
            await expect(tab.locator(".strip li")).to_have_count(2)
            await shot("queue")
            await tab.new("Mend the rights.")
            await tab.locator(".permission.open").wait_for()
            await shot("permission")
            phone = await browser.tab(gateway, viewport={"width": 360, "height": 700}, has_touch=True, is_mobile=True, locale="en-GB")
            await phone.open(f"#/s/{tab.session()}")
            await phone.locator(".permission.open").wait_for()
            await asyncio.sleep(1)
            await shot("phone", phone)
    for path in folder.glob("*.png"):
        path.write_bytes(smaller(path.read_bytes()))
        print(path.name, path.stat().st_size)
    assert {path.stem for path in folder.glob("*.png")} >= NAMES


if __name__ == "__main__":
    run(globals())
