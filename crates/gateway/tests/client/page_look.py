"""Queues in a real browser: real threads, with real handlers that fail, wait and run."""

import asyncio
import contextlib
import datetime
import json
import pathlib
import re
import sqlite3
import subprocess
import uuid

from harness import THREAD, Gateway, run
from looking import button, card, enter, events, looking
from page import expect, picture


async def what_is_wrong_is_said_first_and_can_be_mended():
    async with looking() as (inbox, gateway, browser, tab):
        # There is no agent and only one thread, so that is shown.
        await expect(tab.locator("h1")).to_have_text("inbox")
        await tab.see("No consumer is subscribed")
        inbox.subscribe("archive", "cat >/dev/null", "--deliver", "stdin")
        command = 'test -e "$THREAD_DIR/../mended" || { echo "no price for anvil"; exit 1; }; thread ack 1'
        inbox.subscribe("mailer", command, "--max-attempts", "1")
        inbox.push("anvil")
        await inbox.until("mailer", lambda found: found["state"] == "stalled")
        await expect(tab.locator(".verdict")).to_have_text("1 consumer needs attention: mailer.")
        # Errors come first, with their reason.
        await expect(tab.locator(".consumer h2")).to_have_text(["mailer", "archive"])
        mailer = card(tab, "mailer")
        await expect(mailer.locator(".why")).to_contain_text("out of attempts, exit 1: no price for anvil")
        await expect(mailer.locator(".facts")).to_contain_text("1 event waits")
        await picture(tab, "look-stalled")
        # The event itself is not just shown as waiting either.
        await tab.open("#/look/inbox/events/1")
        waits = tab.locator(".event .plain-list li", has_text="mailer")
        await expect(waits).to_contain_text("stalled")
        await expect(waits).to_contain_text("out of attempts, exit 1: no price for anvil")
        await waits.get_by_role("link", name="the last run").click()
        await expect(tab.locator(".verdict")).to_contain_text("It failed (exit 1)")
        await tab.open("#/look/inbox")
        # A number links to the events that it counts.
        await mailer.get_by_role("link", name="1 event").click()
        await expect(tab.locator(".list-box .text")).to_have_text(["anvil"])
        await tab.keyboard.press("Escape")
        await mailer.get_by_role("link", name="Show the last run").click()
        await expect(tab.locator(".verdict")).to_contain_text("It failed (exit 1)")
        await expect(tab.get_by_label("Output")).to_contain_text("no price for anvil")
        await tab.get_by_role("navigation", name="Where you are").get_by_role("link", name="inbox").click()
        # Resumed without a repair, it fails again.
        await button(tab, "Resume", mailer).click()
        await inbox.until("mailer", lambda found: found["runs_failed"] == 2 and found["state"] == "stalled")
        await expect(mailer.locator(".came-of")).to_contain_text("failed again: exit 1: no price for anvil")
        (inbox.dir / "mended").touch()
        await button(tab, "Resume", mailer).click()
        await expect(tab.locator(".verdict")).to_have_text("Nothing is wrong.")
        await expect(mailer.locator(".facts")).to_contain_text("nothing waits")
        await mailer.get_by_role("link", name="All runs").click()
        await expect(tab.locator(".runs li")).to_have_count(3)
        await expect(tab.locator(".runs li").first).to_contain_text("succeeded")
        await expect(tab.locator(".runs li").last).to_contain_text("failed, exit 1")
        await expect(tab.locator(".settings")).to_contain_text(command)
        await tab.reload()
        await expect(tab.locator(".runs li")).to_have_count(3)
        # One that gives up on an event and goes on: what failed, why, and what can be done.
        await tab.open("#/look/inbox")
        inbox.subscribe("clerk", "echo no ink; exit 4", "--deliver", "stdin", "--max-attempts", "1", "--stall-after", "never")
        inbox.do("pause", "--consumer", "clerk")
        inbox.push("a letter")
        clerk = card(tab, "clerk")
        await button(tab, "Resume", clerk).click()
        await expect(clerk.locator(".came-of")).to_contain_text("failed again: exit 4: no ink")
        await expect(clerk.locator(".state").first).to_contain_text("idle, last run failed")
        await expect(clerk.locator(".why")).to_contain_text("exit 4: no ink")
        await expect(clerk.locator(".todo").first).to_contain_text("retry it under Dead letters")


