"""The gateway behind the released runtime of CopilotKit, with its client in front."""

import asyncio
import json
import os
import pathlib
import shutil
import tempfile

from answers import ASKING, PLAYER, call, play, session_of, token, until
from harness import PATIENCE, Gateway, run

HERE = pathlib.Path(__file__).parent
MODULES = os.environ.get("GATEWAY_COPILOTKIT")


def missing():
    if not MODULES or not shutil.which("node"):
        print("SKIPPED: needs @copilotkit/runtime, of npm")
        return True


async def copilot(gateway, **options):
    """Sends messages to the gateway through the runtime. Returns the final state of its client."""
    process = await asyncio.create_subprocess_exec(
        "node", str(HERE / "copilotkit.mjs"), MODULES, gateway.url, gateway.token, json.dumps(options),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env={**os.environ, "DO_NOT_TRACK": "1"},
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), 3 * PATIENCE)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, err.decode()
    return json.loads(out.splitlines()[-1])


def said(seen, role="assistant"):
    return [message["content"] for message in seen["messages"] if message["role"] == role and message.get("content")]


async def text_comes_through():
    if missing():
        return
    with Gateway("--agent", PLAYER, "--protocol", "ndjson") as gateway:
        steps = [[token("Hello, "), token("you."), {"event": "final"}]]
        seen = await copilot(gateway, threadId="text", message=json.dumps(steps))
        assert not seen["errors"] and said(seen) == ["Hello, you."], seen


async def a_tool_of_the_client_is_called_and_answered():
    if missing():
        return
    with Gateway("--agent", PLAYER, "--protocol", "ndjson") as gateway:
        steps = [[token("Which? "), call("c1", "color", of="sky"), {"hear": True}, {"event": "final"}]]
        seen = await copilot(gateway, threadId="tools", message=json.dumps(steps),
                             tool={"name": "color", "answer": "blue"})
        assert not seen["errors"] and seen["seen"] == [{"of": "sky"}], seen
        assert said(seen, "tool") == ["blue"] and json.loads(said(seen)[-1])["result"] == "blue", seen
        endings = [e for e in gateway.events(session_of(gateway)) if e["type"] == "message"]
        assert len(endings) == 2, endings


async def its_stop_ends_the_run():
    if missing():
        return
    with Gateway("--agent", PLAYER, "--protocol", "ndjson") as gateway:
        steps = [[token("working"), {"wait": "never"}]]
        seen = await copilot(gateway, threadId="stop", message=json.dumps(steps), stop=True)
        assert said(seen) == ["working"], seen
        session = session_of(gateway)
        [ending] = await until(lambda: [e for e in gateway.events(session) if e["subtype"] == "cancelled"])
        assert "requested by a client" in ending["content"], ending


async def a_permission_is_given():
    if missing():
        return
    with tempfile.TemporaryDirectory() as scratch:
        with Gateway(*play(pathlib.Path(scratch), ASKING)) as gateway:
            seen = await copilot(gateway, threadId="permission", message="go", resume={"choice": "yes"})
            assert not seen["errors"] and not seen["pending"], seen
            assert "".join(said(seen)) == "May I? yes Thanks." and said(seen, "tool") == ["removed"], seen


if __name__ == "__main__":
    run(globals())
