"""The loop that claims ahead: errors do not end it, a stop does, after the claim in flight."""

from __future__ import annotations

import asyncio

import pytest

from trunkline.errors import DatabaseUnavailable
from trunkline.runtime.claim_loop import ClaimLoop


@pytest.mark.parametrize("error", [DatabaseUnavailable("gone"), RuntimeError("defect"), asyncio.CancelledError()])
async def test_a_turn_that_fails_is_followed_by_another(error: BaseException) -> None:
    turns: list[int] = []
    reached = asyncio.Event()

    async def turn() -> None:
        turns.append(len(turns))
        if len(turns) < 3:
            raise error
        reached.set()
        await asyncio.sleep(60)

    loop = ClaimLoop(turn, lambda: None, name="test", retry_seconds=0.001)
    async with asyncio.timeout(10):
        await reached.wait()
        await loop.end()
    assert turns == [0, 1, 2]


async def test_a_stop_ends_a_wait_and_lets_a_claim_in_flight_finish() -> None:
    changed, claiming, answered = asyncio.Event(), asyncio.Event(), asyncio.Event()
    claimed: list[str] = []

    async def turn() -> None:
        if not claimed:
            claiming.set()
            await answered.wait()
            claimed.append("message")
        else:
            await changed.wait()

    loop = ClaimLoop(turn, changed.set, name="test")
    async with asyncio.timeout(10):
        await claiming.wait()
        loop.stop()
        ending = asyncio.create_task(loop.end(10))
        await asyncio.sleep(0)
        assert not ending.done() and claimed == []
        answered.set()
        await ending
    assert claimed == ["message"]
