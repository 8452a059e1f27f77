"""What agents take: tokens and money, in answers, in figures, and up to a budget."""

import asyncio
import pathlib
import re
import shlex
import sys
import tempfile
import urllib.request

from agents import answer, write
from harness import Gateway, run

# Each answer has taken 100 tokens and a quarter; `fail` fails after as much; `free` says nothing of it.
AGENT = """
import json, sys
for line in sys.stdin:
    text = json.loads(line)["content"]
    usage = {"input_tokens": 90, "output_tokens": 10, "cached_tokens": 40, "reasoning_tokens": 3}
    taken = {} if text == "free" else {"usage": usage, "cost": {"amount": 0.25, "currency": "USD"}}
    end = {"event": "error", "error": "no"} if text == "fail" else {"event": "final", "content": text}
    print(json.dumps({**end, **taken}), flush=True)
"""

ACP = """
import json, sys
total = 0
def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    method, result = message.get("method"), {}
    if method == "initialize":
        result = {"protocolVersion": 1, "agentCapabilities": {}}
    elif method == "session/new":
        result = {"sessionId": "s"}
    elif method == "session/prompt":
        for _ in range(2):
            total += 0.5
            cost = {"amount": total, "currency": "EUR"}
            send(method="session/update", params={"sessionId": "s", "update": {"sessionUpdate": "usage_update", "used": 7, "size": 100, "cost": cost}})
        send(method="session/update", params={"sessionId": "s", "update": {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "yes"}}})
        result = {"stopReason": "end_turn", "usage": {"totalTokens": 30, "inputTokens": 20, "outputTokens": 10, "cachedReadTokens": 5, "thoughtTokens": 2}}
    if "id" in message:
        send(id=message["id"], result=result)
"""


def agents(folder, **more):
    pathlib.Path(folder, "agent.py").write_text(AGENT)
    pathlib.Path(folder, "acp.py").write_text(ACP)
    line = lambda name: f"{shlex.quote(sys.executable)} {name}"
    return write(
        folder, {"name": "paid", "command": line("agent.py"), "protocol": "ndjson", **more},
        {"name": "acp", "command": line("acp.py"), "protocol": "acp"},
        {"name": "exec", "command": "cat"},
    )


def figures(gateway):
    request = urllib.request.Request(gateway.url + "/metrics", headers={"Authorization": f"Bearer {gateway.token}"})
    text = urllib.request.urlopen(request).read().decode()
    lines = re.findall(r"^thread_gateway_((?:session_)?(?:tokens|cost)_total)\{(.*)\} (.*)$", text, re.M)
    return {(name, labels): float(value) for name, labels, value in lines}


