#!/usr/bin/env python3
"""Records README's first minute in a real terminal, and draws it as docs/first-minute.svg.

usage: docs/record.py [path of the program thread]

The commands are those of the block in README.md, typed into an interactive sh on a pseudo-terminal of
80 columns; what is drawn is what the terminal showed, when it showed it. It needs Python 3 and nothing
else. Without animation (in print, say) all of it is seen.
"""

import html
import os
import pathlib
import pty
import re
import select
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLUMNS, PROMPT = 80, "$ "
QUIET, PATIENCE = 0.25, 60.0


def commands():
    """The block's commands, each with its heredoc, and the end of its last line, which takes out times."""
    readme = (ROOT / "README.md").read_text()
    block = next(b for b in re.findall(r"^```sh\n(.*?)^```$", readme, re.M | re.S) if b.startswith("(\n"))
    lines, found, until = block.splitlines()[1:], [], None
    for line in lines[:-1]:
        if until:
            found[-1] += "\n" + line
            until = None if line == until else until
            continue
        found.append(line)
        heredoc = re.search(r"<<'(\w+)'", line)
        until = heredoc and heredoc[1]
    return found, lines[-1].split("|", 1)[1].strip()


class Terminal:
    def __init__(self, program, folder):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            path = f"{pathlib.Path(program).resolve().parent}:/usr/bin:/bin"
            env = {"PATH": path, "HOME": folder, "TMPDIR": folder, "PS1": PROMPT, "PS2": "> ", "TERM": "dumb"}
            os.execve("/bin/sh", ["sh", "-i"], env)
        self.begin, self.chunks = time.monotonic(), []

    def read_until(self, end):
        text, last = "", time.monotonic()
        while True:
            ready, _, _ = select.select([self.fd], [], [], QUIET)
            if ready:
                data = os.read(self.fd, 65536).decode().replace("\r", "")
                self.chunks.append((time.monotonic() - self.begin, data))
                text, last = text + data, time.monotonic()
            elif text.endswith(end):
                return
            elif time.monotonic() - last > PATIENCE:
                sys.exit(f"the terminal shows no prompt: {text!r}")

    def type(self, line):
        os.write(self.fd, (line + "\n").encode())


def record(program):
    """Lines as they were shown, each with the time when it was complete."""
    found, cleaner = commands()
    with tempfile.TemporaryDirectory() as folder:
        terminal = Terminal(program, folder)
        terminal.read_until(PROMPT)
        for command in found:
            # Times of day are taken out of the last output, as the block itself does.
            command += f" | {cleaner}" if command in ("thread dead list", "thread logs seller") else ""
            *above, last = command.split("\n")
            for line in above:
                terminal.type(line)
                terminal.read_until("> ")
            terminal.type(last)
            terminal.read_until(PROMPT)
        terminal.type("exit")
        os.waitpid(terminal.pid, 0)
    shown, partial = [], ""
    for at, data in terminal.chunks:
        *whole, partial = (partial + data).split("\n")
        shown += [(at, line) for line in whole]
    return [(at, line.replace(f" | {cleaner}", "")) for at, line in shown]


def draw(shown):
    rows = [(at, line[i:i + COLUMNS]) for at, line in shown for i in range(0, len(line) or 1, COLUMNS)]
    size, step, pad = 13, 18, 14
    width, height = int(COLUMNS * 7.83) + 2 * pad, len(rows) * step + 2 * pad
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img" '
        'aria-label="A terminal: the commands of the first minute, and what they print">',
        "<style>",
        f"text {{ font: {size}px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace;"
        " fill: #d4d4d4; white-space: pre }",
        ".in { fill: #9cdcfe } .bad { fill: #f48771 }",
        "@keyframes show { from { visibility: hidden } to { visibility: visible } }",
        "text { animation: show 0.01s both } "
        "@media (prefers-reduced-motion: reduce) { text { animation: none } }",
        "</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#1e1e1e"/>',
    ]
    for row, (at, line) in enumerate(rows):
        kind = "in" if line.startswith((PROMPT, "> ")) else "bad" if line.startswith("Error:") else "out"
        out.append(
            f'<text class="{kind}" x="{pad}" y="{pad + (row + 1) * step - 5}" '
            f'style="animation-delay: {at:.2f}s">{html.escape(line)}</text>'
        )
    return "\n".join(out) + "\n</svg>\n"


if __name__ == "__main__":
    program = sys.argv[1] if len(sys.argv) > 1 else ROOT / "target/release/thread"
    (ROOT / "docs/first-minute.svg").write_text(draw(record(program)))
