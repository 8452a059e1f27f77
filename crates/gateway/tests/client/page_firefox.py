"""The page in Firefox: a conversation, the table of a queue, and the width of a phone."""

import asyncio
import os
import pathlib
import shutil

from harness import PATIENCE, Gateway, run
from looking import Thread
from page import NDJSON, plays

PUPPETEER = os.environ.get("GATEWAY_PUPPETEER")
FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")


async def firefox_shows_a_conversation_a_queue_and_fits_a_phone():
    if not FIREFOX or not PUPPETEER:
        return print("SKIPPED: needs firefox-esr and puppeteer-core, of npm")
    with Thread() as inbox, Gateway(*NDJSON, "--thread", inbox.path) as gateway:
        plays(gateway, look=[["call", "c1", "read", {"path": "a"}], ["result", "c1", "read", "text"],
                             ["say", "The **end**.\n\n```sh\nchown -R backup /srv # once\n```\n"]])
        inbox.seller()
        for item in "anvil", "saw":
            inbox.push(item)
        await inbox.has_dead(2)
        script = pathlib.Path(__file__).with_name("firefox.mjs")
        given = [gateway.url, gateway.token, FIREFOX, str(PATIENCE * 1000)]
        program = await asyncio.create_subprocess_exec("node", script, *given)
        assert await asyncio.wait_for(program.wait(), 3 * PATIENCE) == 0


if __name__ == "__main__":
    run(globals())
