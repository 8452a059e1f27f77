"""The page in a real browser: Chromium, driven by playwright, against the gateway and agent programs."""

import asyncio
import contextlib
import datetime
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import sys
import tempfile
import time
import urllib.error
import urllib.request

from attachments import PNG
from harness import LONG, PATIENCE, THREAD, Gateway, run

try:
    from playwright.async_api import async_playwright, expect
except ImportError:
    print("SKIPPED: needs playwright, of Python")
    sys.exit(0)

CHROMIUM = shutil.which("chromium")
if not CHROMIUM:
    print("SKIPPED: needs chromium")
    sys.exit(0)

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync"]
# What playwright disables, since only the last list counts, and the page for suggestions of the address bar that each
# window has: it takes more processor time than ours.
FLAGS.append("--disable-features=" + ",".join([
    "AimEnabled", "AvoidCorsURLLoaderRestartOnRedirect", "AvoidUnnecessaryBeforeUnloadCheckSync", "DestroyProfileOnBrowserClose",
    "HttpsFirstBalancedModeAutoEnable", "HttpsUpgrades", "LensOverlay", "MediaRouter", "NetworkTimeServiceQuerying",
    "OptimizationHints", "PaintHolding", "PreconnectToSearch", "ThirdPartyStoragePartitioning",
    "WebUIOmniboxAimPopup", "WebUIOmniboxFullPopup", "WebUIOmniboxPopup"]))
PLAYER = f"{shlex.quote(sys.executable)} {shlex.quote(str(pathlib.Path(__file__).with_name('page_agent.py')))}"
NDJSON = ("--agent", PLAYER, "--protocol", "ndjson")
ACP = ("--agent", f"{PLAYER} --acp", "--protocol", "acp", "--permit", "ask")
# The folder for screenshots of the page, if wanted.
PICTURES = os.environ.get("PAGE_PICTURES")
# Files of the page to use instead of those in the program, during development.
WEB = os.environ.get("PAGE_FILES")

expect.set_options(timeout=PATIENCE * 1000)

# Each violation of the content security policy, and each error in the page, fails the test.
WATCH = """
    document.addEventListener("securitypolicyviolation", (event) =>
        violated(`${event.violatedDirective}: ${event.blockedURI} ${event.sample}`));
"""


class Tab:
    """A page in a browser of its own."""

    def __init__(self, gateway, context, page):
        self.gateway, self.context, self.page = gateway, context, page
        self.errors, self.foreign = [], []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda message: message.type == "error" and self.errors.append(message.text))
        page.on("request", lambda request: self.note(request.url))

    def note(self, url):
        if not url.startswith((self.gateway.url, self.gateway.ws, "data:", "about:")):
            self.foreign.append(url)

    def __getattr__(self, name):
        return getattr(self.page, name)

    async def open(self, path=""):
        await self.page.goto(f"{self.gateway.url}/{path}")

    async def enter(self):
        """By the link, as users do."""
        await self.open(f"#token={self.gateway.token}")
        await expect(self.page.locator(".sessions")).to_be_attached()

    async def say(self, text, priority=None):
        await self.page.fill("#message", text)
        if priority:
            await self.page.select_option(".when select", priority)
        if await self.page.evaluate("matchMedia('(hover: hover)').matches"):
            await self.page.keyboard.press("Enter")
        else:
            await self.page.get_by_role("button", name="Send", exact=True).click()
        await expect(self.page.locator("#message")).to_have_value("")

    async def new(self, text):
        """Begins a session with a message. Returns its id."""
        # On a phone without sessions, the box to write in is shown as soon as that is known.
        await self.until('''(({ loaded, list }) =>
            loaded && (list.length || document.querySelector("#message")))(globalThis.thread.state.sessions)''')
        if await self.page.locator(".sessions .new").is_visible():
            await self.page.click(".sessions .new")
            await self.page.wait_for_selector("h1:has-text('New conversation')")
        await self.say(text)
        await self.page.wait_for_url("**/#/s/*")
        return self.session()

    def session(self):
        return self.page.url.rsplit("/", 1)[1]

    async def until(self, expression):
        """Waits until it is true in the page. (Playwright's own function needs `eval`, which the policy forbids.)"""
        began = time.monotonic()
        while not await self.page.evaluate(expression):
            assert time.monotonic() < began + PATIENCE, f"does not come: {expression}"
            await asyncio.sleep(0.02)

    def answer(self, text):
        return self.page.locator(".answer", has_text=text)

    async def see(self, text, selector="main"):
        await expect(self.page.locator(selector).get_by_text(text).first).to_be_visible()

    def checked(self):
        """No violation, no error, no request to another host."""
        # The end of a gateway is not an error of the page.
        ends = "ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "WebSocket"
        lost = [error for error in self.errors if not any(end in error for end in ends)]
        assert not lost and not self.foreign, (lost, self.foreign)


class Browser:
    """Chromium. Each tab has its own cookies and storage."""

    async def __aenter__(self):
        self.driver = await async_playwright().start()
        self.chromium = await self.driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        self.tabs = []
        return self

    async def tab(self, gateway, enter=True, **options):
        options = {"viewport": {"width": 1200, "height": 800}, **options}
        context = await self.chromium.new_context(**options)
        await context.add_init_script(WATCH)
        context.set_default_timeout(PATIENCE * 1000)
        if WEB:
            await context.route("**/page/**", lambda route: route.fulfill(path=WEB + route.request.url.split("/page", 1)[1]))
        tab = Tab(gateway, context, await context.new_page())
        await context.expose_function("violated", lambda what: tab.errors.append(what))
        self.tabs.append(tab)
        if enter:
            await tab.enter()
        return tab

    async def __aexit__(self, failed, *_):
        try:
            if failed:
                for n, tab in enumerate(self.tabs):
                    with contextlib.suppress(Exception):
                        print(tab.page.url, tab.errors, await tab.page.inner_text("body"), file=sys.stderr)
                        if PICTURES:
                            await tab.page.screenshot(path=f"{PICTURES}/failed-{n}.png")
            else:
                for tab in self.tabs:
                    tab.checked()
        finally:
            await self.chromium.close()
            await self.driver.stop()


def plays(gateway, **of):
    (gateway.root / "plays.json").write_text(json.dumps(of))
    (gateway.root / "programs.json").write_text(json.dumps({"thread": THREAD}))


def go(gateway, name="go"):
    """Lets a waiting play continue."""
    (gateway.root / name).touch()


async def picture(tab, name):
    if PICTURES:
        await tab.page.screenshot(path=f"{PICTURES}/{name}.png")


async def an_answer_streams_with_its_thinking_and_its_tools():
    with Gateway(*NDJSON) as gateway:
        plays(gateway, **{"The nightly backup fails, please look.": [
            ["think", "Where is the script? "], ["think", "I will read it first."],
            ["call", "c1", "read", {"path": "backup.sh"}], ["result", "c1", "read", "tar czf /backup/data.tgz /srv/data\n"],
            ["call", "c2", "run", {"command": "sh backup.sh --dry-run"}],
            ["fail", "c2", "run", "exit 1: tar: /srv/data: permission denied"],
            ["say", "The script runs as **backup**, who may not read `/srv/data`.\n\n"], ["say", "1. one\n2. tw"],
            ["wait", "go"], ["say", "o\n\n```sh\nchown -R backup /srv/data\n```\n"],
        ]})
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            await tab.new("The nightly backup fails, please look.")
            await expect(tab.locator(".answer li")).to_have_text(["one", "tw"])
            await expect(tab.locator(".answer strong")).to_have_text("backup")
            await expect(tab.locator(".tool .name")).to_have_text(["read", "run"])
            # Its thinking is folded at first.
            thought = tab.get_by_text("Where is the script? I will read it first.")
            await expect(thought).to_have_count(0)
            await tab.click(".thinking summary")
            await expect(thought).to_be_visible()
            await tab.click(".thinking summary")
            await expect(thought).to_be_hidden()
            await picture(tab, "talk")
            go(gateway)
            await expect(tab.locator(".answer pre code")).to_have_text("chown -R backup /srv/data\n")
            await expect(tab.locator(".actions", has_text="Copy answer")).to_be_attached()
            # The answer is announced to screen readers once.
            await expect(tab.locator(".unseen[role=status]")).to_contain_text("Answer: The script runs as")


async def steps_with_code_between_them_stay_steps():
    with Gateway(*NDJSON) as gateway:
        plays(gateway, how=[
            ["say", "1. **Stop** it:\n```sh\nsystemctl stop x\n```\n2. Look at [the log]"], ["wait", "go"],
            ["say", ":\n\n   ```sh\n   journalctl -u x\n   ```\n\n3. [ ] Start it\n\n| n | size |\n|---|-----:|\n| 1 | 20 |\n\n[the log]: https://log.example/"]])
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            await tab.new("how")
            steps = tab.locator(".answer ol > li")
            await expect(steps).to_have_text(["Stop it:", "Look at [the log]"])
            await expect(tab.locator(".answer pre")).to_have_text("systemctl stop x\n")
            go(gateway)
            for _ in range(2):
                await expect(steps).to_have_count(3)
                assert await tab.evaluate("[...document.querySelectorAll('.answer ol')].map((list) => list.start)") == [1, 2]
                await expect(steps.nth(1).locator("pre")).to_have_text("journalctl -u x\n")
                await expect(steps.nth(1).get_by_role("link", name="the log")).to_have_attribute("href", "https://log.example/")
                await expect(steps.nth(2).get_by_role("img", name="to do")).to_be_visible()
                await expect(tab.locator(".answer th").last).to_have_css("text-align", "right")
                await expect(tab.locator(".answer td").last).to_have_css("text-align", "right")
                await tab.answer("Start it").wait_for()
                await tab.reload()


async def what_was_done_is_there_after_a_reload():
    with Gateway(*NDJSON) as gateway:
        plays(gateway, work=[
            ["think", "hm"], ["call", "c1", "read", {"path": "a"}], ["result", "c1", "read", {"lines": 3}],
            ["call", "c1", "read", {"path": "corrected"}], ["say", "The **end**."],
        ], crash=[["think", "first"], ["exit", 3], ["say", "Second."]])
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            await tab.new("work")
            await tab.answer("The end.").wait_for()
            await tab.say("crash")
            await tab.answer("Second.").wait_for()
            for _ in range(2):
                await expect(tab.locator(".thinking")).to_have_count(2)
                await expect(tab.locator(".tool .gist")).to_have_text(["corrected"])
                await tab.click(".tool summary")
                await expect(tab.locator(".tool pre").last).to_have_text('{\n  "lines": 3\n}')
                await tab.see("Attempt 1 failed", ".earlier")
                await expect(tab.locator(".answer strong")).to_have_text("end")
                await tab.reload()


async def two_browsers_in_one_session_see_the_same():
    with Gateway(*NDJSON) as gateway:
        plays(gateway, slow=[["say", "One "], ["wait", "go"], ["say", "two."]])
        async with Browser() as browser:
            one, two = await browser.tab(gateway), await browser.tab(gateway)
            session = await one.new("slow")
            await two.open(f"#/s/{session}")
            for tab in one, two:
                await tab.answer("One").wait_for()
                await tab.see("2 here")
            go(gateway)
            for tab in one, two:
                await tab.answer("One two.").wait_for()
            await two.say("from the other")
            for tab, who in (one, "another browser"), (two, "you"):
                await expect(tab.locator(".said .head").last).to_contain_text(who)
                await tab.answer("You said: from the other").wait_for()
            await expect(two.locator(".said .head").first).to_contain_text("another browser")
            await two.page.close()
            await expect(one.locator(".here")).to_have_text("")


async def sub_agents_stand_with_the_call_they_work_for():
    with Gateway(*NDJSON) as gateway:
        line = "echo reading; while [ ! -e go ]; do sleep 0.02; done; echo found it"
        plays(gateway, delegate=[["call", "c1", "reader", {"task": "read"}], ["sub", "c1", "reader", line], ["say", "Done."]])
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            await tab.new("delegate")
            await tab.see("sub-agent reader", ".sub-agent")
            await tab.click(".sub-agent summary")
            await tab.answer("reading").wait_for()
            go(gateway)
            await tab.answer("Done.").wait_for()
            for _ in range(2):
                await expect(tab.locator(".sub-agent summary")).to_contain_text("done")
                await tab.click(".tool summary")
                await expect(tab.locator(".tool pre").last).to_have_text("reading\nfound it\n")
                await tab.reload()