async def a_consumer_is_paused_resumed_stopped_and_moved():
    async with looking() as (inbox, gateway, browser, tab):
        inbox.subscribe("worker", "sleep 600", "--deliver", "stdin")
        worker = card(tab, "worker")
        state = worker.locator(".state")
        for text in "one", "two", "three":
            inbox.push(text)
        await expect(state).to_contain_text("running")
        await button(tab, "Pause", worker).click()
        await expect(worker.locator(".why")).to_contain_text("none follows: it is paused")
        # Actions that end work ask first.
        await button(tab, "Stop …", worker).click()
        await button(tab, "Leave it").click()
        assert inbox.info("worker")["state"] == "running"
        await button(tab, "Stop …", worker).click()
        await expect(tab.locator("dialog")).to_contain_text("processes get TERM")
        await button(tab, "Stop").click()
        await expect(tab.locator("dialog")).to_have_count(0)
        await expect(state).to_contain_text("paused")
        await expect(worker.locator(".facts")).to_contain_text("3 events wait")
        await button(tab, "Resume", worker).click()
        await expect(state).to_contain_text("running")
        await button(tab, "Stop …", worker).click()
        await tab.get_by_label("Skip its events").check()
        await tab.locator("dialog").get_by_text("As a command").click()
        await expect(tab.locator("dialog pre")).to_contain_text("thread stop -t")
        await expect(tab.locator("dialog pre")).to_contain_text("worker --skip")
        await button(tab, "Stop").click()
        await expect(state).to_contain_text("stalled")
        await expect(worker.locator(".facts")).to_contain_text("nothing waits")
        # Each position to which a cursor can be moved.
        await button(tab, "Pause", worker).click()
        await expect(state).to_contain_text("paused")
        async def seek(place, value=None):
            await button(tab, "Seek …", worker).click()
            await tab.locator("dialog label", has_text=place).locator("input").check()
            if value is not None:
                await tab.locator("dialog input:not([type=radio])").fill(value)
            await button(tab, "Move it").click()
        await seek("the beginning")
        await expect(worker.locator(".facts")).to_contain_text("3 events wait")
        await seek("after an event", "2")
        await expect(worker.locator(".facts")).to_contain_text("1 event waits")
        await seek("a time", "1h")
        await expect(worker.locator(".facts")).to_contain_text("3 events wait")
        await seek("the end")
        await expect(worker.locator(".facts")).to_contain_text("nothing waits")
        assert inbox.info("worker")["last_acked_id"] == 3
        # The gateway's error is shown where it happened.
        await seek("a time", "soon")
        await expect(tab.locator("dialog [role=alert]")).to_contain_text("soon")
        tab.errors = [error for error in tab.errors if "400" not in error]
        await button(tab, "Leave it").click()


