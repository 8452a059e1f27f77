"""How the page shows what an agent does: changes of files, commands, searches, plans."""

from harness import Gateway, run
from page import ACP, Browser, expect, picture, plays

OLD = "".join(f"line {n}\n" for n in range(1, 41))
NEW = OLD.replace("line 20\n", "line twenty\nand \u202eone more\n").replace("line 38\n", "")
DIFF = {"type": "diff", "path": "/srv/<b>config</b>.yaml", "oldText": OLD, "newText": NEW}
PATCH = """*** Begin Patch
*** Update File: src/a.py
@@ def main():
-    print("old")
+    print("new")
     return
*** End Patch
"""
UNIFIED = "--- a/x.sql\n+++ b/x.sql\n@@ -3,2 +3,2 @@ begin\n select 1;\n--- a comment that goes\n+-- a comment that comes\n"


async def a_change_is_seen_before_it_is_allowed():
    with Gateway(*ACP) as gateway:
        edit = {"toolCallId": "c1", "title": "Edit config.yaml", "kind": "edit", "status": "in_progress",
                "rawInput": {"file_path": "/srv/<b>config</b>.yaml", "old_string": "line 20", "new_string": "line twenty\nand \u202eone more"}}
        plays(gateway, edit=[["update", edit], ["change", "c1", "Edit config.yaml", [DIFF]],
                             ["update", {**edit, "status": "completed", "content": [DIFF]}]],
              patch=[["call", "c2", "apply_patch", {"input": PATCH}], ["ask", "c2", "Apply it", {"input": PATCH, "strict": True}, UNIFIED]])
        async with Browser() as browser:
            tab = await browser.tab(gateway, viewport={"width": 1440, "height": 900})
            session = await tab.new("edit")
            card = tab.locator(".permission.open")
            await expect(card.locator(".file")).to_have_text("/srv/<b>config</b>.yaml")
            await expect(card.locator(".diff.two")).to_have_count(1)
            # Nothing of it is shown twice, and what is hidden in it is visible.
            await expect(card.locator("pre")).to_have_count(0)
            await expect(card.locator("td.line.removed")).to_have_text(["line 20", "line 38"])
            await expect(card.locator("td.line.added")).to_have_text(["line twenty", "and ‹U+202E›one more"])
            await expect(card.locator("mark").first).to_have_text("20")
            await expect(card.locator(".plus, .minus")).to_have_text(["+2", "−2"])
            first, button = await card.locator(".diff").bounding_box(), await card.get_by_role("button", name="Allow once").bounding_box()
            assert button["y"] >= first["y"] + first["height"]
            await picture(tab, "diff")
            await card.get_by_role("button", name="16 unchanged lines").click()
            await expect(card.locator("td.line.same").first).to_have_text("line 1")
            # Without the room for two sides, all is in one column.
            phone = await browser.tab(gateway, viewport={"width": 360, "height": 700}, has_touch=True, is_mobile=True)
            await phone.open(f"#/s/{session}")
            await expect(phone.locator(".diff.two")).to_have_count(0)
            await expect(phone.locator("tr.added .line")).to_have_text(["line twenty", "and ‹U+202E›one more"])
            assert await phone.evaluate("document.documentElement.scrollWidth <= innerWidth")
            await picture(phone, "diff-phone")
            await phone.get_by_role("button", name="Allow once").tap()
            await tab.answer("The answer was once.").wait_for()
            await tab.say("thanks")
            await tab.answer("You said: thanks").wait_for()
            # It is wider than the text, and nothing of it is cut off, wherever it is.
            number = tab.locator(".permission .diff td").first
            await number.scroll_into_view_if_needed()
            assert await number.evaluate("""e => { const { x, y } = e.getBoundingClientRect(), at = document.elementFromPoint(x + 5, y + 5);
                return x < e.closest('.exchange').getBoundingClientRect().x && e.contains(at); }""")
            for _ in range(2):
                await tab.click(".tool summary")
                await expect(tab.locator(".tool .diff .file")).to_have_text("/srv/<b>config</b>.yaml")
                await expect(tab.locator(".tool")).not_to_contain_text("newText")
                await tab.reload()
            await tab.say("patch")
            card = tab.locator(".permission.open")
            # What is given is not what the details say: both are shown.
            await expect(card.locator(".between td")).to_have_text(["--- a/x.sql", "+++ b/x.sql", "@@ -3,2 +3,2 @@ begin"])
            await expect(card.locator("td.line.removed")).to_have_text(["-- a comment that goes"])
            await expect(card.locator("td.line.added")).to_have_text(["-- a comment that comes"])
            await expect(card.locator("pre")).to_contain_text(["*** Begin Patch"])
            await tab.click(".tool summary >> nth=-1")
            await expect(tab.locator(".tool").last.locator("td.line.removed")).to_have_text(['    print("old")'])
            await picture(tab, "patch")
            await card.get_by_role("button", name="Reject").click()


