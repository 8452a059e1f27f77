"""Attachments in S3: the store is moto, which checks the signature of each request."""

import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse

from agui import get, session_of
from attachments import PNG, fetch, signed, until, upload
from harness import SERVE, Gateway, run

# How many requests moto accepts without credentials: they create a user, its policy and its key.
UNASKED = "3"


def refusal(*options):
    """The error of a gateway that does not start."""
    with tempfile.TemporaryDirectory() as root:
        command = [SERVE, "--root", root, "--listen", "127.0.0.1:0", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    [*_, told] = done.stderr.splitlines()
    assert done.returncode == 2 and told.startswith("Error: ") and " - " in told, done
    return told


def is_built_in():
    return "built without S3" not in refusal("--storage", "s3://")


def skipped():
    if not importlib.util.find_spec("moto") or not importlib.util.find_spec("flask_cors"):
        print("SKIPPED: needs moto, of Python")
        return True


@contextlib.contextmanager
def bucket():
    """A store with one bucket. Yields a client for it, and the environment for a gateway that may use it."""
    import boto3
    log = tempfile.TemporaryFile("a+")
    server = subprocess.Popen([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"], stdout=log,
                              stderr=log, env={**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": UNASKED})
    try:
        while True:
            log.seek(0)
            if found := re.search(r"Running on (http://127\.0\.0\.1:\d+)", log.read()):
                break
            assert server.poll() is None, "the store has ended"
            time.sleep(0.05)
        url = found[1]
        client = lambda what, key, secret: boto3.client(
            what, endpoint_url=url, region_name="us-east-1", aws_access_key_id=key, aws_secret_access_key=secret)
        iam = client("iam", "anybody", "anything")
        iam.create_user(UserName="gateway")
        rights = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
        iam.put_user_policy(UserName="gateway", PolicyName="files", PolicyDocument=json.dumps(rights))
        key = iam.create_access_key(UserName="gateway")["AccessKey"]
        store = client("s3", key["AccessKeyId"], key["SecretAccessKey"])
        store.create_bucket(Bucket="files")
        yield store, {
            "AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
            "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": url, "AWS_ALLOW_HTTP": "true",
        }
    finally:
        server.kill()
        server.wait()


def keys(store):
    return [stored["Key"] for stored in store.list_objects_v2(Bucket="files").get("Contents", [])]


async def what_is_no_storage_is_refused_and_a_build_without_s3_says_how_to_get_one():
    assert "s4://x" in refusal("--storage", "s4://x")
    if is_built_in():
        assert "s3://bucket/prefix" in refusal("--storage", "s3://")
    else:
        assert "--features s3" in refusal("--storage", "s3://files")


async def attachments_go_to_the_bucket_and_come_back_from_it():
    if skipped():
        return
    with bucket() as (store, env), Gateway("--agent", "cat", "--storage", "s3://files/our/prefix", env=env) as gateway:
        stored = upload(gateway, PNG)
        assert keys(store) == [f"our/prefix/attachments/{stored['path']}"], keys(store)
        status, data, headers = fetch(stored["url"])
        assert (status, data, headers["Content-Type"]) == (200, PNG, "image/png")
        large = os.urandom(25 * 1024 * 1024)
        assert fetch(upload(gateway, large, "large.bin")["url"])[:2] == (200, large)

        parts = [{"type": "text", "text": "look"}, {"type": "binary", "mimeType": "image/png", "url": stored["url"]}]
        ask = {"threadId": "pictures", "runId": "r1", "messages": [{"id": "m1", "role": "user", "content": parts}]}
        get(gateway, "/api/v1/agent/run", {"Content-Type": "application/json"}, json.dumps(ask).encode())
        [event] = [e for e in gateway.events(session_of(gateway)) if e["type"] == "message" and e["source"] != "self"]
        kept = {key: stored[key] for key in ("bucket", "path", "mime_type")}
        assert event["metadata"]["user_message_attachments"] == kept
        assert json.loads(event["content"])[1]["url"] == urllib.parse.urlsplit(stored["url"]).path
        # The agent, which opens files, gets a local copy.
        [said, answered] = json.loads(get(gateway, "/api/v1/agent/history?threadId=pictures"))["messages"]
        file = gateway.root / "storage" / "attachments" / stored["path"]
        assert str(file) in answered["content"] and file.read_bytes() == PNG, answered
        # Clients get the object in the bucket.
        file.unlink()
        assert fetch(said["content"][1]["url"])[:2] == (200, PNG)

        name = f"attachments/{stored['path']}"
        store.put_object(Bucket="files", Key="secret", Body=b"secret")
        store.put_object(Bucket="files", Key="our/secret", Body=b"secret")
        assert fetch(signed(gateway, name))[0] == 200
        assert fetch(signed(gateway, name, exp=int(time.time()) - 1))[0] == 403
        assert fetch(stored["url"].split("?")[0])[0] == 403
        assert fetch(signed(gateway, "attachments/nothing"))[0] == 404
        for way_out in "../secret", "attachments/../../secret", "attachments/../../../secret", "..%2fsecret":
            for url in signed(gateway, way_out), signed(gateway, urllib.parse.unquote(way_out)):
                status, data, _ = fetch(url)
                assert status in (400, 401, 403, 404) and b"secret" not in data, (url, status)
        assert "token=" not in gateway.output() and env["AWS_SECRET_ACCESS_KEY"] not in gateway.output()


async def agents_do_not_get_the_credentials_of_the_store():
    if skipped():
        return
    with bucket() as (store, env):
        env = {**env, "THREAD_TOKEN": "a secret", "OTHER": "is kept"}
        with Gateway("--agent", "env", "--storage", "s3://files", env=env) as gateway:
            upload(gateway, PNG)
            client = await gateway.client()
            await client.request("agent", message="what do you know?")
            known = (await client.wait("final"))["payload"]["content"]
            assert "OTHER=is kept" in known and "AWS_" not in known and "a secret" not in known, known
            assert env["AWS_SECRET_ACCESS_KEY"] not in known
            # The gateway itself still has the credentials.
            assert fetch(upload(gateway, PNG)["url"])[:2] == (200, PNG) and len(keys(store)) == 2


async def an_attachment_leaves_the_bucket_with_its_session():
    if skipped():
        return
    with bucket() as (store, env), Gateway("--storage", "s3://files/our/prefix", env=env) as gateway:
        client = await gateway.client()
        kept = upload(gateway, b"another")

        async def send(stored):
            part = {"type": "binary", "mimeType": "image/png", "url": stored["url"]}
            session = (await client.request("sessions.new"))["sessionId"]
            await client.request("agent", message=[part])
            # The local copy is not needed for that.
            (gateway.root / "storage" / "attachments" / stored["path"]).unlink()
            return session
        stored = upload(gateway, PNG)
        await client.request("sessions.delete", sessionId=await send(stored))
        assert fetch(stored["url"])[0] == 404
        assert keys(store) == [f"our/prefix/attachments/{kept['path']}"], keys(store)

        # Objects that the store does not delete now are deleted later.
        env["AWS_ENDPOINT_URL"], there = "http://127.0.0.1:1", env["AWS_ENDPOINT_URL"]
        stored = upload(gateway, PNG)
        session = await send(stored)
        gateway.stop()
        gateway.restart()
        client = await gateway.client()
        await client.request("sessions.delete", sessionId=session)
        assert "cannot be deleted" in gateway.output() and len(keys(store)) == 2
        gateway.stop()
        env["AWS_ENDPOINT_URL"] = there
        gateway.restart()
        await until(lambda: keys(store) == [f"our/prefix/attachments/{kept['path']}"])


async def a_store_that_refuses_or_is_gone_is_reported_and_nothing_counts_as_stored():
    if skipped():
        return
    def refused(gateway):
        try:
            upload(gateway, PNG)
            raise AssertionError("it was taken")
        except urllib.error.HTTPError as e:
            assert e.code == 507 and json.loads(e.read())["error"], e.code
        [*_, told] = gateway.output().splitlines()
        return told
    with bucket() as (store, env):
        with Gateway("--storage", "s3://files", env={**env, "AWS_SECRET_ACCESS_KEY": "another"}) as gateway:
            assert "SignatureDoesNotMatch" in refused(gateway)
        with Gateway("--storage", "s3://nothing", env=env) as gateway:
            assert "NoSuchBucket" in refused(gateway)
        assert keys(store) == []
        with Gateway("--storage", "s3://files", env={**env, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}) as gateway:
            client = await gateway.client()
            assert "cannot be stored" in refused(gateway)
            # An unreachable store is not a missing object.
            assert fetch(signed(gateway, "attachments/a"))[0] == 502
            await client.request("agent", message="still here")


if __name__ == "__main__":
    run(globals())
