"""How the page shows answers: the elements that their Markdown makes, whole and while they grow."""

import json
import os
import pathlib

from harness import Gateway, run
from page import NDJSON, Browser, expect, go, picture, plays

HERE = pathlib.Path(__file__).parent
# Answers in the forms in which models write them.
FORMS = (HERE / "forms.md").read_text()[:-1].split("\n=====\n")
PACKAGES = os.environ.get("GATEWAY_AXE")


def examples():
    """The examples of CommonMark's specification."""
    found, lines = [], None
    for line in (pathlib.Path(PACKAGES) / "node_modules/commonmark-spec/spec.txt").read_text().split("\n"):
        if line.startswith("`" * 32 + " example"):
            lines = []
        elif lines is not None and line == ".":
            found.append("".join(lines).replace("→", "\t"))
            lines = None
        elif lines is not None:
            lines.append(line + "\n")
    return found


# Compares what the page makes of a text that grows, piece by piece, with what markdown-it makes of all of it: the relevant
# elements, with their relevant attributes, and the text without spaces.
GROWS = """async ([texts, sizes]) => {
  const { default: MarkdownIt } = await import("./page/vendor/markdown-it.js");
  const { Blocks } = await import("./page/blocks.js");
  const { Code } = await import("./page/code.js");
  const { Formula } = await import("./page/formula.js");
  const { formulas } = await import("./page/formulas.js");
  const { elements } = await import("./page/markdown.js");
  const { notesInPlace } = await import("./page/parser.js");

  const whole = new MarkdownIt({ html: false, linkify: true, maxNesting: 20 }).use(formulas).use(notesInPlace);
  whole.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false });
  // A browser does that.
  whole.normalizeLink = (url) => url;
  const escaped = (text) => whole.utils.escapeHtml(text), by = (make) => (tokens, n) => make(tokens[n]);
  Object.assign(whole.renderer.rules, {
    formula: by(({ content }) => `(formula:${escaped(content)})`),
    formula_block: by(({ content, meta }) => meta.isWhole ? `(formula:${escaped(content)})` : `<p>${escaped(content)}</p>`),
    footnote_ref: by(({ meta }) => `(note:${escaped(meta.label)})`),
    footnote_reference_open: by(({ meta }) => `(note${escaped(meta.label)}:`),
    footnote_reference_close: () => ")",
  });

  const TAGS = new Set("a blockquote br code em h1 h2 h3 h4 h5 h6 hr li ol p pre s strong table tbody td th thead tr ul".split(" "));
  const squeezed = (text) => text.replace(/\\s/g, "");
  const tagged = (tag, about, inside) => `<${[tag, ...about].filter(Boolean).join(" ")}>${inside}${["hr", "br"].includes(tag) ? "" : `</${tag}>`}`;
  const shapeOf = (node) => {
    if (Array.isArray(node)) return node.map(shapeOf).join("");
    if (node === null || node === undefined || typeof node === "boolean") return "";
    if (typeof node !== "object") return squeezed(String(node));
    const { type, props } = node;
    if (type === Code) return `<pre><code>${squeezed(props.text)}</code></pre>`;
    if (type === Formula) return `(formula:${squeezed(props.text)})`;
    if (typeof type === "function") return shapeOf(type(props));
    const names = String(props.class ?? "").split(" "), is = (name) => names.includes(name);
    if (is("leads-to")) return "";
    if (is("box")) return props["aria-label"] === "done" ? "[x]" : "[]";
    if (is("note-text")) return `(note${squeezed(props["data-note"])}:${shapeOf(props.children[1] ?? "")})`;
    if (is("note-mark")) return `(note:${shapeOf(props.children)})`;
    const tag = is("heading") ? names[1] : type, inside = shapeOf(props.children);
    if (!TAGS.has(tag)) return inside;
    return tagged(tag, [tag === "ol" && props.start !== 1 && `start=${props.start}`, ["center", "right"].find(is), props.href], inside);
  };
  const shapeOfHtml = (html) => {
    const attribute = (text, name) => new RegExp(`${name}="([^"]*)"`).exec(text ?? "")?.[1]?.replaceAll("&amp;", "&").replaceAll("&quot;", '"');
    const linkUrl = (href) => { try { return new URL(href); } catch { return null; } };
    const link = (text) => {
      const url = linkUrl(attribute(text, "href"));
      return ["http:", "https:", "mailto:"].includes(url?.protocol) ? url.href : null;
    };
    // An image is a link. A link that leads nowhere is shown as text.
    const images = html.replace(/<img src="([^"]*)" alt="([^"]*)"[^>]*>/g, (_, src, alt) => `<a href="${src}">image: ${alt || "without a name"}</a>`);
    const marks = [], links = images.replace(/<(\\/?)a\\b([^>]*)>/g, (all, end, about) => {
      const is = end ? marks.pop() : link(about) !== null;
      if (!end) marks.push(is);
      return is ? all : "";
    });
    return links.replace(/\\s*<(\\/?)(\\w+)([^>]*)>\\s*|[^<]+/g, (text, end, tag, rest) => {
      if (!tag) return squeezed(text).replace(/&(lt|gt|quot|amp);/g, (_, name) => ({ lt: "<", gt: ">", quot: '"', amp: "&" })[name]);
      const about = [/start="\\d+"/.exec(rest)?.[0].replaceAll('"', ""), /text-align:(center|right)/.exec(rest)?.[1], tag === "a" && !end && link(rest)];
      return `<${[end + tag, ...about].filter(Boolean).join(" ")}>`;
    });
  };

  const wrong = [];
  let cuts = 0, when = performance.now();
  for (const given of texts) for (const size of sizes) {
    const source = new Blocks(), kept = [];
    for (let at = 0; at < given.length; at += size) {
      source.add(given.slice(at, at + size));
      source.settle();
      const blocks = source.tail ? [...source.blocks, { text: source.tail, version: 0 }] : source.blocks;
      // As the page does, a block is made again only if it has changed.
      const shown = blocks.map(({ text, version }, n) => {
        if (kept[n]?.text !== text || kept[n].version !== version) kept[n] = { text, version, shape: shapeOf(elements(source.parse(text))) };
        return kept[n].shape;
      }).join("").replaceAll("[X]", "[x]");
      const text = given.slice(0, at + size), should = shapeOfHtml(whole.render(text)).replaceAll("[X]", "[x]");
      cuts++;
      if (shown !== should) { wrong.push({ text, shown, should }); break; }
    }
  }
  return { wrong, cuts, took: performance.now() - when };
}"""