async def each_kind_of_tool_has_its_form():
    with Gateway(*ACP) as gateway:
        call = lambda n, name, given, value: [["call", f"c{n}", name, given], ["result", f"c{n}", name, value]]
        plays(gateway, work=[
            ["plan", [{"content": "look", "priority": "high", "status": "completed"}, {"content": "mend", "priority": "high", "status": "in_progress"},
                      {"content": "test", "priority": "low", "status": "pending"}]],
            *call(1, "Bash", {"command": "ls -l | wc -l", "description": "Counts the files"}, "3\n"),
            *call(2, "shell", {"command": ["sh", "-c", "exit 3"], "timeout": 5}, {"stdout": "out\n", "stderr": "wrong\n", "exit_code": 3}),
            *call(3, "Grep", {"pattern": "TODO"}, "src/a.py:12: # TODO <b>\nsrc/b.py:3: TODO"),
            *call(4, "Read", {"file_path": "src/a.py"}, "def f():\n    return 1\n"),
            *call(5, "Write", {"file_path": "src/new.py", "content": "x = 1\ny = 2\n"}, "ok"),
            *call(6, "weather", {"city": "Paris"}, {"degrees": 20}),
            ["call", "c7", "Bash", {"command": "make"}], ["fail", "c7", "Bash", "make: *** No rule. Stop."], ["say", "Done."],
        ])
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            await tab.new("work")
            await tab.answer("Done.").wait_for()
            for _ in range(2):
                await expect(tab.locator(".tool")).to_have_count(7)
                await tab.until("""![...document.querySelectorAll(".tool:not([open]) > summary")].map((summary) => summary.click()).length
                    && document.querySelectorAll(".tool .inside").length === 7""")
                tool = lambda n: tab.locator(".tool").nth(n - 1)
                await expect(tool(1).locator(".terminal pre")).to_have_text(["$ ls -l | wc -l", "3"])
                await expect(tool(1).locator(".does")).to_have_text("Counts the files")
                await expect(tool(2).locator(".terminal")).to_contain_text("out\n\nwrong")
                await expect(tool(2).locator(".exit")).to_have_text("exit 3")
                await expect(tool(2).locator(".given")).to_have_text("timeout5")
                await expect(tool(3).locator(".found-list li")).to_have_text(["src/a.py:12  # TODO <b>", "src/b.py:3  TODO"])
                await expect(tool(4).locator(".code .language")).to_have_text("src/a.py")
                await expect(tool(4).locator(".t-keyword").first).to_have_text("def")
                await expect(tool(5).locator("tr.added .line")).to_have_text(["x = 1", "y = 2"])
                await expect(tool(6).locator("pre").last).to_have_text('{\n  "degrees": 20\n}')
                await expect(tool(7).locator(".terminal")).to_contain_text("make: *** No rule. Stop.")
                await expect(tab.locator(".plan li")).to_have_text(["☑ look", "◐ mend", "☐ test"])
                await picture(tab, "tools")
                await tab.reload()


if __name__ == "__main__":
    run(globals())
