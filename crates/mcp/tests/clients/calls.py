"""Calling tools with the Python package `mcp`, over stdio and over HTTP, in both generations of the protocol."""

import contextlib

import mcp
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client

# Old clients begin with `initialize` and a session; new ones do not.
MODES = "legacy", "2026-07-28"


@contextlib.asynccontextmanager
async def stdio(command, args, env=None, mode="auto"):
    parameters = mcp.StdioServerParameters(command=command, args=args, env=env)
    async with mcp.Client(parameters, mode=mode) as client:
        yield client


@contextlib.asynccontextmanager
async def http(url, token=None, mode="auto", headers=None):
    headers = {**(headers or {}), **({"Authorization": f"Bearer {token}"} if token else {})}
    async with create_mcp_http_client(headers=headers) as connection:
        async with mcp.Client(streamable_http_client(url, http_client=connection), mode=mode) as client:
            yield client


async def names(client):
    return [tool.name for tool in (await client.list_tools()).tools]


async def call(client, tool, arguments=None):
    """The result of a tool call, which the package checks against its schema."""
    result = await client.call_tool(tool, arguments or {})
    assert not result.is_error, (tool, arguments, result)
    return result.structured_content


async def refused(client, tool, arguments=None):
    result = await client.call_tool(tool, arguments or {})
    assert result.is_error, (tool, arguments, result)
    return result.content[0].text


async def until(client, tool, arguments, wanted):
    """Calls a tool until its result is as wanted."""
    while not wanted(result := await call(client, tool, arguments)):
        pass
    return result


async def use_every_tool(client, session):
    """Uses all tools on a session whose agent answers in upper case. Returns their names."""
    used = set()

    async def use(tool, **arguments):
        used.add(tool)
        return await call(client, tool, arguments)

    pushed = await use("push", session=session, content="about the backups", idempotency_key="k")
    assert pushed["run_id"] and not pushed["repeated"]
    waited = await use("wait", session=session, after=pushed["id"], filter="type = 'message'")
    assert not waited["timed_out"] and waited["events"][0]["content"] == "ABOUT THE BACKUPS"
    peeked = await use("peek", session=session, filter="type = 'message'")
    assert len(peeked["events"]) == 2
    info = await use("info", session=session)
    assert {one["consumer"] for one in info["consumers"]} == {"agent", "reader"}
    assert (await use("ack", session=session, consumer="reader", id=1))["cursor"] == 1
    status = await use("process_status", session=session, process=pushed["run_id"])
    assert status["state"] == "answered" and status["text"] == "ABOUT THE BACKUPS"
    assert (await use("process_wait_time", session=session))["wait_ms"] == 0
    sub_agent = await use("subagent_run", session=session, task="shout")
    assert sub_agent["state"] == "answered" and sub_agent["text"] == "SHOUT"
    found = await use("sessions_search", query="BACKUPS", day="today")
    assert [one["session"] for one in found["sessions"]] == [session]
    assert (await use("sessions_list"))["total"] == 1
    got = await use("sessions_get", session=session)
    assert [one["role"] for one in got["messages"]] == ["user", "assistant"]
    pushed = await use("push", session=session, content="for ever")
    listed = await until(client, "process_list", {}, lambda listed: listed["processes"])
    assert listed["processes"][0]["process"] == pushed["run_id"]
    used.add("process_list")
    await use("process_cancel", session=session, process=pushed["run_id"])
    await until(client, "process_status", {"session": session, "process": pushed["run_id"]},
                lambda status: status["state"] == "cancelled")
    assert "process_list" in await refused(client, "process_cancel", {"session": session, "process": "nothing"})
    created = await use("schedule_create", session=session, content="look again", **{"in": "1h"})
    listed = await use("schedule_list", session=session)
    assert [(one["id"], one["next"]) for one in listed["schedules"]] == [(created["id"], created["next"])]
    await use("schedule_cancel", session=session, id=created["id"])
    return used


# Answers in upper case, except one message that it never answers.
AGENT = "read text; if [ \"$text\" = 'for ever' ]; then exec sleep 1000; fi; printf %s \"$text\" | tr a-z A-Z"
