#!/usr/bin/env python3
r"""An agent on a thread that answers each message it gets.

    thread guide --handler python >agent.py && chmod +x agent.py
    thread subscribe agent ./agent.py --deliver stdin \
        --filter "type = 'message' AND metadata ->> 'reply_to' IS NULL"
    thread ask 'What is 2+2?'

The filter leaves out answers, its own and others': agents that answer each other's answers never stop.
"""

import json
import os
import subprocess
import sys


def answer(event):
    """Your work: from an event to the text of its answer. If it raises, the event comes again later."""
    return "You said: " + event["content"]


ME = "internal:dm:default:" + os.environ["THREAD_CONSUMER"]


def thread(*args, text=""):
    run = subprocess.run(["thread", *args], input=text.encode(), stdout=subprocess.PIPE, check=True)
    return run.stdout.decode()


def is_answered(id):
    mine = f"source = '{ME}' AND metadata ->> 'reply_to' = {id}"
    return thread("peek", "--last-event-id", str(id), "--limit", "1", "--filter", mine) != ""


for line in sys.stdin.buffer:
    event = json.loads(line)
    id = event["id"]
    # An event may be delivered twice, after a crash for instance, but is answered only once.
    if not is_answered(id):
        thread("reply", "--to", str(id), "--source", ME, "--idempotency-key", f"{ME}-answers-{id}", "-",
               text=answer(event))
