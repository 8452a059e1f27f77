"""The figures of Queues in a real browser: the table of consumers, charts, runs by outcome, and facets of events."""

import datetime
import json
import re
from urllib.parse import parse_qs

from harness import run
from looking import button, card, enter, events, looking
from page import expect, picture


async def the_consumers_are_a_table_with_those_first_that_need_somebody():
    async with looking() as (inbox, gateway, browser, tab):
        inbox.subscribe("archive", "cat >/dev/null", "--deliver", "stdin", "--batch-size", "1")
        inbox.subscribe("pool", "cat >/dev/null; exit 1", "--deliver", "stdin", "--concurrency", "3", "--backoff", "1h", "--key", "content",
                        "--filter", "content = '<b>rope</b>'")
        inbox.seller()
        for name in "e1", "e2":
            inbox.subscribe(name, "cat >/dev/null", "--deliver", "stdin", "--filter", "content = 'never'")
        for item in "anvil", "tea", "<b>rope</b>":
            inbox.push(item)
        await inbox.has_dead(2)
        await inbox.until("pool", lambda found: found["in_hand"]["waiting"] == 1)
        await expect(tab.locator(".consumer h2").first).to_have_text("seller")
        seller, archive, pool = card(tab, "seller"), card(tab, "archive"), card(tab, "pool")
        await expect(seller.locator(".figures td.failure")).to_have_text("2 of 3")
        await expect(archive.locator("[data-name=p95]")).to_have_text(re.compile("ms$|s$"))
        await expect(archive.locator("[data-name=rate]")).to_have_text("3/min")
        await expect(pool.locator("[data-name=waiting]")).to_have_text("1")
        # Of many, only those are open that need somebody.
        await expect(seller.locator(".more")).to_have_count(1)
        await expect(archive.locator(".more")).to_have_count(0)
        await button(tab, "More about pool", pool).press("Enter")
        # A pool shows its places, and the keys that wait.
        await expect(pool.locator(".facts")).to_contain_text("0 of 3 places taken · 1 event waits to be tried again, which holds back <b>rope</b>")
        await picture(tab, "consumers")


