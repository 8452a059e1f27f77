"""Editors: clients of the Agent Client Protocol that start `thread acp`, THREAD_ACP, and lose it."""

import asyncio
import contextlib
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

import acp as protocol
from acp import schema

from agents import acp as agent_table
from agents import write
from harness import LONG, PATIENCE, Gateway, run

HERE = pathlib.Path(__file__).parent
ACP = os.environ.get("THREAD_ACP", "")
AGENT = ["--agent", shlex.join([sys.executable, str(HERE / "acp_agent.py")]), "--protocol", "acp"]
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("THREAD_")}


class Editor(protocol.Client):
    """What the editor was told, and how it answers requests for permission: with an option, or by a future."""

    def __init__(self, choose=None):
        self.choose, self.updates, self.asked, self.news = choose, [], [], asyncio.Condition()

    def on_connect(self, conn):
        self.agent = conn

    async def session_update(self, session_id, update, **_):
        async with self.news:
            self.updates.append((session_id, update))
            self.news.notify_all()

    async def request_permission(self, session_id, tool_call, options, **_):
        async with self.news:
            self.asked.append((tool_call, options))
            self.news.notify_all()
        choice = await self.choose if asyncio.isfuture(self.choose) else self.choose
        outcome = {"outcome": "selected", "optionId": choice} if choice else {"outcome": "cancelled"}
        return schema.RequestPermissionResponse(outcome=outcome)

    async def until(self, is_so):
        async with self.news:
            try:
                return await asyncio.wait_for(self.news.wait_for(is_so), PATIENCE)
            except TimeoutError:
                raise AssertionError(f"not so; saw {self.transcript()}") from None

    def transcript(self):
        """What an editor shows: messages, thoughts and calls in their order, each once, and the newest plan."""
        shown, calls, plan = [], {}, None
        for _, update in self.updates:
            kind = update.session_update
            if kind.endswith("_chunk"):
                at = (kind, update.message_id)
                if shown and shown[-1][0] == at:
                    shown[-1][1] += update.content.text
                else:
                    shown.append([at, update.content.text])
            elif kind in ("tool_call", "tool_call_update"):
                # The first part of the id is the run.
                call = update.tool_call_id.split("/", 1)[1]
                if call not in calls:
                    assert kind == "tool_call", f"an update of the unknown call {call}"
                    shown.append([("call", call), calls.setdefault(call, {})])
                calls[call].update(update.model_dump(exclude_none=True, exclude={"session_update", "tool_call_id"}))
            elif kind == "plan":
                plan = [entry.model_dump(exclude_none=True) for entry in update.entries]
        return [(kind[0], value) for kind, value in shown] + [("plan", plan)]

    def said(self):
        return "".join(text for kind, text in self.transcript() if kind == "agent_message_chunk")

    def kinds(self):
        return [update.session_update for _, update in self.updates]


@contextlib.asynccontextmanager
async def opened(gateway, editor, *options):
    """Starts `thread acp` for an editor. Whoever kills it leaves it to this."""
    options = options or ("--root", str(gateway.root))
    command = protocol.spawn_agent_process(editor, ACP, *options, env=ENVIRONMENT)
    async with command as (agent, process):
        told = await agent.initialize(protocol.PROTOCOL_VERSION)
        can = told.agent_capabilities
        assert told.protocol_version == 1 and can.load_session and can.session_capabilities.list is not None
        yield agent, process
        if process.returncode is None:
            # It ends with its stdin.
            process.stdin.close()
            assert await asyncio.wait_for(process.wait(), PATIENCE) == 0
        # Else it was killed; the package waits for it.


async def prompt(agent, session, text):
    return (await agent.prompt(session, [protocol.text_block(text)])).stop_reason


async def failure(awaited):
    try:
        answer = await awaited
    except protocol.RequestError as e:
        return e.code, str(e)
    raise AssertionError(f"it was carried out: {answer}")


