"""A fixture: an ndjson agent that performs the steps in a message: a JSON array of steps for each attempt.

A step with an `event` is a line to print. {"wait": NAME} waits for a file in the thread's directory, {"exit": N} ends
the program, {"seen": PATTERN} waits for an event in the thread, {"hear": true} reads a line and repeats it,
{"given": true} prints the client's input, and {"helper": COMMAND, "call": ID, "background": BOOL} gives a task to a
sub-agent, and waits for it.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import time

HERE = pathlib.Path(os.environ["THREAD_DIR"])


def say(run_id, **line):
    print(json.dumps({"run_id": run_id, **line}), flush=True)


def helper(run_id, step):
    background = ["--background"] if step.get("background") else []
    command = ["agent", "run", "--call", step["call"], "--name", "helper", *background, "--", "sh", "-c", step["helper"]]
    env = {**os.environ, "THREAD_RUN_ID": run_id}
    subprocess.run([sys.argv[1], *command], env=env, input=b"do it", stdout=subprocess.DEVNULL)


def play(event, step):
    run_id = event["run_id"]
    if "wait" in step:
        while not (HERE / step["wait"]).exists():
            time.sleep(0.01)
    elif "exit" in step:
        sys.exit(step["exit"])
    elif "seen" in step:
        peek = lambda: subprocess.run([sys.argv[1], "peek", "-n", "50"], capture_output=True, text=True).stdout
        while not re.search(step["seen"], peek()):
            time.sleep(0.05)
    elif "hear" in step:
        say(run_id, event="token", content=sys.stdin.readline())
    elif "given" in step:
        keys = "tools", "state", "context", "forwarded_props", "attachments"
        say(run_id, event="token", content=json.dumps({key: event[key] for key in keys if key in event}))
    elif "helper" in step:
        helper(run_id, step)
    else:
        say(run_id, **step)


def text_of(content):
    return content if isinstance(content, str) else next(part["text"] for part in content if "text" in part)


for line in sys.stdin:
    event = json.loads(line)
    if event.get("event") == "tool_result":
        continue
    content = event["content"]
    parts = json.loads(content)
    # In a message with content parts, one of them is the text.
    attempts = json.loads(text_of(parts)) if parts and isinstance(parts[0], dict) and "type" in parts[0] else parts
    played = HERE / f"played-{event['id']}"
    attempt = len(played.read_text()) if played.exists() else 0
    played.write_text("x" * (attempt + 1))
    for step in attempts[min(attempt, len(attempts) - 1)]:
        play(event, step)