async def dead_letters_are_retried_and_discarded_one_some_or_all():
    async with looking() as (inbox, gateway, browser, tab):
        inbox.seller("seller", "--stall-after", "never")
        for item in ["anvil", "anvil", "anvil", "rope", "rope", "saw", "nail"]:
            inbox.push(item)
        await inbox.has_dead(7)
        await tab.locator(".consumer").get_by_role("link", name="7 dead letters").click()
        reasons = tab.locator(".reasons li")
        await expect(reasons).to_have_count(4)
        await expect(reasons.first).to_contain_text("3 × exit 1: no price for anvil")
        await picture(tab, "dead-letters")
        # All with one reason, after the repair.
        with (inbox.dir / "prices").open("a") as prices:
            prices.write("anvil costs 90\n")
        await button(tab, "Retry these 3", reasons.first).click()
        await expect(reasons).to_have_count(3)
        await inbox.has_dead(4)
        await expect(tab.locator(".plain-list .came-of")).to_contain_text("all 3 ran, and succeeded")
        # One that fails again stays.
        letter = lambda item: tab.locator(".letters li", has_text=item)
        await button(tab, "Retry", letter("saw")).click()
        await inbox.until("seller", lambda found: found["runs_failed"] + found["runs_succeeded"] >= 11 and found["state"] == "idle")
        await expect(letter("saw")).to_contain_text("2 attempts")
        await expect(letter("saw").locator(".came-of")).to_contain_text("failed again: exit 1: no price for saw")
        # One that succeeds is seen as done, until the page is opened again.
        with (inbox.dir / "prices").open("a") as prices:
            prices.write("nail costs 2\n")
        await button(tab, "Retry", letter("nail")).click()
        await expect(letter("nail").locator(".done .came-of")).to_contain_text("it ran, and succeeded")
        await expect(button(tab, "Retry", letter("nail"))).to_have_count(0)
        await letter("nail").get_by_role("link", name="The run").click()
        await expect(tab.locator(".verdict")).to_contain_text("It succeeded")
        await tab.page.go_back()
        await expect(letter("nail")).to_have_count(0)
        inbox.push("nut")
        await expect(letter("nut")).to_have_count(1)
        # What is discarded in the meantime has not succeeded.
        inbox.push("screw")
        await expect(letter("screw")).to_have_count(1)
        inbox.do("pause", "seller")
        await button(tab, "Retry", letter("screw")).click()
        came_of = letter("screw").locator(".came-of")
        await expect(came_of).to_contain_text("it is not started until it is resumed")
        screw = json.loads(inbox.do("peek", "--json", "--tail", "1"))["id"]
        inbox.do("dead", "discard", "seller", str(screw))
        await expect(came_of).to_contain_text("it is no dead letter any more")
        inbox.do("resume", "seller")
        # The results of several retries are shown below their buttons, which do not move.
        ropes = reasons.filter(has_text="rope")
        places = [await button(tab, name, ropes).bounding_box() for name in ("Retry these 2", "Discard these 2 …")]
        await button(tab, "Retry these 2", ropes).click()
        await expect(ropes.locator(".came-of.failure")).to_contain_text("both ran, and failed again: exit 1: no price for rope")
        assert places == [await button(tab, name, ropes).bounding_box() for name in ("Retry these 2", "Discard these 2 …")]
        await ropes.get_by_role("link", name="The runs").click()
        await expect(tab.locator(".runs li").first).to_contain_text("dead letter")
        await tab.page.go_back()
        # Those with one reason have an address, and the same buttons.
        await reasons.filter(has_text="rope").get_by_role("link").first.click()
        await expect(tab.locator(".letters > li")).to_have_count(2)
        await expect(button(tab, "Retry these 2")).to_be_visible()
        await tab.get_by_role("link", name="Show all").click()
        await expect(tab.locator(".letters > li")).to_have_count(4)
        # Some: it asks first, then discards them; the events stay.
        await tab.get_by_label("Choose event 4 of seller").check()
        await tab.get_by_label("Choose event 6 of seller").check()
        await button(tab, "Discard 2 of seller …").click()
        await expect(tab.locator("dialog")).to_contain_text("Discard 2 dead letters?")
        await expect(tab.locator("dialog .failure")).to_have_text(["exit 1: no price for saw", "exit 1: no price for rope"])
        await button(tab, "Leave it").click()
        assert inbox.info("seller")["dead"] == 4
        await button(tab, "Discard 2 of seller …").click()
        await button(tab, "Discard").click()
        await expect(tab.locator(".letters > li")).to_have_count(2)
        assert inbox.info("seller")["dead"] == 2 and json.loads(inbox.do("info", "--json"))["event_count"] == 9
        # The command next to it does the same.
        await button(tab, "Discard this one …", reasons.first).click()
        await tab.locator("dialog").get_by_text("As a command").click()
        command = await tab.locator("dialog pre").inner_text()
        await button(tab, "Leave it").click()
        path = f"{pathlib.Path(THREAD).parent}:/usr/bin:/bin"
        subprocess.run(["sh", "-c", command], check=True, env={"PATH": path}, stdout=subprocess.DEVNULL)
        await expect(tab.locator(".letters > li")).to_have_count(1)
        inbox.push("hammer")
        await inbox.has_dead(2)
        await button(tab, "Discard all 2 …").click()
        await button(tab, "Discard").click()
        await tab.see("There are none.")
        assert inbox.info("seller")["dead"] == 0


