"""Hearing many sessions over one connection."""

import asyncio
import pathlib
import tempfile

from harness import LONG, Gateway, run

LOUD = "tr a-z A-Z"


class Bot:
    """A client for many chats: one connection, which hears all its sessions, and speaks in each. It keeps the last `seq`
    of each session, as it would on disk."""

    def __init__(self, gateway):
        self.gateway, self.after, self.frames, self.client = gateway, {}, [], None

    async def connect(self, **params):
        if self.client:
            self.take()
        self.client = await self.gateway.client(clientId="bot")
        if self.after:
            params["after"] = self.after
        watching = await self.client.request("sessions.watch", **params)
        for session in watching["sessions"]:
            self.after.setdefault(session["sessionId"], session["lastSeq"])
        return watching

    def take(self):
        """Takes the events of the connection. None comes twice, and those of a session come in order."""
        for event in self.client.events:
            if "seq" in event:
                session = event["payload"]["sessionId"]
                assert event["seq"] > self.after.get(session, 0), event
                self.after[session] = event["seq"]
                self.frames.append(event)
        self.client.events.clear()

    async def say(self, session, text):
        return await self.client.request("agent", sessionId=session, message=text, idempotencyKey=text)

    def answers(self, session=None):
        self.take()
        return [e["payload"]["content"] for e in self.frames
                if e["event"] == "final" and session in (None, e["payload"]["sessionId"])]

    async def until(self, count):
        while len(self.answers()) < count:
            assert not self.client.closed.done()
            await asyncio.sleep(0.05)


def stored(gateway, session):
    """The ids of the events that clients see."""
    hidden = ("session", "model", "state", "state_delta")
    return [event["id"] for event in gateway.events(session) if event["subtype"] not in hidden]


async def a_bot_loses_no_answer_when_it_speaks_in_the_next_session():
    with Gateway("--agent", "sleep 0.2; tr a-z A-Z") as gateway:
        maker = await gateway.client()
        sessions = [(await maker.request("sessions.new"))["sessionId"] for _ in range(10)]
        bot = Bot(gateway)
        watching = await bot.connect(sessionIds=sessions)
        assert [s["sessionId"] for s in watching["sessions"]] == sorted(sessions) and "unknown" not in watching
        for n in range(3):
            for at, session in enumerate(sessions):
                await bot.say(session, f"message {n} in {at}")
        await bot.until(30)
        for at, session in enumerate(sessions):
            assert bot.answers(session) == [f"MESSAGE {n} IN {at}" for n in range(3)]
            seen = [e["seq"] for e in bot.frames if e["payload"]["sessionId"] == session]
            assert seen == stored(gateway, session), (seen, stored(gateway, session))
        # It has not entered any of them, and others see nobody there.
        assert (await bot.client.request("status"))["session"] is None
        assert (await maker.request("status", sessionId=sessions[0]))["session"]["clients"] == 0
        # It is told how its waiting messages move up, in each session.
        await asyncio.gather(*(bot.say(sessions[0], f"again {n}") for n in range(3)))
        await bot.client.wait(lambda e: e["event"] == "queued" and e["payload"]["position"] == 2)
        await bot.client.wait(lambda e: e["event"] == "queued" and e["payload"]["position"] == 1
                              and e["payload"]["sessionId"] == sessions[0])
        await bot.until(33)


async def answers_that_come_while_the_gateway_is_dead_are_heard_once():
    rounds = 12 if LONG else 4
    with Gateway("--agent", "sleep 0.3; tr a-z A-Z") as gateway:
        maker = await gateway.client()
        sessions = [(await maker.request("sessions.new"))["sessionId"] for _ in range(6)]
        bot, sent = Bot(gateway), 0
        await bot.connect(sessionIds=sessions)
        for n in range(rounds):
            for at, session in enumerate(sessions):
                await bot.say(session, f"{n} in {at}")
                sent += 1
            await bot.until(sent - len(sessions) + n % len(sessions))
            gateway.kill()
            await bot.client.ends()
            gateway.restart()
            await bot.connect(sessionIds=sessions)
        await bot.until(sent)
        for at, session in enumerate(sessions):
            assert bot.answers(session) == [f"{n} IN {at}" for n in range(rounds)]
            seen = [e["seq"] for e in bot.frames if e["payload"]["sessionId"] == session]
            assert seen == stored(gateway, session), (seen, stored(gateway, session))


