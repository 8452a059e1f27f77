"""The description of the HTTP interface in OpenAPI, checked by schemathesis: random requests generated from it get
answers that it describes, and never an internal error."""

import copy
import importlib.util
import json
import subprocess
import sys

from harness import LONG, run
from look import Queues, with_httpx

# The same requests in each run, and few enough for a busy machine.
SETTINGS = ["--seed", "1", "--max-examples", "12" if LONG else "5", "--phases", "examples,coverage,fuzzing", "--generation-deterministic"]
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@with_httpx
async def made_up_requests_get_answers_that_are_described():
    if not importlib.util.find_spec("schemathesis"):
        return print("SKIPPED: needs schemathesis, of Python")
    with Queues("inbox") as queues:
        look = queues.look
        queues.thread("inbox", "subscribe", "good", "cat", "--deliver", "stdin", "--filter", "type = 'message'")
        queues.thread("inbox", "subscribe", "bad", "false", "--deliver", "stdin", "--max-attempts", "1")
        for n in range(5):
            queues.push("inbox", f"event {n}")
        look.until_consumer("inbox", "good", lambda one: one["pending"] == 0)
        runs = look.until(lambda answer: answer["runs"], "/inbox/consumers/good/runs")["runs"]
        # Existing names, or most requests would find nothing. Endless streams have scenarios of their own.
        description = copy.deepcopy(look.description)
        paths = description["paths"]
        for path in [path for path in paths if path.endswith(("/watch", "/stream"))]:
            del paths[path]
        queues.thread("inbox", "push", "--in", "1h", "later")
        known = {"scheduled": ["s1"], "thread": ["inbox"], "consumer": ["good", "bad"], "run": [run["id"] for run in runs], "event": [1, 2]}
        for operation in (operation for methods in paths.values() for operation in methods.values()):
            for parameter in operation.get("parameters", []):
                if parameter["in"] == "path" and parameter["name"] in known:
                    parameter["schema"]["enum"] = known[parameter["name"]]
        own = [path for path in paths if path.startswith(("/api/v1/threads", "/hooks/", "/v1/"))]
        assert len(own) == 27, own
        file = queues.dir / "openapi.json"
        file.write_text(json.dumps({**description, "paths": {path: paths[path] for path in own}}))
        done = subprocess.run(
            [sys.executable, "-m", "schemathesis.cli", "--no-color", "run", file, "--url", queues.gateway.url,
             "--header", f"Authorization: Bearer {queues.gateway.token}", "--checks", CHECKS, *SETTINGS],
            cwd=queues.dir, capture_output=True, text=True,
        )
        assert done.returncode == 0, done.stdout[-12000:] + done.stderr[-2000:]
        print(next(line.strip() for line in done.stdout.splitlines() if " generated, " in line))


if __name__ == "__main__":
    run(globals())
