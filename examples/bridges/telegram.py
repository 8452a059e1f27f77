#!/usr/bin/env python3
"""Chats in Telegram are conversations with an agent of `thread serve`; needs `pip install websockets`.

TELEGRAM_TOKEN=… GATEWAY=http://127.0.0.1:3336 GATEWAY_TOKEN=… python3 telegram.py

What is sent while the gateway or this program is down arrives when both are back, once. If this program is killed between
an answer and its record in `telegram.json`, that answer is sent twice."""
import asyncio, itertools, json, os, pathlib, urllib.request, websockets

TELEGRAM = f"{os.environ.get('TELEGRAM', 'https://api.telegram.org')}/bot{os.environ['TELEGRAM_TOKEN']}"
GATEWAY = os.environ.get("GATEWAY", "http://127.0.0.1:3336").replace("http", "ws", 1) + "/ws"
FILE = pathlib.Path(os.environ.get("STATE", "telegram.json"))
# The next update to ask for, the session of each chat, and the last event that was heard of each session.
state = json.loads(FILE.read_text()) if FILE.exists() else {"offset": 0, "sessions": {}, "heard": {}}
numbers, waiting = itertools.count(), {}

def save():
    FILE.with_suffix(".new").write_text(json.dumps(state))
    FILE.with_suffix(".new").rename(FILE)

async def telegram(method, **params):
    request = urllib.request.Request(f"{TELEGRAM}/{method}", json.dumps(params).encode(), {"Content-Type": "application/json"})
    answer = await asyncio.to_thread(urllib.request.urlopen, request, timeout=60)
    return json.load(answer)["result"]

async def gateway(socket, method, **params):
    id = str(next(numbers))
    waiting[id] = asyncio.get_running_loop().create_future()
    await socket.send(json.dumps({"type": "req", "id": id, "method": method, "params": params}))
    answer = await waiting[id]
    if not answer["ok"]:
        raise ConnectionError(f"{method}: {answer['error']}")
    return answer["payload"]

async def hear(socket):
    """Sends what is said in the sessions to their chats."""
    async for text in socket:
        frame = json.loads(text)
        if frame["type"] == "res":
            waiting.pop(frame["id"]).set_result(frame)
            continue
        event, payload = frame["event"], frame["payload"]
        chat = next((chat for chat, session in state["sessions"].items() if session == payload.get("sessionId")), None)
        is_over = event == "final" or event == "error" and not payload["retryable"]
        if chat and is_over and frame.get("seq"):
            said = payload["content" if event == "final" else "message"]
            for start in range(0, len(said), 4096):
                await telegram("sendMessage", chat_id=int(chat), text=said[start : start + 4096])
            state["heard"][payload["sessionId"]] = frame["seq"]
            save()

async def forward(socket):
    """Takes what is said in chats to their sessions."""
    await gateway(socket, "connect", version="1", clientType="telegram", token=os.environ["GATEWAY_TOKEN"])
    await gateway(socket, "sessions.watch", sessionIds=list(state["sessions"].values()), after=state["heard"])
    while True:
        for update in await telegram("getUpdates", offset=state["offset"], timeout=20):
            if text := update.get("message", {}).get("text"):
                chat = str(update["message"]["chat"]["id"])
                if chat not in state["sessions"]:
                    session = (await gateway(socket, "sessions.new", title=f"Telegram {chat}"))["sessionId"]
                    state["sessions"][chat], state["heard"][session] = session, 0
                    save()
                    await gateway(socket, "sessions.watch", sessionIds=[session], after={session: 0})
                key = f"telegram-{update['update_id']}"
                await gateway(socket, "agent", sessionId=state["sessions"][chat], message=text, idempotencyKey=key)
            state["offset"] = update["update_id"] + 1
            save()

async def main():
    async for socket in websockets.connect(GATEWAY):
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(hear(socket))
                both.create_task(forward(socket))
        except* (OSError, websockets.ConnectionClosed) as lost:
            print(f"Trying again: {lost.exceptions[0]}", flush=True)
            await asyncio.sleep(1)
asyncio.run(main())
