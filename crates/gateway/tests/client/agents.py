"""Agents with names: which a session has, and how it is moved to another."""

import asyncio
import json
import os
import pathlib
import random
import shlex
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

from harness import LONG, PATIENCE, SERVE, Gateway, Refused, run

HERE = pathlib.Path(__file__).parent
PYTHON = shlex.quote(sys.executable)


def write(folder, *tables):
    """Writes a file of agents: a dictionary for each. Returns its path."""
    file = pathlib.Path(folder, "agents.toml")
    # JSON's texts, lists and numbers are TOML's.
    value = lambda v: "{" + ", ".join(f"{json.dumps(k)} = {json.dumps(w)}" for k, w in v.items()) + "}" if isinstance(v, dict) else json.dumps(v)
    file.write_text("\n".join("[[agent]]\n" + "".join(f"{k} = {value(v)}\n" for k, v in table.items()) for table in tables))
    return file


def acp(name, **more):
    return {"name": name, "command": f"{PYTHON} {shlex.quote(str(HERE))}/acp_agent.py", "protocol": "acp", **more}


def moves(gateway, session):
    """The names of the agents that a session was moved to, in order."""
    return [json.loads(event["content"])["name"] for event in gateway.events(session) if event["subtype"] == "agent"]


async def answer(client, session, text):
    """Sends a message, and returns the answer."""
    key = os.urandom(8).hex()
    run_id = (await client.request("agent", sessionId=session, message=text, idempotencyKey=key))["runId"]
    is_end = lambda e: e["payload"].get("runId") == run_id and (
        e["event"] in ("final", "cancelled") or e["event"] == "error" and not e["payload"]["retryable"])
    return (await client.wait(is_end))["payload"].get("content")


