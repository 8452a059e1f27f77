"""An agent that uses the protocol's Python package, for what the package's examples do not cover: it loads
sessions, counts prompts, can be cancelled, and speaks unasked. Usage: acp_agent.py STATE_DIR [--no-load]
[--resume] [--forgetful] [--queue]

With --queue it takes a prompt while it works on `work`: that ends with its turn there, and the new one continues.

As coding agents do, it begins another session of its own at `/clear`, under which it sends its updates from then
on. A message `later SECONDS WORDS` begins a task in the background: its tool call completes after the answer, and then
it says the words. `chatter SECONDS` speaks for so long after its answer."""

import asyncio
import pathlib
import re
import sys
import uuid

import acp
from acp import schema

STATE = pathlib.Path(sys.argv[1])
LOADS = "--no-load" not in sys.argv
RESUMES = "--resume" in sys.argv
FORGETS = "--forgetful" in sys.argv
QUEUES = "--queue" in sys.argv


class Counting(acp.Agent):
    def __init__(self):
        self.counts = {}
        self.cancelled = asyncio.Event()
        self.steered = asyncio.Event()
        self.steered.set()
        self.is_long = False
        self.tasks = []
        # The current id of a session, by the id that the client knows.
        self.names = {}

    def on_connect(self, conn):
        self.conn = conn

    async def initialize(self, protocol_version, **_):
        can = schema.AgentCapabilities(load_session=LOADS)
        if QUEUES:
            can.field_meta = {"own": {"promptQueueing": True}}
        if RESUMES:
            can.session_capabilities = schema.SessionCapabilities(resume=schema.SessionResumeCapabilities())
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

    async def resume_session(self, cwd, session_id, **_):
        self.counts[session_id] = int((STATE / session_id).read_text())
        (STATE / "resumed").write_text(session_id)
        return schema.ResumeSessionResponse()

    async def say(self, session, text):
        session = self.names.get(session, session)
        await self.conn.session_update(session, acp.update_agent_message(acp.text_block(text)))

    async def prompt(self, session_id, prompt, **_):
        if not self.is_long:
            self.cancelled.clear()
        before, text = [block.text for block in prompt[:-1]], prompt[-1].text
        if before and not FORGETS:
            # The last count in the transcript of the lost session.
            self.counts[session_id] = max([int(n) for n in re.findall(r"^(\d+)\. ", before[0], re.M)] or [0])
        if text == "/clear":
            self.names[session_id] = uuid.uuid4().hex
            self.counts[session_id] = 0
            (STATE / self.names[session_id]).write_text("0")
            await self.say(session_id, "cleared")
            return acp.PromptResponse(stop_reason="end_turn")
        if self.is_long:
            # A cancel ends all prompts.
            await self.cancelled.wait()
            return acp.PromptResponse(stop_reason="cancelled")
        if not self.steered.is_set() and QUEUES and text != "work":
            self.steered.set()
            # The response to the other prompt is sent before a model says anything.
            await asyncio.sleep(0.1)
        count = self.counts[session_id] = self.counts.get(session_id, 0) + 1
        (STATE / self.names.get(session_id, session_id)).write_text(str(count))
        await self.say(session_id, f"{count}. ")
        if text == "work":
            self.steered.clear()
            await self.say(session_id, "working")
            waits = [asyncio.create_task(event.wait()) for event in (self.steered, self.cancelled)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return acp.PromptResponse(stop_reason="cancelled" if self.cancelled.is_set() else "end_turn")
        if text == "long":
            self.is_long = QUEUES
            await self.cancelled.wait()
            self.is_long = False
            return acp.PromptResponse(stop_reason="cancelled")
        await self.say(session_id, text)
        word, *rest = text.split(" ", 2)
        if word == "later":
            call = acp.start_tool_call("task", "task", kind="execute", status="in_progress", raw_input={"say": rest[1]})
            await self.conn.session_update(session_id, call)
            self.tasks.append(asyncio.create_task(self.later(session_id, float(rest[0]), rest[1])))
        elif word == "chatter":
            self.tasks.append(asyncio.create_task(self.chatter(session_id, float(rest[0]))))
        return acp.PromptResponse(stop_reason="end_turn")

    async def later(self, session, seconds, words):
        await asyncio.sleep(seconds)
        done = acp.update_tool_call("task", status="completed", raw_output="done")
        await self.conn.session_update(session, done)
        await self.say(session, words)

    async def chatter(self, session, seconds):
        until = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < until:
            await self.say(session, "word ")
            await asyncio.sleep(0.05)

    async def cancel(self, session_id, **_):
        self.cancelled.set()
        for task in self.tasks:
            task.cancel()


asyncio.run(acp.run_agent(Counting(), use_unstable_protocol=True))