async def all_sessions_are_heard_and_those_that_are_made_later():
    with tempfile.TemporaryDirectory() as folder, Gateway("--agent", LOUD, root=folder) as gateway:
        maker = await gateway.client()
        first = (await maker.request("sessions.new"))["sessionId"]
        await maker.request("agent", sessionId=first, message="before")
        await maker.wait("final")
        bot = Bot(gateway)
        watching = await bot.connect(all=True)
        assert [s["sessionId"] for s in watching["sessions"]] == [first]
        made = (await maker.request("sessions.new", title="later"))["sessionId"]
        await maker.request("agent", sessionId=made, message="one")
        await maker.request("agent", sessionId=first, message="two")
        await bot.until(2)
        assert sorted(bot.answers()) == ["ONE", "TWO"]
        # From its beginning.
        assert [e["seq"] for e in bot.frames if e["payload"]["sessionId"] == made] == stored(gateway, made)
        # While it is away, there is one more; the old ones go on where they were.
        gateway.kill()
        await bot.client.ends()
        gateway.restart()
        maker = await gateway.client()
        third = (await maker.request("agent", message="three"))["sessionId"]
        await maker.request("agent", sessionId=first, message="four")
        await maker.wait("final")
        await bot.connect(all=True)
        await bot.until(4)
        assert sorted(bot.answers()) == ["FOUR", "ONE", "THREE", "TWO"]
        for session in (made, third):
            assert [e["seq"] for e in bot.frames if e["payload"]["sessionId"] == session] == stored(gateway, session)
        # One that is deleted is gone; what it makes and enters itself comes once.
        await maker.request("sessions.delete", sessionId=made)
        gone = await bot.client.wait(lambda e: e["payload"].get("errorCode") == "session_deleted")
        assert gone["payload"]["sessionId"] == made
        own = (await bot.client.request("sessions.new"))["sessionId"]
        await bot.say(own, "five")
        other = (await bot.client.request("sessions.new"))["sessionId"]
        await bot.say(other, "six")
        await bot.say(own, "seven")
        await bot.until(7)
        await asyncio.sleep(2.5)
        assert bot.answers(own) == ["FIVE", "SEVEN"] and bot.answers(other) == ["SIX"]
        assert not (pathlib.Path(folder) / made).exists()


async def entering_a_session_that_is_heard_leaves_no_gap():
    with Gateway("--agent", LOUD) as gateway:
        client, other = await gateway.client(), await gateway.client()
        one, two, three = [(await other.request("sessions.new"))["sessionId"] for _ in range(3)]
        await client.request("sessions.watch", sessionIds=[one, two])

        async def said(session, text, hears=True):
            at = len(client.events)
            await other.request("agent", sessionId=session, message=text)
            is_it = lambda e: e["event"] == "final" and e["payload"]["content"] == text.upper()
            await other.wait(is_it)
            if hears:
                await client.wait(is_it, at)
            else:
                await asyncio.sleep(0.3)
                assert not any(is_it(e) for e in client.events)

        await said(one, "a")
        await client.request("sessions.switch", sessionId=one)
        await said(one, "b")
        await said(two, "c")
        # Entering another, it still hears the first; unwatched, it does not.
        await client.request("sessions.switch", sessionId=three)
        await said(one, "d")
        await said(three, "e")
        await client.request("sessions.unwatch", sessionIds=[one])
        await said(one, "f", hears=False)
        await said(two, "g")
        await client.request("sessions.unwatch")
        await said(two, "h", hears=False)
        await said(three, "i")
        seqs = {}
        for event in client.events:
            if "seq" in event:
                assert event["seq"] > seqs.get(event["payload"]["sessionId"], 0), event
                seqs[event["payload"]["sessionId"]] = event["seq"]
        # From where it says it is.
        watching = await client.request("sessions.watch", sessionIds=[one], after={one: 0})
        assert watching == {"sessions": [{"sessionId": one, "lastSeq": 0}]}
        at = len(client.events)
        await client.wait(lambda e: e["event"] == "final" and e["payload"]["content"] == "F", at - 1)

        missing = "6e0a5f9e-0d2b-4f43-9a53-5c9f6c0f6d0a"
        assert await client.request("sessions.watch", sessionIds=[missing, two]) == {
            "sessions": [{"sessionId": two, "lastSeq": gateway.events(two)[-1]["id"]}], "unknown": [missing]}
        for params, why in [
            ({}, "give either 'sessionIds' or 'all'"), ({"all": True, "sessionIds": []}, "give either"),
            ({"sessionIds": ["x"]}, "unknown session 'x'"), ({"sessionIds": [one], "after": {"x": 1}}, "'after' is by the ids"),
            ({"sessionIds": [f"6e0a5f9e-0d2b-4f43-9a53-{n:012x}" for n in range(1001)]}, "at most 1000 sessions"),
        ]:
            assert why in await client.refused("sessions.watch", **params)


async def a_reader_that_has_stopped_is_behind_in_all_and_costs_little():
    with Gateway() as gateway:
        maker = await gateway.client()
        sessions = [(await maker.request("sessions.new"))["sessionId"] for _ in range(8)]
        client = await gateway.client()
        await client.request("sessions.watch", sessionIds=sessions)
        client.socket.transport.pause_reading()
        text = "x" * 50_000
        for session in sessions:
            for n in range(60):
                await maker.request("agent", sessionId=session, message=f"{n} {text}")
        memory = int([line for line in pathlib.Path(f"/proc/{gateway.process.pid}/status").read_text().splitlines()
                      if line.startswith("VmHWM")][0].split()[1])
        assert memory < 120_000, memory
        client.socket.transport.resume_reading()
        for session in sessions:
            await client.wait(lambda e: e["payload"]["sessionId"] == session and e["payload"]["content"].startswith("59 "))
            seen = [e["seq"] for e in client.events if e["payload"]["sessionId"] == session and "seq" in e]
            assert seen == stored(gateway, session)


if __name__ == "__main__":
    run(globals())
