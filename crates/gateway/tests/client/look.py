"""A client of /api/v1/threads: `httpx`, with every answer checked against the gateway's own description."""

import functools
import json
import re
import subprocess
import tempfile
import pathlib
import time

import jsonschema_rs

try:
    import httpx
    import httpx_sse
except ImportError:
    httpx = None

from harness import PATIENCE, THREAD, Gateway


def with_httpx(scenario):
    @functools.wraps(scenario)
    async def checked():
        if not httpx:
            return print("SKIPPED: needs httpx, of Python")
        await scenario()

    return checked


class Look:
    def __init__(self, gateway):
        self.gateway = gateway
        headers = {"Authorization": f"Bearer {gateway.token}"} if gateway.token else {}
        self.http = httpx.Client(base_url=gateway.url, headers=headers, timeout=PATIENCE, trust_env=False)
        self.description = self.http.get("/api/v1/openapi.json").json()
        self.validators = {}

    def validate(self, schema, value):
        key = json.dumps(schema)
        if key not in self.validators:
            described = {**schema, "components": self.description["components"]}
            self.validators[key] = jsonschema_rs.Draft202012Validator(described)
        self.validators[key].validate(value)

    def check(self, answer):
        """Checks that an answer conforms to the description."""
        path = answer.request.url.raw_path.decode().partition("?")[0]
        templates = {re.sub(r"\{\w+\}", "[^/]+", template): template for template in self.description["paths"]}
        matching = [template for pattern, template in templates.items() if re.fullmatch(pattern, path)]
        # A path without parameters takes precedence over one with parameters.
        template = min(matching, key=lambda template: template.count("{"))
        operation = self.description["paths"][template][answer.request.method.lower()]
        code = str(answer.status_code)
        described = operation["responses"].get(code) or operation["responses"][code[0] + "XX"]
        kind = answer.headers["content-type"].partition(";")[0]
        schema = described["content"][kind]["schema"]
        if kind == "application/json":
            self.validate(schema, answer.json())

    def is_a(self, form, text):
        """Reads JSON, which must conform to the description."""
        value = json.loads(text)
        self.validate({"$ref": f"#/components/schemas/{form}"}, value)
        return value

    def ask(self, method, path, status=200, **options):
        answer = self.http.request(method, "/api/v1/threads" + path, **options)
        assert answer.status_code == status, (method, path, answer.status_code, answer.text[:2000])
        self.check(answer)
        return answer.json()

    def get(self, path="", status=200, **params):
        return self.ask("GET", path, status, params=params)

    def post(self, path, body, status=200):
        return self.ask("POST", path, status, json=body)

    def refused(self, status, path, body=None, **params):
        """The error of a refused request."""
        asked = self.get(path, status, **params) if body is None else self.post(path, body, status)
        assert set(asked) == {"error", "code"} and asked["error"] and asked["code"], asked
        return asked["error"]

    def until(self, is_so, path="", **params):
        """Asks until an answer is as wanted, and returns it."""
        end = time.monotonic() + PATIENCE
        while not is_so(answer := self.get(path, **params)):
            assert time.monotonic() < end, answer
            time.sleep(0.05)
        return answer

    def consumer(self, thread, name):
        return next(one for one in self.get(f"/{thread}")["consumers_state"] if one["name"] == name)

    def until_consumer(self, thread, name, is_so):
        named = lambda answer: next(one for one in answer["consumers_state"] if one["name"] == name)
        return named(self.until(lambda answer: is_so(named(answer)), f"/{thread}"))

    def entry(self, id):
        return next(thread for thread in self.get(limit=1000)["threads"] if thread["id"] == id)

    def figure(self, name):
        """A figure of /metrics."""
        text = self.http.get("/metrics").text
        return float(re.search(rf"^thread_gateway_{name} (\S+)$", text, re.M)[1])

    def stream(self, path, headers=None, **params):
        return httpx_sse.connect_sse(self.http, "GET", "/api/v1/threads" + path, params=params, headers=headers or {})


class Queues:
    """A gateway with threads that have no agents, in a folder of their own."""

    def __init__(self, *names, options=()):
        self.scratch = tempfile.TemporaryDirectory(prefix="thread-look-")
        self.dir = pathlib.Path(self.scratch.name)
        for name in names:
            self.run("init", self.dir / name)
        threads = [word for name in names for word in ("--thread", self.dir / name)]
        self.gateway = Gateway(*threads, *options)

    def run(self, *args, stdin=None, env=None):
        done = subprocess.run([THREAD, *args], input=stdin, capture_output=True, text=True, cwd=self.dir, env=env)
        assert done.returncode == 0, (args, done)
        return done.stdout

    def thread(self, name, command, *args, **options):
        return self.run(command, "-t", self.dir / name, *args, **options)

    def push(self, name, content="x", *args):
        return int(self.thread(name, "push", "--content-file", "-", *args, stdin=content))

    def __enter__(self):
        self.look = Look(self.gateway.__enter__())
        return self

    def __exit__(self, failed, *rest):
        for place in self.dir.iterdir():
            if not (place / "events.db").is_file():
                continue
            info = subprocess.run([THREAD, "info", "-t", place, "--json"], capture_output=True, text=True)
            for consumer in json.loads(info.stdout)["subscriptions"] if info.returncode == 0 else []:
                for verb in ["pause"], ["stop", "--kill-after", "1s"]:
                    subprocess.run([THREAD, *verb, "-t", place, consumer["consumer_id"]], capture_output=True)
        self.look.http.close()
        self.gateway.__exit__(failed, *rest)
        while True:
            try:
                return self.scratch.cleanup()
            except OSError:
                time.sleep(0.1)
