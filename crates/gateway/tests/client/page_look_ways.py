"""Queues for all users and all data: read-only, by keyboard, on a phone, with screen readers, with hostile texts, with
tens of thousands of events."""

import asyncio
import contextlib
import json
import pathlib
import shlex
import sqlite3
import time
import uuid

from harness import LONG, run
from looking import button, card, enter, events, looking
from page import AXE, HOSTILE, LOOKS, expect, traced


async def a_read_only_page_has_no_controls():
    async with looking("--read-only") as (inbox, gateway, browser, tab):
        inbox.seller()
        inbox.push("anvil")
        await inbox.has_dead(1)
        await tab.see("Only looking", ".look")
        await expect(card(tab, "seller")).to_contain_text("1 dead letter")
        verbs = ["Resume", "Pause", "Stop …", "Seek …", "Push", "Retry", "Discard …"]
        for path in "", "/events/1", "/dead", "/c/seller", "/push":
            await tab.open(f"#/look/inbox{path}")
            await tab.locator("h1").wait_for()
            for verb in verbs:
                await expect(button(tab, verb)).to_have_count(0)
        await tab.open("#/look/inbox/dead")
        await tab.see("no price for anvil")


async def everything_is_reached_by_the_keyboard():
    async with looking() as (inbox, gateway, browser, tab):
        inbox.seller("seller", "--stall-after", "never")
        for item in "anvil", "tea", "rope":
            inbox.push(item)
        await inbox.has_dead(2)
        press = tab.keyboard.press
        focus = lambda: tab.evaluate("document.activeElement.textContent.trim()")
        async def reach(text):
            """By Tab, from where the focus is."""
            for _ in range(80):
                if await focus() == text:
                    return
                await press("Tab")
            raise AssertionError(f"no Tab leads to {text}")
        async def along(text):
            """By j, through a list. (A browser may take the focus away just after it went to another address.)"""
            for _ in range(50):
                await press("j")
                if text in await focus():
                    return
                await asyncio.sleep(0.05)
            raise AssertionError(f"no j leads to {text}")
        await press("g"), await press("c")
        await tab.locator(".sessions").wait_for()
        await press("g"), await press("q")
        await tab.locator(".threads").wait_for()
        await along("inbox")
        await press("Enter")
        await tab.locator("h1", has_text="inbox").wait_for()
        await along("seller")
        await press("Enter")
        await tab.locator(".runs a").first.wait_for()
        await along("succeeded")
        await press("Enter")
        await expect(tab.locator("h1")).to_contain_text("Run of")
        await press("Escape")
        await press("Escape")
        await expect(card(tab, "seller")).to_be_visible()
        await reach("Pause")
        outline = await tab.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid", outline
        await press("Enter")
        await expect(card(tab, "seller").locator(".state")).to_contain_text("paused")
        await reach("Resume") if await focus() != "Resume" else None
        await press("Enter")
        await expect(card(tab, "seller").locator(".state")).to_contain_text("idle")
        await tab.open("#/look/inbox/dead")
        await tab.locator(".letters").wait_for()
        await reach("Discard this one …")
        await press("Enter")
        await expect(tab.locator("dialog")).to_contain_text("Discard 1 dead letter?")
        await press("Escape")
        await expect(tab.locator("dialog")).to_have_count(0)
        await tab.open("#/look/inbox/events")
        await tab.locator(".list-box a.row").first.wait_for()
        await press("/")
        await tab.keyboard.type("content = 'tea'")
        await press("Enter")
        await expect(tab.locator(".list-box .text")).to_have_text(["tea"])
        await press("Escape")
        await along("tea")
        await press("Enter")
        await expect(tab.locator(".event h2")).to_have_text("Event 2")
        await press("Escape")
        await expect(tab.locator(".event")).to_have_count(0)
        await press("?")
        await expect(tab.locator("dialog")).to_contain_text("chat, queues")
        await press("Escape")


def much(inbox):
    """Something of everything, with texts that are too long for any line."""
    wide = "a_long_word_" * 30
    inbox.seller("seller", "--stall-after", "never")
    inbox.subscribe("broken", f"echo '{wide}'; exit 3", "--max-attempts", "1")
    inbox.subscribe("sleeper", "sleep 600", "--deliver", "stdin", "--filter", "content = 'rope'")
    inbox.push("--source", f"external:{wide}", "--subtype", wide, "--metadata", json.dumps({wide: wide}), wide)
    for item in "anvil", "rope", wide:
        inbox.push(item)


PLACES = ["", "/inbox", "/inbox/c/seller", "/inbox/c/broken", "/inbox/events", "/inbox/events/1", "/inbox/events/1/trace", "/inbox/dead", "/inbox/push"]