async def compared(tab, texts, *sizes):
    """Returns the number of comparisons."""
    found = await tab.evaluate(GROWS, [texts, sizes])
    print(f"{found['cuts']} cuts of {len(texts)} texts in {found['took']:.0f} ms")
    assert not found["wrong"], json.dumps([len(found["wrong"]), *found["wrong"]], indent=1, ensure_ascii=False)
    return found["cuts"]


async def an_answer_that_grows_is_at_each_moment_what_it_would_be_at_once():
    with Gateway(*NDJSON) as gateway:
        async with Browser() as browser:
            tab = await browser.tab(gateway)
            assert len(FORMS) >= 60
            assert await compared(tab, FORMS, 1, 7, 100_000) > 5000
            if PACKAGES:
                texts = examples()
                assert len(texts) > 600
                await compared(tab, texts, 1, 100_000)


ANSWER = """Three ways to count the lines of a log:

1. In a shell:
   ```sh
   # All of them
   for file in /var/log/*.log; do wc -l "$file"; done
   ```
2. In Python, which takes more lines:
   ```python
   from pathlib import Path

   def count(folder: str, *, end=".log") -> int:
       \"\"\"The number of lines.\"\"\"
       return sum(1 for path in Path(folder).glob(f"*{end}") for _ in path.open("rb"))  # a very long line that does not fit
   ```
3. - [x] or `grep -c ''`
   - [ ] or by hand

| file | lines | share |
|:-----|------:|:-----:|
| `a.log` | 1200 | 60 % |
| `b.log` | 800 | 40 % |

The mean is $\\bar{x} = \\frac{1}{n} \\sum_{i=1}^{n} x_i$ and costs $5.[^cost]

$$
\\sigma = \\sqrt{\\frac{1}{n} \\sum_{i=1}^{n} (x_i - \\bar{x})^2}
$$

[^cost]: As of **today**.

```made-up
no colours
```
"""


async def code_has_colours_formulas_are_set_and_notes_are_found():
    with Gateway(*NDJSON) as gateway:
        head, tail = ANSWER.split("2. In", 1)
        plays(gateway, count=[["say", head], ["wait", "go"], ["say", f"2. In{tail}"]], plain=[["say", "Nothing of it."]])
        async with Browser() as browser:
            tab = await browser.tab(gateway, permissions=["clipboard-read", "clipboard-write"])
            loaded = []
            tab.page.on("request", lambda request: loaded.append(request.url.split("/page/")[-1]))
            await tab.new("plain")
            await tab.answer("Nothing of it.").wait_for()
            assert not [name for name in loaded if "highlight/" in name or "katex" in name], loaded
            await tab.say("count")
            code = tab.locator(".answer .code")
            await expect(code.locator(".t-comment")).to_have_text("# All of them")
            assert [name for name in loaded if "highlight/" in name] == ["vendor/highlight/core.js", "vendor/highlight/languages/bash.js"]
            go(gateway)
            await expect(code.locator(".language")).to_have_text(["sh", "python", "made-up"])
            await expect(code.nth(1).locator(".t-keyword").first).to_have_text("from")
            await expect(code.last.locator("span[class^=t-]")).to_have_count(0)
            await expect(tab.locator(".answer math")).to_have_count(2)
            await expect(tab.locator(".answer math[display=block] msqrt")).to_have_count(1)
            await tab.see("and costs $5.", ".answer")
            await code.nth(1).get_by_role("button", name="Copy").click()
            copied = await tab.evaluate("navigator.clipboard.readText()")
            assert copied.startswith("from pathlib import Path\n\ndef") and copied.endswith("fit\n"), copied
            pre = code.nth(1).locator("pre")
            assert await pre.evaluate("e => e.scrollWidth > e.clientWidth")
            await code.nth(1).get_by_role("button", name="Wrap").click()
            assert await pre.evaluate("e => e.scrollWidth <= e.clientWidth")
            await tab.get_by_role("button", name="Note cost").click()
            await expect(tab.locator(".note-text")).to_be_focused()
            await picture(tab, "rendering")
            await tab.page.emulate_media(color_scheme="dark")
            await picture(tab, "rendering-dark")


if __name__ == "__main__":
    run(globals())
