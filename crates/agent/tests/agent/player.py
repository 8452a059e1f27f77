"""An agent of the Agent Client Protocol that plays the steps in a file, in plain JSON: no package is needed.

The file has a JSON array of steps for each prompt, one per line: {"update": {…}} sends a session update, {"ask": {…}}
asks for permission and says what was chosen, with "until": "file" it takes that back once there is such a file,
{"stop": …} ends the prompt. {"wait": "file"} waits for a file.
"""

import json
import os
import sys
import time


def send(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def update(what):
    send({"method": "session/update", "params": {"sessionId": "s", "update": what}})


def wait(file):
    while not os.path.exists(file):
        time.sleep(0.01)


def play(prompt_id, steps):
    for step in steps:
        if "update" in step:
            update(step["update"])
        elif "ask" in step:
            send({"id": "ask", "method": "session/request_permission", "params": {"sessionId": "s", **step["ask"]}})
            if "until" in step:
                wait(step["until"])
                send({"method": "$/cancel_request", "params": {"requestId": "ask"}})
            outcome = json.loads(sys.stdin.readline())["result"]["outcome"]
            text = outcome.get("optionId", outcome["outcome"])
            update({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}})
        elif "wait" in step:
            wait(step["wait"])
        else:
            send({"id": prompt_id, "result": {"stopReason": step["stop"]}})


prompts = iter(open(sys.argv[1]).read().splitlines())
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "initialize":
        send({"id": message["id"], "result": {"protocolVersion": 1}})
    elif message["method"] == "session/new":
        send({"id": message["id"], "result": {"sessionId": "s"}})
    elif message["method"] == "session/prompt":
        play(message["id"], json.loads(next(prompts)))