async def charts_show_what_came_and_a_part_of_them_leads_to_its_events_and_runs():
    async with looking() as (inbox, gateway, browser, tab):
        inbox.seller("seller", "--stall-after", "never")
        for item in "anvil", "tea", "rope":
            inbox.push(item)
        await inbox.has_dead(2)
        chart = tab.get_by_role("slider", name="Events", exact=True)
        # Of the shorter ones, all may have come in the part before the last.
        for span in "15 minutes", "1 day", "1 hour", "7 days":
            await button(tab, span).click()
            await expect(chart).to_have_attribute("aria-valuetext", re.compile("came \\d"))
        came_3 = re.compile("came 3, handled by seller 1, failed 2$")
        await expect(chart).to_have_attribute("aria-valuetext", came_3)
        # What waited is counted back from now.
        waited = tab.get_by_role("slider", name="Waiting for seller")
        await expect(waited).to_have_attribute("aria-valuetext", re.compile("waited 0$"))
        # An event that is handled once more did not wait before any had come.
        inbox.do("redo", "--consumer", "seller", "2")
        handled_2 = re.compile("came 3, handled by seller 2, failed 2$")
        await expect(chart).to_have_attribute("aria-valuetext", handled_2)
        await waited.press("Home")
        await expect(waited).to_have_attribute("aria-valuetext", re.compile("waited 0$"))
        await expect(tab.get_by_role("slider", name="How long runs of seller took")).to_have_attribute("aria-valuetext", re.compile("half took less \\d"))
        await picture(tab, "charts")
        # By dragging.
        await chart.scroll_into_view_if_needed()
        box = await chart.bounding_box()
        await tab.page.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + 50)
        await tab.page.mouse.down()
        await tab.page.mouse.move(box["x"] + box["width"] - 1, box["y"] + 50, steps=3)
        await expect(tab.locator(".values").first).to_contain_text("came 3")
        await tab.page.mouse.up()
        chosen = tab.locator(".chosen-range")
        await expect(chosen).to_be_visible()
        await button(tab, "Any time", chosen).click()
        await expect(chosen).to_have_count(0)
        # By the keyboard, longer with Shift. The address has it, so that a link leads to the same.
        await chart.press("End")
        await chart.press("Shift+ArrowLeft")
        await tab.reload()
        await chosen.get_by_role("link", name="Its events").click()
        await expect(tab.locator(".list-box .text")).to_have_text(["rope", "tea", "anvil"])
        await tab.page.go_back()
        await button(tab, "7 days").click()
        await expect(chart).to_have_attribute("aria-valuetext", handled_2)
        # One period opens by Enter: the runs of that time, from where the way back keeps it.
        runs = tab.locator(".runs li")
        await chart.press("End")
        await chart.press("Enter")
        await expect(runs).to_have_count(4)
        await expect(tab.locator(".which")).to_contain_text("from")
        await expect(tab.get_by_role("heading", name="Runs", exact=True)).to_be_in_viewport()
        await picture(tab, "runs-of-a-time")
        await runs.last.get_by_role("link").click()
        await expect(tab.locator("h1")).to_contain_text("Run of seller")
        await tab.keyboard.press("Escape")
        await expect(runs).to_have_count(4)
        await tab.page.go_back(), await tab.page.go_back(), await tab.page.go_back()
        await expect(chosen).to_be_in_viewport()
        await expect(button(tab, "7 days")).to_have_attribute("aria-pressed", "true")
        # And by a click: there was nothing in the first one.
        await chart.click(position={"x": 2, "y": 40})
        await tab.see("None of those that are kept.", ".page")
        await tab.get_by_role("navigation", name="Where you are").get_by_role("link", name="inbox").click()
        await expect(button(tab, "7 days")).to_have_attribute("aria-pressed", "true")
        await button(tab, "Any time", chosen).click()
        # What the keys choose begins where they are, not where an earlier choice did.
        await chart.press("End")
        lengths = []
        for _ in range(2):
            await chart.press("Shift+ArrowLeft")
            await expect(chosen).to_be_visible()
            query = parse_qs((await tab.evaluate("location.hash")).split("?")[1])
            begin, end = (datetime.datetime.fromisoformat(query[name][0].replace("Z", "+00:00")) for name in ("from", "to"))
            lengths.append(end - begin)
            await button(tab, "Any time", chosen).press("Enter")
            await expect(chosen).to_have_count(0)
        assert lengths[0] == lengths[1], lengths
        await chart.press("End")
        # A finger points first, and opens what it points at by a second tap.
        phone = await enter(browser, gateway, "#/look/inbox", viewport={"width": 390, "height": 760}, has_touch=True, is_mobile=True)
        await button(phone, "7 days").click()
        touched = phone.get_by_role("slider", name="Events", exact=True)
        await touched.scroll_into_view_if_needed()
        values = phone.locator(".chart", has=touched).locator(".values")
        wide = (await touched.bounding_box())["width"]
        for place in 2, wide - 2:
            await touched.tap(position={"x": place, "y": 40})
            await expect(values).to_contain_text("came" if place == 2 else "came 3")
        await expect(touched).to_be_visible()
        await touched.tap(position={"x": wide - 2, "y": 40})
        await expect(phone.locator(".which")).to_contain_text("from")
        # One of several consumers is shown; the table says which is worth it.
        inbox.subscribe("mailer", "cat >/dev/null", "--deliver", "stdin", "--filter", "content = 'tea'")
        compared = tab.locator(".compared tbody tr")
        await expect(compared).to_have_text([re.compile("^seller22"), re.compile("^mailer1")])
        await compared.get_by_role("link", name="mailer").click()
        await expect(chart).to_have_attribute("aria-valuetext", re.compile("handled by mailer 1, failed 0$"))
        await picture(tab, "charts-of-one")
        await tab.reload()
        await expect(tab.locator(".unknown")).to_have_text(re.compile("^Waiting for mailer is not known over time.*Now nothing waits.$"))
        await compared.get_by_role("link", name="seller").click()
        # The chart of the other consumer is gone.
        await expect(chart).to_have_attribute("aria-valuetext", re.compile("handled by seller"))
        await chart.press("End")
        await chart.press("Enter")
        await expect(runs).to_have_count(4)
        # Whoever chooses a longer part stays there.
        for key in "End", "Shift+ArrowLeft", "Shift+ArrowLeft":
            await chart.press(key)
        await expect(tab.locator(".which")).to_contain_text("from")
        await expect(chart).to_be_focused()
        await expect(runs).to_have_count(4)
        # By outcome, and sorted; the address keeps it.
        await tab.get_by_label("Outcome").select_option("dead letter")
        await expect(tab.locator(".runs li")).to_have_count(2)
        await button(tab, "longest").click()
        await tab.reload()
        await expect(tab.locator(".runs li")).to_have_count(2)
        await expect(button(tab, "longest")).to_have_attribute("aria-pressed", "true")
        await button(tab, "Any time", tab.locator(".which")).click()
        await tab.get_by_label("Outcome").select_option("stopped")
        await tab.see("None of those that are kept.", ".page")