async def each_place(tab, inbox):
    """Opens every kind of address, and waits until it is shown."""
    for path in PLACES:
        await tab.open(f"#/look{path}")
        await tab.locator(".page h1, .page h2, .events-page:not(.with-event) .row, .event .fields").first.wait_for()
        if path.endswith("/trace"):
            await tab.locator(".trace tr.is-run button.line").first.click()
            await tab.locator(".card-of .links").wait_for()
        if path.endswith("/dead"):
            await tab.locator(".letters li").first.wait_for()
        yield path
    await tab.open("#/look/inbox/c/broken")
    await tab.locator(".runs a").first.click()
    await tab.get_by_role("heading", name="What it printed").wait_for()
    yield "run"
    await tab.open("#/look/inbox")
    await button(tab, "Seek …").first.click()
    yield "question"
    await tab.keyboard.press("Escape")


async def on_a_telephone_and_twice_as_large_everything_fits():
    phone = {"viewport": {"width": 360, "height": 700}, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}
    zoomed = {"viewport": {"width": 600, "height": 400}, "device_scale_factor": 2}
    async with looking(thread=much, **phone) as (inbox, gateway, browser, tab):
        await inbox.has_dead(4)
        for tab in tab, await enter(browser, gateway, **zoomed):
            async for where in each_place(tab, inbox):
                wide = await tab.evaluate("[document.documentElement, ...document.querySelectorAll('.look, .page, .event, dialog')].filter((e) => e.scrollWidth > e.clientWidth + 1).map((e) => e.className)")
                assert not wide, (where, wide)


async def axe_finds_nothing_serious_in_queues():
    if not AXE:
        return print("SKIPPED: needs axe-core, of npm")
    source = (pathlib.Path(AXE) / "node_modules/axe-core/axe.min.js").read_text()
    async with looking(thread=much) as (inbox, gateway, browser, _):
        await inbox.has_dead(4)
        for scheme, size in LOOKS:
            tab = await enter(browser, gateway, color_scheme=scheme, viewport=dict(zip(("width", "height"), size)))
            await tab.evaluate(source)
            async for where in each_place(tab, inbox):
                await tab.evaluate("document.querySelectorAll('details:not([open]) > summary').forEach((summary) => summary.click())")
                await asyncio.sleep(0.2)
                found = await tab.evaluate("axe.run(document, { resultTypes: ['violations'] })")
                heavy = [(v["id"], v["impact"], [node["html"][:200] for node in v["nodes"]]) for v in found["violations"]
                         if v["impact"] in ("moderate", "serious", "critical")]
                assert not heavy, (where, scheme, size, heavy)


