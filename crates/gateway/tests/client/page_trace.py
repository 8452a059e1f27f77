"""The trace of a message and of an event, in a real browser: beside the conversation, in Queues, and in a run."""

import contextlib
import http.server
import json
import re
import threading

from answers import until
from harness import Client, Gateway, run
from looking import button, card, looking
from page import ACP, NDJSON, Browser, expect, picture, plays

BACKUP = [["think", "I will read the script first."], ["call", "c1", "read", {"path": "backup.sh"}], ["result", "c1", "read", "tar"],
          ["call", "c2", "chown", {"path": "/srv"}], ["ask", "c2", "chown /srv", {}, "all"], ["say", "Done."]]


def rows(tab):
    return tab.locator(".trace tbody tr:not(.card)")


async def opened(tab, row):
    """The card that a row opens as."""
    await row.locator("button.line").click()
    return tab.locator(".card-of")


async def the_trace_of_an_answer_stands_beside_it():
    with Gateway(*ACP) as gateway:
        plays(gateway, backup=BACKUP)
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            session = await tab.new("backup")
            await tab.locator(".permission.open").wait_for()
            await tab.locator(".run .head").get_by_role("link", name="Trace").click()
            beside = tab.locator(".beside")
            # It goes on while it is looked at.
            await expect(rows(tab).filter(has_text="asks")).to_contain_text("so far")
            await expect(rows(tab).first).to_contain_text("pushed backup by you")
            await expect(rows(tab).filter(has_text="thinks")).to_contain_text("I will read the script first.")
            # The same card as in the conversation, also to answer.
            asked = await opened(tab, rows(tab).filter(has_text="asks"))
            await asked.get_by_role("button", name="Allow once").click()
            await expect(rows(tab).filter(has_text="answers")).to_contain_text("Done.")
            await expect(rows(tab).filter(has_text="so far")).to_have_count(0)
            await expect(rows(tab).filter(has_text="asks")).to_contain_text("Allow once")
            await asked.wait_for()
            await rows(tab).filter(has_text="asks").locator("button.line").click()
            read = rows(tab).filter(has_text=re.compile("tool.*read"))
            await expect((await opened(tab, read)).get_by_text("backup.sh")).to_have_count(2)
            await picture(tab, "trace")
            # Wide or narrow, all of it fits.
            for width in 360, 700, 1200:
                await tab.page.set_viewport_size({"width": width, "height": 800})
                wide = await tab.evaluate("[document.documentElement, ...document.querySelectorAll('.beside')].filter((e) => e.scrollWidth > e.clientWidth + 1).length")
                assert not wide, width
            await tab.keyboard.press("Escape")
            await expect(beside).to_have_count(0)
            # A variant begins at the message.
            await tab.locator(".run .head").get_by_role("link", name="Trace").click()
            await button(tab, "Again from here", await opened(tab, rows(tab).first)).click()
            await tab.page.wait_for_url(lambda url: session not in url)
            await tab.locator(".permission.open").wait_for()