async def events_are_narrowed_down_by_their_values():
    hostile = "<img src=x onerror=hacked=1>' OR '1'='1"
    async with looking(thread=lambda inbox: inbox.batch([*events(40), {"source": "it's me", "type": "message", "subtype": hostile, "content": "odd"}])) as (inbox, gateway, browser, tab):
        await tab.open("#/look/inbox/events")
        texts, says, facets = tab.locator(".list-box .text"), tab.locator(".event-list [role=status]"), tab.locator(".facets")
        await facets.get_by_role("button", name="record").click()
        await expect(says).to_have_text("36 events match")
        await facets.get_by_role("button", name="external:ci:3").click()
        await expect(says).to_have_text("5 events match")
        await expect(tab.locator("#search")).to_have_value("type = 'record' AND source = 'external:ci:3'")
        await facets.get_by_role("button", name="record").click()
        await expect(says).to_have_text("6 events match")
        await facets.get_by_role("button", name="1 h", exact=True).click()
        await expect(says).to_have_text("6 events match")
        await facets.get_by_role("button", name="since").click()
        await facets.get_by_role("button", name="external:ci:3").click()
        await expect(says).to_have_text("41 events")
        # With what was typed, whatever is in it; and no value does anything.
        await tab.fill("#search", "id = 41 OR id = 1")
        await tab.keyboard.press("Enter")
        await expect(says).to_have_text("2 events match")
        await facets.get_by_role("button", name=hostile[:20]).click()
        await expect(texts).to_have_text(["odd"])
        assert await tab.evaluate("globalThis.hacked") is None
        await facets.get_by_role("button", name=hostile[:20]).click()
        await expect(tab.locator("#search")).to_have_value("(id = 41 OR id = 1)")


async def numbers_do_not_split_the_reasons_of_dead_letters():
    async with looking() as (inbox, gateway, browser, tab):
        inbox.subscribe("seller", """n=$(sed 's/.*"content":"\\([^"]*\\)".*/\\1/'); test -e mended || { echo "no stock for $n"; exit 1; }""", "--deliver", "stdin",
                        "--batch-size", "1", "--max-attempts", "1", "--stall-after", "never", "--backoff", "10ms")
        for item in "qty 8", "qty 9", "anvil":
            inbox.push(item)
        await inbox.has_dead(3)
        await tab.open("#/look/inbox/dead")
        reasons = tab.locator(".reasons li")
        await expect(reasons).to_have_count(2)
        await expect(reasons.first).to_contain_text("2 × exit 1: no stock for qty …")
        await expect(reasons.last).to_contain_text("1 × exit 1: no stock for anvil")
        await reasons.first.get_by_role("link").first.click()
        await expect(tab.locator(".letters > li")).to_have_count(2)
        (inbox.dir / "mended").touch()
        await button(tab, "Retry these 2").click()
        await inbox.has_dead(1)
        assert json.loads(inbox.do("dead", "list", "--json").splitlines()[0])["event_id"] == 3


if __name__ == "__main__":
    run(globals())