async def an_editor_talks_sees_tools_and_finds_its_sessions():
    with Gateway(*AGENT) as gateway:
        editor = Editor()
        async with opened(gateway, editor) as (agent, _):
            made = await agent.new_session("/tmp", mcp_servers=[schema.McpServerStdio(name="m", command="/m", args=[], env=[])])
            session = made.session_id
            assert made.field_meta == {"thread": {"ignored": ["cwd", "mcpServers"]}}, made
            assert made.modes is None and made.config_options is None, made
            await editor.until(lambda: "available_commands_update" in editor.kinds())
            link = protocol.resource_link_block("a.rs", "file:///w/a.rs")
            answered = await agent.prompt(session, [protocol.text_block("See "), link])
            assert answered.stop_reason == "end_turn" and editor.said() == "I know: ", editor.updates
            offered = [command.name for _, update in editor.updates
                       if update.session_update == "available_commands_update" for command in update.available_commands]
            assert offered == ["clear", "status", "clear", "status", "compact"], offered
            editor.updates.clear()
            assert await prompt(agent, session, "work") == "end_turn"
            shown = editor.transcript()
            assert [kind for kind, _ in shown] == [
                "agent_thought_chunk", "agent_message_chunk", "call", "agent_message_chunk", "plan"], shown
            assert editor.said() == "First then that: yes", shown
            call = shown[2][1]
            assert (call["title"], call["kind"], call["status"]) == ("Write to /b", "edit", "completed"), call
            assert call["raw_input"] == {"file": "/b"} and call["locations"] == [{"line": 1, "path": "/b"}], call
            assert call["content"] == [{"type": "diff", "path": "/b", "old_text": "x", "new_text": "y"}], call
            assert shown[-1][1][0]["status"] == "completed", shown
            # Commands: those of the gateway that are offered, the agent's, and anything else for the agent.
            editor.updates.clear()
            assert await prompt(agent, session, "/status") == "end_turn"
            assert session in editor.said(), editor.updates
            editor.updates.clear()
            assert await prompt(agent, session, "/new one") == "end_turn"
            assert editor.said() == "I know: See [@a.rs](file:///w/a.rs);work;", editor.updates
            # Another client speaks, and gives it a name.
            editor.updates.clear()
            other = await gateway.client()
            await other.request("sessions.rename", sessionId=session, title="Mine")
            await other.request("agent", sessionId=session, message="hello")
            await editor.until(lambda: editor.said().endswith("/new one;"))
            assert editor.transcript()[0] == ("user_message_chunk", "hello"), editor.updates
            assert "session_info_update" in editor.kinds(), editor.kinds()
            listed = await agent.list_sessions()
            assert [(one.session_id, one.title) for one in listed.sessions] == [(session, "Mine")], listed
            assert listed.next_cursor is None and listed.sessions[0].updated_at, listed
            # After a close it takes nothing more; it can be opened without its past.
            await agent.close_session(session)
            assert (await failure(prompt(agent, session, "x")))[0] == -32002
            editor.updates.clear()
            await agent.resume_session(session, "/tmp")
            assert await prompt(agent, session, "hello") == "end_turn"
            assert [kind for kind, _ in editor.transcript()] == ["agent_message_chunk", "plan"], editor.updates


async def permission_is_given_refused_cancelled_and_given_elsewhere():
    with Gateway(*AGENT) as gateway:
        editor = Editor("yes")
        async with opened(gateway, editor) as (agent, _):
            session = (await agent.new_session("/tmp")).session_id
            assert await prompt(agent, session, "work a") == "end_turn"
            call, options = editor.asked[0]
            assert [option.kind for option in options] == ["allow_once", "reject_once"], options
            assert call.title == "Write /b" and call.content[0].new_text == "y", call
            assert editor.said().endswith("that: yes"), editor.said()
            editor.choose = "no"
            assert await prompt(agent, session, "work b") == "end_turn"
            assert editor.said().endswith("that: no"), editor.said()
            failed = dict(value for value in editor.transcript() if value[0] == "call")["call"]
            assert failed["status"] == "failed", failed
            # Cancelled while it asks.
            editor.choose = asyncio.get_running_loop().create_future()
            running = asyncio.create_task(prompt(agent, session, "work c"))
            await editor.until(lambda: len(editor.asked) == 3)
            await agent.cancel(session)
            assert await running == "cancelled"
            # Answered on the page, while the editor asks.
            running = asyncio.create_task(prompt(agent, session, "work d"))
            await editor.until(lambda: len(editor.asked) == 4)
            page = await gateway.client()
            await page.request("sessions.switch", sessionId=session)
            request = await page.wait("permission")
            await page.request("permission.answer", sessionId=session,
                               requestId=request["payload"]["requestId"], choice="yes")
            assert await running == "end_turn"
            # A run that does nothing is cancelled, and so is a session that is closed.
            for end in agent.cancel, agent.close_session:
                running = asyncio.create_task(prompt(agent, session, "long"))
                await editor.until(lambda: editor.said().endswith("at work"))
                editor.updates.clear()
                await end(session)
                assert await running == "cancelled"