DETAILS = "\n".join(f"{n}: a line of what is changed" for n in range(1, 60))


async def permission_is_read_whole_and_given():
    with Gateway(*ACP) as gateway:
        ask = lambda n: ["ask", f"c{n}", "chown -R backup \u202e/srv/data", {"path": "/srv/data"}, DETAILS]
        plays(gateway, fix=[
            ["plan", [{"content": "read the script", "priority": "high", "status": "completed"},
                      {"content": "mend the rights", "priority": "high", "status": "in_progress"}]],
            ["call", "c1", "chown", {"path": "/srv/data"}], ask(1), ["result", "c1", "chown", "ok"],
        ], again=[["call", "c2", "chown", {"path": "/"}], ask(2)])
        async with Browser() as browser:
            tab, other = await browser.tab(gateway), await browser.tab(gateway)
            session = await tab.new("fix")
            await other.open(f"#/s/{session}")
            for who in tab, other:
                card = who.locator(".permission.open")
                # Characters that would reverse the text are visible.
                await expect(card.locator(".request")).to_have_text("chown -R backup ‹U+202E›/srv/data")
                await expect(card.locator("pre").last).to_have_text(DETAILS)
                assert await card.locator("pre").last.evaluate("e => e.scrollHeight <= e.clientHeight + 1"), "it is hidden in part"
                last = await card.locator("pre").last.bounding_box()
                button = await card.get_by_role("button", name="Allow once").bounding_box()
                assert button["y"] >= last["y"] + last["height"]
                await who.see("The agent asks for permission")
            await expect(tab.locator(".session .needs").first).to_have_text("asks you")
            await expect(tab.locator(".plan li")).to_have_count(2)
            # A client that comes back sees the request too.
            await tab.reload()
            await tab.locator(".permission.open").wait_for()
            gateway.kill()
            await tab.see("No connection", ".offline")
            await tab.get_by_role("button", name="Allow once").click()
            await expect(tab.locator(".permission [role=alert]")).to_contain_text("There is no connection.")
            gateway.restart()
            await expect(tab.locator(".offline")).to_have_count(0)
            await tab.get_by_role("button", name="Allow once").click()
            for who in tab, other:
                await who.answer("The answer was once.").wait_for()
                await expect(who.locator(".answered")).to_have_text("Answered: Allow once")
            await tab.say("again")
            await other.get_by_role("button", name="Reject").click()
            await tab.answer("The answer was no.").wait_for()
            await tab.reload()
            await expect(tab.locator(".answered")).to_have_text(["Answered: Allow once", "Answered: Reject"])


async def a_call_without_a_result_is_no_error():
    with Gateway(*ACP) as gateway:
        command = "chown -R backup /srv/data"
        ask = lambda n: [["say", "I would change the owner."], ["call", f"c{n}", command, {"command": command}], ["ask", f"c{n}", command, {"command": command}, ""]]
        plays(gateway, one=[["think", "hm"], *ask(1)], two=ask(2), three=[*ask(3), ["fail", "c3", command, "refused"]],
              four=[*ask(4), ["result", "c4", command, "ok"]], five=[*ask(5), ["fail", "c5", command, "no such user"]])
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            session = await tab.new("one")
            figure, wrong, choose = tab.locator(".tool summary > .figure"), tab.locator(".tool.wrong"), lambda name: tab.get_by_role("button", name=name).click()
            for _ in range(2):
                # It waits for an answer, and announces that once.
                await expect(figure).to_have_text("waits for you")
                await expect(tab.locator(".run > .head .doing")).to_have_text("waits for you")
                await expect(tab.locator(".permission .request")).to_have_text(command)
                await expect(tab.locator(".permission pre")).to_have_count(0)
                await expect(tab.locator(".tool .gist")).to_have_text("")
                await tab.see("“Always”: the agent keeps the answer", ".permission")
                # It is in view, so there is no link to it; and stays in view when something before it is opened.
                await expect(tab.locator(".question")).to_have_count(0)
                await tab.click(".thinking summary")
                await expect(tab.locator(".thinking pre")).to_be_in_viewport()
                await tab.reload()
            await choose("Allow once")
            await tab.answer("The answer was once.").wait_for()
            await expect(figure).to_have_text("no result")
            await tab.say("two")
            await choose("Reject")
            await expect(figure.last).to_have_text("rejected")
            await tab.say("three")
            await choose("Reject")
            await expect(figure.last).to_have_text("rejected")
            await tab.say("four")
            await tab.locator(".permission.open").wait_for()
            asked = time.monotonic()
            seconds = lambda figure: f"(([text]) => parseFloat(text) / (text.endsWith(' ms') ? 1000 : 1))([[...document.querySelectorAll('{figure}')].pop().textContent.trim()])"
            total, own = seconds(".run > .head .figure"), seconds(".tool summary > .figure")
            await tab.until(f"{total} >= 3")
            waited = time.monotonic() - asked
            await choose("Allow once")
            await expect(tab.locator(".answered").last).to_have_text("Answered: Allow once")
            await expect(figure.last).to_have_text(re.compile(r"^[\d.]+ m?s$"))
            await expect(wrong).to_have_count(0)
            await tab.until("!document.querySelector('.run[aria-busy=true]')")
            # Its own time, without the wait for the answer.
            took = await tab.evaluate(own)
            assert took <= await tab.evaluate(total) - waited + 0.2, (took, waited)
            await tab.say("five")
            await choose("Allow once")
            await expect(figure.last).to_contain_text("error")
            await expect(wrong).to_have_count(1)
            await tab.reload()
            await expect(figure).to_have_text(["no result", "rejected", "rejected", re.compile(r"^[\d.]+ m?s$"), re.compile("^error")])
            await expect(wrong).to_have_count(1)
            await tab.click(".tool summary >> nth=0")
            await tab.see("answered without reporting what came of it", ".tool")
            # Stopped while it asks: this is neither a timeout nor an error.
            plays(gateway, six=ask(6))
            await tab.say("six")
            await tab.locator(".permission.open").wait_for()
            await tab.get_by_role("button", name="Stop").click()
            for _ in range(2):
                await expect(tab.locator(".answered").last).to_have_text("Not answered. Stopped by you")
                await expect(figure.last).to_have_text("no result")
                await tab.reload()


async def what_was_said_between_tools_stands_there_after_a_reload():
    with Gateway(*NDJSON) as gateway:
        call = lambda n: [["call", f"c{n}", f"tool{n}", {}], ["result", f"c{n}", f"tool{n}", n]]
        plays(gateway, work=[["say", "First, "], ["say", "I look."], *call(1), ["think", "hm"], ["say", "Then *this*."], *call(2), *call(3), ["say", "The "], ["say", "end."]],
              stop=[["say", "Before."], *call(4), ["say", "After."], ["wait", "never"]],
              crash=[["say", "Once."], *call(5), ["exit", 3], ["say", "Twice."], *call(6), ["say", "Done."]])
        order = "[...document.querySelectorAll('.run > .answer, .run > .tool')].map((e) => e.matches('.tool') ? e.querySelector('.name').textContent : e.textContent.trim())"
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            session = await tab.new("work")
            await tab.answer("The end.").wait_for()
            await tab.say("stop")
            await tab.answer("After.").wait_for()
            await tab.get_by_role("button", name="Stop").click()
            await tab.see("Stopped by you", ".cancelled")
            await tab.say("crash")
            await tab.answer("Done.").wait_for()
            await tab.until("!document.querySelector('.run[aria-busy=true]')")
            for _ in range(2):
                await expect(tab.locator(".run > .answer")).to_have_count(8)
                assert await tab.evaluate(order) == ["First, I look.", "tool1", "Then this.", "tool2", "tool3", "The end.",
                                                     "Before.", "tool4", "After.", "Once.", "tool5", "Twice.", "tool6", "Done."]
                await tab.click(".earlier summary")
                await tab.see("Once.", ".earlier")
                await tab.reload()
            # Without the pieces, the whole answer comes after the steps.
            gateway.thread("prune", "--subtype", "token", "--older-than", "0s", session=session)
            await tab.reload()
            await expect(tab.locator(".run > .answer")).to_have_text(["First, I look.Then this.The end.", "Before.After.", "Once.Twice.Done."])


async def the_events_of_a_run_lead_to_look_and_back():
    with Gateway(*NDJSON) as gateway:
        plays(gateway, work=[["call", "c1", "read", {"path": "a"}], ["result", "c1", "read", "text"], ["say", "Done."]])
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            session = await tab.new("work")
            await tab.answer("Done.").wait_for()
            await tab.locator(".exchange").hover()
            await tab.get_by_role("button", name="Events").click()
            rows = tab.locator(".events summary")
            await expect(rows.filter(has_text="tool_call")).to_contain_text("read")
            times = await rows.locator("time").all_inner_texts()
            assert times and all(re.search(r"\d:\d\d:\d\d", time) for time in times), times
            for part in "time", ".gist":
                edges = {round(edge) for edge in await rows.evaluate_all(f"rows => rows.map((row) => row.querySelector('{part}').getBoundingClientRect().left)")}
                assert len(edges) == 1, (part, edges)
            await picture(tab, "events")
            await tab.get_by_role("link", name="This run in Queues").click()
            await tab.wait_for_url(f"**/#/look/{session}/c/agent/*")
            await expect(tab.locator("h1")).to_contain_text("Run of agent")
            # The link back to Chat leads to the last session, also after a reload.
            await tab.reload()
            await tab.locator(".halves").get_by_role("link", name="Chat").click()
            await tab.answer("Done.").wait_for()
            assert tab.session() == session


async def events_of_a_message_are_its_own():
    with Gateway(*NDJSON) as gateway:
        plays(gateway, first=[["wait", "ready"], *([["call", "c1", "read", {"path": "a"}], ["result", "c1", "read", "text"]] * 3), ["wait", "go"], ["say", "Done."]],
              second=[["call", "c2", "write", {"path": "b"}], ["result", "c2", "write", "ok"], ["say", "Also done."]])
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            await tab.new("first")
            await tab.say("second")
            second = tab.locator(".exchange", has=tab.page.locator(".said", has_text="second"))
            await expect(tab.locator(".strip li")).to_contain_text("second")
            go(gateway, "ready")
            await expect(tab.locator(".tool")).to_have_count(1)
            await expect(second).to_have_count(0)
            go(gateway)
            await tab.answer("Also done.").wait_for()
            await second.hover()
            await second.get_by_role("button", name="Events").click()
            rows = tab.locator(".events summary")
            await expect(rows.filter(has_text="tool_call")).to_contain_text("write")
            await expect(rows.filter(has_text="read")).to_have_count(0)


async def a_waiting_message_shows_it_and_can_be_withdrawn_or_hurried():
    with Gateway(*NDJSON) as gateway:
        plays(gateway, long=[["say", "Working"], ["wait", "go"], ["say", " on."]], last=[["wait", "go"], ["say", "Last."]])
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            session = await tab.new("long")
            await tab.answer("Working").wait_for()
            await tab.say("last", priority="later")
            await tab.say("second")
            await tab.say("third")
            strip, order = tab.locator(".strip li"), tab.locator(".strip .place, .strip .words")
            await expect(order).to_have_text(["next", "second", "2.", "third", "3.", "last"])
            await expect(strip.last).to_contain_text("when idle")
            # The answer that is under way stays in view.
            await expect(tab.locator(".exchange")).to_have_count(1)
            await expect(tab.answer("Working")).to_be_in_viewport()
            await picture(tab, "queue")
            await tab.reload()
            await expect(order).to_have_text(["next", "second", "2.", "third", "3.", "last"])
            exchange = lambda text: tab.locator(".exchange", has=tab.locator(".words", has_text=text)).first
            await strip.first.get_by_role("button", name="Take back").click()
            await expect(exchange("second").locator(".cancelled")).to_contain_text("Taken back by you")
            await expect(order).to_have_text(["next", "third", "2.", "last"])
            await strip.first.get_by_role("button", name="Send now").click()
            # It interrupts.
            await expect(exchange("long").locator(".cancelled")).to_contain_text("Interrupted by your next message")
            await tab.answer("You said: third").wait_for()
            go(gateway)
            await tab.answer("Last.").wait_for()
            assert [e["metadata"].get("priority") for e in gateway.events(session) if e["content"] == "third"] == [None, "now"]