async def sessions_choose_among_the_agents_of_a_file():
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "projects/one").mkdir(parents=True)
        pathlib.Path(folder, "keys").write_text("KEY=secret\n")
        file = write(
            folder,
            {"name": "loud", "command": "tr a-z A-Z", "about": "Says it again, loudly", "prompts": ["hello"]},
            {"name": "where", "command": "pwd; echo $KEY $MOOD; cat >/dev/null", "cwd": "own/{session}",
             "env": {"MOOD": "it's fine"}, "env_file": "keys"},
            {"name": "projects", "command": "pwd; cat >/dev/null", "cwd": "projects", "allow": ["cwd"]},
            {"name": "model", "url": "openai:http://127.0.0.1:9/v1#small", "allow": ["model"]},
        )
        with Gateway("--agents", file, "--attempts", "1") as gateway:
            client = await gateway.client()
            listed = client.hello["agents"]
            assert [agent["name"] for agent in listed] == ["loud", "where", "projects", "model"]
            assert listed[0] == {"name": "loud", "about": "Says it again, loudly", "prompts": ["hello"]}
            assert listed[2]["allow"] == ["cwd"]

            first = await client.request("sessions.new")
            assert first["agent"] == "loud"
            assert await answer(client, first["sessionId"], "hello") == "HELLO"

            own = await client.request("sessions.new", agent="where", title="mine")
            session = own["sessionId"]
            assert own["agent"] == "where"
            assert await answer(client, session, "x") == f"{folder}/own/{session}\nsecret it's fine\n"
            assert pathlib.Path(folder, "own", session).stat().st_mode & 0o777 == 0o700
            assert (await client.request("sessions.switch", sessionId=session))["agent"] == "where"
            assert (await client.request("status"))["session"]["agent"] == "where"
            shown = {s["id"]: s.get("agent") for s in (await client.request("sessions.list"))["sessions"]}
            assert shown == {session: "where", first["sessionId"]: "loud"}

            chosen = await client.request("sessions.new", agent="projects", cwd="one")
            assert await answer(client, chosen["sessionId"], "x") == f"{folder}/projects/one\n"
            model = (await client.request("sessions.new", agent="model", model="large"))["sessionId"]
            [agent] = json.loads(gateway.thread("info", "--json", session=model))["subscriptions"]
            assert " --model large " in agent["handler_cmd"], agent

            count = len((await client.request("sessions.list"))["sessions"])
            for params, why in [
                ({"agent": "nobody"}, "there is no agent 'nobody'; there are: loud, where, projects, model"),
                ({"model": "x"}, "'model' cannot be chosen for the agent 'loud'"),
                ({"agent": "where", "cwd": "/"}, "'cwd' cannot be chosen for the agent 'where'"),
                ({"agent": "projects", "cwd": ".."}, "'cwd' is not a directory below that of the agent"),
                ({"agent": "projects", "cwd": "/etc"}, "'cwd' is not a directory below that of the agent"),
                ({"agent": "projects", "cwd": "two"}, "'cwd' is no directory of the gateway's machine"),
            ]:
                assert await client.refused("sessions.new", **params) == f"bad params: {why}"
            assert len((await client.request("sessions.list"))["sessions"]) == count

            # By a command, which says so.
            at = len(client.events)
            await client.request("agent", message="/new @where some title")
            said = (await client.wait("message", at))["payload"]
            assert said["content"].endswith("with where."), said
            made = await client.request("sessions.switch", sessionId=said["sessionId"])
            assert (made["title"], made["agent"]) == ("some title", "where")
            at = len(client.events)
            await client.request("agent", message="/new @nobody")
            assert "there is no agent 'nobody'" in (await client.wait("message", at))["payload"]["content"]

            # By an AG-UI client, when it makes a session.
            body = {"threadId": "t", "runId": "r", "messages": [{"id": "m", "role": "user", "content": "x"}],
                    "tools": [], "context": [], "state": {}, "forwardedProps": {}}
            for agent, status in [("nobody", 400), ("where", 200), ("nobody", 200)]:
                request = urllib.request.Request(
                    f"{gateway.url}/api/v1/agent/run?agent={agent}", json.dumps(body).encode(),
                    {"Authorization": f"Bearer {gateway.token}", "Content-Type": "application/json"})
                try:
                    got = await asyncio.to_thread(lambda: urllib.request.urlopen(request).read().decode())
                    assert status == 200 and "secret it's fine" in got, got
                except urllib.error.HTTPError as e:
                    assert e.code == status, (agent, e)

            # A copy has the same agent, with what was chosen; its own directory is another.
            copy = await client.request("sessions.fork", sessionId=session)
            assert copy["agent"] == "where"
            assert (await answer(client, copy["sessionId"], "x")).startswith(f"{folder}/own/{copy['sessionId']}\n")
            copy = await client.request("sessions.fork", sessionId=chosen["sessionId"])
            assert await answer(client, copy["sessionId"], "x") == f"{folder}/projects/one\n"

        # --agent names the first, or adds one.
        for option, names in [("where", ["where", "loud", "projects", "model"]), ("cat", ["cat", "loud", "where", "projects", "model"])]:
            with Gateway("--agents", file, "--agent", option) as gateway:
                client = await gateway.client()
                assert [agent["name"] for agent in client.hello["agents"]] == names
                assert (await client.request("sessions.new"))["agent"] == option


async def an_agent_behind_ag_ui_answers():
    with tempfile.TemporaryDirectory() as folder:
        program = HERE.parents[3] / "fixtures/ag_ui_agent.py"
        server = subprocess.Popen([sys.executable, program, "--log", f"{folder}/requests"], stdout=subprocess.PIPE, text=True)
        try:
            url = server.stdout.readline().strip()
            pathlib.Path(folder, "keys").write_text("KEY=secret\n")
            remote = {"name": "remote", "url": f"ag-ui:{url}", "env_file": "keys", "key_env": "KEY", "permit": "allow"}
            file = write(folder, remote, {"name": "loud", "command": "tr a-z A-Z"})
            with Gateway("--agents", file) as gateway:
                client = await gateway.client()
                session = (await client.request("sessions.new"))["sessionId"]
                assert await answer(client, session, "hello") == "1: hello"
                assert await answer(client, session, "delete it") == "The tool says a.txt is deleted"
                await client.request("sessions.update", sessionId=session, agent="loud")
                assert await answer(client, session, "loud") == "LOUD"
                await client.request("sessions.update", sessionId=session, agent="remote")
                assert await answer(client, session, "bye") == "4: bye"
            asked = [json.loads(line) for line in open(f"{folder}/requests")]
            assert [message["content"] for message in asked[-1]["body"]["messages"] if message["role"] == "user"] == [
                "hello", "delete it", "loud", "bye"]
            assert asked[0]["body"]["threadId"] != asked[-1]["body"]["threadId"]
            assert all(one["key"] == "Bearer secret" for one in asked)
            with Gateway("--agent", f"ag-ui:{url}") as gateway:
                client = await gateway.client()
                session = (await client.request("sessions.new"))["sessionId"]
                assert await answer(client, session, "hello") == "1: hello"
        finally:
            server.kill()
            server.wait()


