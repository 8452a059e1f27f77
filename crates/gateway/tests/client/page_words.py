"""The words of the page: each language has all of them, and the page has no others."""

import json
import pathlib
import re

from harness import Gateway, run
from looking import Thread
from page import NDJSON, Browser, expect, plays

WEB = pathlib.Path(__file__).parents[2] / "web"
LANGUAGES = "en", "de"
# Attributes whose values are read by people, or are parts of what is.
READ = {"aria-label", "title", "placeholder", "label", "what", "summary", "verb", "alt"}
# Names, keys and code are the same in every language.
SAME = re.compile(r"thread|JSON|Markdown|g [cq]|type = .*")
# Words of a program, as they stand before a `/` that begins a regular expression.
BEFORE_REGEX = re.compile(r"(?:^|[(,=:\[!&|?{};>]|\breturn)\s*$")


def words(language):
    """The keys of a language, each with its texts."""
    text = (WEB / "words" / f"{language}.js").read_text()
    lines = re.findall(r"^  (\w+): (.*),$", text, re.M)
    found = {key: json.loads(re.sub(r"(\w+): \"", r'"\1": "', value)) if value[0] == "{" else {"": json.loads(value)} for key, value in lines}
    assert len(found) == len(lines) == len(re.findall(r"^  [^/ ]", text, re.M)), language
    return found


def literals(source):
    """What stands in the templates of a module: its text, and `{attribute: value}` for the attributes."""
    found = []

    def code(at):
        """Reads a program, up to the brace that closes it."""
        while at < len(source) and source[at] != "}":
            c = source[at]
            if c == "{":
                at = code(at + 1)
            elif source.startswith(("//", "/*"), at):
                end = "\n" if source[at + 1] == "/" else "*/"
                at = source.index(end, at) + len(end)
            elif c in "\"'":
                at = after(at + 1, c)
            elif c == "`":
                at = template(at + 1, source.endswith("html", 0, at))
            elif c == "/" and BEFORE_REGEX.search(source[max(0, at - 40):at]):
                at = after(at + 1, "/")
            else:
                at += 1
        return at + 1

    def after(at, end):
        inside = False
        while source[at] != end or inside:
            if source[at] == "\\":
                at += 1
            elif end == "/" and source[at] in "[]":
                inside = source[at] == "["
            at += 1
        return at + 1

    def template(at, is_html):
        begin, in_tag, attribute = at, False, None
        while True:
            c = source[at]
            ends = c == "`" or source.startswith("${", at)
            if is_html and not in_tag and (ends or c == "<"):
                found.append(source[begin:at])
            if c == "`":
                return at + 1
            if c == "\\":
                at += 2
                continue
            if ends:
                at = begin = code(at + 2)
                continue
            if is_html and not in_tag and c == "<":
                in_tag = True
            elif in_tag and attribute and c == '"':
                found.append({attribute: source[begin:at]})
                attribute = None
            elif in_tag and not attribute and c == '"':
                attribute, begin = re.search(r"([\w-]+)=$", source[:at])[1], at + 1
            elif in_tag and not attribute and c == ">":
                in_tag, begin = False, at + 1
            at += 1

    code(0)
    return found


async def every_word_is_there_in_each_language_and_used():
    modules = {path.relative_to(WEB): path.read_text() for path in WEB.rglob("*.js") if path.parent.name in ("web", "look")}
    used = {key for text in modules.values() for key in re.findall(r'\bt\("(\w+)"', text)}
    english = words("en")
    for language in LANGUAGES:
        own = words(language)
        assert set(own) == used, (language, set(own) ^ used)
        for key, texts in own.items():
            names = lambda texts: set(re.findall(r"\{(\w+)\}", " ".join(texts.values())))
            assert names(texts) == names(english[key]), (language, key)
            assert set(texts) in ({""}, {"one", "other"}) and all(texts.values()), (language, key)
    assert (WEB / "settings.js").read_text().count(json.dumps(LANGUAGES)[1:-1]) == 1


async def no_template_has_words_of_its_own():
    # What must be found is found.
    sample = 'html`<p title="Open it" class="a b">Now ${x > 2 && html`<b>then</b>`} or <i aria-label=${"x"}></i></p>`; f(/`"/, "no")'
    assert [text for text in literals(sample) if text != ""] == [{"title": "Open it"}, {"class": "a b"}, "Now ", "then", " or "], literals(sample)
    for path in [*WEB.glob("*.js"), *WEB.glob("look/*.js")]:
        text = re.sub(r"<code>[^<`$]*</code>", "", path.read_text())
        for literal in literals(text):
            [(name, value)] = literal.items() if isinstance(literal, dict) else [(None, literal)]
            if (name is None or name in READ) and not SAME.fullmatch(value.strip()):
                assert not re.search(r"[^\W\d_]", value), (path.name, value)


async def the_page_speaks_the_language_of_its_reader():
    with Thread() as inbox, Gateway(*NDJSON, "--thread", inbox.path) as gateway:
        plays(gateway, work=[["call", "c1", "read", {"path": "a"}], ["result", "c1", "read", "text"], ["say", "The end."]])
        inbox.seller()
        for item in "anvil", "saw":
            inbox.push(item)
        await inbox.has_dead(2)
        async with Browser() as browser:
            tab = await browser.tab(gateway, locale="de-AT")
            loaded = []
            tab.page.on("request", lambda request: "/words/" in request.url and loaded.append(request.url.rsplit("/", 1)[1]))
            await tab.reload()
            await expect(tab.locator("html")).to_have_attribute("lang", "de")
            await tab.get_by_role("link", name="Neu", exact=True).click()
            await tab.locator("h1", has_text="Neues Gespräch").wait_for()
            await tab.say("work")
            await tab.answer("The end.").wait_for()
            await expect(tab.get_by_role("button", name="Noch einmal", exact=True)).to_be_attached()
            # Dates and numbers, and what counts.
            assert await tab.evaluate("(async () => (await import('/page/time.js')).duration(4100))()") == "4,1 s"
            await expect(tab.locator(".needing")).to_have_text("■ 1")
            await expect(tab.locator(".needing")).to_have_attribute("aria-label", "1 Queue braucht Aufmerksamkeit.")
            await tab.get_by_role("link", name="Queues", exact=True).click()
            await tab.get_by_role("link", name="inbox", exact=True).click()
            await expect(tab.locator(".verdict")).to_have_text("1 Consumer braucht Aufmerksamkeit: seller. 2 Dead Letters.")
            await expect(tab.locator(".consumer .state")).to_contain_text("untätig")
            await expect(tab.get_by_role("link", name="2 Ereignisse").last).to_be_visible()
            assert set(loaded) == {"de.js"}, loaded
            # Chosen once, it stays.
            await tab.get_by_label("Sprache").select_option("en")
            await expect(tab.locator(".verdict")).to_have_text("1 consumer needs attention: seller. 2 dead letters.")
            await tab.reload()
            await expect(tab.get_by_label("Language")).to_have_value("en")
            await expect(tab.locator("html")).to_have_attribute("lang", "en")


if __name__ == "__main__":
    run(globals())