async def an_agent_is_chosen_for_a_session_and_changed_later():
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "agents.toml")
        file.write_text("""
[[agent]]
name = "loud"
command = "tr a-z A-Z"
about = "Says it again, <loudly>"
prompts = ["say hello", "say <b>that</b>", "say more", "say too much"]

[[agent]]
name = "quiet"
command = "tr A-Z a-z"
about = "Whispers"
""")
        with Gateway("--agents", file) as gateway:
            async with Browser() as browser:
                tab = await browser.tab(gateway)
                await tab.see("Says it again, <loudly>", ".greeting")
                await expect(tab.locator(".greeting h2")).to_have_text("loud")
                await expect(tab.locator(".prompts button")).to_have_text(["say hello", "say <b>that</b>", "say more"])
                await picture(tab, "first-minute")
                # A suggestion is put into the box, and not sent.
                await tab.page.get_by_role("button", name="say hello").click()
                await expect(tab.page.locator("#message")).to_have_value("say hello")
                await tab.page.keyboard.press("Enter")
                await tab.answer("SAY HELLO").wait_for()
                await expect(tab.page.locator("header .with select")).to_have_value("loud")
                await tab.page.select_option("header .with select", "quiet")
                await tab.see("From here on, the agent is quiet.")
                await tab.say("AND NOW")
                await tab.answer("and now").wait_for()
                await tab.page.reload()
                await expect(tab.page.locator("header .with select")).to_have_value("quiet")
                await tab.see("From here on, the agent is quiet.")
                # The choice for a new session is kept with what is typed.
                await tab.page.click(".sessions .new")
                await tab.page.select_option(".composer .with select", "quiet")
                await tab.see("Whispers")
                await tab.page.fill("#message", "A NEW ONE")
                await tab.page.reload()
                await expect(tab.page.locator(".composer .with select")).to_have_value("quiet")
                await tab.page.locator("#message").press("Enter")
                await tab.answer("a new one").wait_for()


async def a_message_is_sent_later_and_can_be_cancelled():
    with Gateway(*NDJSON) as gateway:
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            await tab.fill("#message", "in half an hour")
            await tab.get_by_role("button", name="Later …").click()
            dialog = tab.locator("dialog")
            await dialog.get_by_role("button", name="Schedule").first.click()
            await tab.wait_for_url("**/#/s/*")
            rows = tab.locator(".strip li")
            await expect(rows).to_have_text([re.compile("in half an hour")])
            await expect(tab.locator("#message")).to_have_value("")
            await expect(tab.locator("#message")).to_be_focused()
            await tab.see("No messages yet.")
            session = tab.session()
            minutes = lambda: (json.loads(gateway.thread("scheduled", "--json", session=session).splitlines()[0])["due_at"])
            due = datetime.datetime.fromisoformat(minutes().replace("Z", "+00:00"))
            assert 29 * 60 < (due - datetime.datetime.now(datetime.timezone.utc)).total_seconds() <= 30 * 60, due
            # At a time, with a file; a time that is over is refused.
            await tab.fill("#message", "at a time")
            await tab.get_by_role("button", name="Later …").click()
            await dialog.get_by_label("At", exact=True).fill("2020-01-01T10:00")
            await dialog.get_by_role("button", name="Schedule").last.click()
            await tab.see("This time is over", "dialog")
            await expect(tab.locator("#message")).to_have_value("at a time")
            await expect(tab.locator(".said")).to_have_count(0)
            at = f"{datetime.date.today().year + 1}-01-31T10:00"
            await dialog.get_by_label("At", exact=True).fill(at)
            await picture(tab, "later")
            await dialog.get_by_role("button", name="Schedule").last.click()
            await expect(rows).to_have_count(2)
            await tab.reload()
            await expect(rows).to_have_count(2)
            await picture(tab, "scheduled")
            # Another browser sees it, and what becomes of it.
            other = await browser.tab(gateway)
            await other.open(f"#/s/{session}")
            theirs = other.locator(".strip li")
            await expect(theirs).to_have_count(2)
            await rows.nth(1).get_by_role("button", name="Cancel").click()
            await expect(rows).to_have_count(1)
            await expect(theirs).to_have_count(1)
            await theirs.get_by_role("button", name="Send now").click()
            await tab.answer("You said: in half an hour").wait_for()
            for who in tab, other:
                await expect(who.locator(".strip")).to_have_count(0)
                await expect(who.locator(".said")).to_have_text([re.compile("in half an hour")])
            await expect(tab.locator(".said")).to_contain_text("you")
            # By itself when it is due, whatever the page does in the meantime.
            await tab.evaluate("thread.state.send('soon', { at: new Date(Date.now() + 1500).toISOString() })")
            await expect(rows).to_have_text([re.compile("soon")])
            await tab.answer("You said: soon").wait_for()
            await expect(tab.locator(".strip")).to_have_count(0)
            # Queues shows the same, and cancels it.
            gateway.thread("push", "--source", "external:cli", "--in", "2h", "from a shell", session=session)
            await expect(rows).to_have_text([re.compile("from a shell")])
            # As many, but another one; and one by a rule.
            number = json.loads(gateway.thread("scheduled", "--json", session=session).splitlines()[0])["scheduled_id"]
            gateway.thread("scheduled", "cancel", number, session=session)
            gateway.thread("push", "--source", "external:cli", "--in", "2h", "another", session=session)
            await expect(rows).to_have_text([re.compile("another")])
            gateway.thread("schedule", "add", "daily", "--source", "external:cli", "--cron", "0 7 * * *", "by a rule", session=session)
            await expect(rows).to_have_text([re.compile("by a rule"), re.compile("another")])
            gateway.thread("schedule", "remove", "daily", session=session)
            await expect(rows).to_have_text([re.compile("another")])
            await other.open(f"#/look/{session}")
            await other.locator(".to-come").get_by_role("button", name="Cancel").click()
            await expect(other.locator(".to-come")).to_have_count(0)
            await expect(tab.locator(".strip")).to_have_count(0)
            # What is refused keeps its time when it is changed.
            await tab.evaluate("at => thread.state.send([{ type: 'binary', mimeType: 'image/png', url: 'https://evil.example/x.png' }], { at })", f"{due.year + 1}-06-15T10:00:00Z")
            await tab.locator(".sending").get_by_role("button", name="Edit").click()
            await tab.get_by_label("Remove x.png").click()
            await tab.fill("#message", "without it")
            await tab.get_by_role("button", name="Send", exact=True).click()
            await expect(dialog.get_by_label("At", exact=True)).to_have_value(re.compile(f"^{due.year + 1}-06-1"))
            await dialog.get_by_role("button", name="Schedule").last.click()
            await expect(rows).to_have_text([re.compile("without it")])


async def a_run_is_stopped():
    with Gateway(*NDJSON) as gateway:
        plays(gateway, long=[["say", "As far as this"], ["wait", "never"]])
        async with Browser() as browser:
            tab, other = await browser.tab(gateway), await browser.tab(gateway)
            # While no run is active, there is nothing to choose.
            await expect(tab.locator(".when")).to_have_count(0)
            session = await tab.new("long")
            await other.open(f"#/s/{session}")
            for who in tab, other:
                await who.answer("As far as this").wait_for()
            await expect(tab.locator(".when option")).to_have_text(["after this", "in the middle of it", "interrupting it", "when idle"])
            await expect(tab.locator(".session .needs").first).to_contain_text("running")
            await tab.get_by_role("button", name="Stop").click()
            for _ in range(2):
                await expect(tab.locator(".cancelled")).to_have_text(re.compile(r"^Stopped by you · \d+:\d\d"))
                await expect(other.locator(".cancelled")).to_contain_text("Stopped by another browser")
                await expect(tab.get_by_role("button", name="Stop")).to_have_count(0)
                await expect(tab.locator(".when")).to_have_count(0)
                await expect(tab.locator(".answer")).to_have_text("As far as this")
                await tab.reload()
            # Variants after it have it too, and the one beside it.
            await tab.say("more")
            await tab.answer("You said: more").wait_for()
            again = lambda n: tab.locator(".exchange").nth(n).get_by_role("button", name="Try again")
            # Without the mouse, those of the last message are visible.
            await tab.mouse.move(0, 0)
            assert await again(-1).evaluate("e => getComputedStyle(e.parentElement).opacity") == "1"
            await again(-1).click()
            await expect(tab.locator(".variants .figure")).to_have_text("2/2")
            await expect(tab.locator(".cancelled")).to_have_text(re.compile(r"^Stopped by you · \d+:\d\d"))
            await expect(tab.locator(".answer")).to_have_text(["As far as this", "You said: more"])
            await tab.locator(".exchange").first.hover()
            await again(0).click()
            await expect(tab.locator(".variants .figure")).to_have_text("2/2")
            await expect(tab.locator(".said")).to_have_count(1)
            await tab.get_by_role("link", name="Previous variant").click()
            await expect(tab.locator(".answer")).to_have_text(["As far as this", "You said: more"])
            await expect(tab.locator(".cancelled")).to_have_count(1)


async def a_failure_stands_where_it_happened():
    with Gateway("--agent", "echo so far; exit 3", "--attempts", "1") as gateway:
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            await tab.new("go")
            for _ in range(2):
                await tab.see("Failed.", ".failure")
                await tab.answer("so far").wait_for()
                await expect(tab.locator(".session .needs").first).to_have_text("failed")
                await tab.reload()


async def files_are_picked_dropped_and_pasted():
    with Gateway(*NDJSON) as gateway:
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            await tab.new("hello")
            await tab.answer("You said: hello").wait_for()
            chosen = {"name": "chosen.png", "mimeType": "image/png", "buffer": PNG}
            await tab.locator("input[type=file]").set_input_files(chosen)
            names = tab.locator(".composer .files li:has(button)")
            await expect(names).to_have_count(1)
            bring = """([selector, kind, key, name]) => {
                const data = new DataTransfer();
                data.items.add(new File(["some text"], name, { type: "text/plain" }));
                const event = new Event(kind, { bubbles: true, cancelable: true });
                event[key] = data;
                document.querySelector(selector).dispatchEvent(event);
            }"""
            await tab.evaluate(bring, [".conversation", "drop", "dataTransfer", "dropped.txt"])
            await expect(names).to_have_count(2)
            await tab.evaluate(bring, ["#message", "paste", "clipboardData", "pasted.txt"])
            await expect(names).to_have_count(3)
            # A draft survives a reload; a file that is too large is refused in place.
            await tab.reload()
            await expect(names).to_have_count(3)
            await tab.evaluate("""() => {
                const data = new DataTransfer();
                data.items.add(new File([new Uint8Array(26 * 1024 * 1024)], "huge.bin"));
                const event = new Event("drop", { bubbles: true, cancelable: true });
                event.dataTransfer = data;
                document.querySelector(".conversation").dispatchEvent(event);
            }""")
            await tab.see("25 MiB are the most", ".composer")
            await tab.get_by_label("Remove pasted.txt").click()
            await tab.say("look")
            await tab.answer("look").wait_for()
            for _ in range(2):
                image = tab.locator(".said .files img")
                await image.scroll_into_view_if_needed()
                await expect(image).to_have_js_property("naturalWidth", 1)
                await expect(tab.locator(".said .files a", has_text="dropped.txt")).to_have_count(1)
                await tab.reload()


