"""The commands, the unit and the image of docs/SERVE.md, run in a folder that stands in for the server."""

import asyncio
import contextlib
import getpass
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import types
import urllib.error

from agui import get
from attachments import PNG, fetch, until, upload
from harness import PATIENCE, SERVE, THREAD, run
from proxy import CHAT, PAGE, block, free_port, has

# The page's paths are those of a server, and not quoted. The path of TMPDIR may have a blank or a quote.
PLAIN = "/tmp"
# A substitute for systemd, as far as the page needs it: one unit, whose KillMode is `process`.
SYSTEMCTL = """#!/bin/sh
cd '{dir}'
start() {{ env -i PATH="$PATH" HOME='{dir}' {command} >link 2>>log & echo $! >pid; }}
stop() {{ kill "$(cat pid)" && while kill -0 "$(cat pid)" 2>/dev/null; do sleep 0.1; done; }}
case $1 in
  start | enable) start ;;
  stop) stop ;;
  restart) stop; start ;;
  *) exit 1 ;;
esac
"""

# It repeats each message, `slow` after a while.
AGENT = """#!/bin/sh
said=$(cat)
case $said in slow*) touch "$THREAD_DIR/slow"; until [ -e "$THREAD_DIR/go" ]; do sleep 0.1; done ;; esac
echo "$said"
"""


class Server:
    def __init__(self, scratch):
        self.dir, self.port = pathlib.Path(scratch), free_port()
        self.root, self.bin, self.new = (self.dir / name for name in ("srv/thread", "usr/local/bin", "new"))
        for folder in self.dir / "srv", self.bin, self.new, self.dir / "stubs":
            folder.mkdir(parents=True)
        programs = pathlib.Path(THREAD).parent
        for name in "thread", "thread-agent", "thread-serve":
            (self.new / name).symlink_to(programs / name)
            shutil.copy(programs / name, self.bin / name)
        command = re.search(r"^ExecStart=(.*)$", self.local(block("ini")), re.M)[1]
        self.script(self.bin / "my-agent", AGENT)
        self.script(self.dir / "stubs/systemctl",
                    SYSTEMCTL.format(dir=self.dir, command=f"{command} --listen 127.0.0.1:{self.port}"))
        self.script(self.dir / "stubs/useradd", "#!/bin/sh\n")
        self.blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.M | re.S)

    def script(self, path, text):
        path.write_text(text)
        path.chmod(0o755)

    def local(self, text):
        """The page's paths and names, as they are in this folder."""
        for there, here in [
            ("/srv/thread", self.root), ("/usr/local/bin", self.bin), ("/var/backups", self.dir / "backups"),
            ("-o thread", f"-o {getpass.getuser()}"), ("127.0.0.1:3336", f"127.0.0.1:{self.port}"),
        ]:
            text = text.replace(there, str(here))
        return text

    def env(self):
        path = f"{self.dir}/stubs:{self.bin}:{os.environ['PATH']}"
        return {"PATH": path, "HOME": str(self.dir)}

    def sh(self, having):
        """Runs the page's block that contains these words. Returns its output."""
        [text] = [text for text in self.blocks if having in text]
        self.blocks.remove(text)
        done = subprocess.run(["sh", "-euc", self.local(text)], cwd=self.new, env=self.env(), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=PATIENCE)
        assert done.returncode == 0, (text, done, self.log())
        return done.stdout

    def log(self):
        log = self.dir / "log"
        return log.read_text() if log.exists() else ""

    def stop(self):
        subprocess.run([self.dir / "stubs/systemctl", "stop"], env=self.env(), stderr=subprocess.DEVNULL)

    def gateway(self):
        """For clients: its address and its token."""
        return types.SimpleNamespace(url=f"http://127.0.0.1:{self.port}", token=(self.root / "token").read_text().strip())

    async def answers(self):
        def asked():
            try:
                return get(self.gateway(), "/healthz") == b"ok\n"
            except OSError:
                return False
        await until(asked)

    def chat(self, *args):
        env = {**self.env(), "THREAD_TOKEN": self.gateway().token}
        command = [CHAT, "--url", self.gateway().url, *args]
        return subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def said(self, *args):
        out, err = (chat := self.chat(*args)).communicate(timeout=PATIENCE)
        assert chat.returncode == 0, (args, err, self.log())
        return out.strip()