async def a_file_with_mistakes_is_refused_by_file_table_and_key():
    with tempfile.TemporaryDirectory() as folder:
        def refused(*options, code=2):
            command = [SERVE, "--root", f"{folder}/root", "--listen", "127.0.0.1:0", *map(str, options)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=folder)
            assert done.returncode == code and not pathlib.Path(folder, "root").exists(), done
            assert done.stderr.startswith("Error: ") and " - " in done.stderr and done.stderr.count("\n") == 1, done
            return done.stderr
        good = {"name": "a", "command": "cat"}
        for key, value, why in [
            ("commnd", "x", "unknown key"), ("name", "a b", "a name is 1 to 64"), ("name", 1, "not a text"),
            ("command", "", "it is empty"), ("url", "openai:http://h/v1#m", "has a command, too"),
            ("protocol", "tcp", "'tcp' is not one of exec, ndjson, acp, openai"), ("protocol", "openai", "for a model"),
            ("permit", "maybe", "not one of ask, allow, reject"), ("permit_wait", "soon", "not a duration"),
            ("permit_wait", -1, "not a duration"), ("cwd", "nowhere", "is not a directory"), ("env", "A=b", "not a table"),
            ("env", {"A B": "x"}, "cannot have this name"), ("env", {"THREAD_DIR": "x"}, "set by thread"),
            ("key_env", "KEY", "for a model at url only"), ("system", "x", "for a model at url only"),
            ("tools", "yes", "not true or false"), ("tools", True, 'protocol = "acp"'), ("about", "x" * 1001, "longer than"),
            ("prompts", "x", "not a list"), ("prompts", [1], "not a text"), ("allow", ["root"], "not one of model, cwd"),
            ("allow", ["model"], "only for a model"), ("allow", ["mcp_servers"], 'only an agent with protocol = "acp"'), ("task_model", "small", "not a model whose URL"), ("task_model", 1, "not a text"),
        ]:
            file = write(folder, {"name": "z", "command": "cat"}, {**good, key: value})
            error = refused("--agents", file)
            assert f"{file}, [[agent]] 2" in error and f", {key}" in error and why in error, (key, value, error)
        for tables, why in [
            ([], "has no table [[agent]]"), ([good, good], "another agent has the name 'a'"),
            ([{"command": "cat"}], "name: it is missing"), ([{"name": "a"}], "neither a command nor a url"),
            ([{"name": "a", "url": "ag-ui:ftp://h"}], "url: it must begin with http"),
            ([{"name": "a", "url": "ag-ui:http://h", "protocol": "acp"}], "asked by the protocol ag-ui"),
            ([{"name": "a", "url": "ag-ui:http://h", "system": "x"}], "system: it is for a model"),
            ([{"name": "a", "command": "cat", "protocol": "ag-ui"}], "ag-ui is for an agent at a url"),
            ([{"name": "a", "command": "ag-ui:http://h"}], "it is a server, not a command"),
            ([{"name": "a", "url": "http://h"}], "is not openai:URL#MODEL"),
            ([{**good, "task_model": "openai:http://h"}], "'openai:http://h' names no model"),
            ([{**good, "name": "a" * 60, "task_model": "openai:http://h#m"}], "name: it is too long"),
            ([{**good, "task_model": "openai:http://h#m"}, {**good, "name": "a.tasks"}], "another agent has the name 'a.tasks'"),
            ([{"name": "a", "command": "no-such-program-here"}], "there is no program 'no-such-program-here' for command"),
        ]:
            error = refused("--agents", write(folder, *tables), code=1 if "no program" in why else 2)
            assert f"{folder}/agents.toml" in error and why in error, error
        broken = pathlib.Path(folder, "broken.toml")
        broken.write_text("[[agent]]\nname = 'a'\ncommand = \n")
        assert f"{broken}, line 3" in refused("--agents", broken)
        broken.write_text("agents = 1\n")
        assert "unknown key 'agents'" in refused("--agents", broken)
        assert "cannot read" in refused("--agents", "no.toml", code=1)
        assert "two agents are called 'cat'" in refused("--agents", write(folder, {"name": "cat", "command": "cat"}), "--agent", "cat -")


