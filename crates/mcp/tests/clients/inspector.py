"""Uses every tool of the server on stdin and stdout with the inspector's command line.

Usage: inspector.py FOLDER SERVER ROOT SESSION. FOLDER is where npm has installed it."""

import json
import os
import pathlib
import subprocess
import sys

FOLDER, SERVER, ROOT, SESSION = sys.argv[1:]
bin = pathlib.Path(FOLDER) / "node_modules/.bin"
env = {**os.environ, "PATH": f"{bin}:{os.environ['PATH']}", "THREAD_NOTIFIER": "embedded"}

def ask(*words):
    command = [bin / "mcp-inspector", "--cli", SERVER, "--root", ROOT, *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    # It exits with 5 if a tool refused.
    assert done.returncode in (0, 5), (words, done)
    return json.loads(done.stdout)

names = [tool["name"] for tool in ask("--method", "tools/list")["tools"]]
assert len(names) == 16, names
arguments = {
    "peek": {}, "info": {}, "sessions_get": {}, "process_wait_time": {}, "wait": {"timeout_seconds": 0},
    "push": {"content": "hello"}, "ack": {"consumer": "reader", "id": 1}, "subagent_run": {"task": "x"},
    "schedule_create": {"content": "later", "in": "1h"}, "schedule_list": {}, "schedule_cancel": {"id": "s1"},
    "process_status": {"process": "run_1"}, "process_cancel": {"process": "run_1"},
}
for name in names:
    given = {"session": SESSION, **arguments[name]} if name in arguments else {}
    words = [f"{key}={value}" for key, value in given.items()]
    result = ask("--method", "tools/call", "--tool-name", name, *sum((["--tool-arg", word] for word in words), []))
    # A process that has ended cannot be cancelled.
    assert result.get("isError", False) == (name == "process_cancel"), result
    assert name == "process_cancel" or result["structuredContent"], result
print(f"the inspector: {len(names)} tools")
