"""A fixture: an ndjson agent whose answers depend only on its input."""

import json
import sys
import time


def say(event, **keys):
    print(json.dumps({"event": event, **keys}), flush=True)


def answer(text):
    return f"You said: {text}. That is {len(text)} characters."


if __name__ == "__main__":
    pause = float(sys.argv[1]) if len(sys.argv) > 1 else 0.005
    for line in sys.stdin:
        event = json.loads(line)
        text = event["content"]
        say("status", content="thinking")
        say("thinking", content="hm ")
        say("tool_call", call_id=f"call_{event['id']}", name="count", arguments={"text": text})
        say("tool_result", call_id=f"call_{event['id']}", name="count", result=len(text))
        say("status", content="streaming")
        for word in answer(text).split(" "):
            say("token", content=word if word.endswith("characters.") else word + " ")
            time.sleep(pause)
        say("final", content=answer(text), total_tokens=7, stage="final")
