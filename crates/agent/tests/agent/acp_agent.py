"""An agent that uses the protocol's Python package, for what the package's examples do not cover: it loads
sessions, counts prompts, and can be cancelled. Usage: acp_agent.py STATE_DIR [--no-load] [--forgetful]"""

import asyncio
import pathlib
import re
import sys
import uuid

import acp
from acp import schema

STATE = pathlib.Path(sys.argv[1])
LOADS = "--no-load" not in sys.argv
FORGETS = "--forgetful" in sys.argv


class Counting(acp.Agent):
    def __init__(self):
        self.counts = {}
        self.cancelled = asyncio.Event()

    def on_connect(self, conn):
        self.conn = conn

    async def initialize(self, protocol_version, **_):
        can = schema.AgentCapabilities(load_session=LOADS)
        return acp.InitializeResponse(protocol_version=acp.PROTOCOL_VERSION, agent_capabilities=can)

    async def new_session(self, cwd, **_):
        session = uuid.uuid4().hex
        self.counts[session] = 0
        return acp.NewSessionResponse(session_id=session)

    async def load_session(self, cwd, session_id, **_):
        if not FORGETS:
            self.counts[session_id] = int((STATE / session_id).read_text())
        await self.say(session_id, "the history of the session, which must not be pushed again")
        return schema.LoadSessionResponse()

    async def say(self, session, text):
        await self.conn.session_update(session, acp.update_agent_message(acp.text_block(text)))

    async def prompt(self, session_id, prompt, **_):
        self.cancelled.clear()
        before, text = [block.text for block in prompt[:-1]], prompt[-1].text
        if before and not FORGETS:
            # The last count in the transcript of the lost session.
            self.counts[session_id] = max([int(n) for n in re.findall(r"^(\d+)\. ", before[0], re.M)] or [0])
        count = self.counts[session_id] = self.counts.get(session_id, 0) + 1
        (STATE / session_id).write_text(str(count))
        await self.say(session_id, f"{count}. ")
        if text == "long":
            await self.cancelled.wait()
            return acp.PromptResponse(stop_reason="cancelled")
        await self.say(session_id, text)
        return acp.PromptResponse(stop_reason="end_turn")

    async def cancel(self, session_id, **_):
        self.cancelled.set()


asyncio.run(acp.run_agent(Counting()))