async def whatever_is_cut_off_the_transcript_is_the_same():
    with Gateway(*AGENT) as gateway:
        whole = Editor()
        async with opened(gateway, whole) as (agent, _):
            session = (await agent.new_session("/tmp")).session_id
            await whole.until(lambda: whole.updates)
            whole.updates.clear()
            await prompt(agent, session, "work")
            expected = [("user_message_chunk", "work")] + whole.transcript()
            frames = len(whole.updates)
        assert frames >= 9, whole.kinds()

        async def load(session):
            editor = Editor()
            async with opened(gateway, editor) as (agent, _):
                await agent.load_session("/tmp", session)
                await editor.until(lambda: editor.transcript() == expected)

        async def cut(after):
            """Kills it after so many frames of the run."""
            editor = Editor()
            async with opened(gateway, editor) as (agent, process):
                session = (await agent.new_session("/tmp")).session_id
                await editor.until(lambda: editor.updates)
                editor.updates.clear()
                asked = asyncio.create_task(agent.prompt(session, [protocol.text_block("work")]))
                # It may be over before: pieces of text are joined if they come close together.
                cut_here = asyncio.create_task(editor.until(lambda: len(editor.updates) >= after))
                await asyncio.wait([asked, cut_here], return_when=asyncio.FIRST_COMPLETED)
                process.kill()
                await process.wait()
                asked.cancel()
                cut_here.cancel()
            await load(session)

        await load(session)
        for first in range(1, frames + 1, 4):
            await asyncio.gather(*[cut(after) for after in range(first, min(first + 4, frames + 1))])


async def an_editor_that_comes_back_finds_what_happened_and_is_asked_at_its_next_prompt():
    with Gateway(*AGENT) as gateway:
        lost = Editor(asyncio.get_running_loop().create_future())
        async with opened(gateway, lost) as (agent, process):
            session = (await agent.new_session("/tmp")).session_id
            running = asyncio.create_task(prompt(agent, session, "work e"))
            await lost.until(lambda: lost.asked)
            process.kill()
            await process.wait()
            running.cancel()
        editor = Editor("yes")
        async with opened(gateway, editor) as (agent, _):
            await agent.load_session("/tmp", session)
            assert [kind for kind, _ in editor.transcript()] == [
                "user_message_chunk", "agent_thought_chunk", "agent_message_chunk", "call", "plan"], editor.updates
            assert not editor.asked
            assert await prompt(agent, session, "hello") == "end_turn"
            assert len(editor.asked) == 1
            assert editor.said() == "First then that: yesI know: work e;", editor.said()
            # The gateway ends while the agent works, and comes back.
            editor.updates.clear()
            editor.choose = asyncio.get_running_loop().create_future()
            running = asyncio.create_task(prompt(agent, session, "work f"))
            await editor.until(lambda: len(editor.asked) == 2)
            gateway.kill()
            gateway.restart()
            editor.choose.set_result("yes")
            assert await running == "end_turn"
            assert editor.said() == "First then that: yes", editor.transcript()
            # It is deleted under the editor.
            other = await gateway.client()
            await other.request("sessions.delete", sessionId=session)
            code, why = await failure(prompt(agent, session, "x"))
            assert code == -32002, why