async def sessions_are_searched_renamed_switched_and_deleted():
    with Gateway(*NDJSON) as gateway:
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            first = await tab.new("Invoices of May")
            await tab.answer("You said").wait_for()
            second = await tab.new("Lunch with <b>Ada</b>")
            await tab.answer("You said").wait_for()
            titles = tab.locator(".session .title")
            await expect(titles).to_have_text(["Lunch with <b>Ada</b>", "Invoices of May"])
            await tab.fill("#search", "invoices")
            await expect(titles).to_have_text(["Invoices of May"])
            await expect(tab.locator(".session mark")).to_have_text("Invoices")
            # All words have to occur; what is quoted is a phrase.
            await tab.fill("#search", "may INVOICES")
            await expect(titles).to_have_text(["Invoices of May"])
            await expect(tab.locator(".session mark")).to_have_text("May")
            await tab.fill("#search", '"may invoices"')
            await tab.see("Nothing found in titles, messages and tools.", ".sessions")
            await tab.fill("#search", "nowhere")
            await tab.see("Nothing found in titles, messages and tools.", ".sessions")
            note, box = await tab.get_by_text("Nothing found").bounding_box(), await tab.locator("#search").bounding_box()
            assert 0 <= note["y"] - box["y"] - box["height"] < 40, (note, box)
            # An excerpt begins at a word, and the hit is visible however long its context is.
            gateway.push(second, f"{'long ago, ' * 20}the directory belongs to its owner{', and so on' * 20}", kind="message", source="external:cli")
            await tab.fill("#search", "owner")
            hit, excerpt = tab.locator(".session mark"), tab.locator(".session .excerpt")
            await expect(hit).to_have_text("owner")
            await expect(excerpt).to_have_text(re.compile(r"^…belongs to its owner, and so on"))
            inner, outer = await hit.bounding_box(), await excerpt.bounding_box()
            assert inner["x"] + inner["width"] <= outer["x"] + outer["width"] and inner["y"] + inner["height"] <= outer["y"] + outer["height"] + 1, (inner, outer)
            await tab.fill("#search", "invoices")
            await expect(titles).to_have_text(["Invoices of May"])
            await tab.click(".session")
            await tab.wait_for_url(f"**/#/s/{first}/*?find=invoices")
            await tab.answer("Invoices of May").wait_for()
            await tab.fill("#search", "")
            await expect(titles).to_have_count(2)
            await tab.get_by_role("button", name="Rename").click()
            await tab.fill("dialog input", "Invoices May")
            await tab.keyboard.press("Enter")
            await expect(tab.locator("h1")).to_have_text("Invoices May")
            await expect(titles.filter(has_text="Invoices May")).to_have_count(1)
            # Another client writes there: the other session is unread.
            await tab.open(f"#/s/{second}")
            await tab.answer("Lunch").wait_for()
            gateway.push(first, "psst", kind="message", source="external:cli")
            await expect(tab.locator(".session.unread .title")).to_have_text("Invoices May")
            await tab.get_by_role("button", name="Delete").click()
            await tab.get_by_role("button", name="Keep it").click()
            assert (gateway.root / second).exists()
            await tab.get_by_role("button", name="Delete").click()
            await tab.locator("dialog").get_by_role("button", name="Delete").click()
            await expect(titles).to_have_text(["Invoices May"])
            assert not (gateway.root / second).exists()
            await tab.open(f"#/s/{second}")
            await tab.see("nknown session", ".empty")


async def what_is_found_is_shown_in_its_place():
    with Gateway(*NDJSON) as gateway:
        filler = "".join(f"line {n}\n\n" for n in range(30))
        plays(gateway, tools=[["call", "c1", "read", {"path": "/srv/needle.conf"}], ["result", "c1", "read", "port = 8080"],
                              ["call", "c2", "run", {}], ["fail", "c2", "run", "no route to host"], ["say", f"{filler}The **haystack** is here.\n\n{filler}"]])
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            first = await tab.new("tools")
            await tab.answer("line 29").wait_for()
            # Further back than the pages that are read at first.
            line = lambda n: {"source": "external:cli", "type": "message", "content": f"later {n}", "metadata": {"reply_to": 1}}
            gateway.thread("push", "--batch", session=first, stdin="".join(json.dumps(line(n)) + "\n" for n in range(60)))
            await tab.new("elsewhere")
            await tab.answer("You said: elsewhere").wait_for()
            marked = "[...(CSS.highlights.get('found') ?? [])].map((range) => range.toString())"
            in_view = """(() => { const range = [...(CSS.highlights.get('found') ?? [])][0], box = document.querySelector('.scroll');
                if (!range || !box) return false;
                const inner = range.getBoundingClientRect(), outer = box.getBoundingClientRect();
                return inner.height > 0 && inner.top >= outer.top && inner.bottom <= outer.bottom; })()"""
            for words, shown in ("needle.conf", "needle.conf"), ('"PORT = 8080"', "port = 8080"), ("host route", "route"), ("HAYSTACK", "haystack"), ('"later 7"', "later 7"):
                await tab.fill("#search", words)
                hit = tab.locator(".session", has=tab.page.locator("mark"))
                await expect(hit).to_have_count(1)
                await expect(hit.locator(".excerpt")).not_to_contain_text("*")
                await hit.click()
                await tab.wait_for_url(f"**/#/s/{first}/*?find=*")
                await tab.until(in_view)
                assert (await tab.evaluate(marked))[0] == shown
                # Also by its address.
                await tab.reload()
                await tab.until(in_view)
                await tab.open("#/new")
                await expect(tab.locator("h1")).to_have_text("New conversation")
                await tab.until(f"{marked}.length === 0")


async def trying_again_and_editing_make_variants():
    with Gateway(*NDJSON) as gateway:
        async with Browser() as browser:
            tab = await browser.tab(gateway, permissions=["clipboard-read", "clipboard-write"])
            first = await tab.new("one")
            await tab.answer("You said: one").wait_for()
            await tab.say("two")
            await tab.answer("You said: two").wait_for()
            said = tab.locator(".said .words")
            await tab.locator(".exchange").last.hover()
            await tab.locator(".exchange").last.get_by_role("button", name="Copy", exact=True).click()
            assert await tab.evaluate("navigator.clipboard.readText()") == "two"
            titles, figure = tab.locator(".session .title"), tab.locator(".variants .figure")
            edit = lambda n: tab.locator(".exchange").nth(n).get_by_role("link", name="Edit")
            # Until it is sent, no copy is made, and everything stays in view.
            await edit(-1).click()
            await expect(tab.locator("#message")).to_have_value("two")
            await tab.see("in a variant of this conversation", ".composer")
            await expect(said).to_have_text(["one", "two"])
            await tab.get_by_role("link", name="Leave it").click()
            await expect(tab.locator("#message")).to_have_value("")
            await tab.locator(".exchange").last.hover()
            await edit(-1).click()
            # Before that, it is the box of the conversation.
            await expect(tab.locator("#message")).to_have_value("two")
            await tab.fill("#message", "another two")
            box = await tab.locator("#message").get_attribute("name")
            await tab.page.add_init_script("""
                globalThis.boxes = new Set();
                new MutationObserver(() => document.querySelectorAll("#message").forEach(({ name }) => boxes.add(name)))
                    .observe(document, { childList: true, subtree: true });
            """)
            await tab.reload()
            await tab.see("in a variant of this conversation", ".composer")
            await expect(tab.locator("#message")).to_have_value("another two")
            # Before the message is loaded, one cannot write to the conversation itself by mistake.
            assert await tab.evaluate("[...boxes]") == [box]
            assert [path.parent.name for path in gateway.root.glob("*/events.db")] == [first]
            await tab.get_by_role("button", name="Send as a variant").click()
            await tab.answer("You said: another two").wait_for()
            second = tab.session()
            assert second != first
            await expect(said).to_have_text(["one", "another two"])
            # They are one conversation, with a switch at the message.
            await expect(figure).to_have_text("2/2")
            await expect(titles).to_have_text(["one"])
            await tab.see("2 variants", ".session")
            await tab.say("three")
            await tab.answer("You said: three").wait_for()
            await picture(tab, "variants")
            await tab.get_by_role("link", name="Previous variant").click()
            await expect(said).to_have_text(["one", "two"])
            await expect(figure).to_have_text("1/2")
            await expect(tab.locator(".session")).to_have_attribute("aria-current", "page")
            assert f"/s/{first}/" in tab.page.url
            await tab.get_by_role("link", name="Next variant").click()
            await expect(said).to_have_text(["one", "another two", "three"])
            # Variants of a variant, at the same place and at others.
            await tab.locator(".exchange").nth(1).hover()
            await tab.locator(".exchange").nth(1).get_by_role("button", name="Try again").click()
            await expect(figure).to_have_text("3/3")
            await tab.answer("You said: another two").wait_for()
            await tab.locator(".exchange").first.hover()
            await edit(0).click()
            await expect(tab.locator("#message")).to_have_value("one")
            await tab.say("something else")
            await tab.answer("You said: something else").wait_for()
            await expect(said).to_have_text(["something else"])
            await expect(figure).to_have_text("2/2")
            await tab.get_by_role("link", name="Previous variant").click()
            await expect(said).to_have_text(["one", "another two"])
            await expect(figure).to_have_text(["1/2", "3/3"])
            await tab.reload()
            await expect(figure).to_have_text(["1/2", "3/3"])
            await expect(tab.locator(".session")).to_have_count(1)
            await tab.get_by_role("button", name="Rename").click()
            await tab.fill("dialog input", "Numbers")
            await tab.keyboard.press("Enter")
            await expect(titles).to_have_text(["Numbers"])
            await tab.locator(".variants").first.get_by_role("link", name="Next variant").click()
            await expect(tab.locator("h1")).to_have_text("Numbers")
            await tab.get_by_role("button", name="Delete").click()
            await tab.see("The other 3 variants stay.", "dialog")
            await tab.locator("dialog").get_by_role("button", name="Delete").click()
            await tab.click(".session")
            await expect(figure).to_have_text(re.compile("/3$"))


async def what_is_typed_after_new_or_edit_is_the_message():
    with Gateway(*NDJSON) as gateway:
        async with Browser() as browser:
            # Also on a touch screen; the text contains letters that are shortcuts elsewhere.
            for options in {}, {"has_touch": True, "is_mobile": True}:
                tab = await browser.tab(gateway, **options)
                message = tab.locator("#message")
                await tab.click(".sessions .new")
                await tab.keyboard.type("why g l")
                await expect(message).to_have_value("why g l")
                await tab.click(".sessions .new")
                await tab.keyboard.type("now?")
                await expect(message).to_have_value("why g lnow?")
                await tab.say("two")
                await tab.answer("You said: two").wait_for()
                await tab.locator(".exchange").hover()
                await tab.get_by_role("link", name="Edit").click()
                await tab.keyboard.type(" of gliders")
                await expect(message).to_have_value("two of gliders")
                # Letters typed before the page has got there are not shortcuts either.
                await tab.evaluate("""() => {
                    const link = document.querySelector(".sessions .new");
                    link.focus();
                    link.click();
                    for (const key of "gl") link.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
                }""")
                await expect(tab.locator("h1")).to_have_text("New conversation")
                await expect(message).to_have_value("gl")
                assert tab.page.url.endswith("#/new")
                await tab.context.close()
                browser.tabs.remove(tab)
                tab.checked()


async def a_message_that_is_sent_again_is_stored_once():
    with Gateway(*NDJSON) as gateway:
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            session = await tab.new("hello")
            await tab.answer("You said: hello").wait_for()
            # The gateway stores it, but its answer gets lost with the connection.
            await tab.evaluate("""() => {
                const { state } = globalThis.thread;
                const socket = state.connection.socket;
                const receive = socket.onmessage;
                socket.onmessage = (message) => {
                    if (!JSON.parse(message.data).payload?.runId) return receive(message);
                    socket.onmessage = null;
                    socket.close();
                };
            }""")
            await tab.say("only once")
            await tab.answer("You said: only once").wait_for()
            await expect(tab.locator(".sending")).to_have_count(0)
            await expect(tab.locator(".said .words")).to_have_text(["hello", "only once"])
            assert [e["content"] for e in gateway.events(session) if e["source"] != "self"] == ["hello", "only once"]
            # A refused message can be changed.
            await tab.evaluate("""() => {
                const { state } = globalThis.thread;
                state.dispatch(state.conversation, state.entry([{ type: "text", text: "look" },
                    { type: "binary", mimeType: "image/png", url: "https://evil.example/x.png" }], "next"));
            }""")
            await expect(tab.locator(".sending [role=alert]")).to_contain_text("Not sent.")
            await tab.locator(".sending").get_by_role("button", name="Edit").click()
            await expect(tab.locator(".sending")).to_have_count(0)
            await expect(tab.locator("#message")).to_have_value("look")
            await tab.get_by_label("Remove x.png").click()
            await tab.fill("#message", "")
            # Sent while the gateway is down. The page cannot be reloaded then, but closed and opened again.
            gateway.kill()
            await tab.see("No connection", ".offline")
            await tab.say("while it was away")
            await expect(tab.locator(".sending")).to_contain_text("will be sent")
            await tab.page.close()
            gateway.restart()
            tab.page = await tab.context.new_page()
            await tab.open(f"#/s/{session}")
            await tab.answer("You said: while it was away").wait_for()
            await expect(tab.locator(".said .words")).to_have_text(["hello", "only once", "while it was away"])


