"""A fixture: an agent program that plays what stands for a message in the file plays.json of its directory, or else
repeats the message. It speaks ndjson, or the Agent Client Protocol with --acp (then it can ask for permission).

A play is a list of steps: ["think", text], ["say", text], ["call", id, name, arguments], ["result", id, name, value],
["fail", id, name, error], ["plan", entries], ["ask", call id, title, arguments, details], ["wait", file], ["exit", code],
["update", keys] (with --acp: a tool call as the protocol has it), ["change", call id, title, content] (asks for it),
["many", count] (words, a thousand a second, until there is a file `enough`), ["sub", call id, name, line of shell].
"""

import json
import os
import pathlib
import subprocess
import sys
import time


def play_of(text):
    plays = json.loads(pathlib.Path("plays.json").read_text()) if os.path.exists("plays.json") else {}
    return plays.get(text, [["say", f"You said: {text}"]])


def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.01)


class Player:
    def play(self, text):
        for step, *given in play_of(text):
            if step == "wait":
                wait_for(*given)
            elif step == "exit":
                if given[0] == 0 or not os.path.exists("crashed"):
                    pathlib.Path("crashed").touch()
                    os._exit(given[0] or 1)
            elif step == "many":
                began = time.monotonic()
                for n in range(given[0]):
                    while os.path.exists("enough"):
                        time.sleep(1)
                    self.say(f"word{n} " if n % 12 else f"word{n}\n\n")
                    time.sleep(max(0, began + n / 1000 - time.monotonic()))
            elif step == "sub":
                call, name, line = given
                thread = json.loads(pathlib.Path("programs.json").read_text())["thread"]
                subprocess.run([thread, "agent", "run", "--call", call, "--name", name, "--", "sh", "-c", line],
                               input="do it", text=True, check=True, stdout=subprocess.DEVNULL)
            elif step == "update":
                self.update_call(*given)
            else:
                getattr(self, step)(*given)


class Ndjson(Player):
    def line(self, event, **keys):
        print(json.dumps({"event": event, **keys}), flush=True)

    def think(self, text):
        self.line("thinking", content=text)

    def say(self, text):
        self.line("token", content=text)

    def call(self, call, name, arguments):
        self.line("tool_call", call_id=call, name=name, arguments=arguments)

    def result(self, call, name, value):
        self.line("tool_result", call_id=call, name=name, result=value)

    def fail(self, call, name, error):
        self.line("tool_result", call_id=call, name=name, error=error)

    def run(self):
        for line in sys.stdin:
            content = json.loads(line)["content"]
            if content.startswith("["):
                content = " ".join(part.get("text", f"<{part['type']}>") for part in json.loads(content))
            self.play(content)
            self.line("final")


class Acp(Player):
    count = 0

    def write(self, **message):
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

    def update(self, what, **keys):
        self.write(method="session/update", params={"sessionId": "s", "update": {"sessionUpdate": what, **keys}})

    def think(self, text):
        self.update("agent_thought_chunk", content={"type": "text", "text": text})

    def say(self, text):
        self.update("agent_message_chunk", content={"type": "text", "text": text})

    def call(self, call, name, arguments):
        self.update("tool_call", toolCallId=call, title=name, status="in_progress", rawInput=arguments)

    def result(self, call, name, value):
        self.update("tool_call_update", toolCallId=call, status="completed", rawOutput=value)

    def fail(self, call, name, error):
        content = [{"type": "content", "content": {"type": "text", "text": error}}]
        self.update("tool_call_update", toolCallId=call, status="failed", content=content)

    def plan(self, entries):
        self.update("plan", entries=entries)

    def update_call(self, keys):
        self.update("tool_call", **keys)

    def ask(self, call, title, arguments, details):
        self.change(call, title, [{"type": "content", "content": {"type": "text", "text": details}}], arguments)

    def change(self, call, title, content, arguments=None):
        self.count += 1
        tool = {"toolCallId": call, "title": title, "rawInput": arguments, "content": content}
        options = [("once", "Allow once", "allow_once"), ("always", "Always", "allow_always"), ("no", "Reject", "reject_once")]
        options = [{"optionId": id, "name": name, "kind": kind} for id, name, kind in options]
        self.write(id=f"p{self.count}", method="session/request_permission",
                   params={"sessionId": "s", "toolCall": tool, "options": options})
        answer = json.loads(sys.stdin.readline())
        outcome = answer["result"]["outcome"]
        self.say(f"The answer was {outcome.get('optionId', 'none')}.")

    def run(self):
        for line in sys.stdin:
            message = json.loads(line)
            method = message.get("method")
            if method == "initialize":
                self.write(id=message["id"], result={"protocolVersion": 1, "agentCapabilities": {}})
            elif method == "session/new":
                self.write(id=message["id"], result={"sessionId": "s"})
            elif method == "session/prompt":
                self.play(message["params"]["prompt"][-1]["text"])
                self.write(id=message["id"], result={"stopReason": "end_turn"})


if __name__ == "__main__":
    (Acp if "--acp" in sys.argv else Ndjson)().run()