async def agents_are_modes_and_a_directory_counts_where_it_may():
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "projects/one").mkdir(parents=True)
        file = write(
            folder, {"name": "loud", "command": "tr a-z A-Z", "about": "Says it again, loudly"}, agent_table("memory"),
            {"name": "where", "command": "pwd; cat >/dev/null", "cwd": "projects", "allow": ["cwd"]})
        with Gateway("--agents", file, "--attempts", "1") as gateway:
            editor = Editor()
            async with opened(gateway, editor) as (agent, _):
                made = await agent.new_session("/tmp")
                assert made.modes.current_mode_id == "loud", made
                assert [mode.id for mode in made.modes.available_modes] == ["loud", "memory", "where"], made
                assert made.config_options[0].current_value == "loud", made
                session = made.session_id
                await prompt(agent, session, "hello")
                assert editor.said() == "HELLO", editor.updates
                await agent.set_session_mode(session, "memory")
                assert "current_mode_update" in editor.kinds(), editor.kinds()
                editor.updates.clear()
                await prompt(agent, session, "hello")
                assert editor.said() == "I know: ", editor.updates
                options = await agent.set_config_option("agent", session, "loud")
                assert options.config_options[0].current_value == "loud", options
                # Moved by somebody else.
                editor.updates.clear()
                other = await gateway.client()
                await other.request("sessions.update", sessionId=session, agent="memory")
                await editor.until(lambda: {"current_mode_update", "config_option_update"} <= set(editor.kinds()))
                for call in (agent.set_session_mode(session, "nobody"), agent.set_config_option("agent", session, "nobody"),
                             agent.set_config_option("volume", session, "loud")):
                    assert (await failure(call))[0] == -32602
                assert (await agent.load_session("/tmp", session)).modes.current_mode_id == "memory"
            editor = Editor()
            async with opened(gateway, editor, "--root", str(gateway.root), "--agent", "where") as (agent, _):
                made = await agent.new_session(f"{folder}/projects/one")
                assert made.modes.current_mode_id == "where" and made.field_meta is None, made
                await prompt(agent, made.session_id, "x")
                assert editor.said().strip().endswith("/projects/one"), editor.updates
                code, why = await failure(agent.new_session("/"))
                assert code == -32602 and "cwd" in why, why
            async with opened(gateway, Editor(), "--root", str(gateway.root), "--agent", "nobody") as (agent, _):
                code, why = await failure(agent.new_session("/tmp"))
                assert code == -32602 and "nobody" in why, why


def choosing(*kind):
    return ["--agent", shlex.join([sys.executable, str(HERE / "choosing_agent.py"), *kind]), "--protocol", "acp"]


def current(options):
    return {option.id: option.current_value for option in options or []}


def told(editor):
    """The options of the session, and the agent's mode, as the editor was told last."""
    lists = [update.config_options for _, update in editor.updates if update.session_update == "config_option_update"]
    modes = [update.current_mode_id for _, update in editor.updates if update.session_update == "current_mode_update"]
    return current(lists[-1]) if lists else {}, modes[-1] if modes else None


