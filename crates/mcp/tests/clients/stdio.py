"""Uses the server on stdin and stdout with the Python package `mcp`, in either generation of the protocol.

Usage: stdio.py MODE SERVER ROOT SESSION"""

import asyncio
import json
import os
import sys

import calls

MODE, SERVER, ROOT, SESSION = sys.argv[1:]
ENV = {"PATH": os.environ["PATH"], "THREAD_NOTIFIER": "embedded"}


async def main(mode):
    async with calls.stdio(SERVER, ["--root", ROOT], ENV, mode) as client:
        used = await calls.use_every_tool(client, SESSION)
        assert used == set(await calls.names(client)), used
        [resource] = (await client.list_resources()).resources
        [contents] = (await client.read_resource(resource.uri)).contents
        assert json.loads(contents.text.splitlines()[0])["content"] == "about the backups"
        # A cancelled request ends; the client continues.
        with_patience = asyncio.create_task(client.call_tool("wait", {"session": SESSION}))
        await asyncio.sleep(0.2)
        with_patience.cancel()
        await calls.call(client, "info", {"session": SESSION})
        print(f"mcp, {mode}: {len(used)} tools")


asyncio.run(main(MODE))
