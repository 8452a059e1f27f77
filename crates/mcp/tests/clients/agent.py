"""An agent that uses the Agent Client Protocol's Python package, and the package `mcp` for its tools.

A prompt is a JSON list of calls, [tool, arguments]; "tools" is the list of their names. It says the results, a JSON
list. "$0.a.1" in the arguments stands for that part of the first result. Usage: agent.py STATE_DIR"""

import asyncio
import json
import os
import pathlib
import sys
import uuid

import acp
from acp import schema

import calls

STATE = pathlib.Path(sys.argv[1])


def filled(value, results):
    if isinstance(value, dict):
        return {key: filled(one, results) for key, one in value.items()}
    if isinstance(value, str) and value.startswith("$"):
        first, *rest = value[1:].split(".")
        found = results[int(first)]
        for key in rest:
            found = found[int(key)] if isinstance(found, list) else found[key]
        return found
    return value


class Scripted(acp.Agent):
    def __init__(self):
        self.servers = {}

    def on_connect(self, conn):
        self.conn = conn

    async def initialize(self, protocol_version, **_):
        can = schema.AgentCapabilities(load_session=True)
        return acp.InitializeResponse(protocol_version=acp.PROTOCOL_VERSION, agent_capabilities=can)

    async def new_session(self, cwd, mcp_servers=None, **_):
        session = uuid.uuid4().hex
        self.servers[session] = mcp_servers or []
        return acp.NewSessionResponse(session_id=session)

    async def load_session(self, cwd, session_id, mcp_servers=None, **_):
        self.servers[session_id] = mcp_servers or []
        (STATE / "loaded").write_text("yes")
        return schema.LoadSessionResponse()

    async def prompt(self, session_id, prompt, **_):
        steps, results = json.loads(prompt[-1].text), []
        [server] = self.servers[session_id]
        (STATE / "server").write_text(" ".join([server.name, str(server.command), *server.args]))
        env = {variable.name: variable.value for variable in server.env}
        async with calls.stdio(str(server.command), server.args, env) as client:
            for step in steps:
                if step == "tools":
                    results.append(await calls.names(client))
                elif step == "die":
                    os._exit(9)
                else:
                    tool, arguments = step[0], filled(step[1], results)
                    call = f"call_{uuid.uuid4().hex}"
                    # As coding agents do, under a name of its own.
                    begun = acp.start_tool_call(call, f"mcp__thread__{tool}", kind="other", raw_input=arguments)
                    await self.conn.session_update(session_id, begun)
                    result = await calls.call(client, tool, arguments)
                    ended = acp.update_tool_call(call, status="completed", raw_output=result)
                    await self.conn.session_update(session_id, ended)
                    results.append(result)
        said = acp.update_agent_message(acp.text_block(json.dumps(results)))
        await self.conn.session_update(session_id, said)
        return acp.PromptResponse(stop_reason="end_turn")

    async def cancel(self, session_id, **_):
        pass


asyncio.run(acp.run_agent(Scripted()))