async def an_event_is_pushed_and_the_command_next_to_it_does_the_same():
    async with looking() as (inbox, gateway, browser, tab):
        inbox.seller()
        await tab.get_by_role("link", name="Push", exact=True).click()
        text = "it's\n\"two\" lines of $HOME `x` \\ ü"
        await tab.get_by_label("Content").fill(text)
        await tab.get_by_label("Subtype").fill("order")
        await tab.locator(".push select").select_option("record")
        await tab.get_by_label("Metadata").fill('{"run_id": 17')
        await button(tab, "Push").click()
        await tab.see("The metadata is not JSON", "[role=alert]")
        await tab.get_by_label("Metadata").fill('{"run_id": 17}')
        # Drafts are kept.
        await tab.reload()
        await expect(tab.get_by_label("Content")).to_have_value(text)
        await button(tab, "Push").click()
        await tab.get_by_role("link", name="event 1").click()
        await expect(tab.locator(".event h2")).to_have_text("Event 1")
        await expect(tab.locator(".event").get_by_label("Content")).to_have_text(text)
        await tab.see("dead letter", ".event")
        await tab.keyboard.press("Escape")
        await tab.get_by_role("link", name="Push an event").click()
        # It is not pushed again by accident.
        await expect(tab.get_by_label("Content")).to_have_value("")
        await expect(button(tab, "Push")).to_be_disabled()
        await tab.get_by_label("Content").fill(text)
        command = await tab.get_by_label("Command").inner_text()
        path = f"{pathlib.Path(THREAD).parent}:/usr/bin:/bin"
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, env={"PATH": path, "HOME": "/nowhere"})
        assert done.stdout == "2\n", (command, done)
        one, two = [json.loads(line) for line in inbox.do("peek", "-n", "2").splitlines()]
        same = ("content", "source", "type", "subtype", "metadata")
        assert [one[key] for key in same] == [two[key] for key in same]
        # Under one key it is stored once.
        await tab.get_by_label("Idempotency key").fill("k1")
        await button(tab, "Push").click()
        await tab.see("Stored as")
        await tab.get_by_label("Content").fill(text)
        await tab.get_by_label("Idempotency key").fill("k1")
        await button(tab, "Push").click()
        await tab.see("It was stored already")
        # A reminder: it comes at its time, and until then it is seen what is to come.
        await tab.get_by_label("Content").fill("call the dentist")
        await tab.get_by_label("When").fill("2099-03-18T18:00")
        # In a zone of the browser's own.
        assert re.search(r"--at 2099-03-1\d\S*Z", await tab.get_by_label("Command").inner_text())
        await tab.get_by_label("When").fill("2020-03-18T18:00")
        await button(tab, "Push").click()
        await tab.see("This time is over")
        await tab.get_by_label("When").fill("2099-03-18T18:00")
        await button(tab, "Push").click()
        await tab.see("It comes at", "[role=status]")
        await tab.locator(".stored").get_by_role("link", name="What is to come").click()
        await expect(tab.locator(".to-come tbody tr")).to_contain_text("call the dentist")
        await expect(tab.locator(".to-come time")).to_contain_text("2099")
        await tab.get_by_role("link", name="Push", exact=True).click()
        await tab.get_by_label("Content").fill(text)
        assert json.loads(inbox.do("info", "--json"))["event_count"] == 3
        await tab.get_by_label("Source").fill("external:\x01")
        await button(tab, "Push").click()
        await expect(tab.locator("[role=alert]")).to_contain_text("ource")
        tab.errors = [error for error in tab.errors if "400" not in error]
        # One like it.
        await tab.get_by_role("link", name="Events").first.click()
        await tab.get_by_role("link", name="1", exact=False).first.wait_for()
        await tab.locator(".list-box a.row").last.click()
        await tab.get_by_role("link", name="Push another like it").click()
        await expect(tab.locator(".push").get_by_label("Content")).to_have_value(text)
        await expect(tab.get_by_label("Subtype")).to_have_value("order")


async def events_are_filtered_read_page_by_page_and_followed():
    async with looking(thread=lambda inbox: inbox.batch(events(1000))) as (inbox, gateway, browser, tab):
        await tab.get_by_role("navigation", name="In this queue").get_by_role("link", name="Events").click()
        texts = tab.locator(".list-box .text")
        await expect(texts.first).to_have_text("number 1000")
        # Page by page to the beginning; rows far from the view are not elements.
        box = tab.locator(".list-box")
        for _ in range(100):
            if await texts.last.inner_text() == "number 1":
                break
            await box.evaluate("e => e.scrollTop = e.scrollHeight")
            await asyncio.sleep(0.1)
        await expect(texts.last).to_have_text("number 1")
        assert await texts.count() < 200
        # New ones come while the view does not move.
        first = await box.evaluate("e => { e.scrollTop = 9000; return e.scrollTop; }")
        await asyncio.sleep(0.3)
        seen = await tab.evaluate("document.elementFromPoint(600, 500).closest('a').hash")
        inbox.batch(events(5))
        await expect(tab.locator(".event-list [role=status]")).to_contain_text("1,005")
        assert await tab.evaluate("document.elementFromPoint(600, 500).closest('a').hash") == seen
        assert await box.evaluate("e => e.scrollTop") > first
        await box.evaluate("e => e.scrollTop = 0")
        await expect(texts.first).to_have_text("number 5")
        # The tail can be paused and resumed.
        await button(tab, "Live · pause").click()
        inbox.push("while it was paused")
        await asyncio.sleep(1.5)
        await expect(texts.first).to_have_text("number 5")
        await button(tab, "Paused · go on").click()
        await expect(texts.first).to_have_text("while it was paused")
        # A filter of the same SQL as everywhere, in the address.
        await tab.get_by_text("Examples").click()
        await tab.get_by_role("button", name="type = 'message'").click()
        await expect(tab.locator(".event-list [role=status]")).to_have_text("101 events match")
        await expect(texts.nth(1)).to_have_text("number 1000")
        inbox.push("--type", "record", "no match")
        inbox.push("a match")
        await expect(texts.first).to_have_text("a match")
        await tab.reload()
        await expect(tab.locator(".event-list [role=status]")).to_have_text("102 events match")
        await expect(tab.locator("#search")).to_have_value("type = 'message'")
        # A wrong one says why.
        await tab.locator("#search").fill("color = 'red'")
        await tab.keyboard.press("Enter")
        await expect(tab.locator("[role=alert]").first).to_contain_text("color")
        tab.errors = [error for error in tab.errors if "400" not in error]
        # Text that only looks like a filter can be searched for.
        await tab.locator("#search").fill("no (match")
        await tab.keyboard.press("Enter")
        await tab.get_by_role("link", name="Search the contents for it").click()
        await tab.see("No event matches.")
        tab.errors = [error for error in tab.errors if "400" not in error]
        await tab.get_by_role("link", name="All", exact=True).click()
        await expect(texts.first).to_have_text("a match")
        # An event opens in the list, and its address can be shared.
        await tab.locator(".list-box a.row").nth(1).click()
        await expect(tab.locator(".event h2")).to_have_text("Event 1007")
        other = await enter(browser, gateway, tab.page.url.split("/", 3)[3])
        await expect(other.locator(".event h2")).to_have_text("Event 1007")
        await tab.locator(".event").get_by_role("link", name="Older").click()
        await expect(tab.locator(".event h2")).to_have_text("Event 1006")