async def a_reload_during_an_answer_loses_nothing():
    with Gateway(*NDJSON) as gateway:
        plays(gateway, slow=[["think", "hm"], ["call", "c1", "read", {}], ["result", "c1", "read", 1],
                             ["say", "One "], ["wait", "go"], ["say", "two "], ["wait", "on"], ["say", "three."]])
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            await tab.new("slow")
            await tab.answer("One").wait_for()
            await tab.fill("#message", "half a sent")
            await tab.reload()
            await expect(tab.locator("#message")).to_have_value("half a sent")
            await expect(tab.locator(".answer")).to_have_text("One")
            go(gateway)
            await expect(tab.locator(".answer")).to_have_text("One two")
            await tab.reload()
            await expect(tab.locator(".tool")).to_have_count(1)
            go(gateway, "on")
            await expect(tab.locator(".answer")).to_have_text("One two three.")
            await expect(tab.locator(".thinking")).to_have_count(1)


async def a_gateway_that_is_killed_during_an_answer_is_a_pause():
    with Gateway(*NDJSON) as gateway:
        words = [["say", f"w{n} "] for n in range(40)]
        plays(gateway, slow=[*words[:10], ["wait", "go"], *words[10:20], ["wait", "on"], *words[20:]])
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            await tab.new("slow")
            await tab.answer("w9").wait_for()
            gateway.kill()
            await tab.see("next try in", ".offline")
            go(gateway)
            gateway.restart()
            await tab.answer("w19").wait_for()
            await expect(tab.locator(".offline")).to_have_count(0)
            gateway.kill()
            go(gateway, "on")
            gateway.restart()
            await expect(tab.locator(".answer")).to_have_text(" ".join(f"w{n}" for n in range(40)))
            await expect(tab.locator(".said")).to_have_count(1)


async def everything_can_be_done_with_the_keyboard():
    with Gateway(*ACP) as gateway:
        ask = lambda n: [["call", f"c{n}", "rm", {}], ["ask", f"c{n}", "rm", {}, DETAILS]]
        plays(gateway, ask=[*ask(1), *ask(2), *ask(3)], long=[["say", "As far as this"], ["wait", "never"]])
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            press = tab.keyboard.press
            focus = lambda: tab.evaluate("document.activeElement.id || document.activeElement.textContent.trim()")
            await tab.mouse.click(700, 20)
            await press("n")
            await expect(tab.locator("#message")).to_be_focused()
            await tab.keyboard.type("first")
            await press("Shift+Enter")
            await tab.keyboard.type("line")
            await press("Enter")
            await tab.answer("You said: first line").wait_for()
            first = tab.session()
            await expect(tab.locator("#message")).to_be_focused()
            await press("Escape")
            await press("n")
            await tab.wait_for_selector("h1:has-text('New conversation')")
            await expect(tab.locator("#message")).to_be_focused()
            await tab.keyboard.type("ask")
            await press("Enter")
            await tab.locator(".permission.open").wait_for()
            # Backwards by Tab from the message to the line that leads to the question, and to its answer.
            await expect(tab.locator("#message")).to_be_focused()
            await press("Shift+Tab")
            assert "asks for permission" in await focus()
            await press("Enter")
            await press("Tab")
            assert await focus() == "Allow once"
            await press("Tab")
            await press("Tab")
            assert await focus() == "Reject"
            await press("Enter")
            answers = tab.locator(".answered")
            await expect(answers).to_have_text(["Answered: Reject"])
            # Each answer leads to the next request, or to the box if there is none. A key answers what has the focus.
            await press("Escape")
            card = tab.locator(".permission.open")
            await expect(card).to_have_count(1)
            await tab.evaluate("document.activeElement.blur()")
            # What somebody types who has lost the box answers nothing, nor does a key that is held down.
            await tab.keyboard.type("Was that all?")
            await press("Escape")
            await expect(card).to_be_focused()
            alone = lambda: asyncio.sleep(1.1)
            await alone()
            await tab.keyboard.down("Shift"), await press("x"), await tab.keyboard.up("Shift"), await press("a")
            await tab.keyboard.down("d")
            await alone()
            await tab.keyboard.down("d"), await tab.keyboard.up("d")
            await expect(answers).to_have_count(1)
            await tab.evaluate("document.activeElement.blur()")
            await press("a")
            await expect(card).to_be_focused()
            await alone()
            await expect(answers).to_have_count(1)
            await press("a")
            await expect(answers).to_have_text(["Answered: Reject", "Answered: Allow once"])
            await expect(tab.locator("#message")).to_be_focused()
            await press("Escape")
            await expect(card).to_have_count(1)
            await press("d")
            await expect(card).to_be_focused()
            await alone()
            await press("d")
            await expect(answers).to_have_text(["Answered: Reject", "Answered: Allow once", "Answered: Reject"])
            await expect(tab.locator("#message")).to_be_focused()
            # So does Stop.
            await tab.keyboard.type("long")
            await press("Enter")
            await tab.answer("As far as this").wait_for()
            await tab.get_by_role("button", name="Stop").press("Enter")
            await expect(tab.locator(".cancelled")).to_have_count(1)
            await expect(tab.locator("#message")).to_be_focused()
            await press("Escape")
            await press("?")
            await expect(tab.locator("dialog")).to_contain_text("allow, deny")
            await expect(tab.locator("dialog")).to_contain_text("search or filter")
            await press("Escape")
            await expect(tab.locator("dialog")).to_have_count(0)
            await expect(tab.locator(".session")).to_have_count(2)
            await press("j")
            await press("j")
            await press("Enter")
            await tab.wait_for_url(f"**/#/s/{first}")
            await expect(tab.locator("#message")).to_be_focused()
            await press("Escape")
            await press("/")
            await expect(tab.locator("#search")).to_be_focused()
            await tab.keyboard.type("first")
            await expect(tab.locator(".session")).to_have_count(1)
            await press("Enter")
            await press("Enter")
            # The focused element is visible.
            await tab.page.locator(".session").first.focus()
            await press("Tab")
            outline = await tab.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline == "solid", outline


async def the_token_is_taken_from_the_link_or_asked_for():
    with Gateway(*NDJSON) as gateway:
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            assert gateway.token not in tab.page.url
            await tab.reload()
            await expect(tab.locator(".sessions")).to_be_visible()
            kept = await tab.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie])")
            assert gateway.token not in kept, kept
            [cookie] = await tab.context.cookies()
            assert gateway.token not in cookie["value"]
            stranger = await browser.tab(gateway, enter=False)
            await stranger.open()
            await stranger.get_by_label("Token").fill("wrong")
            await stranger.get_by_role("button", name="Enter").click()
            await stranger.see("This is not the token.")
            await stranger.get_by_label("Token").fill(gateway.token)
            await stranger.get_by_role("button", name="Enter").click()
            await expect(stranger.locator(".sessions")).to_be_visible()
            # The browser reports the refusal, as expected.
            stranger.errors = [error for error in stranger.errors if "401" not in error]
            # Logging out affects only this browser.
            await tab.get_by_role("button", name="Log out").click()
            await expect(tab.get_by_label("Token")).to_be_visible()
            assert not await tab.context.cookies()
            await stranger.reload()
            await expect(stranger.locator(".sessions")).to_be_visible()
    with Gateway("--no-auth") as gateway:
        async with Browser() as browser:
            tab = await browser.tab(gateway, enter=False)
            await tab.open()
            await expect(tab.locator(".sessions")).to_be_visible()
            await expect(tab.get_by_role("button", name="Log out")).to_have_count(0)


async def the_link_leads_to_a_box_to_type_in():
    with Gateway(*NDJSON) as gateway:
        async with Browser() as browser:
            tab = await browser.tab(gateway, enter=False)
            await tab.open()
            await expect(tab.get_by_label("Token")).to_be_visible()
            # Opening the link in a tab that asks for the token logs in.
            tab.errors.clear()
            await tab.open(f"#token={gateway.token}")
            await expect(tab.locator("#message")).to_be_focused()
            assert gateway.token not in tab.page.url
            await expect(tab.locator(".product")).to_have_text("thread")
            await expect(tab.locator(".greeting h2")).to_have_text("page_agent")
            await picture(tab, "welcome")
            await tab.keyboard.type("hello")
            await tab.keyboard.press("Enter")
            await tab.wait_for_url("**/#/s/*")
            await tab.answer("You said: hello").wait_for()
            # A browser that was logged in before is not asked.
            await tab.open("#/")
            await tab.reload()
            await expect(tab.locator("#message")).to_be_focused()
            await expect(tab.get_by_label("Token")).to_have_count(0)
            phone = await browser.tab(gateway, viewport={"width": 360, "height": 700}, has_touch=True, is_mobile=True)
            await expect(phone.locator(".session")).to_be_visible()
    with Gateway(*NDJSON) as gateway:
        async with Browser() as browser:
            phone = await browser.tab(gateway, viewport={"width": 360, "height": 700}, has_touch=True, is_mobile=True)
            await expect(phone.locator("#message")).to_be_in_viewport()
            await phone.say("hello")
            await phone.answer("You said: hello").wait_for()


async def escape_closes_what_is_open_and_leaves_nothing():
    with Gateway(*NDJSON) as gateway:
        plays(gateway, **{"**What** is `it`?": [["say", "# Well\n\nIt is **bold**, `code`, and a [link](https://a.example/); not snake_case_words."]]})
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            session = await tab.new("**What** is `it`?")
            await tab.answer("Well").wait_for()
            # In the list it is plain text.
            await expect(tab.locator(".session .excerpt")).to_have_text("Well It is bold, code, and a link; not snake_case_words.")
            await tab.locator(".exchange").hover()
            await tab.get_by_role("link", name="Edit").click()
            await expect(tab.locator(".copying")).to_be_visible()
            for _ in range(4):
                await tab.keyboard.press("Escape")
            await expect(tab.locator(".copying")).to_have_count(0)
            for _ in range(4):
                await tab.keyboard.press("Escape")
            await asyncio.sleep(0.2)
            assert tab.session() == session, tab.page.url


async def commands_are_answered_here_alone_and_what_is_large_is_a_link():
    with Gateway() as gateway:
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            session = await tab.new("nobody answers")
            await tab.say("/help")
            await tab.see("/sessions", ".note")
            # There is no agent, so no message is shown as waiting.
            await expect(tab.locator(".session")).to_have_count(1)
            await expect(tab.locator(".queue")).to_have_count(0)
            await tab.reload()
            await tab.see("nobody answers", ".words")
            await expect(tab.locator(".note")).to_have_count(0)
            await tab.say("/new Another")
            await expect(tab.locator("h1")).to_have_text("Another")
            assert tab.session() != session
            await tab.open(f"#/s/{session}")
            client = await gateway.client()
            await client.request("sessions.switch", sessionId=session)
            about = await gateway.begun(client, session)
            gateway.push(session, "x" * 2_000_000, kind="message", source="external:cli")
            gateway.push(session, {"call_id": "c", "name": "cat", "result": "y" * 2_000_000}, "toolresult", **about)
            links = tab.locator(".large a")
            await expect(links).to_have_count(2)
            async with tab.context.expect_page() as opened:
                await links.first.click()
            whole = await opened.value
            await whole.wait_for_load_state()
            assert len(await whole.inner_text("body")) >= 2_000_000


async def a_reader_who_has_scrolled_up_stays_where_he_is():
    with Gateway(*NDJSON) as gateway:
        lines = lambda name: [["say", "".join(f"{name} {n}\n\n" for n in range(60))]]
        plays(gateway, long=[*lines("before"), ["wait", "go"], *lines("after"), ["wait", "on"], ["say", "The end."]])
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            await tab.new("long")
            # A long text is rendered from its end, bit by bit.
            await tab.answer("before 59").wait_for()
            await tab.get_by_text("before 0", exact=True).wait_for(state="attached")
            box = tab.locator(".scroll")
            at_end = "e => e.scrollHeight - e.scrollTop - e.clientHeight < 50"
            await tab.until(f"({at_end})(document.querySelector('.scroll'))")
            await box.hover()
            await tab.mouse.wheel(0, -600)
            seen = tab.get_by_text("before 40", exact=True)
            await tab.until(f"!({at_end})(document.querySelector('.scroll'))")
            await asyncio.sleep(0.3)
            before = (await seen.bounding_box())["y"]
            go(gateway)
            await tab.answer("after 59").wait_for()
            await tab.get_by_role("button", name="New below").wait_for()
            assert abs((await seen.bounding_box())["y"] - before) < 2
            await tab.get_by_role("button", name="New below").click()
            await tab.until(f"({at_end})(document.querySelector('.scroll'))")
            await expect(tab.get_by_role("button", name="New below")).to_have_count(0)
            go(gateway, "on")
            await tab.answer("The end.").wait_for()
            assert await box.evaluate(at_end), "the view has not followed"