async def a_run_of_an_agent_is_the_messages_that_it_has_answered():
    with Gateway(*ACP) as gateway:
        plays(gateway, backup=BACKUP, **{"and then": [["say", "Nothing."]]})
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            session = await tab.new("backup")
            await tab.locator(".permission.open").wait_for()
            await tab.keyboard.press("Escape")
            await tab.locator(".halves").get_by_role("link", name="Queues").click()
            await expect(tab.locator(".attention")).to_have_text("the agent asks for permission")
            # That is answered in Chat; no consumer needs attention.
            counts = "(async () => { const { api, get } = await import('/page/look/api.js'); return (await get(api([]))).threads[0].consumers; })()"
            assert (await tab.evaluate(counts))["attention"] == 0
            await tab.locator(".threads a.row").click()
            await tab.see("The agent asks for permission: answer it", ".page")
            # It is watched while it runs.
            await card(tab, "agent").get_by_role("link", name="Show the run").click()
            await expect(tab.locator("h1")).to_contain_text("Run of")
            await expect(tab.locator(".verdict")).to_contain_text("It has been running")
            await expect(rows(tab).filter(has_text="asks")).to_contain_text("so far")
            await expect(tab.locator(".spent-words")).to_contain_text("waiting for permission")
            await expect(tab.get_by_role("link", name="It asks for permission").first).to_be_visible()
            await tab.open(f"#/s/{session}")
            await tab.get_by_role("button", name="Allow once").click()
            await tab.answer("Done.").wait_for()
            await tab.say("and then")
            await tab.answer("Nothing.").wait_for()
            # Its program is kept for the next message, which does not count as work.
            await tab.open(f"#/look/{session}")
            await expect(card(tab, "agent").locator(".state")).to_have_text("○ open, idle")
            await card(tab, "agent").locator("h2 a").click()
            await tab.locator(".runs a").last.click()
            await expect(tab.locator("h1")).to_contain_text("Run of")
            await expect(tab.locator(".verdict")).to_contain_text("It has answered")
            # One line for each message, of which the newest is open.
            given = tab.locator(".handled > details")
            await expect(given).to_have_count(2)
            await expect(rows(tab).last).to_contain_text("Nothing.")
            await given.last.locator("summary").click()
            for what in "thinks", "read", "asks", "chown", "answers":
                await expect(given.last.locator("tr", has_text=what).first).to_be_visible()
            # A wait that is longer than the work is folded, and says how long it was.
            await expect(given.last.locator(".axis .fold-mark").first).to_have_text(re.compile("s$|min$"))
            await expect(given.last.locator(".spent-words")).to_contain_text("waiting for permission")
            await picture(tab, "run")


async def a_trace_shows_how_each_tool_ended_and_is_zoomed():
    with Gateway(*ACP) as gateway:
        plays(gateway, backup=[["call", "c1", "shell", {"command": "sh backup.sh --dry-run", "timeout": 9}], ["fail", "c1", "shell", "permission denied"],
                               ["call", "c2", "chown", {"path": "/srv"}], ["ask", "c2", "chown /srv", {"path": "/srv"}, "all"],
                               ["call", "c3", "look", {}], ["say", "Done."]])
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            session = await tab.new("backup")
            await tab.locator(".permission.open").wait_for()
            await tab.open(f"#/look/{session}/events/1")
            await tab.locator(".event").get_by_role("link", name="Trace").click()
            tool = lambda name: tab.locator("tr.is-tool", has=tab.page.locator(".name", has_text=name))
            asks = tab.locator("tr.is-permission")
            # Waiting for permission does not count as work.
            await expect(asks).to_contain_text(re.compile(r"([2-9]\.\d|\d\d) s so far"))
            await expect(tool("chown")).not_to_contain_text(re.compile(r"([2-9]\.\d|\d\d) s so far"))
            trace = tab.page.url
            # It is answered where it is said.
            await expect((await opened(tab, asks)).get_by_role("link", name="answer it")).to_be_visible()
            await tab.open(f"#/s/{session}")
            await tab.get_by_role("button", name="Reject").click()
            await tab.answer("Done.").wait_for()
            await tab.page.goto(trace)
            await expect(tool("shell")).to_contain_text("failed sh backup.sh --dry-run 9")
            await expect(tool("chown")).to_contain_text("chown rejected /srv")
            await expect(tool("look")).to_contain_text("no result")
            await expect(await opened(tab, tool("shell"))).to_contain_text("permission denied")
            # A part of it, by dragging or by the keyboard.
            all = await rows(tab).count()
            box = await tool("shell").locator("td.bars").bounding_box()
            await tab.page.mouse.move(box["x"] + 1, box["y"] + 4)
            await tab.page.mouse.down()
            await tab.page.mouse.move(box["x"] + 10, box["y"] + 4, steps=3)
            await tab.page.mouse.up()
            await button(tab, "Show all of it").wait_for()
            assert await rows(tab).count() < all
            await button(tab, "Show all of it").press("Enter")
            await expect(rows(tab)).to_have_count(all)


