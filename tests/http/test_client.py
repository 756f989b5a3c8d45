"""The library's HTTP client against a real server."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from uuid import uuid4

import pytest

from tests.http.servers import HttpServer, free_port
from trunkline import errors
from trunkline.http_client import HttpClient
from trunkline.types import NewMessage


@pytest.fixture
async def mq(server: HttpServer) -> AsyncIterator[HttpClient]:
    async with HttpClient(server.url) as client:
        yield client


async def test_topics_and_groups(mq: HttpClient, name: str) -> None:
    topic = await mq.topics.ensure(name, partitions=1, retention="1d")
    assert await mq.topics.get(name) == topic
    assert name in [row.name for row in await mq.topics.list()]
    published = await mq.publish(name, {"n": 1}, key="k", headers={"h": 1}, routing_key="a.b", label="l")
    many = await mq.publish_many(name, [2, NewMessage(body=b"\x00\xff", content_type="image/png"), None])
    messages = await mq.topics.read(name)
    assert [message.body for message in messages] == [{"n": 1}, 2, b"\x00\xff", None]
    assert [message.id for message in messages] == [published.id, *(row.id for row in many)]
    assert (messages[0].key, messages[0].headers, messages[0].label) == ("k", {"h": 1}, "l")
    batch = await mq.fetch(name, "g", member="m", limit=2)
    assert batch is not None
    assert [message.body for message in batch.messages] == [{"n": 1}, 2]
    assert await batch.commit() == "done"
    assert await mq.groups.seek(name, "g", "earliest") == {0: 1}
    assert await batch.commit() == "lost"
    assert await mq.leave(name, "g", member="m") == 0
    await mq.topics.delete(name, force=True)
    with pytest.raises(errors.TopicNotFound):
        await mq.topics.get(name)


async def test_queues(mq: HttpClient, name: str) -> None:
    queue = await mq.queues.ensure(name, lease="10s", max_attempts=3)
    assert (queue.lease.total_seconds(), queue.max_attempts) == (10, 3)
    assert await mq.queues.get(name) == queue
    first = await mq.enqueue(name, {"n": 1}, idempotency_key="once")
    again = await mq.enqueue(name, {"n": 1}, idempotency_key="once")
    assert (again.id, again.duplicate) == (first.id, True)
    await mq.enqueue_many(name, range(4))
    deliveries = await mq.claim(name, limit=10, lease="30s")
    assert [delivery.body for delivery in deliveries] == [{"n": 1}, 0, 1, 2, 3]
    assert await deliveries[0].ack() == "done"
    assert await deliveries[1].nack(delay="1h", error="no") == "done"
    assert await deliveries[2].bury("bad") == "done"
    assert await deliveries[3].extend("1m") == "done"
    assert await deliveries[3].release() == "done"
    assert await mq.ack([deliveries[3].receipt, "1.x", deliveries[4].receipt]) == ["lost", "unknown", "done"]
    assert await mq.ack([]) == []
    explained = await mq.explain(first.id)
    assert explained.readers[0]["state"] == "acked"
    stats = next(row for row in (await mq.stats()).queues if row.queue == name)
    assert (stats.ready, stats.delayed, stats.dead) == (1, 1, 1)
    await mq.queues.pause(name)
    assert await mq.claim(name) == ()
    await mq.queues.resume(name)
    async for delivery in mq.deliveries(name, type=int):
        assert delivery.body == 2
        break
    with pytest.raises(errors.InUse):
        await mq.queues.delete(name)
    await mq.queues.delete(name, force=True)


async def test_a_given_id_is_published_once(mq: HttpClient, name: str) -> None:
    await mq.queues.ensure(name)
    mine = uuid4()
    for expected in (False, True):
        stored = await mq.enqueue(name, 1, id=mine)
        assert (stored.id, stored.duplicate) == (mine, expected)
    with pytest.raises(errors.IdempotencyConflict):
        await mq.enqueue(name, 2, id=mine)
    assert [row.duplicate for row in await mq.enqueue_many(name, [NewMessage(body=1, id=mine), 2])] == [True, False]
    assert [delivery.body for delivery in await mq.claim(name, limit=9)] == [1, 2]


async def test_subscriptions(mq: HttpClient, name: str) -> None:
    await mq.topics.ensure(name)
    await mq.queues.ensure(name)
    made = await mq.subscriptions.add(name, name, headers={"a": ["1"]})
    assert made in await mq.subscriptions.list()
    await mq.publish(name, 1, headers={"a": "1"})
    await mq.publish(name, 2)
    assert [(row.body, row.topic) for row in await mq.claim(name, limit=9)] == [(1, name)]
    await mq.subscriptions.remove(name, made.name)
    with pytest.raises(errors.SubscriptionNotFound):
        await mq.subscriptions.remove(name, made.name)


async def test_errors(mq: HttpClient, name: str) -> None:
    with pytest.raises(errors.TopicNotFound):
        await mq.publish("nobody", 1)
    with pytest.raises(errors.InvalidArgument):
        await mq.topics.ensure("a b")
    await mq.topics.ensure(name)
    with pytest.raises(errors.PayloadTooLarge):
        await mq.publish(name, b"x" * 700_000 + b"x" * 500_000)
    await mq.publish(name, 1, idempotency_key="k")
    with pytest.raises(errors.IdempotencyConflict):
        await mq.publish(name, 2, idempotency_key="k")
    async with HttpClient(f"http://127.0.0.1:{free_port()}") as nobody:
        with pytest.raises(errors.DatabaseUnavailable):
            await nobody.stats()
    with pytest.raises(errors.SettingsError):
        HttpClient()


async def test_groups_that_read_what_matches_and_lists_in_pages(mq: HttpClient, name: str) -> None:
    topics = [f"{name}-{letter}" for letter in "abc"]
    for topic in topics:
        await mq.topics.create(topic)
    group = await mq.groups.create(topics[0], "some", pattern="order.*", headers={"region": ["eu"]})
    assert (group.pattern, group.headers) == ("order.*", {"region": ["eu"]})
    assert await mq.groups.ensure(topics[0], "some") == group
    with pytest.raises(errors.AlreadyExists):
        await mq.groups.ensure(topics[0], "some", pattern="other.*")
    await mq.publish(topics[0], 1, routing_key="order.new", headers={"region": "us"})
    await mq.publish(topics[0], 2, routing_key="order.new", headers={"region": "eu"})
    batch = await mq.fetch(topics[0], "some")
    assert batch is not None
    assert [message.body for message in batch.messages] == [2]
    await mq.groups.create(topics[1], "all")
    assert [row.name for row in await mq.topics.list(after=topics[0], limit=1)] == [topics[1]]
    assert [(row.topic, row.name) for row in await mq.groups.list(after=f"{topics[0]}/some", limit=1)] == [
        (topics[1], "all")
    ]


async def test_a_host_that_does_not_respond_is_an_error_within_seconds() -> None:
    with socket.socket() as listener, contextlib.ExitStack() as waiting:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):  # a full queue of connections: further ones get no response
            pending = waiting.enter_context(socket.socket())
            pending.setblocking(False)
            pending.connect_ex(listener.getsockname())
        started = time.monotonic()
        async with HttpClient("http://{}:{}".format(*listener.getsockname())) as mq:
            with pytest.raises(errors.DatabaseUnavailable, match="cannot connect to the server: no response"):
                await mq.publish("t", 1)
        assert time.monotonic() - started < 10  # 2 s; without a limit of its own 60


class Impostor(BaseHTTPRequestHandler):
    """Responds with what it is told, and keeps no connection."""

    answer: tuple[int, str, bytes] = (200, "application/json", b"")

    def do_GET(self) -> None:
        status, kind, body = self.answer
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        if status == 302:
            self.send_header("location", "https://login.example/")
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.do_GET()

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def impostor() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Impostor)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((200, "text/html", b"<html>"), "not one of this API"),
        ((200, "application/json", b"{"), "not one of this API"),
        ((200, "application/json", b"[]"), "not one of this API"),
        ((200, "application/json", b'{"data": 5, "deliveries": 5}'), "not one of this API"),
        ((200, "application/json", b'{"data": [5], "deliveries": [5]}'), "not one of this API"),
        ((200, "application/json", b'{"data": ' + b"[" * 100_000), "not one of this API"),
        ((200, "application/json", b""), "not one of this API"),
        ((204, "application/json", b""), "not one of this API"),
        ((302, "text/html", b""), "redirects to https://login.example/"),
        ((502, "text/html", b"<html>"), "status 502 and no error description"),
    ],
)
async def test_a_server_that_is_not_trunkline_is_named(
    impostor: str, monkeypatch: pytest.MonkeyPatch, answer: tuple[int, str, bytes], said: str
) -> None:
    monkeypatch.setattr(Impostor, "answer", answer)
    async with HttpClient(impostor) as mq:
        for call in (mq.claim("q"), mq.publish("t", 1), mq.publish_many("t", [1, 2]), mq.queues.list(), mq.topics.read("t")):
            with pytest.raises(errors.DatabaseUnavailable, match=said):
                await call
        with pytest.raises(errors.DatabaseUnavailable, match=f"{said}|not a stream of events"):
            async for _ in mq.topics.tail("t"):
                pass


async def test_streams_that_end_at_once_are_not_opened_in_a_loop(impostor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Impostor, "answer", (200, "text/event-stream", b": here\n\n"))
    opened: list[float] = []

    def count(self: Impostor) -> None:
        opened.append(time.monotonic())
        if len(opened) == 3:
            type(self).answer = (404, "application/json", b'{"error": "topic_not_found", "detail": "no topic"}')
        get(self)

    get = Impostor.do_GET
    monkeypatch.setattr(Impostor, "do_GET", count)
    async with HttpClient(impostor) as mq:
        with pytest.raises(errors.TopicNotFound):
            async for _ in mq.topics.tail("t"):
                pass
    # the third closes; without pauses they would come within milliseconds
    assert opened[2] - opened[0] > 1.5