async def what_the_agent_lets_people_choose_can_be_chosen_in_the_editor():
    for kind, small in ([], None), (["--options"], "small"):
        with Gateway(*choosing(*kind)) as gateway:
            editor = Editor()
            first = {"mode": "ask", **({"model": small} if small else {})}
            async with opened(gateway, editor) as (agent, _):
                made = await agent.new_session("/tmp")
                session = made.session_id
                # It is known once the agent runs.
                assert made.modes is None and made.config_options is None, made
                assert (await failure(agent.set_session_mode(session, "code")))[0] == -32602
                await prompt(agent, session, "what")
                await editor.until(lambda: told(editor)[0] == first)
                assert editor.said() == "ask small", editor.updates
                answer = await agent.set_config_option("mode", session, "code")
                assert current(answer.config_options) == {**first, "mode": "code"}, answer
                editor.updates.clear()
                await prompt(agent, session, "what")
                assert editor.said() == "code small", editor.updates
                for call in (agent.set_config_option("mode", session, "x"), agent.set_config_option("x", session, "ask")):
                    assert (await failure(call))[0] == -32602
            # Who opens it later has its modes.
            editor = Editor()
            async with opened(gateway, editor) as (agent, _):
                loaded = await agent.load_session("/tmp", session)
                assert current(loaded.config_options) == {**first, "mode": "code"}, loaded
                assert [mode.id for mode in loaded.modes.available_modes] == ["ask", "code", "never"], loaded
                assert loaded.modes.current_mode_id == "code" and told(editor) == ({}, None), editor.updates
                await agent.set_session_mode(session, "ask")
                assert told(editor) == (first, "ask"), editor.updates
                # In the middle of a run.
                editor.updates.clear()
                running = asyncio.create_task(prompt(agent, session, "wait"))
                await editor.until(lambda: editor.said() == "waiting ")
                await agent.set_session_mode(session, "code")
                assert await running == "end_turn" and editor.said() == "waiting code small", editor.updates
                # The agent does not take it.
                await agent.set_session_mode(session, "never")
                thoughts = lambda: "".join(text for kind, text in editor.transcript() if kind == "agent_thought_chunk")
                await editor.until(lambda: told(editor)[1] == "code" and "Mode cannot be never" in thoughts())
                assert "not today" in thoughts(), thoughts()
                # It changes it itself, and another client does.
                other = await gateway.client()
                switched = await other.request("sessions.switch", sessionId=session)
                assert [option["current"] for option in switched["options"]][0] == "code", switched
                at = len(other.events)
                updated = await other.request("sessions.update", sessionId=session, options={"mode": "ask"})
                assert updated["options"][0]["current"] == "ask", updated
                assert (await other.wait("option", at))["payload"]["value"] == "ask"
                confirmed = (await other.wait("options", at))["payload"]
                assert confirmed["options"][0]["current"] == "ask" and confirmed["runId"] is None, confirmed
                await editor.until(lambda: told(editor)[1] == "ask")
                # Nothing changes: nothing is stored.
                stored = len(gateway.events(session))
                await other.request("sessions.update", sessionId=session, options={"mode": "ask"})
                assert len(gateway.events(session)) == stored
                await prompt(agent, session, "plan")
                await editor.until(lambda: told(editor)[1] == "code")
                for options, why in (({"mode": "x"}, "it can be: ask, code, never"), ({"x": "ask"}, "has no option 'x'")):
                    said = await other.refused("sessions.update", sessionId=session, options=options)
                    assert said.startswith("bad params: ") and why in said, said
                said = await other.refused("sessions.update", sessionId=session, agent="x", options={"mode": "ask"})
                assert "a request of their own" in said, said
                resumed = await agent.resume_session(session, "/tmp")
                assert resumed.modes.current_mode_id == "code" and current(resumed.config_options)["mode"] == "code"


async def what_was_chosen_holds_for_each_process_of_the_agent_and_wherever_the_editor_is_cut_off():
    with Gateway(*choosing(), "--idle", "0s") as gateway:
        editor = Editor()
        async with opened(gateway, editor) as (agent, _):
            session = (await agent.new_session("/tmp")).session_id
            await prompt(agent, session, "what")
            await editor.until(lambda: told(editor)[0] == {"mode": "ask"})
            # A process that nobody has chosen anything for has what it says itself.
            await prompt(agent, session, "plan")
            await editor.until(lambda: told(editor)[0] == {"mode": "code"})
            await prompt(agent, session, "what")
            await editor.until(lambda: told(editor)[0] == {"mode": "ask"})
            # No process runs.
            await agent.set_config_option("mode", session, "code")
            for _ in range(2):
                editor.updates.clear()
                await prompt(agent, session, "what")
                assert editor.said() == "code small", editor.updates
        # Each chosen one is confirmed once; processes that have it say nothing new.
        kinds = [event["subtype"] for event in gateway.events(session) if event["subtype"] in ("option", "options")]
        assert kinds == ["options", "options", "options", "option", "options"], kinds

    with Gateway(*choosing()) as gateway:
        for cut in range(1, 6) if LONG else (1, 4):
            editor = Editor()
            async with opened(gateway, editor) as (agent, process):
                session = (await agent.new_session("/tmp")).session_id
                await prompt(agent, session, "what")
                await editor.until(lambda: told(editor)[0] == {"mode": "ask"})
                await agent.set_config_option("mode", session, "code")
                asked = asyncio.create_task(agent.prompt(session, [protocol.text_block("what")]))
                frames = asyncio.create_task(editor.until(lambda: len(editor.updates) >= cut + 5))
                messages = lambda: [event for event in gateway.events(session) if event["type"] == "message"]
                while len(messages()) < 3:
                    await asyncio.sleep(0.01)
                await asyncio.wait([asked, frames], return_when=asyncio.FIRST_COMPLETED)
                process.kill()
                await process.wait()
                asked.cancel()
                frames.cancel()
            editor = Editor()
            async with opened(gateway, editor) as (agent, _):
                loaded = await agent.load_session("/tmp", session)
                assert loaded.modes.current_mode_id == "code", (cut, loaded)
                await editor.until(lambda: editor.said().endswith("code small"))


