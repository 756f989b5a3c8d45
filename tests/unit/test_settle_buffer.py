"""The buffer that settles in the background: what it flushes together, repeats and gives up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from trunkline.errors import DatabaseUnavailable, InvalidArgument
from trunkline.runtime.settle_buffer import SettleBuffer
from trunkline.types import Result


class Database:
    """Settles numbers. The even ones are one group, the odd ones another."""

    def __init__(self, **options: float) -> None:
        self.batches: list[list[int]] = []
        self.results: dict[int, Result] = {}
        self.failures: list[Exception] = []
        self.open = asyncio.Event()
        self.open.set()
        self.buffer = SettleBuffer(
            self.flush, self.results.__setitem__, name="numbers", group=lambda n: n % 2, limits=(3, 1), **options
        )

    async def flush(self, batch: list[int]) -> Sequence[Result]:
        await self.open.wait()
        if self.failures:
            raise self.failures.pop(0)
        self.batches.append(batch)
        return ["lost" if number == 4 else "done" for number in batch]


async def test_groups_flush_in_turn_within_their_limits() -> None:
    database = Database()
    for number in (0, 2, 1, 3, 4, 6):
        database.buffer.add(number)
    assert database.buffer.busy
    assert await database.buffer.drain(10)
    assert database.batches == [[0, 2, 4], [1], [6], [3]]
    assert database.results == {0: "done", 2: "done", 4: "lost", 1: "done", 6: "done", 3: "done"}


async def test_what_is_added_during_a_flush_is_in_the_next_one() -> None:
    database = Database()
    database.open.clear()
    database.buffer.add(0)
    await asyncio.sleep(0)
    database.buffer.add(2)
    database.buffer.add(4)
    assert not await database.buffer.drain(0.01)
    database.open.set()
    assert await database.buffer.drain(10)
    assert database.batches == [[0], [2, 4]]


async def test_an_unavailable_database_is_tried_again() -> None:
    database = Database(retry_seconds=0.001)
    database.failures = [DatabaseUnavailable("gone")] * 3
    database.buffer.add(0)
    assert await database.buffer.drain(10)
    assert database.results == {0: "done"} and database.failures == []


@pytest.mark.parametrize("error", [InvalidArgument("no"), DatabaseUnavailable("gone"), RuntimeError("defect")])
async def test_what_cannot_be_settled_is_reported_and_does_not_stop_the_rest(error: Exception) -> None:
    database = Database(retry_seconds=0.001, give_up_seconds=-1)
    database.failures = [error]
    database.buffer.add(0)
    await asyncio.sleep(0)
    database.buffer.add(2)
    assert await database.buffer.drain(10)
    assert database.results == {0: "unknown", 2: "done"}


async def test_an_ended_buffer_settles_nothing() -> None:
    database = Database()
    database.open.clear()
    database.buffer.add(0)
    await asyncio.sleep(0)
    await database.buffer.end()
    database.open.set()
    database.buffer.add(2)
    assert await database.buffer.drain(0.01)
    assert database.results == {}
