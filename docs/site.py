#!/usr/bin/env python3
"""Builds the documents as a site, by mdBook, and checks its links.

usage: docs/site.py OUT [path of the program thread]

The chapters are README.md and what its table of documentation lists; nothing else says what there is. Files that they link
to are copied, a directory gets a page that lists its files, and the options of each command are what the program prints.
It needs Python 3 and `mdbook`, and connects to nothing.
"""

import html.parser
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONFIG = """[book]
title = "thread"
language = "en"

[build]
create-missing = false

[output.html]
no-section-label = true
print.enable = false
input-404 = ""
search.limit-results = 50
"""
LINK = re.compile(r"(?<!`)\[[^][]*\]\(([^)\s]+)\)")
PICTURE = re.compile(r'<(?:img|source)[^>]*? (?:src|srcset)="([^"\s]+)"')


def links(path: str, text: str) -> list[str]:
    """The files that a document links to, relative to the root."""
    prose = re.sub(r"^```.*?^```$|`[^`\n]*`(?!\])", "", text, flags=re.M | re.S)
    targets = [target.split("#")[0] for target in LINK.findall(prose) + PICTURE.findall(prose) if "://" not in target]
    return [os.path.normpath(os.path.join(os.path.dirname(path), target)) for target in targets if target]


def listing(folder: str) -> str:
    """A page for a directory: its files."""
    found = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    files = [os.path.relpath(file, folder) for file in found]
    return f"# {folder}\n\n" + "".join(f"- [{file}]({file})\n" for file in files)


def options(program: str) -> str:
    """What the program says about each of its commands."""
    def told(*words: str) -> str:
        env = {**os.environ, "COLUMNS": "100"}
        return subprocess.run([program, "help", *words], capture_output=True, text=True, check=True, env=env).stdout
    commands = re.findall(r"^  ([a-z][\w-]*) ", told().split("Commands:")[1].split("Options:")[0], re.M)
    parts = [f"## thread {one}\n\n```text\n{told(one)}```\n" for one in commands if one != "help"]
    return f"# Commands\n\n```text\n{told()}```\n\n" + "\n".join(parts)


def index(page: str) -> str:
    """The file of a page in the site's sources: a README is the index of its directory."""
    return page.replace("README.md", "index.md")


class Pages:
    def __init__(self, folder: pathlib.Path) -> None:
        self.folder, self.written = folder, set()

    def write(self, path: str, text: str) -> None:
        if path in self.written:
            return
        self.written.add(path)
        found = links(path, text)
        # What is drawn as a recording is shown, too.
        text = re.sub(r"(\]\([^)\s]*)README\.md", r"\1index.md", text)
        text = re.sub(r"^(?=.*\]\((\S+\.svg)\))((?:.+\n)+)", r"\2\n![The recording](\1)\n", text, flags=re.M)
        target = self.folder / index(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        for linked in found:
            self.add(linked)

    def add(self, path: str) -> str:
        """Adds a file of the tree with what it links to, and returns the path of its page."""
        page = path
        if (ROOT / path).is_dir():
            page = f"{path}/README.md"
            self.write(page, (ROOT / page).read_text() if (ROOT / page).exists() else listing(path))
        elif path.endswith(".md"):
            self.write(path, (ROOT / path).read_text())
        elif not (ROOT / path).exists():
            sys.exit(f"site: {path} is linked, and is not there")
        else:
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, self.folder / path)
        return page

    def title(self, page: str) -> str:
        return re.search(r"^# (.*)$", (self.folder / index(page)).read_text(), re.M)[1].replace("`", "")

    def summary(self, program: str | None) -> str:
        """The list of chapters, in the order of README's table."""
        readme = self.add("README.md")
        lines, chapters = [f"[{self.title(readme)}]({index(readme)})"], [readme]
        table = (ROOT / readme).read_text().split("\n## Documentation\n")[1].split("\n## ")[0]
        for row in re.findall(r"^\| (.*?) \|", table, re.M):
            if part := re.fullmatch(r"(?:\*\*)?(\w+)(?:\*\*)?", row):
                lines.append(f"\n# {part[1].capitalize()}\n")
            pages = [self.add(target) for target in LINK.findall(row)]
            if row.startswith("`thread help") and program:
                self.write("commands.md", options(program))
                pages.append("commands.md")
            chapters += pages
            lines += [f"- [{self.title(page)}]({index(page)})" for page in pages]
        others = sorted(page for page in self.written if page.endswith(".md") and page not in chapters)
        lines += ["\n# Further\n", *(f"- [{self.title(page)}]({index(page)})" for page in others)] if others else []
        return "\n".join(lines) + "\n"


class Page(html.parser.HTMLParser):
    """What a page links to, and the ids that others may link to."""

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__()
        self.links, self.ids = [], set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.ids |= {given.get("id"), given.get("name") if tag == "a" else None}
        self.links += [given[name] for name in ("href", "src", "srcset") if given.get(name)]


def broken(site: pathlib.Path) -> list[str]:
    """The links within the site that lead nowhere."""
    pages = {path: Page(path) for path in site.rglob("*.html")}
    found = []
    for path, page in pages.items():
        for link in page.links:
            url = urllib.parse.urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = pathlib.Path(os.path.normpath(path.parent / urllib.parse.unquote(url.path))) if url.path else path
            target = target / "index.html" if target.is_dir() else target
            fragment = urllib.parse.unquote(url.fragment)
            if not target.exists() or fragment and target in pages and fragment not in pages[target].ids:
                found.append(f"{path.relative_to(site)}: {link}")
    return found


def main() -> None:
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__.split("\n\n")[1])
    if not shutil.which("mdbook"):
        sys.exit("Error: mdbook is not on PATH - install it: cargo install mdbook --locked")
    out, program = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2] if len(sys.argv) > 2 else None
    with tempfile.TemporaryDirectory() as folder:
        book = pathlib.Path(folder)
        (book / "book.toml").write_text(CONFIG)
        pages = Pages(book / "src")
        (pages.folder / "SUMMARY.md").write_text(pages.summary(program))
        subprocess.run(["mdbook", "build", "--dest-dir", out, book], check=True)
    if wrong := broken(out):
        sys.exit("\n".join(["site: these links lead nowhere:", *wrong]))
    print(f"{len(pages.written)} pages in {out}")


if __name__ == "__main__":
    main()