async def ones_own_message_is_always_shown():
    with Gateway(*NDJSON) as gateway:
        plays(gateway, long=[["say", "".join(f"before {n}\n\n" for n in range(60))]])
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            await tab.new("long")
            await tab.answer("before 59").wait_for()
            await tab.get_by_text("before 0", exact=True).wait_for(state="attached")
            at_end = "(() => { const e = document.querySelector('.scroll'); return e.scrollHeight - e.scrollTop - e.clientHeight < 50; })()"
            for n in range(8):
                await tab.until(at_end)
                await tab.locator(".scroll").hover()
                await tab.mouse.wheel(0, -1500)
                await tab.until(f"!{at_end}")
                await tab.say(f"message {n}")
                await expect(tab.locator(".said", has_text=f"message {n}")).to_be_in_viewport(timeout=5000)
                await tab.answer(f"You said: message {n}").wait_for()
            # The gateway may answer before the next frame.
            await tab.until(at_end)
            await tab.locator(".scroll").hover()
            await tab.mouse.wheel(0, -1500)
            await tab.until(f"!{at_end}")
            frames = "window.requestAnimationFrame"
            await tab.evaluate(f"() => {{ window.held = []; window.frame = {frames}; {frames} = (work) => window.held.push(work); }}")
            await tab.page.fill("#message", "held back")
            await tab.keyboard.press("Enter")
            await tab.until("globalThis.thread.state.conversation.items.some(({ message }) => message?.content === 'held back')")
            await tab.until("globalThis.thread.state.conversation.sending.length === 0")
            await tab.evaluate(f"() => {{ {frames} = window.frame; for (const work of window.held) {frames}(work); }}")
            await expect(tab.locator(".said", has_text="held back")).to_be_in_viewport(timeout=5000)


async def older_messages_come_page_by_page():
    with Gateway() as gateway:
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            client = await gateway.client()
            session = (await client.request("sessions.new", title="Long"))["sessionId"]
            gateway.fake_agent(session)
            for n in range(45):
                said = gateway.push(session, f"question {n}", kind="message", source="external:cli", run_id=f"r{n}")
                gateway.push(session, {"call_id": f"c{n}", "name": f"tool{n}", "arguments": {}}, "toolcall", run_id=f"r{n}")
                gateway.push(session, {"call_id": f"c{n}", "name": f"tool{n}", "result": n}, "toolresult", run_id=f"r{n}")
                gateway.ending(session, said, f"answer {n}", run_id=f"r{n}")
            await tab.open(f"#/s/{session}")
            await tab.answer("answer 44").wait_for()
            await expect(tab.locator(".exchange")).to_have_count(10)
            first = tab.locator(".exchange").first
            await tab.locator(".scroll").evaluate("e => e.scrollTop = 300")
            await expect(tab.locator(".exchange")).not_to_have_count(10)
            for _ in range(10):
                if await tab.get_by_role("button", name="Older messages").count() == 0:
                    break
                before = await tab.locator(".exchange").count()
                await tab.locator(".scroll").evaluate("e => e.scrollTop = 0")
                await expect(tab.locator(".exchange")).not_to_have_count(before)
            await expect(tab.locator(".words")).to_have_text([f"question {n}" for n in range(45)])
            await expect(tab.locator(".answer")).to_have_text([f"answer {n}" for n in range(45)])
            await expect(tab.locator(".tool .name")).to_have_text([f"tool{n}" for n in range(45)])
            # A link to one of them.
            other = await browser.tab(gateway)
            await other.open(f"#/s/{session}/{gateway.events(session)[5]['id']}")
            await expect(other.get_by_text("question 1", exact=True)).to_be_in_viewport()


async def steps_that_were_too_many_are_read_when_they_are_asked_for():
    with Gateway() as gateway:
        client = await gateway.client()
        session = (await client.request("sessions.new", title="Busy"))["sessionId"]
        about = await gateway.begun(client, session)
        push = lambda events: gateway.thread("push", "--batch", session=session, stdin="".join(json.dumps(e) + "\n" for e in events))
        record = {"source": "self", "type": "record", "metadata": about}
        call = lambda n: {"call_id": f"c{n}", "name": f"tool{n}"}
        push([{**record, "subtype": subtype, "content": json.dumps({**call(n), **given})} for n in range(3000)
              for subtype, given in [("toolcall", {"arguments": n}), ("toolresult", {"result": n})]])
        said = next(event["id"] for event in gateway.events(session) if event["type"] == "message")
        gateway.ending(session, said, "The answer.", **about)
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            await tab.open(f"#/s/{session}")
            await tab.answer("The answer.").wait_for()
            await expect(tab.locator(".tool .name").last).to_have_text("tool2999")
            await expect(tab.locator(".tool")).to_have_count(60)
            await tab.get_by_role("button", name="Show what the agent did").click()
            await expect(tab.get_by_role("button", name="Show what the agent did")).to_have_count(0)
            await tab.get_by_role("button", name="2,940 earlier steps").click()
            await expect(tab.locator(".tool .name").first).to_have_text("tool2440")


async def a_new_attempt_is_shown_though_earlier_steps_were_asked_for():
    with Gateway() as gateway:
        client = await gateway.client()
        session = (await client.request("sessions.new", title="Tries"))["sessionId"]
        about = await gateway.begun(client, session)
        call = lambda name: json.dumps({"call_id": name, "name": name, "arguments": {}})
        lines = [{"source": "self", "type": "record", "subtype": "toolcall", "content": call(f"tool{n}"), "metadata": about} for n in range(100)]
        gateway.thread("push", "--batch", session=session, stdin="".join(json.dumps(line) + "\n" for line in lines))
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            await tab.open(f"#/s/{session}")
            await tab.get_by_role("button", name="40 earlier steps").click()
            await expect(tab.locator(".tool")).to_have_count(100)
            said = next(event["id"] for event in gateway.events(session) if event["type"] == "message")
            gateway.push(session, {"status": "started", "attempt": 2}, "run", **about, reply_to=said)
            gateway.push(session, call("again"), "toolcall", **about)
            await expect(tab.locator(".tool .name")).to_have_text(["again"])


async def on_a_telephone_the_list_is_a_page_of_its_own():
    with Gateway(*ACP) as gateway:
        wide = "| a | b |\n|-|-|\n| " + "wide " * 40 + " | " + "x" * 200 + " |\n\n```\n" + "y" * 300 + "\n```\n" + "z" * 300
        plays(gateway, wide=[["call", "c1", "a_tool_with_a_long_name_" * 5, {"path": "/" * 100}], ["say", wide]],
              change=[["call", "c1", "edit", {"path": "a.txt"}], ["change", "c1", "edit a.txt", [{"type": "diff", "path": "a.txt",
                  "oldText": "".join(f"old {n}\n" for n in range(60)), "newText": "".join(f"new {n}\n" for n in range(60))}]]],
              ask=[["call", "c1", "chown", {"path": "/srv/data"}],
                   ["ask", "c1", "chown -R backup /srv/data", {"path": "/srv/data", "owner": "backup"}, "14 files change their owner"]])
        async with Browser() as browser:
            phone = {"viewport": {"width": 360, "height": 700}, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}
            zoomed = {"viewport": {"width": 600, "height": 400}, "device_scale_factor": 2}
            for options in phone, zoomed:
                tab = await browser.tab(gateway, **options)
                fits = lambda: tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
                assert await fits()
                await tab.new("wide")
                await tab.answer("zzz").wait_for()
                assert await fits()
                await expect(tab.locator("#message")).to_be_in_viewport()
                await expect(tab.locator("header .look-link")).to_be_in_viewport(ratio=1)
                if options is phone:
                    await expect(tab.locator(".sessions")).to_be_hidden()
                    await tab.click(".back")
                    await expect(tab.locator(".sessions")).to_be_visible()
                    await expect(tab.locator(".open-session")).to_be_hidden()
                    await tab.click(".session")
                    await expect(tab.locator(".look-link")).to_be_in_viewport()
                    await tab.click(".back")
                    await expect(tab.locator(".sessions")).to_be_visible()
                    await picture(tab, "phone-list")
                    await tab.new("ask")
                    await tab.locator(".permission.open").wait_for()
                    assert await fits()
                    await picture(tab, "phone")
                    await tab.get_by_role("button", name="Reject").tap()
                    await tab.answer("The answer was no.").wait_for()
                    # What is higher than the view is read from its start.
                    await tab.say("change")
                    card = tab.locator(".permission.open")
                    await expect(card.locator("tr")).to_have_count(120)
                    await expect(card.locator(".request")).to_be_in_viewport(ratio=1)
                    await expect(card.get_by_text("old 0")).to_be_in_viewport()
                    await expect(card.get_by_role("button", name="Reject")).not_to_be_in_viewport()
                    await card.get_by_role("button", name="Reject").tap()
                    await expect(card).to_have_count(0)
                    assert await tab.locator(".actions").first.evaluate("e => getComputedStyle(e).opacity") == "1"
                    await tab.fill("#message", "later")
                    await tab.get_by_role("button", name="Later …").tap()
                    assert await fits()
                    await picture(tab, "phone-later")
                    await tab.get_by_role("button", name="Leave it").tap()
                    await tab.fill("#message", "")
                    await tab.click(".back")


async def light_and_dark_are_as_the_system_says_or_as_was_chosen():
    with Gateway(*NDJSON) as gateway:
        async with Browser() as browser:
            tab = await browser.tab(gateway, color_scheme="dark", reduced_motion="reduce")
            paper = lambda: tab.evaluate("getComputedStyle(document.body).backgroundColor")
            dark = await paper()
            await tab.new("hello")
            await tab.answer("You said").wait_for()
            await picture(tab, "dark")
            await tab.get_by_label("Colours").select_option("light")
            assert await paper() == "rgb(255, 255, 255)" != dark
            await tab.reload()
            await tab.answer("You said").wait_for()
            assert await paper() == "rgb(255, 255, 255)"
            await tab.get_by_label("Colours").select_option("auto")
            assert await paper() == dark


async def nothing_moves_with_reduced_motion():
    with Gateway(*NDJSON) as gateway:
        plays(gateway, slow=[["say", "It grows"], ["wait", "never"]])
        async with Browser() as browser:
            session = None
            for motion, moves in ("no-preference", True), ("reduce", False):
                tab = await browser.tab(gateway, reduced_motion=motion)
                session = session or await tab.new("slow")
                await tab.open(f"#/s/{session}")
                await tab.answer("It grows").wait_for()
                moving = await tab.evaluate("""() => document.getAnimations().length > 0
                    || [...document.querySelectorAll("*")].some((element) => [null, "::before", "::after"].some((part) => {
                        const { animationName, transitionDuration } = getComputedStyle(element, part);
                        return animationName !== "none" || parseFloat(transitionDuration) > 0;
                    }))""")
                assert moving == moves, motion


async def a_read_only_page_shows_conversations():
    with Gateway(*ACP) as gateway:
        plays(gateway, ask=[["call", "c1", "rm", {}], ["ask", "c1", "rm b", {}, "all"]])
        async with Browser() as browser:
            session = await (await browser.tab(gateway)).new("ask")
            with Gateway("--read-only", root=gateway.root) as onlooker:
                tab = await browser.tab(onlooker)
                await tab.open(f"#/s/{session}")
                await tab.see("rm b", ".request")
                await tab.see("Only looking")
                await tab.locator(".exchange").hover()
                await expect(tab.get_by_role("button", name="Copy", exact=True)).to_be_visible()
                for name in "Allow once", "Send", "Attach", "Stop", "Rename", "Delete", "Try again", "Edit", "Take back", "Send now":
                    await expect(tab.get_by_role("button", name=name, exact=True)).to_have_count(0)
                await expect(tab.locator("#message, .sessions .new")).to_have_count(0)
                await tab.keyboard.press("n")
                await tab.wait_for_url("**/#/new")
                await expect(tab.locator("#message")).to_have_count(0)


