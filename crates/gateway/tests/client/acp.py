"""A fixture: an agent of the Agent Client Protocol that behaves as coding agents do.

It remembers what was said in a session, in a file of the thread's directory, and answers with it. A message
`later SECONDS WORDS` begins a task: its tool call is completed after the answer, and then it says the words. `edit` calls
a tool that changes a file.
"""

import json
import os
import pathlib
import sys
import threading
import time
import uuid

HERE = pathlib.Path(os.environ["THREAD_DIR"])
LOCK = threading.Lock()


def send(**message):
    with LOCK:
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def update(session, update_kind, **what):
    send(method="session/update", params={"sessionId": session, "update": {"sessionUpdate": update_kind, **what}})


def say(session, text):
    update(session, "agent_message_chunk", content={"type": "text", "text": text})


def later(session, seconds, words):
    time.sleep(seconds)
    update(session, "tool_call_update", toolCallId="task", status="completed", rawOutput="done")
    say(session, words)


def prompt(session, text):
    memory = HERE / f"memory-{session}"
    said = memory.read_text() if memory.exists() else ""
    memory.write_text(said + text + ";")
    word, *rest = text.split(" ", 2)
    if word == "later":
        update(session, "tool_call", toolCallId="task", title="Terminal", kind="execute", status="in_progress",
               rawInput={"command": "make"}, _meta={"claudeCode": {"toolName": "Bash"}})
        threading.Thread(target=later, args=(session, float(rest[0]), rest[1]), daemon=True).start()
    elif word == "edit":
        update(session, "tool_call", toolCallId="e", title="edit", kind="edit", rawInput={"file": "/a"})
        update(session, "tool_call_update", toolCallId="e", title="Edit /a", locations=[{"path": "/a"}], status="completed",
               content=[{"type": "diff", "path": "/a", "oldText": "x", "newText": "y"}])
    say(session, f"I know: {said}")


session = None
for line in sys.stdin:
    message = json.loads(line)
    method, params = message.get("method"), message.get("params")
    result = {}
    if method == "initialize":
        result = {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}}
    elif method == "session/new":
        result = {"sessionId": uuid.uuid4().hex}
    elif method == "session/prompt":
        prompt(params["sessionId"], params["prompt"][-1]["text"])
        result = {"stopReason": "end_turn"}
    if "id" in message:
        send(id=message["id"], result=result)