async def words_are_searched_for_in_the_contents():
    async with looking(thread=lambda inbox: inbox.batch(events(10))) as (inbox, gateway, browser, tab):
        for text in "It's 100% sure", "it is 1000 sure", "a_b", "axb", "nothing", "back\\slash":
            inbox.push("--content-file", "-", stdin=text)
        await tab.open("#/look/inbox/events")
        texts, search = tab.locator(".list-box .text"), tab.locator("#search")
        await expect(texts).to_have_count(16)
        for words, found in ("NOTHING", ["nothing"]), ("it's 100%", ["It's 100% sure"]), ("a_b", ["a_b"]), ("\\s", ["back\\slash"]), \
                ("1000", ["it is 1000 sure"]), ("sure it", ["it is 1000 sure", "It's 100% sure"]), ('"is 1000" SURE', ["it is 1000 sure"]), ('"number 10"', ["number 10"]), ("id", []), ("salt and pepper", []):
            await search.fill(words)
            await tab.keyboard.press("Enter")
            await expect(texts).to_have_text(found)
            await tab.see(f"Events whose content has “{words.strip(chr(34)) if words.count(' ') < 2 else words}” in it", ".event-list")
            await expect(search).to_have_value(words)
        # New matching events come, and the address contains the search.
        await search.fill("match")
        await tab.keyboard.press("Enter")
        await tab.see("No event matches.")
        inbox.push("no such thing")
        inbox.push("a match")
        await expect(texts).to_have_text(["a match"])
        await tab.reload()
        await expect(texts).to_have_text(["a match"])
        await expect(search).to_have_value("match")
        # A filter to which no words lead is shown as it is.
        no_words = "content LIKE '%a = b%' ESCAPE '\\'"
        await search.fill(no_words)
        await tab.keyboard.press("Enter")
        await tab.see("No event matches.")
        await expect(search).to_have_value(no_words)
        await expect(tab.get_by_text("Events whose content has")).to_have_count(0)
        # SQL is a filter as before.
        await search.fill("content LIKE 'axb' OR id = 1")
        await tab.keyboard.press("Enter")
        await expect(texts).to_have_text(["axb", "number 1"])
        await expect(tab.get_by_text("Events whose content has")).to_have_count(0)