async def an_event_shows_what_each_consumer_did_about_it():
    async with looking() as (inbox, gateway, browser, tab):
        inbox.subscribe("mailer", 'cat >/dev/null; test -e mended || { echo "no address for $THREAD_EVENT_ID"; exit 1; }',
                        "--deliver", "stdin", "--batch-size", "1", "--backoff", "1200ms")
        inbox.subscribe("orders", "set -e; cat >/dev/null; thread step charge -- echo paid; thread sleep nap 1s; thread step ship -- echo '<b>sent</b>'",
                        "--deliver", "stdin", "--concurrency", "2")
        inbox.seller("seller", "--filter", "content = 'anvil'")
        inbox.push("--source", "external:shop", "anvil")
        await tab.open("#/look/inbox/events/1/trace")
        await expect(rows(tab).first).to_contain_text("pushed anvil by external:shop")
        of = lambda name: tab.locator("tr.is-consumer", has_text=name)
        await expect(of("seller")).to_be_visible()
        await expect(tab.locator("tr.is-dead")).to_contain_text("exit 1: no price for anvil")
        await inbox.until("mailer", lambda found: found["runs_failed"] > 0)
        await expect(tab.locator("tr.is-run.bad").first).to_contain_text("attempt 1 failed no address for")
        (inbox.dir / "mended").touch()
        await inbox.until("mailer", lambda found: found["runs_succeeded"] > 0)
        await inbox.until("orders", lambda found: found["pending"] == 0 and found["state"] == "idle")
        await expect(rows(tab).filter(has_text="so far")).to_have_count(0)
        await expect(tab.locator("tr.is-step .name")).to_have_text(["charge", "ship"])
        await expect(tab.locator("tr.is-sleep")).to_have_count(1)
        await expect(tab.locator("tr.is-done")).to_have_count(2)
        await expect(tab.locator("tr.is-waiting", has_text="1.")).not_to_have_count(0)
        await picture(tab, "trace-event")
        printed = await opened(tab, tab.locator("tr.is-run.bad").first)
        await expect(printed.get_by_label("Output")).to_contain_text("no address for")
        # A run has the same, without the others.
        await printed.get_by_role("link", name="The run").click()
        await expect(tab.locator("h1")).to_contain_text("Run of")
        await expect(tab.locator(".verdict")).to_contain_text("It failed (exit 1)")
        await expect(tab.locator("tr.is-run")).not_to_have_count(0)
        await expect(tab.locator("tr.is-step")).to_have_count(0)


async def a_run_of_many_events_lists_some_of_them():
    async with looking() as (inbox, gateway, browser, tab):
        inbox.subscribe("slow", "cat >/dev/null; echo ready >ready; while [ ! -e go ]; do sleep 0.02; done; echo done", "--deliver", "stdin")
        inbox.do("pause", "slow")
        inbox.batch([{"source": "me", "type": "message", "content": f"tea {n}"} for n in range(1, 61)])
        inbox.do("resume", "slow")
        await inbox.until("slow", lambda found: found["state"] == "running")
        inbox.push("coffee")
        (inbox.dir / "go").touch()
        await inbox.until("slow", lambda found: found["runs_succeeded"] == 2)
        await tab.open("#/look/inbox/c/slow")
        await tab.locator(".runs a").last.click()
        await tab.see("What it was given: 60 events", ".page")
        given = tab.locator(".handled > details")
        await expect(given).to_have_count(10)
        await expect(given.first).to_contain_text("tea 60")
        await expect(tab.locator(".handled", has_text="coffee")).to_have_count(0)
        await given.first.locator("summary").click()
        await expect(rows(tab).filter(has_text="attempt 1")).to_have_count(1)
        await expect(rows(tab).last).to_contain_text("done")


