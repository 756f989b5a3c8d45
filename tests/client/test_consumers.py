"""Consumer loops and what they settle; with both twins."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import psycopg
import pytest

from tests.conftest import Clock
from trunkline import LeaseLost
from trunkline.client import TransactionMisuse
from trunkline.codec import InvalidBody
from trunkline.errors import OffsetAhead, TrunklineError


class Order(msgspec.Struct):
    id: int


async def test_a_group_reads_everything_in_order_and_waits_for_more(mq: Any) -> None:
    await mq.topics.create("t")
    await mq.publish_many("t", ({"id": n} for n in range(25)))
    seen: list[int] = []
    async with mq.subscribe("t", Order, group="g", batch=10) as orders:
        async for batch in orders:
            assert (batch.partition, batch.last_offset) == (0, batch.first_offset + len(batch) - 1)
            assert batch.lag.total_seconds() >= 0
            seen += [message.body.id for message in batch]
            assert await batch.commit() == "done"
            if len(seen) == 25:
                await mq.publish("t", {"id": 25})
            elif len(seen) == 26:
                break
    assert seen == list(range(26))
    assert await mq.groups.position("t", "g") == {0: 27}
    assert (await mq.groups.stats("t", "g"))[0].member is None


async def test_a_batch_that_was_not_committed_comes_again(mq: Any) -> None:
    await mq.topics.create("t")
    await mq.publish_many("t", range(3))
    async with mq.subscribe("t", group="g") as batches:
        tries = 0
        async for batch in batches:
            assert [message.body for message in batch] == [0, 1, 2][tries:]
            tries += 1
            if tries == 2:
                assert await batch.commit() == "done"
                break
            assert await batch.commit(batch.first_offset) == "done"


async def test_members_share_partitions_and_one_takes_over(mq: Any) -> None:
    await mq.topics.create("t", partitions=4)
    seen: list[int] = []

    async def read(upto: int) -> None:
        async with mq.subscribe("t", int, group="g", batch=5) as batches:
            async for batch in batches:
                seen.extend(message.body for message in batch)
                await batch.commit()
                if len(seen) >= upto:
                    for reader in readers:
                        reader.stop()

    readers: list[Any] = []
    real = mq.subscribe

    def remember(*args: Any, **kwargs: Any) -> Any:
        readers.append(real(*args, **kwargs))
        return readers[-1]

    mq.__dict__["subscribe"] = remember
    tasks = [asyncio.create_task(read(200)) for _ in range(3)]
    await mq.publish_many("t", range(200), key=str)
    await asyncio.gather(*tasks)
    assert sorted(seen) == list(range(200))


async def test_claims_are_given_renewed_and_acked(mq: Any) -> None:
    await mq.queues.create("q", lease="1s")
    await mq.enqueue_many("q", range(10))
    seen = []
    async with mq.queue("q").claims(max_in_flight=4, type=int) as claims:
        async for delivery in claims:
            seen.append(delivery.body)
            if delivery.body == 0:
                # longer than the lease: it is renewed meanwhile
                await asyncio.sleep(1.5)
            assert await delivery.ack() == "done"
            if len(seen) == 10:
                break
    assert sorted(seen) == list(range(10))
    stats = (await mq.queues.stats("q"))[0]
    assert (stats.ready, stats.leased, stats.acked) == (0, 0, 10)


async def test_what_was_not_given_out_goes_back_without_an_attempt(mq: Any) -> None:
    await mq.queues.create("q")
    await mq.enqueue_many("q", range(5))
    async with mq.queue("q").claims(max_in_flight=5) as claims:
        async for delivery in claims:
            await delivery.ack()
            break
    assert [(d.body, d.attempt) for d in await mq.claim("q", limit=10)] == [(n, 1) for n in range(1, 5)]


async def test_slots_limit_what_is_held(mq: Any) -> None:
    await mq.queues.create("q")
    await mq.enqueue_many("q", range(5))
    async with mq.queue("q").claims(max_in_flight=2) as claims:
        first = await anext(aiter(claims))
        second = await anext(claims)
        third = asyncio.create_task(_next(claims))
        await asyncio.sleep(0.1)
        assert not third.done()
        assert (await mq.queues.stats("q"))[0].leased == 2
        await second.ack()
        assert (await third).body == 2
        await first.ack()


async def _next(claims: Any) -> Any:
    return await anext(claims)


async def test_a_stopped_loop_ends_while_it_waits(mq: Any) -> None:
    await mq.queues.create("q")
    await mq.topics.create("t")
    async with mq.queue("q").claims() as claims, mq.subscribe("t", group="g") as batches:
        waits = [asyncio.create_task(_drain(loop)) for loop in (claims, batches)]
        await asyncio.sleep(0.1)
        claims.stop()
        batches.stop()
        assert await asyncio.gather(*waits) == [0, 0]


async def _drain(loop: Any) -> int:
    return len([item async for item in loop])


async def test_settling_one_by_one_and_all_together(mq: Any) -> None:
    await mq.queues.create("q", backoff_base="0s")
    await mq.enqueue_many("q", range(6))
    taken = await mq.claim("q", limit=6, consumer="me")
    a, b, c, d, *rest = taken
    assert await a.ack() == "done"
    assert await b.nack(error="x") == "done"
    assert await c.bury("broken") == "done"
    assert await d.extend("1m") == "done"
    assert await d.release() == "done"
    assert await mq.ack([one.receipt for one in rest]) == ["done", "done"]
    assert sorted((one.body, one.attempt) for one in await mq.claim("q", limit=9)) == [(1, 2), (3, 1)]
    assert await mq.ack(["1.2.3.nonsense"]) == ["unknown"]
    with pytest.raises(TypeError, match="list"):
        await mq.ack(a.receipt)


async def test_acks_of_one_moment_share_a_statement(mq: Any, conn: psycopg.Connection[Any]) -> None:
    await mq.queues.create("q")
    await mq.enqueue_many("q", range(100))
    taken = await mq.claim("q", limit=100)
    assert await asyncio.gather(*(one.ack() for one in taken)) == ["done"] * 100
    row = conn.execute("select count(distinct xid) from trunkline.settled where kind = 'a'").fetchone()
    assert row is not None
    assert row[0] < 60


# Bad input 111: ack twice, after nack, after the context ended, from another process


async def test_a_repeated_ack_is_harmless_and_one_after_a_nack_is_lost(mq: Any, kind: str, db: str) -> None:
    from tests.support import both_clients

    await mq.queues.create("q")
    await mq.enqueue_many("q", range(3))
    async with mq.queue("q").claims(max_in_flight=3) as claims:
        first = await anext(aiter(claims))
        second = await anext(claims)
        third = await anext(claims)
    assert [await first.ack(), await first.ack()] == ["done", "done"]
    assert [await second.nack(), await second.ack()] == ["done", "lost"]
    async with both_clients.client(kind, db) as other:
        assert await other.ack([third.receipt]) == ["done"]
    with pytest.raises(LeaseLost):
        async with second.transaction() as conn:
            await conn.execute("select 1")


async def test_a_body_of_another_type_is_met_in_the_handler(mq: Any) -> None:
    await mq.queues.create("q")
    await mq.enqueue("q", {"id": "seven"})
    async with mq.queue("q").claims(type=Order) as claims:
        async for delivery in claims:
            with pytest.raises(InvalidBody):
                _ = delivery.body
            assert await delivery.bury("bad body") == "done"
            break


# Exactly once


@pytest.fixture
def done(conn: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    conn.execute("create table done (n int)")
    return conn


def rows(conn: psycopg.Connection[Any]) -> list[int]:
    return [row[0] for row in conn.execute("select n from done order by n").fetchall()]


async def test_rows_and_position_commit_together(mq: Any, done: psycopg.Connection[Any]) -> None:
    await mq.topics.create("t")
    await mq.publish_many("t", range(3))
    async with mq.subscribe("t", int, group="g") as batches:
        tries = 0
        async for batch in batches:
            tries += 1
            try:
                async with batch.transaction() as conn:
                    for message in batch:
                        await conn.execute("insert into done values (%s)", (message.body,))
                    if tries == 1:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                assert rows(done) == []
                assert await mq.groups.position("t", "g") == {0: 1}
                continue
            break
    assert rows(done) == [0, 1, 2]
    assert await mq.groups.position("t", "g") == {0: 4}


async def test_rows_and_ack_commit_together(mq: Any, done: psycopg.Connection[Any]) -> None:
    await mq.queues.create("q")
    await mq.enqueue_many("q", range(4))
    taken = await mq.claim("q", limit=4)
    async with taken[0].transaction() as conn:
        await conn.execute("insert into done values (0)")
    with pytest.raises(ZeroDivisionError):
        async with taken[1].transaction() as conn:
            await conn.execute("insert into done values (1)")
            raise ZeroDivisionError
    assert rows(done) == [0]
    assert (await mq.queues.stats("q"))[0].acked == 1
    await taken.release()
    rest = await mq.claim("q", limit=4)
    async with rest.transaction() as conn:
        await conn.execute("insert into done values (2), (3)")
    assert (await mq.queues.stats("q"))[0].acked == 4


async def test_a_lost_lease_rolls_back(mq: Any, done: psycopg.Connection[Any], clock: Clock) -> None:
    await mq.topics.create("t")
    await mq.queues.create("q")
    await mq.publish("t", 1)
    await mq.enqueue("q", 1)
    batch = await mq.fetch("t", "g", member="me")
    [delivery] = await mq.claim("q")
    clock.advance(60)
    for leased in (batch, delivery):
        with pytest.raises(LeaseLost):
            async with leased.transaction() as conn:
                await conn.execute("insert into done values (1)")
    assert rows(done) == []
    assert await mq.groups.position("t", "g") == {0: 1}


# Bad inputs 104 and 105: the handler ends the transaction itself, or uses the connection later


@pytest.mark.parametrize("ending", ["commit", "rollback", "commit; begin", "rollback; begin"])
async def test_a_handler_that_ends_the_transaction_is_found_out(mq: Any, done: psycopg.Connection[Any], ending: str) -> None:
    await mq.topics.create("t")
    await mq.queues.create("q")
    await mq.publish("t", 1)
    await mq.enqueue("q", 1)
    batch = await mq.fetch("t", "g", member="me")
    [delivery] = await mq.claim("q")
    for leased in (batch, delivery):
        with pytest.raises(TransactionMisuse):
            async with leased.transaction() as conn:
                await conn.execute("insert into done values (1)")
                await conn.execute(ending)
    assert await mq.groups.position("t", "g") == {0: 1}
    stats = (await mq.queues.stats("q"))[0]
    assert (stats.acked, stats.leased) == (0, 1)
    # the pool is as good as before
    assert await delivery.ack() == "done"


async def test_the_connection_is_of_no_use_after_its_block(mq: Any, done: psycopg.Connection[Any]) -> None:
    await mq.queues.create("q")
    await mq.enqueue("q", 1)
    [delivery] = await mq.claim("q")
    async with delivery.transaction() as conn:
        cursor = await conn.execute("insert into done values (1) returning n")
        assert await cursor.fetchone() == (1,)
    for use in (conn.execute("insert into done values (2)"), cursor.execute("insert into done values (2)")):
        with pytest.raises(TransactionMisuse):
            await use
    assert rows(done) == [1]
    assert (await mq.queues.stats("q"))[0].acked == 1


async def test_a_loop_that_outlives_its_client_ends_with_an_error(kind: str, db: str) -> None:
    from tests.support import both_clients

    async with both_clients.client(kind, db) as mq:
        await mq.queues.create("q")
        claims = mq.queue("q").claims()
        await claims.__aenter__()
        waits = asyncio.create_task(_next(claims))
        await asyncio.sleep(0.1)
    with pytest.raises(TrunklineError, match="closed"):
        await waits


async def test_a_second_transaction_of_the_same_delivery_or_batch_does_nothing(
    mq: Any, conn: psycopg.Connection[Any]
) -> None:
    """Retrying after a lost response could double the effects, because a repeated ack returns `done`."""
    conn.execute("create table public.effects (of text)")
    await mq.topics.create("t")
    await mq.queues.create("q")
    await mq.enqueue_many("q", [1, 2])
    await mq.publish("t", 1)
    deliveries = await mq.claim("q", limit=2)
    batch = await mq.fetch("t", "g", member="m")
    for thing in (deliveries[0], batch):
        # what was rolled back may be tried again
        with pytest.raises(ZeroDivisionError):
            async with thing.transaction():
                raise ZeroDivisionError
        async with thing.transaction() as lent:
            await lent.execute("insert into public.effects values ('once')")
        with pytest.raises(TransactionMisuse):
            async with thing.transaction():
                pytest.fail("entered again")
    with pytest.raises(TransactionMisuse):
        async with deliveries.transaction():
            pytest.fail("one of them is settled")
    assert conn.execute("select count(*) from public.effects").fetchone() == (2,)


async def test_a_fetch_that_a_crash_forgot_is_lost(mq: Any, conn: psycopg.Connection[Any]) -> None:
    await mq.topics.create("t")
    await mq.publish("t", 1)
    batch = await mq.fetch("t", "g", member="m")
    # as after a crash that took the relaxed commit of the fetch with it, but not the one before
    conn.execute("update trunkline.positions set fetched = committed")
    assert await batch.commit() == "lost"
    with pytest.raises(LeaseLost):
        async with batch.transaction():
            pass
    with pytest.raises(OffsetAhead):
        await batch.commit(99)