async def a_session_is_moved_to_another_agent_which_knows_what_was_said():
    with tempfile.TemporaryDirectory() as folder:
        record = "import json,sys\nfor line in sys.stdin:\n    said = json.loads(line)\n    print(json.dumps({'event':'final','content':json.dumps(said.get('transcript'))}), flush=True)\n"
        pathlib.Path(folder, "told.py").write_text(record)
        file = write(
            folder, acp("one"), acp("two"),
            {"name": "told", "command": f"{PYTHON} told.py", "protocol": "ndjson"},
            {"name": "slow", "command": "until [ -e go ]; do sleep 0.05; done; echo slow"},
        )
        with Gateway("--agents", file, cwd=folder) as gateway:
            client, other = await gateway.client(), await gateway.client()
            session = (await client.request("sessions.new"))["sessionId"]
            await other.request("sessions.switch", sessionId=session)
            assert await answer(client, session, "a") == "I know: "
            assert await answer(client, session, "b") == "I know: a;"

            moved = await client.request("sessions.update", sessionId=session, agent="two")
            assert moved == {"sessionId": session, "agent": "two"}
            # Everybody is told, and it is part of the history.
            told = (await other.wait(lambda e: e["event"] == "message" and e["payload"]["role"] == "system"))
            assert told["payload"]["content"] == "From here on, the agent is two." and told["seq"], told
            assert told["payload"]["metadata"] == {"agent": "two"}
            history = (await client.request("sessions.history", sessionId=session))["messages"]
            assert history[-1]["role"] == "system" and history[-1]["metadata"] == {"agent": "two"}, history
            # The program of the first, which is idle, is not asked any more; nor is its session resumed by the second.
            assert await answer(client, session, "c") == "I know: "
            assert await answer(client, session, "d") == "I know: c;"
            # Repeated, it is the same move.
            await client.request("sessions.update", sessionId=session, agent="two")
            assert moves(gateway, session) == ["two"]
            shown = (await client.request("sessions.list"))["sessions"]
            assert [s["agent"] for s in shown] == ["two"], shown

            await client.request("sessions.update", sessionId=session, agent="told")
            transcript = json.loads(await answer(client, session, "e"))
            assert [s["content"] for s in transcript if s["role"] == "user"] == ["a", "b", "c", "d"], transcript

            # A run under way is finished by its agent, and the next one is the other's.
            await client.request("sessions.update", sessionId=session, agent="slow")
            under_way = asyncio.create_task(answer(client, session, "f"))
            await client.wait(lambda e: e["event"] == "status" and e["payload"]["status"] == "started", len(client.events))
            await client.request("sessions.update", sessionId=session, agent="told")
            next_one = asyncio.create_task(answer(client, session, "g"))
            await asyncio.sleep(0.2)
            assert not under_way.done() and not next_one.done()
            pathlib.Path(folder, "go").touch()
            assert await under_way == "slow\n"
            transcript = json.loads(await next_one)
            assert transcript[-2:] == [{"role": "user", "content": "f"}, {"role": "assistant", "content": "slow\n"}]

            for params, why in [
                ({}, "give 'agent', 'model' or 'cwd'"), ({"agent": "nobody"}, "there is no agent 'nobody'"),
                ({"model": "x"}, "'model' cannot be chosen for the agent 'told'"),
            ]:
                assert why in await client.refused("sessions.update", sessionId=session, **params)
            assert moves(gateway, session) == ["two", "told", "slow", "told"]

        with Gateway("--agents", file, "--read-only", cwd=folder) as gateway:
            client = await gateway.client()
            missing = "6e0a5f9e-0d2b-4f43-9a53-5c9f6c0f6d0a"
            assert "read-only" in await client.refused("sessions.update", sessionId=missing, agent="two")


