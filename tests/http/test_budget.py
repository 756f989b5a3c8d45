"""Pages of messages are limited by count and by bytes; what does not fit comes with the next page."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import httpx
import pytest

from trunkline import Client
from trunkline.server.config import Config
from trunkline.server.topic_tail import TopicTails

BUDGET = Config(database_url="").max_response_bytes
SIZE = 900_000
COUNT = 20
PER_PAGE = BUDGET // SIZE
RAW = {"content-type": "application/octet-stream"}


def publish(http: httpx.Client, path: str) -> None:
    for _ in range(COUNT):
        assert http.post(f"{path}/messages", content=b"x" * SIZE, headers=RAW).status_code == 201


@pytest.fixture
def queue(http: httpx.Client, name: str) -> str:
    assert http.post("/v1/queues?ensure=true", json={"name": name}).status_code == 201
    publish(http, f"/v1/queues/{name}")
    return name


@pytest.fixture
def topic(http: httpx.Client, name: str) -> str:
    assert http.post("/v1/topics", json={"name": name}).status_code == 201
    publish(http, f"/v1/topics/{name}")
    return name


def test_a_read(http: httpx.Client, topic: str) -> None:
    offsets: list[int] = []
    while page := http.get(f"/v1/topics/{topic}/messages?limit=1000&start={len(offsets) + 1}").json()["data"]:
        assert len(page) <= PER_PAGE
        offsets += [row["offset"] for row in page]
    assert offsets == list(range(1, COUNT + 1))


def test_groups(http: httpx.Client, topic: str) -> None:
    offsets: list[int] = []
    while batch := http.post(f"/v1/topics/{topic}/groups/g/fetch", json={"member": "one", "limit": 1000}).json():
        if not batch["messages"]:
            break
        assert len(batch["messages"]) <= PER_PAGE
        offsets += [row["offset"] for row in batch["messages"]]
        position = {"partition": batch["partition"], "generation": batch["generation"], "offset": offsets[-1]}
        assert http.post(f"/v1/topics/{topic}/groups/g/commit", json=position).status_code == 200
    assert offsets == list(range(1, COUNT + 1))


def test_claims_and_dead_letters(http: httpx.Client, queue: str) -> None:
    waiting = http.get(f"/v1/queues/{queue}/peek?limit=1000").json()["data"]
    assert len(waiting) == PER_PAGE
    ids: list[str] = []
    while taken := http.post(f"/v1/queues/{queue}/claims", json={"limit": 1000}).json()["deliveries"]:
        assert len(taken) <= PER_PAGE
        # what did not fit was not delivered
        assert {row["attempt"] for row in taken} == {1}
        ids += [row["id"] for row in taken]
        http.post(f"/v1/queues/{queue}/bury", json={"receipts": [row["receipt"] for row in taken]})
    assert len(ids) == len(set(ids)) == COUNT
    dead: list[str] = []
    after: int | None = 0
    while after is not None:
        page = http.get(f"/v1/queues/{queue}/dead-letters?limit=1000&after={after}").json()
        assert len(page["data"]) <= PER_PAGE
        dead += [row["id"] for row in page["data"]]
        after = page.get("next")
    assert sorted(dead) == sorted(ids)


async def test_what_is_kept_of_a_topic_that_is_followed(db: str) -> None:
    async with Client(db) as mq:
        await mq.topics.create("t")
        tails = TopicTails(mq, 50_000)
        seen: list[int] = []
        async with asyncio.timeout(60), aclosing(tails.follow("t", [1], 1.0)) as news:  # type: ignore[type-var]
            published = False
            async for events in news:
                if not published:
                    await mq.publish_many("t", [b"x" * 10_000] * 30)
                    published = True
                seen += [event.offset for event in events]
                kept = tails._tails["t"]._recent[0]
                assert sum(len(event.data) for event in kept) <= 70_000
                if len(seen) == 30:
                    break
        assert seen == list(range(1, 31))
        tails.close()