async def nothing_is_sent_while_nothing_happens():
    with Gateway(*NDJSON) as gateway:
        async with Browser() as browser:
            tab = await browser.tab(gateway, enter=False)
            sent = []
            tab.page.on("request", lambda request: sent.append(request.url))
            tab.page.on("websocket", lambda socket: socket.on("framesent", lambda frame: sent.append(frame)))
            await tab.enter()
            await tab.new("hello")
            await tab.answer("You said: hello").wait_for()
            for path in "", f"s/{tab.session()}", "new":
                await tab.open(f"#/{path}")
                await tab.locator(".sessions").wait_for()
                await asyncio.sleep(2)
                sent.clear()
                await asyncio.sleep(15)
                # (But for a sign of life, if the connection is silent for long.)
                assert not [what for what in sent if '"status"' not in what], (path, sent)
            await tab.open("#/")
            await tab.click(".session")
            await tab.answer("You said: hello").wait_for()
            assert sent, "what is sent is not seen"


# Each would do something if it were interpreted.
HOSTILE = [
    "<script>hacked = 1</script>", "<img src=x onerror='hacked=1'>", "<svg onload=hacked=1>", "<iframe src='javascript:hacked=1'></iframe>",
    "[click](javascript:hacked=1)", "[click](JaVa&#x73;cript:hacked=1)", "[click](data:text/html,<script>hacked=1</script>)",
    "[click](vbscript:x)", "![pixel](https://evil.example/pixel.png)", "![x](x \"onerror=hacked=1\")", "<https://evil.example/a>",
    "<javascript:hacked=1>", "<style>*{display:none}</style>", "<base href='https://evil.example/'>", "<meta http-equiv=refresh content='0;url=https://evil.example'>",
    "<link rel=stylesheet href=https://evil.example/x.css>", "<form action=https://evil.example><button>go</button></form>",
    "`<b>`", "```html\n<script>hacked=1</script>\n```", "${hacked=1}", "{{hacked=1}}", "javascript:hacked=1", "'\"><script>hacked=1</script>",
    "</textarea><script>hacked=1</script>", "<a href=x style='position:fixed;inset:0'>x</a>", "\u202egnp.exe", "\x1b]0;title\x07",
    "__proto__", "constructor", "[" * 500, "> " * 500, "*a" * 500, "https://user:pass@evil.example/?q=<script>", "[a]: javascript:hacked=1\n\n[a]",
    "$\\href{javascript:hacked=1}{x}$", "$$\\htmlData{onload=hacked=1}{\\htmlStyle{position:fixed}{x}}$$", "$\\includegraphics{https://evil.example/f.png}$",
    "$\\def\\x{\\x\\x}\\x$", "$\\text{<script>hacked=1</script>}$", "```\"><script>hacked=1</script>\nx\n```", "```__proto__\nx\n```",
    "```../../look/api\nx\n```", "[^<b>]\n\n[^<b>]: <script>hacked=1</script>", "[^__proto__]\n\n[^__proto__]: x",
    "```xml\n<a href='javascript:hacked=1'><![CDATA[<script>hacked=1</script>]]></a>\n```", "```js\n`${hacked=1}</script><script>`\n```",
]


async def no_text_of_an_event_does_anything():
    with Gateway() as gateway:
        client = await gateway.client()
        session = (await client.request("sessions.new"))["sessionId"]
        gateway.fake_agent(session)
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            dialogs = []
            tab.page.on("dialog", lambda dialog: (dialogs.append(dialog.message), asyncio.ensure_future(dialog.dismiss())))
            await tab.open(f"#/s/{session}")
            await expect(tab.locator("h1")).to_have_text("Untitled")
            all_of_it = "\n\n".join(HOSTILE)
            batches = [HOSTILE[n:n + 6] for n in range(0, len(HOSTILE), 6)] + [[all_of_it]]
            for n, texts in enumerate(batches):
                text = "\n\n".join(texts)
                said = gateway.push(session, text, kind="message", source="external:cli:<b>", run_id=f"r{n}")
                about = {"run_id": f"r{n}"}
                gateway.push(session, {"status": "started", "attempt": 1}, "run", reply_to=said, **about)
                gateway.push(session, text, "thinking", **about)
                gateway.push(session, text, "title")
                gateway.push(session, {"call_id": text, "name": text, "arguments": {text: text, "url": text}}, "toolcall", **about)
                gateway.push(session, {"event": "tool_call", "payload": {"callId": text, "toolName": text, "arguments": text}},
                             "sub_agent", parent_call_id=text, sub_agent=text, sub_event_id=1, **about)
                gateway.push(session, {"call_id": text, "name": text, "result": text}, "toolresult", **about)
                gateway.push(session, {"call_id": "x", "name": text, "error": text}, "toolresult", **about)
                for n_kind, kind in enumerate(("edit", "execute", "search", "read")):
                    given = {"command": text, "path": text, "file_path": text, "old_string": text, "new_string": f"{text}!", text: text}
                    call = {"call_id": f"k{n_kind}", "name": kind, "title": text, "kind": kind, "locations": [{"path": text}], "arguments": given}
                    diff = {"type": "diff", "path": text, "oldText": text, "newText": f"{text}\nmore"}
                    told = [diff, {"type": "image", "data": text, "mimeType": "image/png"}, {"type": "terminal", "terminalId": text}]
                    gateway.push(session, call, "toolcall", **about)
                    gateway.push(session, {**call, "result": text, "content": told if n_kind % 2 else []}, "toolresult", **about)
                gateway.push(session, {"call_id": "patch", "name": "apply", "arguments": f"--- {text}\n+++ {text}\n@@ -1 +1 @@\n-{text}\n+{text}\n"},
                             "toolcall", **about)
                gateway.push(session, {"entries": [{"content": text, "priority": "high", "status": "pending"}]}, "plan", **about)
                gateway.push(session, {"error": text, "retryable": True}, "error", reply_to=said, **about)
                gateway.push(session, {"status": "started", "attempt": 2}, "run", reply_to=said, **about)
                gateway.push(session, text, "token", message_id="m", **about)
                gateway.push(session, text, kind="message", **about)
                gateway.push(session, {"request_id": text, "title": text, "call_id": text, "arguments": text,
                             "details": f"{text}\n{json.dumps(diff)}",
                             "choices": [{"id": text, "name": text, "kind": text}]}, "permission", **about)
                if n % 3 == 0:
                    gateway.ending(session, said, {"error": text, "retryable": False}, "error", **about)
                elif n % 3 == 1:
                    gateway.ending(session, said, text, "cancelled", **about)
                else:
                    gateway.ending(session, said, text, **about)
            parts = [{"type": "text", "text": all_of_it}] + [{"type": "image", "source": {"type": kind, "value": text, "mimeType": mime}}
                     for text in [*HOSTILE, "https://evil.example/a.png", "//evil.example/b.png"]
                     for kind, mime in [("url", "image/png"), ("data", "image/png"), ("data", text)]]
            last = gateway.push(session, parts, kind="message", source=f"external:gateway:<b>:dm:{session}:x")
            for _ in range(2):
                await tab.until(f"globalThis.thread.state.conversation?.lastSeq >= {last}")
                await tab.locator(f"#e{last}, #n{last}").first.wait_for()
                # Opens everything and checks it.
                await tab.evaluate("""async () => {
                    for (let n = 0; n < 4; n++) {
                        document.querySelectorAll("details:not([open]) > summary").forEach((summary) => summary.click());
                        await new Promise((done) => setTimeout(done, 100));
                    }
                }""")
                for n in range(5):
                    await tab.locator(".scroll").evaluate(f"e => e.scrollTop = e.scrollHeight * {n} / 4")
                assert await tab.evaluate("globalThis.hacked") is None and not dialogs
                strange = await tab.evaluate("""() => [...document.body.querySelectorAll("*")].filter((element) =>
                    ["SCRIPT", "IFRAME", "STYLE", "OBJECT", "EMBED", "BASE", "META", "LINK", "SVG"].includes(element.tagName.toUpperCase())
                    || [...element.attributes].some(({ name }) => name.startsWith("on") || name === "srcset" || name === "style" && element.id !== "message")
                    || element.tagName === "FORM" && element.className !== "composer"
                    || element.tagName === "IMG" && !element.src.startsWith("data:image/png;") && new URL(element.src).origin !== location.origin
                    || element.tagName === "A" && !["http:", "https:", "mailto:"].includes(element.protocol)
                    || element.tagName === "A" && element.target === "_blank" && element.rel !== "noopener noreferrer"
                ).map((element) => element.outerHTML.slice(0, 200))""")
                assert not strange, strange
                await expect(tab.locator(".markdown .leads-to", has_text="evil.example").first).to_be_attached()
                await tab.fill("#search", "<script>")
                await expect(tab.locator(".session mark")).to_have_text("<script>")
                await tab.reload()
            # Broken images are the only errors allowed.
            tab.errors = [error for error in tab.errors if "404" not in error and "ERR_INVALID_URL" not in error]


def longest_tasks(trace):
    """The longest tasks of the page's main thread, in milliseconds, without those for the test driver. By processor time,
    which does not count other programs, or by the time that has passed, where Chromium's figure of the former is greater."""
    events = json.loads(trace)["traceEvents"]
    main = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name" and e["args"]["name"] == "CrRendererMain"}
    asked = [e["ts"] for e in events if (e["pid"], e["tid"]) in main
             and "DevToolsSession" in e.get("args", {}).get("chrome_mojo_event_info", {}).get("mojo_interface_tag", "")]
    tasks = [min(e["tdur"], e["dur"]) / 1000 for e in events if e["name"].endswith("RunTask") and (e["pid"], e["tid"]) in main and "tdur" in e
             and not any(e["ts"] <= ts <= e["ts"] + e["dur"] for ts in asked)]
    assert tasks, "the trace has no tasks"
    return sorted(tasks, reverse=True)[:3]


@contextlib.asynccontextmanager
async def traced(browser, tab, what):
    """No task is long in the meantime: on a quiet machine, as in the long form, none takes 50 ms. Time of other programs
    does not count, but under load a task takes more time of its own."""
    categories = ["toplevel", "__metadata"]
    await browser.chromium.start_tracing(page=tab.page, categories=categories)
    yield
    trace = await browser.chromium.stop_tracing()
    if PICTURES:
        (pathlib.Path(PICTURES) / f"{what}.json").write_bytes(trace)
    tasks = longest_tasks(trace)
    print(f"{what}: longest tasks {', '.join(f'{task:.0f}' for task in tasks)} ms")
    assert tasks[0] < (50 if LONG else 250), (what, tasks)


COUNT, CALLS, STREAMED = (50_000, 1000, 3999) if LONG else (2_000, 200, 999)


