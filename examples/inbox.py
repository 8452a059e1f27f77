#!/usr/bin/env python3
"""An inbox for webhooks: stores what is posted, hands it on with retries, and writes a digest each night.

usage: inbox.py TARGET [PORT]

    pip install threadq-*.whl      # of a release
    python3 inbox.py http://localhost:9000
    curl -d '{"order": 7}' http://localhost:8000/orders

What the target cannot take is tried again, also if this program is killed in between; what it refuses is a dead letter:
thread dead list -t inbox.
"""

import http.server
import sys
import urllib.error
import urllib.request

from threadq import NotNow, Reject, Thread, errors

thread = Thread.init("inbox", if_missing=True)
target = sys.argv[1]


@thread.handler("forwarder", filter="subtype = 'hook'", backoff="1s,5s,30s,2m", timeout="1m")
def forward(event):
    """Hands one on. What this raises is tried again: 5 times, or as long as it takes after NotNow."""
    request = urllib.request.Request(target + event.metadata["path"], event.content.encode())
    try:
        urllib.request.urlopen(request, timeout=30).close()
    except urllib.error.HTTPError as error:
        if error.code in (429, 503):
            raise NotNow(str(error), delay=10)
        if error.code < 500:
            raise Reject(str(error))
        raise


@thread.handler("digest", filter="subtype = 'night'")
def digest(event):
    hooks = thread.read(since="24h", filter="subtype = 'hook'")
    dead = thread.command("dead", "list", "forwarder")
    with open("digest.txt", "a") as file:
        print(f"{event.created_at[:10]}: {len(hooks)} webhooks, {len(dead)} could not be handed on", file=file)
        for letter in dead:
            print(f"  {letter['event_id']}: {letter['last_error']}", file=file)


class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        content = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode(errors="replace")
        try:
            # A sender that got no answer sends again, with the same id: it is stored once.
            id = thread.push(content, subtype="hook", key=self.headers.get("webhook-id"), meta={"path": self.path})
        except errors.IdempotencyConflict:
            return self.send_error(409, "another webhook had this id")
        self.send_response(202)
        self.end_headers()
        self.wfile.write(f"{id}\n".encode())


thread.run()
# Only the program that you start gets here, and not those that thread starts for the handlers.
thread.repeat("nightly", "", cron="0 2 * * *", subtype="night", replace=True)
port = int(sys.argv[2]) if len(sys.argv) > 2 else 8000
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Receiver)
print(f"listening on port {server.server_port}", flush=True)
server.serve_forever()
