"""What one does with a conversation beside talking: commands, notices, pictures, links, export."""

import json
import pathlib
import re

from attachments import PNG
from editors import AGENT as EDITORS_AGENT, choosing
from harness import Gateway, run
from page import ACP, NDJSON, Browser, expect, picture, plays


async def commands_complete_as_one_types():
    with Gateway(*NDJSON) as gateway:
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            session = await tab.new("hello")
            await tab.answer("You said: hello").wait_for()
            options, message, press = tab.locator(".completions [role=option]"), tab.locator("#message"), tab.keyboard.press
            await tab.keyboard.type("/")
            names = [name.split()[0] for name in await options.all_inner_texts()]
            await picture(tab, "completions")
            await tab.keyboard.type("s")
            await expect(options).to_have_count(3)
            await press("ArrowDown")
            await expect(options.nth(1)).to_have_attribute("aria-selected", "true")
            await press("Enter")
            await expect(message).to_have_value("/session ")
            await expect(options).to_have_count(0)
            await tab.page.fill("#message", "/he")
            await press("Tab")
            await expect(message).to_have_value("/help")
            await press("Enter")
            said = await tab.locator(".note .words").inner_text()
            assert sorted(names) == sorted(set(re.findall(r"^/\w+", said, re.M))), (names, said)
            # They can be left, and a path is no command.
            await tab.page.fill("#message", "/c")
            await press("Escape")
            await expect(options).to_have_count(0)
            assert tab.session() == session
            await tab.say("/srv/data")
            await tab.answer("You said: /srv/data").wait_for()
    with Gateway(*EDITORS_AGENT) as gateway:
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            await tab.new("hello")
            await tab.answer("I know: ").wait_for()
            await tab.page.fill("#message", "/com")
            await expect(tab.locator(".completions [role=option]")).to_contain_text("what to keep Makes it shorter")
            await tab.keyboard.press("Tab")
            await expect(tab.locator("#message")).to_have_value("/compact ")
            await tab.keyboard.type("it")
            await tab.keyboard.press("Enter")
            await tab.answer("I know: hello;").wait_for()


async def what_the_agent_lets_people_choose_is_chosen_on_the_page():
    with Gateway(*choosing("--options")) as gateway:
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            await tab.new("what")
            await tab.answer("ask small").wait_for()
            mode, model = (tab.page.locator("header .with select").nth(at) for at in range(2))
            await expect(mode).to_have_value("ask")
            await mode.select_option("code")
            await model.select_option("large")
            await tab.say("what")
            await tab.answer("code large").wait_for()
            # The agent does not take it.
            await mode.select_option("never")
            await expect(tab.locator("header [role=alert]")).to_contain_text("not today")
            await expect(mode).to_have_value("code")
            await tab.page.reload()
            await expect(mode).to_have_value("code")
            # It changes it itself.
            await mode.select_option("ask")
            await tab.say("plan")
            await expect(mode).to_have_value("code")


async def who_looks_elsewhere_is_told_what_asks():
    with Gateway(*ACP) as gateway:
        plays(gateway, ask=[["call", "c1", "rm", {}], ["ask", "c1", "rm b", {}, "all"]])
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            await tab.context.grant_permissions(["notifications"])
            # The real ones, noted down.
            await tab.context.add_init_script("""
                globalThis.told = [];
                globalThis.Notification = class extends Notification {
                    constructor(title, options) { super(title, options); told.push([title, options.body]); }
                };
            """)
            await tab.reload()
            await tab.new("ask")
            await tab.locator(".permission.open").wait_for()
            await tab.until("document.title === '(1) ask – thread'")
            assert await tab.evaluate("told") == []
            await tab.evaluate("Object.defineProperty(document, 'hasFocus', { value: () => false })")
            await tab.get_by_role("button", name="Reject").click()
            await tab.until("document.title === 'ask – thread'")
            await tab.until("told.length === 1")
            await tab.say("ask")
            await tab.until("told.length === 2")
            assert await tab.evaluate("told") == [["ask", "The answer was no."], ["ask", "The agent asks for permission"]]
            await expect(tab.get_by_role("button", name="Notify me")).to_have_count(0)
            [link] = await tab.evaluate("[...document.querySelectorAll('link[rel=manifest]')].map((link) => link.href)")
            manifest = json.loads(await tab.evaluate("(url) => fetch(url).then((answer) => answer.text())", link))
            assert manifest["display"] == "standalone" and manifest["start_url"] == "../", manifest


async def a_conversation_is_exported_linked_and_its_pictures_are_large():
    with Gateway(*NDJSON) as gateway:
        plays(gateway, work=[["call", "c1", "read", {"path": "a"}], ["result", "c1", "read", "text"], ["say", "The **end**."]])
        async with Browser() as browser:
            tab = await browser.tab(gateway, permissions=["clipboard-read", "clipboard-write"])
            session = await tab.new("work")
            await tab.answer("The end.").wait_for()
            await tab.locator("input[type=file]").set_input_files({"name": "<b>.png", "mimeType": "image/png", "buffer": PNG})
            await expect(tab.locator(".composer .files li:has(button)")).to_have_count(1)
            await tab.say("look <at> this")
            await tab.answer("You said: look <at> this").wait_for()
            await tab.get_by_role("button", name="<b>.png: show it large").click()
            await expect(tab.locator("dialog img")).to_have_js_property("naturalWidth", 1)
            await tab.keyboard.press("Escape")
            await expect(tab.locator("dialog")).to_have_count(0)

            async def exported(kind):
                await tab.get_by_role("button", name="Export").click()
                async with tab.expect_download() as download:
                    await tab.locator("dialog").get_by_role("button", name=kind).click()
                file = await download.value
                return file.suggested_filename, pathlib.Path(await file.path()).read_text()

            name, text = await exported("Markdown")
            assert name == "work.md" and re.match(r"# work\n\n## User, .*\n\nwork\n\n## Agent, .*\n\nThe \*\*end\*\*\.\n\n## User", text), (name, text)
            assert "look <at> this\n\n- Attachment: <b>.png" in text, text
            name, text = await exported("JSON")
            whole = json.loads(text)
            assert name == "work.json" and whole["sessionId"] == session and len(whole["messages"]) == 4, whole
            assert [step["payload"]["toolName"] for step in whole["steps"] if step["event"] == "tool_call"] == ["read"], whole
            await tab.locator(".exchange").first.hover()
            await tab.locator(".exchange").first.get_by_role("button", name="Link").click()
            link = await tab.evaluate("navigator.clipboard.readText()")
            assert link == f"{gateway.url}/#/s/{session}/1", link


if __name__ == "__main__":
    run(globals())