async def the_commands_of_the_page_set_up_a_gateway_and_keep_it():
    if not has("curl"):
        return
    with tempfile.TemporaryDirectory(prefix="thread-server-", dir=PLAIN, ignore_cleanup_errors=True) as scratch:
        server = Server(scratch)
        with contextlib.ExitStack() as stack:
            stack.callback(server.stop)
            server.sh("useradd")
            assert server.root.stat().st_mode & 0o777 == 0o700
            assert server.sh("enable --now") == "ok\n"
            link = server.sh("#token=").strip()
            assert link == f"https://chat.example.org/#token={server.gateway().token}"
            assert (server.dir / "link").read_text().strip() == link
            assert server.said("hello") == "hello"
            [session] = [path.parent for path in server.root.glob("*/events.db")]
            file = upload(server.gateway(), PNG)["url"].replace("https://chat.example.org", server.gateway().url)

            # Another token: the old one is no longer valid.
            old = server.gateway()
            server.sh("rm /srv/thread/token")
            await until(lambda: (server.root / "token").exists())
            await server.answers()
            try:
                raise AssertionError(get(old, "/metrics"))
            except urllib.error.HTTPError as e:
                assert e.code == 401

            assert json.loads(server.sh("/v1/models"))["data"][0]["id"] == "my-agent"
            metrics = server.sh("/metrics")
            named = set(re.findall(r"thread_gateway_\w+", PAGE))
            assert len(named) >= 4 and all(re.search(rf"^(# TYPE )?{name}\b", metrics, re.M) for name in named), named

            # A backup has all earlier messages, and no later ones.
            copy = pathlib.Path(server.sh("backup --root").strip())
            assert (copy / session.name / "events.db").exists() and (copy / "token").stat().st_mode & 0o777 == 0o600
            assert server.said("--session", session.name, "after the backup") == "after the backup"
            server.sh("cp -a")
            await server.answers()
            history = server.said("--session", session.name, "--history", "10")
            assert "hello" in history and "after the backup" not in history, history
            assert server.said("--session", session.name, "again") == "again"
            assert fetch(file)[:2] == (200, PNG)

            # An agent continues while the programs are replaced.
            waiting = server.chat("--session", session.name, "slow")
            await until((session / "slow").exists)
            server.sh("install thread ")
            (session / "go").touch()
            await server.answers()
            out, err = waiting.communicate(timeout=PATIENCE)
            assert out.strip() == "slow", (out, err, server.log())
            attempts = subprocess.run([server.bin / "thread", "-t", session, "peek", "--last-event-id", "0",
                                       "--filter", "subtype = 'run'"], capture_output=True, text=True, env=server.env())
            contents = [json.loads(json.loads(line)["content"]) for line in attempts.stdout.splitlines()]
            assert [run["attempt"] for run in contents] == [1] * 3, attempts
            assert not server.blocks, server.blocks


async def the_unit_and_the_image_start_the_gateway():
    with tempfile.TemporaryDirectory(prefix="thread-server-", dir=PLAIN) as scratch:
        server = Server(scratch)
        [entry] = re.findall(r"^ENTRYPOINT (.*)$", server.local(block("dockerfile")), re.M)
        words = [word.replace("0.0.0.0:3336", f"127.0.0.1:{server.port}") for word in json.loads(entry)]
        server.root.mkdir(mode=0o700)
        process = subprocess.Popen(words, env=server.env(), cwd=server.dir, stdout=subprocess.DEVNULL)
        try:
            await until((server.root / "token").exists)
            await server.answers()
            assert server.said("hello") == "hello"
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
        if not shutil.which("systemd-analyze"):
            return print("SKIPPED: needs systemd-analyze")
        # The user is made by a command of the page.
        unit = server.dir / "thread-serve.service"
        unit.write_text(server.local(block("ini")).replace("User=thread\n", ""))
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
        # systemd may warn about other units.
        assert done.returncode == 0 and unit.name not in done.stderr, done


async def the_options_that_the_page_names_are_there():
    text = re.sub(r"^```.*?^```$", "", PAGE, flags=re.M | re.S)
    named = set(re.findall(r"`(--[a-z-]+)", text))
    help = subprocess.run([SERVE, "--help"], capture_output=True, text=True).stdout
    assert len(named) > 8 and not [name for name in named if name not in help], named
    # Without the markup of pictures.
    assert len(re.sub(r"<picture>.*?</picture>", "", PAGE).split()) <= 2600


if __name__ == "__main__":
    run(globals())