async def thousands_of_events_and_a_thousand_a_second_leave_the_page_usable():
    with Gateway(*NDJSON) as gateway:
        plays(gateway, many=[["many", 60_000]])
        client = await gateway.client()
        session = (await client.request("sessions.new", title="Long"))["sessionId"]
        gateway.thread("unsubscribe", "--consumer", "agent", session=session)
        about = await gateway.begun(client, session)
        # One paragraph without an end, then short ones.
        words = lambda n: f"word {n} *and* `more` " + ("\n\n" if n % 20 == 0 and n > COUNT // 2 else "")
        events = [{"source": "self", "type": "record", "subtype": "token", "content": words(n), "metadata": about} for n in range(COUNT - 2 * CALLS)]
        for n in range(CALLS):
            call = {"call_id": f"c{n}", "name": "tool"}
            events.append({"source": "self", "type": "record", "subtype": "toolcall", "content": json.dumps({**call, "arguments": n}), "metadata": about})
            events.append({"source": "self", "type": "record", "subtype": "toolresult", "content": json.dumps({**call, "result": n}), "metadata": about})
        gateway.thread("push", "--batch", session=session, stdin="".join(json.dumps(event) + "\n" for event in events))
        last = gateway.push(session, "The end.", "token", **about)
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            await asyncio.sleep(0.5)
            async with traced(browser, tab, f"{COUNT} events"):
                await tab.open(f"#/s/{session}")
                await tab.until(f"globalThis.thread.state.conversation?.lastSeq >= {last}")
                # Not with a locator, which reads all of the long text each time.
                await tab.until("[...document.querySelectorAll('.answer')].at(-1)?.textContent.startsWith('The end.')")
            # The long text before the last steps has left the page, bit by bit.
            await expect(tab.locator(".answer")).to_have_text(["The end."])
            assert await tab.locator(".tool").count() < 100
            # All of it is loaded, and scrolled from its end to its beginning.
            more = tab.get_by_role("button", name="earlier step")
            async with traced(browser, tab, "earlier steps"):
                while await more.count():
                    await more.click()
                    await asyncio.sleep(0.2)
            await expect(tab.locator(".tool")).to_have_count(CALLS)
            # A long text is rendered bit by bit.
            await expect(tab.locator(".answer").first).to_contain_text("word 1 and more", timeout=10 * PATIENCE * 1000)
            box = tab.locator(".scroll")
            await asyncio.sleep(2)
            async with traced(browser, tab, f"{COUNT} events scrolled in a conversation"):
                began = time.monotonic()
                while await box.evaluate("async (e) => { for (let n = 0; n < 20; n++) { e.scrollTop -= 2000; await new Promise(requestAnimationFrame); } return e.scrollTop; }") > 0:
                    assert time.monotonic() < began + 300
            await tab.new("many")
            await tab.answer("word20").wait_for()
            text = "typed while it streams, every letter of it"
            async with traced(browser, tab, "1,000 tokens a second"):
                await tab.keyboard.type(text, delay=20)
                await expect(tab.locator("#message")).to_have_value(text)
                await tab.answer(f"word{STREAMED}").wait_for()
                # It rests while the trace is read.
                go(gateway, "enough")
            assert await tab.answer("word59999").count() == 0, "it was over before all was typed"


EVENTS = 250_000 if LONG else 20_000


async def first_paint(tab):
    """In ms. It is told of some time after it."""
    entry = "performance.getEntriesByName('first-contentful-paint')[0]"
    await tab.until(f"{entry} !== undefined")
    return await tab.evaluate(f"{entry}.startTime")


async def a_session_of_any_length_is_there_at_once():
    with Gateway() as gateway:
        client = await gateway.client()
        session = (await client.request("sessions.new", title="Long"))["sessionId"]
        # Checking a quarter of a million frames would take processor time from the processes being measured.
        await client.close()
        gateway.fake_agent(session)
        id, lines = gateway.push(session, "before all", "mine"), []
        while len(lines) < EVENTS:
            said = id = id + 1
            about = {"run_id": f"r{said}"}
            line = lambda subtype, content, **more: {"source": "self", "type": "record", "subtype": subtype, "content": content, "metadata": about, **more}
            of_run = [{"source": "external:cli", "type": "message", "content": f"question {said}", "metadata": about},
                      line("run", json.dumps({"status": "started", "attempt": 1}), metadata={**about, "reply_to": said}),
                      line("toolcall", json.dumps({"call_id": "c", "name": "read", "arguments": {"n": said}})),
                      line("toolresult", json.dumps({"call_id": "c", "name": "read", "result": said})),
                      *(line("token", f"word {n} ") for n in range(95)),
                      {"source": "self", "type": "message", "content": "".join(f"word {n} " for n in range(95)), "idempotency_key": f"end:{said}",
                       "metadata": {**about, "reply_to": said}}]
            lines += of_run
            id = said + len(of_run) - 1
        gateway.thread("push", "--batch", session=session, stdin="".join(json.dumps(line) + "\n" for line in lines))
        assert json.loads(gateway.thread("info", "--json", session=session))["last_event_id"] == id
        # As the agent's program would have pushed them.
        gateway.thread("ack", "--consumer", "agent", str(id), session=session)
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            # Usable: the last answer and the box to write in are there.
            await tab.context.add_init_script(f"""
                new MutationObserver(() => {{
                    if (globalThis.usable || !document.querySelector("#message") || !document.querySelector(".answer")) return;
                    if ([...document.querySelectorAll(".words")].at(-1)?.textContent === "question {said}") globalThis.usable = performance.now();
                }}).observe(document, {{ childList: true, subtree: true }});
            """)
            paints, usables = [], []
            for _ in range(5):
                await tab.open(f"#/s/{session}")
                await tab.reload()
                await tab.until("globalThis.usable > 0")
                paints.append(await first_paint(tab))
                usables.append(await tab.evaluate("globalThis.usable"))
            print(f"{len(lines)} events: first paint after {min(paints):.0f} ms, usable after {min(usables):.0f} ms")
            assert min(paints) < (300 if LONG else 5000) and min(usables) < (600 if LONG else 10_000), (paints, usables)
            await expect(tab.locator(".exchange")).to_have_count(10)
            # The same thread among the queues: its consumers and charts, and its newest event in the list of all.
            for place, there in (f"#/look/{session}", "document.querySelector('table.consumers .consumer')"), (f"#/look/{session}/events", "document.querySelectorAll('.list-box .text').length > 20"):
                paints, usables = [], []
                for _ in range(5):
                    await tab.open(place)
                    await tab.reload()
                    await tab.evaluate(f"""new Promise((done) => {{
                        const look = () => {{ if ({there}) {{ globalThis.usable = performance.now(); done(); }} else requestAnimationFrame(look); }};
                        look();
                    }})""")
                    paints.append(await first_paint(tab))
                    usables.append(await tab.evaluate("globalThis.usable"))
                print(f"{place}: first paint after {min(paints):.0f} ms, usable after {min(usables):.0f} ms")
                assert min(paints) < (300 if LONG else 5000) and min(usables) < (600 if LONG else 10_000), (place, paints, usables)
            await tab.open(f"#/s/{session}")
            await expect(tab.locator(".exchange")).to_have_count(10)
            # Scrolls up until many exchanges, of 100 events each, are loaded.
            box, exchanges = tab.locator(".scroll"), 500 if LONG else 40
            async with traced(browser, tab, f"{exchanges} exchanges scrolled"):
                began = time.monotonic()
                while await tab.locator(".exchange").count() < exchanges:
                    assert time.monotonic() < began + 300
                    await box.evaluate("async (e) => { for (let n = 0; n < 20; n++) { e.scrollTop -= 700; await new Promise(requestAnimationFrame); } }")


async def the_page_is_small_and_there_at_once():
    with Gateway(*NDJSON) as gateway:
        web = pathlib.Path(__file__).parents[2] / "web"
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            asked = set()
            tab.page.on("request", lambda request: "/page/" in request.url and asked.add(request.url))
            await tab.reload()
            await expect(tab.locator(".sessions")).to_be_visible()
            paint = await first_paint(tab)
            print(f"first paint after {paint:.0f} ms")
            assert paint < 5000
        # What is needed later, such as Queues and the languages of code, is not loaded at first, and only one language is.
        assert [url.rsplit("/", 1)[1] for url in asked if "/words/" in url] == ["en.js"], asked
        assert {url.rsplit("/", 1)[1] for url in asked if "/look/" in url} <= {"look.css", "api.js", "stream.js"}, asked
        size = 0
        for url in asked:
            request = urllib.request.Request(url, headers={"Accept-Encoding": "gzip"})
            with urllib.request.urlopen(request) as answer:
                assert answer.headers["Content-Encoding"] == "gzip"
                size += len(answer.read())
                request.add_header("If-None-Match", answer.headers["ETag"])
            try:
                urllib.request.urlopen(request)
                raise AssertionError("it is sent again")
            except urllib.error.HTTPError as e:
                assert e.code == 304
        print(f"script and style: {size / 1000:.0f} kB compressed in {len(asked)} files")
        assert len(asked) > 40 and size <= 165_000
        with urllib.request.urlopen(gateway.url) as answer:
            policy = answer.headers["Content-Security-Policy"]
            assert "unsafe" not in policy and "default-src 'none'" in policy and "frame-ancestors 'none'" in policy, policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff" and answer.headers["Referrer-Policy"] == "no-referrer"
        # Third-party files match their checksums.
        sums = dict(reversed(line.split()) for line in (web / "vendor" / "SHA256SUMS").read_text().splitlines())
        for name, expected in sums.items():
            assert hashlib.sha256((web / "vendor" / name).read_bytes()).hexdigest() == expected, name
        assert {str(path.relative_to(web / "vendor")) for path in (web / "vendor").rglob("*.js")} == set(sums)


AXE = os.environ.get("GATEWAY_AXE")


# Each with each only in the long form.
SIZES = [(1200, 800), (360, 700)]
LOOKS = [(scheme, size) for scheme in ("light", "dark") for size in SIZES] if LONG else [("light", SIZES[0]), ("dark", SIZES[1])]


async def axe_finds_nothing_serious():
    if not AXE:
        return print("SKIPPED: needs axe-core, of npm")
    source = (pathlib.Path(AXE) / "node_modules/axe-core/axe.min.js").read_text()
    with Gateway(*ACP) as gateway:
        plays(gateway, all=[
            ["think", "hm"], ["plan", [{"content": "read", "priority": "high", "status": "in_progress"}]],
            ["call", "c1", "read", {"path": "a"}], ["result", "c1", "read", "text"],
            ["say", "# A title\n\n**Bold** and [a link](https://example.org/)\n\n- one\n- two\n\n| a | b |\n|-|-|\n| 1 | 2 |\n\n```\ncode\n```\n\n"
             "```py\n@on\ndef f(x: int) -> str:  # why\n    return f'{x} {1.5}' or None\n```\n\n$$x^2$$\n\nand[^1]\n\n[^1]: a note\n\n- [x] done\n\n"],
            ["call", "c3", "Bash", {"command": "ls"}], ["result", "c3", "Bash", "a\n"],
            ["call", "c4", "Grep", {"pattern": "x"}], ["result", "c4", "Grep", "a.py:1: x"],
            ["call", "c5", "Read", {"path": "a.py"}], ["result", "c5", "Read", "x = 1\n"],
            ["call", "c2", "rm", {"path": "b"}],
            ["change", "c2", "rm b", [{"type": "diff", "path": "b", "oldText": "one\ntwo\n" + "same\n" * 9, "newText": "one\n2 and two\n" + "same\n" * 9}]],
        ])
        async with Browser() as browser:
            async def look(tab, where):
                await tab.evaluate(source)
                found = await tab.evaluate("axe.run(document, { resultTypes: ['violations'] })")
                heavy = [(v["id"], v["impact"], [node["html"][:200] for node in v["nodes"]]) for v in found["violations"]
                         if v["impact"] in ("moderate", "serious", "critical")]
                assert not heavy, (where, heavy)
            for scheme, size in LOOKS:
                stranger = await browser.tab(gateway, enter=False, color_scheme=scheme)
                await stranger.open()
                await stranger.get_by_label("Token").wait_for()
                await look(stranger, "login")
                tab = await browser.tab(gateway, color_scheme=scheme, viewport=dict(zip(("width", "height"), size)))
                await look(tab, "list")
                await tab.click(".sessions .new")
                await look(tab, "new")
                await tab.say("all")
                await tab.locator(".permission.open").wait_for()
                await tab.say("another")
                await tab.see("next", ".strip")
                await tab.evaluate("document.querySelectorAll('details:not([open]) > summary').forEach((summary) => summary.click())")
                await tab.locator(".tool pre").first.wait_for()
                await tab.locator(".exchange").first.hover()
                await tab.locator(".t-keyword").first.wait_for()
                await tab.locator(".answer math").wait_for()
                await tab.locator(".permission .removed").first.wait_for()
                await tab.page.fill("#message", "/s")
                await tab.locator(".completions").wait_for()
                await look(tab, "conversation")
                await tab.page.fill("#message", "")
                await tab.get_by_role("button", name="Allow once").click()
                await tab.answer("You said: another").wait_for()
                await look(tab, "answered")
                await tab.get_by_role("button", name="Rename").click()
                await look(tab, "dialog")
                await tab.keyboard.press("Escape")
            gateway.kill()
            await tab.see("next try in", ".offline")
            await look(tab, "offline")
            gateway.restart()
            await expect(tab.locator(".offline")).to_have_count(0)


if __name__ == "__main__":
    run(globals())