async def no_text_of_a_thread_does_anything():
    whole = "\n\n".join(HOSTILE)
    # Several in each event, and all of them in the last.
    texts = [*("\n\n".join(HOSTILE[n:n + 6]) for n in range(0, len(HOSTILE), 6)), whole]
    # Text that a process may have as an argument or a name.
    safe = lambda text: text.replace("\0", "")

    def hostile(inbox):
        for n, text in enumerate(texts):
            (inbox.dir / f"said-{n}").write_text(text)
        inbox.subscribe("failing", "cat >/dev/null; n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) >n; cat said-$n 2>/dev/null; exit 1",
                        "--deliver", "stdin", "--batch-size", "1", "--max-attempts", "1", "--stall-after", "never", "--backoff", "10ms")
        inbox.subscribe("strange", f": {shlex.quote(safe(whole))}; exit 1", "--max-attempts", "1", "--filter", "content <> '<script>hacked=1</script>'",
                        "--env", f"X={safe(HOSTILE[0])}")
        line = lambda text: "".join(c if c >= " " else " " for c in text)
        inbox.batch([{"source": line(text) or "x", "type": "message", "subtype": text, "content": text, "metadata": {text: text}} for text in texts])

    async with looking(thread=hostile) as (inbox, gateway, browser, tab):
        dialogs, named = [], "<img src=x onerror=hacked=1>/../'\""
        tab.page.on("dialog", lambda dialog: (dialogs.append(dialog.message), asyncio.ensure_future(dialog.dismiss())))
        await inbox.has_dead(len(texts), "failing")
        # A name that the program itself would not give, as another program may have written it.
        with contextlib.closing(sqlite3.connect(inbox.path / "events.db")) as db, db:
            db.execute("INSERT INTO subscriptions (consumer_id, handler_cmd, filter) VALUES (?, ?, ?)", (named, whole, whole))
        # A title of a session is what its thread is called.
        session = gateway.root / str(uuid.uuid4())
        inbox.do("init", session, thread=None)
        inbox.do("push", "--source", "external:cli", HOSTILE[1], thread=session)
        places = ["", "/inbox", "/inbox/events", "/inbox/dead", "/inbox/push", "/inbox/c/failing", "/inbox/c/strange"]
        places += [f"/inbox/events/{n}" for n in range(1, len(texts) + 1)]
        async def checked(where):
            for _ in range(2):
                await tab.evaluate("""async () => {
                    document.querySelectorAll("details:not([open]) > summary").forEach((summary) => summary.click());
                    await new Promise((done) => setTimeout(done, 60));
                }""")
            assert await tab.evaluate("globalThis.hacked") is None and not dialogs
            strange = await tab.evaluate("""() => [...document.body.querySelectorAll("*")].filter((element) =>
                ["SCRIPT", "IFRAME", "STYLE", "OBJECT", "EMBED", "BASE", "META", "LINK", "IMG", "AUDIO"].includes(element.tagName.toUpperCase())
                || [...element.attributes].some(({ name }) => name.startsWith("on") || name === "srcset" || name === "style" && element.className !== "gap")
                || element.tagName === "FORM" && !["filter", "push", "question-form"].includes(element.className)
                || element.tagName === "svg" && !["spark", "spent"].includes(element.getAttribute("class")) && !element.closest(".chart, .trace")
                || element.tagName === "A" && !["http:", "https:", "mailto:"].includes(element.protocol)
                || element.tagName === "A" && element.target !== "_blank" && new URL(element.href).origin !== location.origin
                || element.tagName === "A" && element.target === "_blank" && element.rel !== "noopener noreferrer"
            ).map((element) => element.outerHTML.slice(0, 200))""")
            assert not strange, (where, strange)
        for path in places:
            await tab.open(f"#/look{path}")
            await tab.locator(".page h1, .page h2, .events-page:not(.with-event) .row, .event .fields").first.wait_for()
            if "/events/" in path:
                await tab.locator(".event .fields").wait_for()
                for form in "Text", "Markdown":
                    await button(tab, form, tab.locator(".event")).click()
            await checked(path)
            if path == "":
                await tab.see(HOSTILE[1], ".threads")
            if path == "/inbox":
                await expect(card(tab, named)).to_be_visible()
                await card(tab, named).locator("h2 a").click()
                await tab.see(HOSTILE[0], ".settings")
                await checked("a hostile name")
        # Hostile searches and filters.
        for path in "", "/inbox/events":
            await tab.open(f"#/look{path}")
            for text in HOSTILE[:8] if path else HOSTILE:
                await tab.fill("#search", text)
                await tab.keyboard.press("Enter")
                await checked(text)
        await tab.open("#/look/inbox/c/failing")
        await tab.locator(".runs a").first.wait_for()
        for address in await tab.evaluate("[...document.querySelectorAll('.runs a')].map((a) => a.hash)"):
            await tab.open(address)
            await tab.locator(".trace tbody tr").first.wait_for()
            await checked(address)
        for n in 1, len(texts):
            await tab.open(f"#/look/inbox/events/{n}/trace")
            await tab.see(f"What became of event {n}")
            await tab.locator(".trace button.line").nth(1).wait_for()
            for line in await tab.locator(".trace button.line").all():
                await line.click()
            await tab.locator(".card-of .links").last.wait_for()
            await checked("a trace")
        # Hostile addresses.
        for text in HOSTILE:
            await tab.evaluate("(text) => { location.hash = '#/look/' + text + '/c/' + encodeURIComponent(text); }", text)
            await asyncio.sleep(0.05)
            await checked("an address")
        tab.errors = [error for error in tab.errors if not any(status in error for status in ("404", "400"))]


COUNT = 50_000 if LONG else 3_000


async def tens_of_thousands_of_events_scroll():
    async with looking(thread=lambda inbox: inbox.batch(events(COUNT))) as (inbox, gateway, browser, tab):
        await tab.open("#/look/inbox/events")
        await tab.locator(".list-box a.row").first.wait_for()
        await asyncio.sleep(0.5)
        box = tab.locator(".list-box")
        most = 0
        async with traced(browser, tab, f"{COUNT} events scrolled"):
            began = time.monotonic()
            while not await tab.locator(".list-box .figure", has_text="1").last.evaluate("e => e.textContent === '1'"):
                assert time.monotonic() < began + 300
                await box.evaluate("async (e) => { for (let n = 0; n < 20; n++) { e.scrollTop += 700; await new Promise(requestAnimationFrame); } }")
                most = max(most, await tab.evaluate("document.querySelectorAll('*').length"))
        # All rows can be reached, and few of them are elements.
        assert await box.evaluate("e => e.scrollHeight / e.querySelector('a.row').offsetHeight") >= COUNT
        assert most < 1000, most
        await box.evaluate("e => e.scrollTop = e.scrollHeight / 2")
        await expect(tab.locator(".list-box a.row").first).to_be_visible()


if __name__ == "__main__":
    run(globals())