async def old_events_that_nobody_takes_are_flagged():
    async with looking() as (inbox, gateway, browser, tab):
        inbox.do("subscribe", "reader", "--no-handler")
        inbox.push("one")
        inbox.push("two")
        reader = card(tab, "reader")
        await expect(reader.locator(".facts")).to_contain_text("2 events wait")
        await expect(tab.locator(".verdict")).to_have_text("Nothing is wrong.")
        stored = lambda minutes: (datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        with contextlib.closing(sqlite3.connect(inbox.path / "events.db", isolation_level=None)) as db:
            db.execute("UPDATE events SET created_at = ?", [stored(15)])
        await expect(reader.locator(".why")).to_contain_text("not taken for 15 min")
        await expect(tab.locator(".verdict")).to_have_text("1 consumer needs attention: reader.")
        await tab.open("#/look")
        await expect(tab.locator(".verdict")).to_have_text("1 queue needs attention.")
        await expect(tab.locator(".attention")).to_have_text("reader: unattended (2 events pending, and not taken for 15m)")
        inbox.do("ack", "--consumer", "reader", "1")
        await expect(tab.locator(".verdict")).to_have_text("Nothing is wrong.")


async def what_is_to_come_is_shown():
    async with looking() as (inbox, gateway, browser, tab):
        await expect(tab.locator(".to-come")).to_have_count(0)
        inbox.do("schedule", "add", "daily", "--cron", "0 9 * * 1-5", "--tz", "Europe/Berlin", "write the digest")
        inbox.do("push", "--in", "1h", "<b>is it still down?</b>")
        inbox.do("schedule", "add", "off", "--every", "1h", "x")
        inbox.do("schedule", "pause", "off")
        rows = tab.locator(".to-come tbody tr")
        await expect(rows).to_have_count(3)
        await expect(rows.nth(0)).to_contain_text("0 9 * * 1-5 Europe/Berlin")
        await expect(rows.nth(0)).to_contain_text("write the digest")
        await expect(rows.nth(1)).to_contain_text("paused")
        await expect(rows.nth(2)).to_contain_text("s1")
        await expect(rows.nth(2)).to_contain_text("<b>is it still down?</b>")
        await rows.nth(2).get_by_role("button", name="Cancel").click()
        await expect(rows).to_have_count(2)
        inbox.do("push", "--in", "1h", "is it up?")
        await rows.nth(2).get_by_role("button", name="Push now").click()
        await tab.see("1 event")
        assert "is it up?" in inbox.do("peek")
        inbox.do("schedule", "remove", "daily")
        inbox.do("schedule", "remove", "off")
        await expect(tab.locator(".to-come")).to_have_count(0)


async def who_sees_nothing_reads_what_this_is_for_and_what_to_do():
    async with looking() as (inbox, gateway, browser, tab):
        await tab.see("A queue keeps what is pushed into it")
        commands = await tab.locator(".first pre").inner_text()
        path = f"{pathlib.Path(THREAD).parent}:/usr/bin:/bin"
        with Gateway() as empty:
            other = await browser.tab(empty)
            await other.open("#/look")
            await other.see("Make a queue with a consumer")
            assert (await other.locator(".first pre").inner_text()).startswith("thread init inbox\n")
        subprocess.run(["sh", "-c", commands], check=True, env={"PATH": path}, stdout=subprocess.DEVNULL, cwd=inbox.dir)
        await expect(card(tab, "keeper")).to_contain_text("succeeded")
        await expect(tab.locator(".first")).to_have_count(0)
        # One that fails all the time is flagged before it is given up, in each place and as `thread info --check` does.
        inbox.subscribe("broken", "exit 1", "--deliver", "stdin", "--backoff", "10ms,10ms,1h", "--max-attempts", "9")
        await expect(tab.locator(".verdict")).to_have_text("1 consumer needs attention: broken.")
        await expect(tab.locator(".tabs .failure")).to_have_text("■ 1")
        await expect(card(tab, "broken")).to_contain_text("Every attempt of the last hour has failed.")
        await expect(card(tab, "broken")).to_have_class(re.compile("needed"))
        said = inbox.do("info", "--check", expected=1)
        assert said == "broken: failing (3 attempts failed in the last hour, and none succeeded)\n", said
        await tab.open("#/look")
        await expect(tab.locator(".attention")).to_have_text(said.strip())


async def the_steps_of_a_handler_are_shown_and_forgotten():
    async with looking() as (inbox, gateway, browser, tab):
        handler = """set -e; cat >/dev/null
            thread step charge -- sh -c 'echo "$THREAD_EVENT_ID" >>charged; echo "<b>paid</b>"'
            thread await approval --subtype approval"""
        inbox.subscribe("orders", handler, "--deliver", "stdin", "--concurrency", "2", "--filter", "subtype IS NULL")
        inbox.push("tea")
        await tab.open("#/look/inbox/events/1")
        rows = tab.locator(".steps tbody tr")
        await expect(rows).to_have_count(2)
        await expect(rows.nth(0)).to_contain_text("charge")
        await expect(rows.nth(0)).to_contain_text("done")
        await expect(rows.nth(1)).to_contain_text("waits")
        await expect(rows.nth(1)).to_contain_text("subtype = 'approval'")
        await expect(tab.locator(".event .plain-list li", has_text="orders")).to_contain_text("asleep, until another event comes")
        await picture(tab, "look-steps")
        await button(tab, "Forget charge …").click()
        await expect(tab.locator("dialog")).to_contain_text("runs its command again")
        await button(tab, "Forget", tab.locator("dialog")).click()
        await expect(rows).to_have_count(1)
        inbox.push("yes", "--subtype", "approval")
        await expect(rows).to_have_count(2)
        await expect(rows.filter(has_text="approval")).to_contain_text("done")
        await expect(tab.locator(".event .plain-list li", has_text="orders")).to_contain_text("done")
        assert (inbox.dir / "charged").read_text() == "1\n1\n"
        # An event that was handled is given again; its steps are done.
        runs = (await inbox.until("orders", lambda found: found["state"] == "idle"))["runs_succeeded"]
        await button(tab, "Give again").click()
        await inbox.until("orders", lambda found: found["runs_succeeded"] == runs + 1 and found["dead"] == 0)
        assert (inbox.dir / "charged").read_text() == "1\n1\n"


async def what_is_typed_stays_while_the_thread_cannot_be_read():
    async with looking() as (inbox, gateway, browser, tab):
        inbox.push("first")
        await tab.open("#/look/inbox/push")
        await tab.get_by_label("Content").fill("half a sentence")
        with contextlib.closing(sqlite3.connect(inbox.path / "events.db", isolation_level=None, timeout=30)) as db:
            db.execute("PRAGMA locking_mode = EXCLUSIVE")
            db.execute("BEGIN IMMEDIATE")
            db.execute("COMMIT")
            await expect(tab.locator(".look .error")).to_contain_text("locked")
            await expect(tab.get_by_label("Content")).to_have_value("half a sentence")
        await expect(tab.locator(".look .error")).to_have_count(0)
        await expect(tab.get_by_label("Content")).to_have_value("half a sentence")


async def runs_of_one_second_are_told_apart():
    async with looking() as (inbox, gateway, browser, tab):
        inbox.subscribe("quick", "cat >/dev/null", "--deliver", "stdin", "--batch-size", "1")
        inbox.batch(events(30))
        await inbox.until("quick", lambda found: found["pending"] == 0 and found["state"] == "idle")
        await tab.open("#/look/inbox/c/quick")
        times = tab.locator(".runs time")
        await expect(times).to_have_count(30)
        shown = await times.all_inner_texts()
        assert len(set(shown)) == len(shown), shown


async def a_filter_that_takes_too_long_says_how_far_it_has_come():
    slow = f"content LIKE '%{'a' * 300}b'"
    with_it = lambda inbox: inbox.batch([{"content": "a" * 300_000}] * 60)
    async with looking(thread=with_it) as (inbox, gateway, browser, tab):
        await tab.open("#/look/inbox/events")
        await expect(tab.locator(".list-box a.row").first).to_be_visible()
        await tab.fill("#search", slow)
        await tab.keyboard.press("Enter")
        # It stops, and continues on request. (On a busy machine, not even one event may be evaluated in time.)
        says = tab.locator(".event-list .hint", has_text="Searched back to event")
        await expect(says.or_(tab.locator("[role=alert]", has_text="takes too long")).first).to_be_visible()
        if await says.count():
            before = await says.inner_text()
            await button(tab, "Search on").click()
            await expect(says).not_to_have_text(before)
        await tab.get_by_role("link", name="All", exact=True).click()
        await expect(tab.locator(".list-box a.row").first).to_be_visible()
        tab.errors = [error for error in tab.errors if "400" not in error]


async def an_event_shows_its_content_and_who_handled_it():
    async with looking() as (inbox, gateway, browser, tab):
        inbox.subscribe("reader", "cat; while test -e hold; do sleep 0.05; done", "--deliver", "stdin")
        inbox.seller("picky", "--filter", "content = 'rope'")
        one = inbox.push("--metadata", '{"a":[1,2]}', json.dumps({"price": {"tea": 3}}))
        two = inbox.push("# A title\n\n**bold** \u202egnp.exe")
        three = inbox.push("rope")
        await inbox.has_dead(1, "picky")
        await inbox.until("reader", lambda found: found["last_acked_id"] == three)
        await tab.open(f"#/look/inbox/events/{one}")
        event = tab.locator(".event")
        await expect(event.get_by_label("Content")).to_have_text('{\n  "price": {\n    "tea": 3\n  }\n}')
        await expect(event.get_by_label("Metadata")).to_contain_text('"a"')
        await expect(event).to_contain_text("reader: done")
        await button(tab, "Text", event).click()
        await expect(event.get_by_label("Content")).to_have_text('{"price": {"tea": 3}}')
        await event.get_by_role("link", name="the run").click()
        await expect(tab.locator(".verdict")).to_contain_text("It succeeded")
        await tab.open(f"#/look/inbox/events/{two}")
        await expect(event.get_by_label("Content")).to_contain_text("‹U+202E›gnp.exe")
        await button(tab, "Markdown", event).click()
        await expect(event.locator("strong")).to_contain_text("bold")
        await tab.open(f"#/look/inbox/events/{three}")
        await expect(event.locator(".letter")).to_contain_text("no price for rope")
        await expect(event).to_contain_text("picky: dead letter")
        # What is given again is followed until its run has ended.
        by = lambda name: event.locator(".plain-list li", has_text=name)
        (inbox.dir / "hold").touch()
        await button(tab, "Give again", by("reader")).click()
        await expect(by("reader").locator(".came-of")).to_contain_text("it runs …")
        await expect(by("reader")).not_to_contain_text("dead letter")
        await by("reader").get_by_role("link", name="The run", exact=True).wait_for()
        (inbox.dir / "hold").unlink()
        await expect(by("reader").locator(".came-of")).to_contain_text("it ran, and succeeded")
        (inbox.dir / "prices").write_text("rope costs 2\n")
        await button(tab, "Retry", event.locator(".letter")).click()
        await expect(by("picky").locator(".came-of")).to_contain_text("it ran, and succeeded")
        await expect(event.locator(".letter")).to_have_count(0)
        await by("picky").locator(".came-of").get_by_role("link", name="The run").click()
        await expect(tab.locator(".verdict")).to_contain_text("It succeeded")
        await tab.open("#/look/inbox/events/99")
        await expect(event.locator("[role=alert]")).to_be_visible()
        tab.errors = [error for error in tab.errors if "404" not in error]


async def threads_are_found_and_hidden_ones_are_counted():
    async with looking() as (inbox, gateway, browser, tab):
        inbox.seller("seller", "--stall-after", "never")
        inbox.push("anvil")
        await inbox.has_dead(1)
        session = gateway.root / str(uuid.uuid4())
        inbox.do("init", session, thread=None)
        inbox.do("push", "--source", "external:cli", "the backup", thread=session)
        await tab.open("#/look")
        await expect(tab.locator(".threads li")).to_have_count(2)
        await expect(tab.locator(".verdict")).to_have_text("1 queue needs attention.")
        await tab.fill("#search", "backup")
        await expect(tab.locator(".threads li")).to_have_count(1)
        await expect(tab.locator(".verdict")).to_contain_text("1 of 2 queues has that in the name. 1 other needs attention.")
        await tab.keyboard.press("Escape")
        await expect(tab.locator("#search")).to_have_value("")
        await expect(tab.locator(".threads li")).to_have_count(2)
        await expect(tab.locator(".verdict")).to_have_text("1 queue needs attention.")


async def a_gateway_that_is_killed_while_one_looks_is_a_pause():
    async with looking() as (inbox, gateway, browser, tab):
        inbox.batch(events(3))
        await tab.open("#/look/inbox/events")
        texts = tab.locator(".list-box .text")
        await expect(texts).to_have_text(["number 3", "number 2", "number 1"])
        gateway.kill()
        await expect(tab.locator(".offline").first).to_contain_text("next try in")
        inbox.push("while it was away")
        await tab.open("#/look/inbox")
        inbox.subscribe("late", "cat", "--deliver", "stdin")
        gateway.restart()
        await expect(card(tab, "late")).to_be_visible()
        await expect(tab.locator(".offline")).to_have_count(0)
        await tab.open("#/look/inbox/events")
        await expect(texts).to_have_text(["while it was away", "number 3", "number 2", "number 1"])
        gateway.kill()
        inbox.push("the second time")
        gateway.restart()
        inbox.push("back")
        await expect(texts).to_have_text(["back", "the second time", "while it was away", "number 3", "number 2", "number 1"])
        await expect(tab.locator(".offline")).to_have_count(0)
        # An action while the gateway is down fails where it was started.
        gateway.kill()
        await tab.open("#/look/inbox")
        await button(tab, "Pause", card(tab, "late")).click()
        await expect(card(tab, "late").locator("[role=alert]")).to_contain_text("cannot be reached")
        gateway.restart()
        tab.errors = [error for error in tab.errors if "ERR_" not in error]


async def nothing_is_asked_while_nothing_happens():
    async with looking(thread=lambda inbox: inbox.batch(events(10))) as (inbox, gateway, browser, tab):
        asked = []
        tab.page.on("request", lambda request: asked.append(request.url))
        for path in "", "/inbox", "/inbox/events", "/inbox/events/3", "/inbox/dead", "/inbox/push":
            await tab.open(f"#/look{path}")
            await tab.locator(".page, .events-page").wait_for()
            await asyncio.sleep(1)
            asked.clear()
            await asyncio.sleep(3)
            assert not asked, (path, asked)


if __name__ == "__main__":
    run(globals())