async def an_editors_mcp_servers_reach_the_agent_that_may_have_them():
    digest = lambda text: hashlib.sha256(text.encode()).hexdigest()[:8]
    serve = [sys.executable, str(HERE / "mcp_server.py")]
    server = subprocess.Popen([*serve, "--http"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        with tempfile.TemporaryDirectory() as folder:
            url = server.stdout.readline().strip()
            table = lambda name, **more: {
                "name": name, "command": shlex.join([sys.executable, str(HERE / "choosing_agent.py")]), "protocol": "acp", **more}
            file = write(folder, table("takes", allow=["mcp_servers"]), table("other"))
            own = lambda who: schema.McpServerStdio(
                name="own", command=serve[0], args=serve[1:], env=[schema.EnvVariable(name="WHO", value=who)])
            header = schema.HttpHeader(name="X-Who", value="secret-of-a-header")
            far = schema.HttpMcpServer(type="http", name="far", url=url, headers=[header])
            old = schema.SseMcpServer(type="sse", name="old", url=url, headers=[header])
            with Gateway("--agents", file, "--attempts", "1") as gateway:
                client = await gateway.client()
                assert [agent.get("allow") for agent in client.hello["agents"]] == [["mcp_servers"], None]
                editor = Editor()

                async def says(text):
                    editor.updates.clear()
                    await prompt(agent, session, text)
                    return editor.said()

                async with opened(gateway, editor) as (agent, _):
                    assert (await agent.initialize(protocol.PROTOCOL_VERSION)).agent_capabilities.mcp_capabilities.http
                    made = await agent.new_session("/tmp", mcp_servers=[own("secret-of-a-variable"), far, old])
                    session = made.session_id
                    assert made.field_meta == {"thread": {"ignored": ["cwd"]}}, made
                    kept = gateway.root / session / "mcp-servers.json"
                    assert kept.stat().st_mode & 0o777 == 0o600
                    # One is of a kind that the agent cannot reach.
                    assert await says("servers") == "own far"
                    assert any(kind == "agent_thought_chunk" and text.strip().endswith(": old")
                               for kind, text in editor.transcript()), editor.updates
                    assert await says("call own") == digest("secret-of-a-variable")
                    assert await says("call far") == digest("secret-of-a-header")
                    # A new process has them, too.
                    assert (await failure(prompt(agent, session, "end")))[0] == -32603
                    assert await says("call own") == digest("secret-of-a-variable")
                    # The secrets are in that file alone.
                    found = [path for path in gateway.root.rglob("*") if path.is_file() and b"secret-of-a" in path.read_bytes()]
                    assert found == [kept] and "secret-of-a" not in gateway.output(), found
                    # An agent that may not have them has none; the first has them again.
                    for name, servers in ("other", "none"), ("takes", "own far"):
                        await client.request("sessions.update", sessionId=session, agent=name)
                        assert await says("servers") == servers
                    # Others replace them, for the agent that is running, too.
                    assert (await agent.load_session("/tmp", session, mcp_servers=[own("another")])).field_meta == {
                        "thread": {"ignored": ["cwd"]}}
                    assert await says("servers") == "own" and await says("call own") == digest("another")
                    await agent.resume_session(session, "/tmp", mcp_servers=[far])
                    assert await says("servers") == "far"
                    await agent.load_session("/tmp", session, mcp_servers=[])
                    assert await says("servers") == "none" and not kept.exists()
                    large = own("x" * (256 << 10))
                    code, why = await failure(agent.new_session("/tmp", mcp_servers=[large]))
                    assert code == -32602 and "256 KiB" in why, why
                # Not for an agent that may not have them, nor at a gateway that may be anywhere.
                for options in ("--agent", "other", "--root", str(gateway.root)), ("--url", gateway.url, "--root", str(gateway.root)):
                    async with opened(gateway, Editor(), *options) as (agent, _):
                        made = await agent.new_session("/tmp", mcp_servers=[far])
                        assert made.field_meta == {"thread": {"ignored": ["cwd", "mcpServers"]}}, made
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


async def a_failed_run_is_an_error_and_what_cannot_be_reached_is_said():
    with Gateway("--agent", "sh -c 'cat >/dev/null; echo half; exit 3'", "--attempts", "1") as gateway:
        editor = Editor()
        async with opened(gateway, editor) as (agent, _):
            session = (await agent.new_session("/tmp")).session_id
            code, why = await failure(prompt(agent, session, "x"))
            assert code == -32603 and "exit" in why, why
            assert editor.said().startswith("half"), editor.updates
            for blocks, said in (
                ([], "empty"), ([protocol.image_block("no base64", "image/png")], "base64"),
                ([protocol.text_block("x" * (1 << 20))], "1 MiB"),
            ):
                code, why = await failure(agent.prompt(session, blocks))
                assert code == -32602 and said in why, why
            code, why = await failure(agent.load_session("/tmp", "3e0f4a4a-0000-4000-8000-000000000000"))
            assert code == -32002, why
            assert (await failure(agent.load_session("/tmp", "../x")))[0] in (-32002, -32602)
            # For a gateway that has gone, too, what was typed is not lost without a word.
            gateway.kill()
            with tempfile.TemporaryDirectory() as nowhere:
                for options, said in (
                    (("--root", nowhere), "no gateway has been started here"),
                    (("--url", gateway.url), "cannot reach the gateway"),
                ):
                    async with opened(gateway, Editor(), *options) as (other, _):
                        code, why = await failure(other.new_session("/tmp"))
                        assert code == -32603 and said in why and " - " in why, why
            gateway.restart()


async def images_in_a_prompt_reach_the_agent():
    pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    script = "cat; echo; IFS='\n'; for file in $THREAD_ATTACHMENTS; do wc -c <\"$file\"; done"
    with Gateway("--agent", shlex.join(["sh", "-c", script])) as gateway:
        editor = Editor()
        async with opened(gateway, editor) as (agent, _):
            told = await agent.initialize(protocol.PROTOCOL_VERSION)
            assert told.agent_capabilities.prompt_capabilities.image, told
            session = (await agent.new_session("/tmp")).session_id
            zipped = protocol.resource_block(protocol.embedded_blob_resource("file:///w/a.zip", "UEsDBA=="))
            blocks = [protocol.text_block("Look: "), protocol.image_block(pixel, "image/png"), zipped]
            assert (await agent.prompt(session, blocks)).stop_reason == "end_turn"
            said = editor.said().split("\n")
            assert said[0] == "Look: [@a.zip](file:///w/a.zip)" and [line.strip() for line in said if line.strip().isdigit()] == ["70", "4"], said
            # Whoever opens the session sees it.
            editor.updates.clear()
            await agent.load_session("/tmp", session)
            shown = [update.content for _, update in editor.updates if update.session_update == "user_message_chunk"]
            assert [part.type for part in shown] == ["text", "resource_link", "resource_link"], shown
            assert shown[1].mime_type == "image/png" and shown[2].name == "a.zip", shown


async def an_editor_that_sends_nonsense_is_told_and_served():
    with Gateway(*AGENT) as gateway:
        command = subprocess.Popen([ACP, "--root", gateway.root], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT)

        def sends(line, expects=True):
            command.stdin.write((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n")
            command.stdin.flush()
            return json.loads(command.stdout.readline()) if expects else None

        def code(line, id=None):
            answer = sends(line)
            assert answer["jsonrpc"] == "2.0" and answer["id"] == id, answer
            return answer["error"]["code"]

        assert code(b"{") == -32700
        assert code(b"\xff\xfe") == -32700
        assert code(b"[" * 100_000) == -32700
        assert code(b"x" * (9 << 20)) == -32700
        assert code(b"[]") == -32600
        assert code({"id": {}, "method": "initialize"}) == -32600
        assert code({"id": 1, "method": "session/nonsense", "params": {}}, 1) == -32601
        assert code({"id": "a", "method": "authenticate", "params": {"methodId": "x"}}, "a") == -32601
        assert code({"id": 2, "method": "initialize"}, 2) == -32602
        assert code({"id": 3, "method": "session/new", "params": {"cwd": 7}}, 3) == -32602
        text = [{"type": "text", "text": "x"}]
        for session in "nobody", "", "../..":
            unknown = {"id": 4, "method": "session/prompt", "params": {"sessionId": session, "prompt": text}}
            assert code(unknown, 4) == -32002
        assert code({"id": 5, "method": "session/list", "params": {"cursor": "x"}}, 5) == -32602
        # What needs no answer gets none.
        for line in (
            b"", {"method": "session/nonsense"}, {"method": "session/cancel", "params": {"sessionId": "nobody"}},
            {"method": "session/cancel"}, {"method": "$/cancel_request", "params": {"requestId": 77}},
            {"id": 99, "result": {}}, {"id": "never", "error": {"code": 1, "message": "x"}},
        ):
            sends(line, expects=False)
        told = sends({"jsonrpc": "2.0", "id": 6, "method": "initialize", "params": {"protocolVersion": 99}})
        assert (told["id"], told["result"]["protocolVersion"]) == (6, 1), told
        # A prompt is cancelled by its id.
        session = sends({"id": 7, "method": "session/new", "params": {"cwd": "/tmp", "mcpServers": []}})["result"]["sessionId"]
        sends({"id": 8, "method": "session/prompt",
               "params": {"sessionId": session, "prompt": [{"type": "text", "text": "long"}]}}, expects=False)
        while "at work" not in (line := command.stdout.readline().decode()):
            assert line
        sends({"method": "$/cancel_request", "params": {"requestId": 8}}, expects=False)
        while (answer := json.loads(command.stdout.readline())).get("id") != 8:
            pass
        assert answer["result"] == {"stopReason": "cancelled"}, answer
        # A request for permission that is answered elsewhere is taken back.
        sends({"id": 10, "method": "session/prompt",
               "params": {"sessionId": session, "prompt": [{"type": "text", "text": "work x"}]}}, expects=False)
        while (asked := json.loads(command.stdout.readline())).get("method") != "session/request_permission":
            pass
        page = await gateway.client()
        await page.request("sessions.switch", sessionId=session)
        request = (await page.wait("permission"))["payload"]["requestId"]
        await page.request("permission.answer", sessionId=session, requestId=request, choice="no")
        while (taken := json.loads(command.stdout.readline())).get("method") != "$/cancel_request":
            assert taken.get("id") != 10, taken
        assert taken["params"] == {"requestId": asked["id"]}, taken
        # It is deleted; a second time does no harm.
        for id in 11, 12:
            sends({"id": id, "method": "session/delete", "params": {"sessionId": session}}, expects=False)
            while (answer := json.loads(command.stdout.readline())).get("id") != id:
                pass
            assert answer["result"] == {}, answer
        # An editor that no longer reads.
        command.stdout.close()
        sends({"id": 9, "method": "initialize", "params": {"protocolVersion": 1}}, expects=False)
        assert command.wait(PATIENCE) == 0
        for words, said in (["--url", "ftp://x"], "is not a gateway's address"), (["--nonsense"], "--nonsense"):
            done = subprocess.run([ACP, *words], capture_output=True, text=True, env=ENVIRONMENT)
            assert done.returncode == 2 and done.stderr.startswith("Error: ") and said in done.stderr, done


async def the_npm_package_talks_is_asked_and_loads():
    folder = os.environ.get("GATEWAY_ACP")
    if not folder:
        return print("SKIPPED: needs @agentclientprotocol/sdk")
    with Gateway(*AGENT) as gateway:
        done = subprocess.run(
            ["node", HERE / "editors.mjs", ACP, "--root", gateway.root], capture_output=True, text=True,
            env={**ENVIRONMENT, "NODE_MODULES": f"{folder}/node_modules"}, timeout=PATIENCE)
        assert done.returncode == 0, done
    with Gateway(*choosing("--options")) as gateway:
        done = subprocess.run(
            ["node", HERE / "editors_choose.mjs", ACP, "--root", gateway.root], capture_output=True, text=True,
            env={**ENVIRONMENT, "NODE_MODULES": f"{folder}/node_modules"}, timeout=PATIENCE)
        assert done.returncode == 0, done


if __name__ == "__main__":
    run(globals())