async def a_move_is_done_or_not_begun_whatever_is_killed():
    rounds = 60 if LONG else 12
    with tempfile.TemporaryDirectory() as folder:
        file = write(folder, *({"name": name, "command": f"echo {name}; cat >/dev/null"} for name in ("one", "two")))
        with Gateway("--agents", file, cwd=folder) as gateway:
            client = await gateway.client()
            session = (await client.request("sessions.new"))["sessionId"]
            expected = []
            for n in range(rounds):
                name = ["two", "one"][n % 2]
                asked = client.send("sessions.update", {"sessionId": session, "agent": name})
                await asyncio.sleep(random.uniform(0, 0.012))
                gateway.kill()
                await asyncio.wait([asked])
                asked.exception()
                gateway.restart()
                client = await gateway.client()
                if n % 3 == 0:
                    # What is said is answered by one of the two, whatever has become of the move.
                    assert await answer(client, session, f"between {n}") in ("one\n", "two\n")
                await client.request("sessions.update", sessionId=session, agent=name)
                assert await answer(client, session, f"{n}") == f"{name}\n"
                expected.append(name)
                assert moves(gateway, session) == expected
            stored = gateway.events(session)
            said = [e["id"] for e in stored if e["type"] == "message" and e["source"] != "self"]
            ended = [e["metadata"]["reply_to"] for e in stored if e["type"] == "message" and e["source"] == "self"]
            assert sorted(ended) == said, (said, ended)


async def the_agent_stores_the_move_if_the_gateway_was_killed_before_it_could():
    with tempfile.TemporaryDirectory() as folder:
        file = write(folder, {"name": "one", "command": "echo one"}, {"name": "two", "command": "echo two"})
        with Gateway("--agents", file, cwd=folder) as gateway:
            client = await gateway.client()
            session = (await client.request("sessions.new"))["sessionId"]
            await client.request("sessions.update", sessionId=session, agent="two")
            [agent] = json.loads(gateway.thread("info", "--json", session=session))["subscriptions"]
            # As it is if the gateway is killed after it has changed the subscription.
            other = (await client.request("sessions.new"))["sessionId"]
            gateway.thread("subscribe", "agent", "--replace", "--handler", agent["handler_cmd"], session=other)
            assert moves(gateway, other) == []
            assert await answer(client, other, "x") == "two\n"
            assert moves(gateway, other) == ["two"]


async def with_agent_for_all_a_session_keeps_its_agent_and_gets_the_options_of_today():
    with tempfile.TemporaryDirectory() as folder:
        file = write(folder, {"name": "one", "command": "echo one"}, {"name": "two", "command": "echo two"})
        with Gateway("--agents", file, "--agent-for-all", cwd=folder) as gateway:
            client = await gateway.client()
            first = (await client.request("sessions.new"))["sessionId"]
            second = (await client.request("sessions.new"))["sessionId"]
            await client.request("sessions.update", sessionId=second, agent="two")
            assert [await answer(client, session, "x") for session in (first, second)] == ["one\n", "two\n"]
            gateway.kill()
            write(folder, {"name": "three", "command": "echo three"}, {"name": "two", "command": "echo TWO"})
            gateway.restart()
            client = await gateway.client()
            assert [await answer(client, session, "y") for session in (first, second)] == ["three\n", "TWO\n"]
            assert moves(gateway, second) == ["two"] and moves(gateway, first) == []


if __name__ == "__main__":
    run(globals())