async def what_agents_take_is_in_answers_figures_and_the_status():
    with tempfile.TemporaryDirectory() as folder, Gateway("--agents", agents(folder), "--attempts", "1", cwd=folder) as gateway:
        client = await gateway.client()
        paid = (await client.request("sessions.new"))["sessionId"]
        assert (await client.request("status", sessionId=paid))["session"].get("usage") is None
        assert await answer(client, paid, "a") == "a"
        [final] = client.named("final")
        one = {"inputTokens": 90, "outputTokens": 10, "cachedTokens": 40, "reasoningTokens": 3}
        assert final["payload"]["usage"] == one and final["payload"]["totalTokens"] == 100
        assert final["payload"]["cost"] == {"amount": "0.25", "currency": "USD"}
        # A failure costs as well; an answer that says nothing of it counts as nothing.
        await answer(client, paid, "fail")
        await answer(client, paid, "free")
        status = (await client.request("status", sessionId=paid))["session"]
        assert status["usage"] == {key: 2 * value for key, value in one.items()}
        assert status["cost"] == {"amount": "0.5", "currency": "USD"}
        [last] = [e for e in gateway.events(paid) if e["content"] == "a" and e["source"] == "self"]
        assert last["metadata"]["agent"] == "paid" and last["metadata"]["usage"]["input_tokens"] == 90

        # Of an ACP agent, the cost is that of the whole session: what a turn has added counts.
        acp = (await client.request("sessions.new", agent="acp"))["sessionId"]
        for _ in range(2):
            assert await answer(client, acp, "x") == "yes"
        assert [f["payload"]["cost"] for f in client.named("final")[-2:]] == [{"amount": "1", "currency": "EUR"}] * 2
        status = (await client.request("status", sessionId=acp))["session"]
        assert status["cost"] == {"amount": "2", "currency": "EUR"}
        assert status["usage"] == {"inputTokens": 40, "outputTokens": 20, "cachedTokens": 10, "reasoningTokens": 4}
        assert await answer(client, (await client.request("sessions.new", agent="exec"))["sessionId"], "x") == "x"

        # A copy has not taken what was taken there.
        copy = (await client.request("sessions.fork", sessionId=paid))["sessionId"]
        assert (await client.request("status", sessionId=copy))["session"].get("cost") is None
        # Another program may say anything; it makes no figure of its own.
        gateway.push(copy, "x", kind="message", agent="made up", usage={"input_tokens": 5}, cost={"amount": 1, "currency": "x\"y"})
        expected = {
            ("cost_total", 'agent="paid",currency="USD"'): 0.5, ("cost_total", 'agent="acp",currency="EUR"'): 2,
            ("cost_total", 'agent="other",currency="other"'): 1,
        }
        for name, input, output, cached, reasoning in [("paid", 180, 20, 80, 6), ("acp", 40, 20, 10, 4), ("other", 5, 0, 0, 0)]:
            for kind, value in [("input", input), ("output", output), ("cached", cached), ("reasoning", reasoning)]:
                expected["tokens_total", f'agent="{name}",kind="{kind}"'] = value
        # Those of a session are there as long as somebody is in it.
        await client.request("sessions.switch", sessionId=paid)
        of_paid = {("session_cost_total", f'session="{paid}",currency="USD"'): 0.5}
        for kind, value in [("input", 180), ("output", 20), ("cached", 80), ("reasoning", 6)]:
            of_paid["session_tokens_total", f'session="{paid}",kind="{kind}"'] = value
        assert figures(gateway) == {**expected, **of_paid}, figures(gateway)
        gateway.kill()
        gateway.restart()
        assert figures(gateway) == expected


async def a_message_over_the_budget_gets_an_error_that_says_how_to_go_on():
    for budget, said in [(0.5, "0.5 USD of 0.5"), ("200tokens", "200 of 200 tokens")]:
        with tempfile.TemporaryDirectory() as folder, Gateway(
            "--agents", agents(folder, budget=budget), "--agent-for-all", "--idle", "1s", cwd=folder
        ) as gateway:
            client = await gateway.client()
            session = (await client.request("sessions.new"))["sessionId"]
            # Those that are there at the same time are judged one by one.
            answers = await asyncio.gather(*(answer(client, session, text) for text in "abc"))
            assert answers == ["a", "b", None], answers
            [error] = client.named("error")
            why = error["payload"]["message"]
            assert said in why and "--budget" in why and not error["payload"]["retryable"], why
            assert error["payload"]["errorCode"] == "run_failed"
            # Whatever is killed, what was taken stays taken.
            gateway.kill()
            gateway.kill_agents()
            gateway.restart()
            client = await gateway.client()
            assert await answer(client, session, "d") is None
            # A new conversation has its own, and a larger one goes on.
            other = (await client.request("sessions.new"))["sessionId"]
            assert await answer(client, other, "e") == "e"
            gateway.kill()
            agents(folder, budget=9)
            gateway.restart()
            client = await gateway.client()
            assert await answer(client, session, "f") == "f"
            stored = gateway.events(session)
            said = [e["id"] for e in stored if e["type"] == "message" and e["source"] != "self"]
            ended = [e["metadata"]["reply_to"] for e in stored
                     if e["source"] == "self" and (e["type"] == "message" or e["subtype"] == "error")]
            assert sorted(ended) == said, (said, ended)


if __name__ == "__main__":
    run(globals())
