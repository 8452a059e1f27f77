#!/usr/bin/env python3
"""A handler that is kept: thread subscribe counter ./kept.py --deliver ndjson"""

import json
import sys


def handle(event):
    """Your work. What it raises is tried again later, except a ValueError: that event can never be handled."""
    order = json.loads(event["content"])
    with open("total.txt", "a") as file:
        file.write(f"{order['item']} {order['count']}\n")


for line in sys.stdin.buffer:
    event = json.loads(line)
    try:
        handle(event)
        answer = {"ack": event["id"]}
    except (ValueError, KeyError) as error:
        answer = {"reject": event["id"], "error": repr(error)}
    except Exception as error:
        answer = {"nack": event["id"], "error": repr(error)}
    print(json.dumps(answer), flush=True)
