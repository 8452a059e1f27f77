"""A fixture: an agent made with the protocol's Python package. It has modes, or with --options options, and uses the MCP
servers that it is given. A process begins with the mode `ask`, whatever the session had before; the mode `never` is refused.

`what` says the mode and the model; `plan` changes the mode to `code`; `wait` works until somebody else does; `servers` names
the servers; `call NAME` says what the tool `who` of that server says; `end` ends the process.
"""

import asyncio
import contextlib
import os
import sys
import uuid

import acp
from acp import schema
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client

HAS_OPTIONS = "--options" in sys.argv
MODES = ["ask", "code", "never"]


class Choosing(acp.Agent):
    def __init__(self):
        self.mode, self.model, self.servers, self.is_set = "ask", "small", [], asyncio.Event()

    def on_connect(self, conn):
        self.conn = conn

    async def initialize(self, protocol_version, **_):
        can = schema.AgentCapabilities(load_session=True, mcp_capabilities=schema.McpCapabilities(http=True, sse=False))
        return acp.InitializeResponse(protocol_version=acp.PROTOCOL_VERSION, agent_capabilities=can)

    def has(self):
        if not HAS_OPTIONS:
            modes = [schema.SessionMode(id=mode, name=mode.title()) for mode in MODES]
            return {"modes": schema.SessionModeState(current_mode_id=self.mode, available_modes=modes)}
        value = lambda value: schema.SessionConfigSelectOption(value=value, name=value.title())
        large = schema.SessionConfigSelectGroup(group="big", name="Big", options=[value("large")])
        little = schema.SessionConfigSelectGroup(group="little", name="Little", options=[value("small")])
        select = lambda id, current, options: schema.SessionConfigOptionSelect(
            type="select", id=id, name=id.title(), category=id, current_value=current, options=options)
        return {"config_options": [select("mode", self.mode, [value(mode) for mode in MODES]),
                                   select("model", self.model, [large, little])]}

    async def new_session(self, cwd, mcp_servers=None, **_):
        self.servers = mcp_servers or []
        return acp.NewSessionResponse(session_id=uuid.uuid4().hex, **self.has())

    async def load_session(self, cwd, session_id, mcp_servers=None, **_):
        self.servers = mcp_servers or []
        return schema.LoadSessionResponse(**self.has())

    async def set(self, mode):
        # Long enough that a prompt would come first if it did not wait.
        await asyncio.sleep(0.3)
        if mode == "never":
            raise acp.RequestError.invalid_params({"why": "not today"})
        self.mode = mode
        self.is_set.set()

    async def set_session_mode(self, session_id, mode_id, **_):
        assert not HAS_OPTIONS
        await self.set(mode_id)

    async def set_config_option(self, config_id, session_id, value, **_):
        assert HAS_OPTIONS
        if config_id == "mode":
            await self.set(value)
        else:
            self.model = value
        return schema.SetSessionConfigOptionResponse(**self.has())

    async def say(self, session, text):
        await self.conn.session_update(session, acp.update_agent_message(acp.text_block(text)))

    async def plan(self, session):
        self.mode = "code"
        if HAS_OPTIONS:
            update = schema.ConfigOptionUpdate(session_update="config_option_update", **self.has())
        else:
            update = schema.CurrentModeUpdate(session_update="current_mode_update", current_mode_id=self.mode)
        await self.conn.session_update(session, update)

    async def prompt(self, session_id, prompt, **_):
        word, *rest = prompt[-1].text.split()
        if word == "end":
            os._exit(3)
        if word == "plan":
            await self.plan(session_id)
        elif word == "wait":
            self.is_set.clear()
            await self.say(session_id, "waiting ")
            await self.is_set.wait()
        if word == "servers":
            await self.say(session_id, " ".join(server.name for server in self.servers) or "none")
        elif word == "call":
            await self.say(session_id, await self.call(next(one for one in self.servers if one.name == rest[0])))
        else:
            await self.say(session_id, f"{self.mode} {self.model}")
        return acp.PromptResponse(stop_reason="end_turn")

    async def call(self, server):
        async with contextlib.AsyncExitStack() as stack:
            if hasattr(server, "url"):
                headers = {header.name: header.value for header in server.headers}
                http = await stack.enter_async_context(create_mcp_http_client(headers=headers))
                at = streamable_http_client(server.url, http_client=http)
            else:
                env = {variable.name: variable.value for variable in server.env}
                at = StdioServerParameters(command=server.command, args=server.args, env=env)
            client = await stack.enter_async_context(Client(at))
            return (await client.call_tool("who", {})).content[0].text

    async def cancel(self, session_id, **_):
        self.is_set.set()


asyncio.run(acp.run_agent(Choosing()))
