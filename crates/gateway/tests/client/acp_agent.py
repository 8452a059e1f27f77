"""A fixture: an agent of the Agent Client Protocol that behaves as coding agents do.

It remembers what was said in a session, in a file of the thread's directory, and answers with it. A message
`later SECONDS WORDS` begins a task: its tool call is completed after the answer, and then it says the words. `edit` calls
a tool that changes a file. `work` thinks, plans, and changes a file in several steps; `work WORD` also asks for
permission, for the call of the id WORD. `long` works until it is cancelled.
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


def hears_cancel(message):
    return message.get("method") == "session/cancel"


def permitted(session, call):
    """Asks for permission. None if the prompt is cancelled meanwhile."""
    options = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}, {"optionId": "no", "name": "No", "kind": "reject_once"}]
    send(id="ask", method="session/request_permission", params={"sessionId": session, "toolCall": call, "options": options})
    while True:
        message = json.loads(sys.stdin.readline())
        if hears_cancel(message):
            return None
        if message.get("id") == "ask":
            return message["result"]["outcome"].get("optionId")


def work(session, asks):
    """Returns whether it was cancelled."""
    update(session, "agent_thought_chunk", content={"type": "text", "text": "hm"})
    entry = {"content": "change it", "priority": "high", "status": "pending"}
    update(session, "plan", entries=[entry])
    say(session, "First ")
    call = {"toolCallId": asks or "w", "title": "Write /b", "kind": "edit", "rawInput": {"file": "/b"},
            "locations": [{"path": "/b", "line": 1}]}
    change = [{"type": "diff", "path": "/b", "oldText": "x", "newText": "y"}]
    update(session, "tool_call", **call, status="pending")
    choice = permitted(session, {**call, "content": change}) if asks else "yes"
    if choice is None:
        return True
    if choice == "yes":
        update(session, "tool_call_update", toolCallId=call["toolCallId"], status="in_progress", title="Write to /b")
        update(session, "tool_call_update", toolCallId=call["toolCallId"], status="completed", content=change)
    else:
        update(session, "tool_call_update", toolCallId=call["toolCallId"], status="failed",
               content=[{"type": "content", "content": {"type": "text", "text": "not allowed"}}])
    update(session, "plan", entries=[{**entry, "status": "completed"}])
    for word in ["then ", "that: ", choice]:
        # Long enough that it is stored by itself.
        time.sleep(0.03)
        say(session, word)
    return False


def prompt(session, text):
    """Returns why it ends."""
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
    elif word == "work":
        return "cancelled" if work(session, " ".join(rest)) else "end_turn"
    elif word == "long":
        say(session, "at work")
        while not hears_cancel(json.loads(sys.stdin.readline())):
            pass
        return "cancelled"
    say(session, f"I know: {said}")
    return "end_turn"


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
        result = {"stopReason": prompt(params["sessionId"], params["prompt"][-1]["text"])}
    if "id" in message:
        send(id=message["id"], result=result)
    if method in ("session/new", "session/load"):
        compact = {"name": "compact", "description": "Makes it shorter", "input": {"hint": "what to keep"}}
        update(result.get("sessionId") or params["sessionId"], "available_commands_update", availableCommands=[compact])