@contextlib.contextmanager
def model(turns):
    """A model behind OpenAI's interface. `turns` gives its next turn for the results of calls so far; yields how many
    results there were at each request, and the address."""
    asked = []

    class Model(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            messages = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"]
            results = [message["content"] for message in messages if message["role"] == "tool"]
            asked.append(len(results))
            turn = turns(results, len(asked))
            calls = [{"index": 0, "id": f"c{len(results)}", "type": "function", "function": {"name": turn[0], "arguments": json.dumps(turn[1])}}]
            delta = {"content": turn} if isinstance(turn, str) else {"tool_calls": calls}
            reason = "stop" if isinstance(turn, str) else "tool_calls"
            chunks = [{"choices": [{"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": None}]},
                      {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}]
            body = "".join(f"data: {json.dumps({'model': 'm', **chunk})}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield asked, f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


async def a_model_goes_on_from_any_step_as_a_variant():
    turns = lambda results, n: ("memory_list", {}) if len(results) < 2 else f"Answer {n}."
    with model(turns) as (asked, url), Gateway("--agent", f"openai:{url}#m") as gateway:
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            session = await tab.new("look")
            await tab.answer("Answer 3.").wait_for()
            assert asked == [0, 1, 2], asked

            async def again(row):
                """From the step of a row: which requests follow."""
                before = len(asked)
                await tab.locator(".run .head").get_by_role("link", name="Trace").click()
                card_of = await opened(tab, row)
                shown = tab.page.url
                await button(tab, "Again from here", card_of).click()
                await tab.page.wait_for_url(lambda url: url.split("?")[0] != shown.split("?")[0])
                return before

            tools, turned = rows(tab).filter(has_text="memory_list"), rows(tab).filter(has_text=re.compile("^.?model"))
            # What was done up to there is there, and is not done again.
            before = await again(tools.first)
            await tab.answer(f"Answer {before + 2}.").wait_for()
            assert asked[before:] == [1, 2], asked
            await expect(tab.locator(".tool .name")).to_have_text(["memory_list", "memory_list"])
            await expect(tab.locator(".said .words")).to_have_text("look")
            await expect(tab.locator(".variants .figure")).to_have_text("2/2")
            # Of a copy, too; and after a turn, whose call is made then.
            before = await again(tools.last)
            await tab.answer(f"Answer {before + 1}.").wait_for()
            assert asked[before:] == [2], asked
            before = await again(turned.first)
            await tab.answer(f"Answer {before + 2}.").wait_for()
            assert asked[before:] == [1, 2], asked
            await expect(tab.locator(".tool .name")).to_have_text(["memory_list", "memory_list"])
            await expect(tab.locator(".variants .figure")).to_contain_text("/4")
            # Its last turn is the answer, from which nothing follows; and nothing has changed in the original.
            await tab.locator(".run .head").get_by_role("link", name="Trace").click()
            await expect(button(tab, "Again from here", await opened(tab, turned.last))).to_have_count(0)
            await tab.open(f"#/s/{session}")
            await tab.answer("Answer 3.").wait_for()
            client = await Client.connect(gateway)
            # A message that names no run, as of another program, has another id in the copy, and its run another name.
            pushed = (await client.request("sessions.new"))["sessionId"]
            gateway.push(pushed, "look", kind="message", source="external:cron")
            said = lambda session: [e["id"] for e in gateway.events(session) if e["type"] == "message" and e["source"] == "self"]
            await until(lambda: said(pushed))
            results = [e["id"] for e in gateway.events(pushed) if e["subtype"] == "toolresult"]
            before = len(asked)
            copied = (await client.request("sessions.fork", sessionId=pushed, step=results[0]))["sessionId"]
            await until(lambda: said(copied))
            assert asked[before:] == [1, 2], asked[before:]
            [run] = {json.dumps(e["metadata"].get("run_id")) for e in gateway.events(copied) if e["subtype"] == "model"}
            assert run != "null", run
            for params, why in ({"step": 1}, "is no result"), ({"step": 16}, "is no result"), ({"step": 7, "before": "x"}, "both"):
                assert why in await client.refused("sessions.fork", sessionId=session, **params), params
    # A program keeps what it did to itself.
    with Gateway(*NDJSON) as gateway:
        plays(gateway, look=[["call", "c1", "read", {"path": "a"}], ["result", "c1", "read", "text"], ["say", "The end."]])
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            session = await tab.new("look")
            await tab.answer("The end.").wait_for()
            await tab.locator(".run .head").get_by_role("link", name="Trace").click()
            await expect(button(tab, "Again from here", await opened(tab, rows(tab).filter(has_text="tool")))).to_have_count(0)
            client = await Client.connect(gateway)
            why = await client.refused("sessions.fork", sessionId=session, step=4)
            assert "only an agent that is a model" in why, why


if __name__ == "__main__":
    run(globals())
