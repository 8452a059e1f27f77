"""What chat programs send when people edit, try again, stop and go back, replayed from recordings of the programs.

A recording is a list of steps, each with the requests that the program made for it, at the same time. `session` names
the session in which a request must end: one name is one session, another name another. A request of the kind `task` is
for a title or the like, and must end in no conversation. `stopped` is how much of the answer the program had shown when
it closed the connection. The agents are those that answered when it was recorded.
"""

import asyncio
import json
import pathlib
import subprocess
import sys
import tempfile

import httpx

from agents import write
from answers import until
from crowd import HERE
from harness import PATIENCE, Gateway, run
from openai_api import talk

# Hangs when it is asked for "uno".
LATE = 'read line; case "$line" in uno) sleep 600;; esac; echo "$line" | tr a-z A-Z'


class Replay:
    def __init__(self, gateway, log):
        self.gateway, self.log = gateway, log
        # The sessions by the names that the recording has for them, and how much of stopped answers was shown.
        self.sessions, self.stopped, self.tasks = {}, set(), set()
        # The ids of calls, by those of the recording.
        self.calls = {}

    async def step(self, http, step):
        ends = await asyncio.gather(*(self.request(http, one) for one in step["requests"]))
        for one, (session, answer, reasoning) in zip(step["requests"], ends):
            what = (step["did"], one, self.sessions)
            if one.get("kind") == "task":
                assert answer and session not in self.sessions.values(), what
                self.tasks.add(session)
            elif "session" in one:
                name = one["session"]
                others = [id for other, id in self.sessions.items() if other != name]
                assert self.sessions.setdefault(name, session) == session and session not in others, what
                if "stopped" not in one:
                    assert ("let me see" in reasoning) == (one["body"]["model"] == "helper"), (what, reasoning)
                    await self.check(one["body"], session, answer, what)


    def events(self, name):
        return self.gateway.events(self.sessions[name])

    async def request(self, http, one):
        body = json.dumps(one["body"])
        for recorded, id in self.calls.items():
            body = body.replace(recorded, id)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.gateway.token}", **one.get("headers", {})}
        answer = reasoning = ""
        async with http.stream("POST", "/v1/chat/completions", content=body, headers=headers) as response:
            if (status := one.get("status", 200)) != 200:
                assert response.status_code == status and "error" in json.loads(await response.aread()), one
                return None, None, None
            assert response.status_code == 200, await response.aread()
            session, stopped = response.headers["x-session-id"], one.get("stopped")
            if stopped is not None:
                self.stopped.add(stopped.strip())
            if stopped == "":
                has_begun = lambda: any(event.get("subtype") == "run" for event in self.gateway.events(session))
                await until(has_begun)
                return session, "", ""
            if not one["body"].get("stream"):
                return session, json.loads(await response.aread())["choices"][0]["message"]["content"], ""
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                for choice in json.loads(line[6:])["choices"]:
                    delta = choice["delta"]
                    answer += delta.get("content") or ""
                    reasoning += delta.get("reasoning_content") or ""
                    for call in delta.get("tool_calls") or []:
                        self.calls[one["call"]] = call["id"]
                if stopped is not None and answer.startswith(stopped.strip()):
                    break
        return session, answer, reasoning

    async def check(self, body, session, answer, what):
        """What is shown is what the session has, and what the model was given."""
        shown = []
        for message in body["messages"]:
            if message["role"] == "user":
                shown.append([message["content"], []])
            elif message["role"] == "assistant":
                shown[-1][1].append(message["content"])
        if body["messages"][-1]["role"] == "user" and "call" not in what[1]:
            last = shown[-1][0]
            expected = last.upper() if body["model"] == "late" else json.loads(last)[-1]["say"] if body["model"] == "scripted" else last
            assert answer.strip() == expected, (what, answer)
        has = await asyncio.to_thread(talk, self.gateway, session)
        assert [said for said, _ in has] == [said for said, _ in shown], (what, has)
        for (_, there), (_, here) in zip(has[:-1], shown[:-1]):
            is_stopped = "".join(here).strip() in self.stopped
            assert (there or "").strip() in map(str.strip, here) or is_stopped and (there is None or not here), (what, has)
        if body["model"] in ("helper", "plain") and not any("".join(here).strip() in self.stopped for _, here in shown[:-1]):
            given = [json.loads(line)["body"] for line in self.log.read_text().splitlines()]
            of = lambda messages: [(m["role"], m["content"]) for m in messages if m["role"] != "system"]
            assert any(of(one["messages"]) == of(body["messages"]) for one in given), (what, given[-1])


async def replay(name):
    recording = json.loads((HERE / "recordings" / f"{name}.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder, "log")
        model = [sys.executable, HERE.parents[3] / "fixtures/model.py", "0", "--log", log]
        with subprocess.Popen(model, stdout=subprocess.PIPE, text=True) as models:
            try:
                url = models.stdout.readline().strip()
                at = lambda model: f"openai:{url}#{model}"
                file = write(folder, {"name": "helper", "url": at("think"), "task_model": "echo"}, {"name": "plain", "url": at("echo")},
                             {"name": "slow", "url": at("slow")}, {"name": "late", "command": LATE}, {"name": "scripted", "url": at("script")})
                with Gateway("--agents", file) as gateway:
                    replaying = Replay(gateway, log)
                    async with httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE) as http:
                        for step in recording["steps"]:
                            await replaying.step(http, step)
                    client = await gateway.client()
                    listed = {one["id"] for one in (await client.request("sessions.list", limit=100))["sessions"]}
                    assert listed == set(replaying.sessions.values()), (listed, replaying.sessions)
                    await client.close()
            finally:
                models.kill()


async def what_open_webui_sends_ends_in_the_conversation_that_it_shows():
    await replay("open-webui")


async def what_librechat_sends_ends_in_the_conversation_that_it_shows():
    await replay("librechat")


if __name__ == "__main__":
    run(globals())
