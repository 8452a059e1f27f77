"""A receiver of webhooks: receiver.py PORT_FILE LOG SECRET…

It checks each request with the package `standardwebhooks`, and writes a line for each to LOG:
`{"id", "event", "status", "signatures"}`. How it answers is told by the event's content: `{"answer": [503, 200]}` are the
statuses of the first request and of those after it; `"random": true` fails every third request or so. Requests are
handled one after another, as they come, so that the log has their order.
"""

import http.server
import json
import os
import random
import sys

from standardwebhooks.webhooks import Webhook

port_file, log, *secrets = sys.argv[1:]
hooks = [Webhook(secret) for secret in secrets]
seen = {}


class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        assert self.headers["content-type"] == "application/json"
        headers = {name.lower(): value for name, value in self.headers.items()}
        for hook in hooks:
            hook.verify(body, headers)
        event = json.loads(body)
        id = headers["webhook-id"]
        try:
            wanted = json.loads(event["content"])
        except ValueError:
            wanted = {}
        answers = wanted.get("answer", [200])
        status = answers[min(seen.get(id, 0), len(answers) - 1)]
        if wanted.get("random") and random.random() < 0.3:
            status = random.choice([429, 500, 503])
        seen[id] = seen.get(id, 0) + 1
        # Written before the answer: whoever is killed in between posts it again.
        line = {"id": id, "event": event["id"], "status": status, "key": wanted.get("key"),
                "signatures": len(headers.get("webhook-signature", "").split())}
        with open(log, "a") as file:
            file.write(json.dumps(line) + "\n")
        if status == 0:
            return self.connection.close()
        said = wanted.get("say", "").encode()
        self.send_response(status)
        for name, value in wanted.get("headers", {}).items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_):
        pass


class Server(http.server.HTTPServer):
    request_queue_size = 64

    def handle_error(self, request, client_address):
        with open(log + ".errors", "a") as file:
            # A client that was killed is none.
            if not isinstance(sys.exc_info()[1], (BrokenPipeError, ConnectionResetError)):
                file.write(f"{sys.exc_info()[1]!r}\n")


server = Server(("127.0.0.1", 0), Receiver)
with open(port_file + ".new", "w") as file:
    file.write(str(server.server_port))
os.rename(port_file + ".new", port_file)
server.serve_forever()
