"""The common time limit of many waits."""

from __future__ import annotations

import asyncio

import pytest

from trunkline.server.timeouts import TimeoutGroup


def test_a_wait_ends_with_its_answer_or_with_its_time() -> None:
    async def main() -> None:
        patience = TimeoutGroup(0.05)

        async def soon() -> int:
            await asyncio.sleep(0)
            return 7

        assert await patience.wait(soon) == 7
        answers = await asyncio.gather(patience.wait(asyncio.Event().wait), patience.wait(soon), return_exceptions=True)
        assert isinstance(answers[0], TimeoutError)
        assert answers[1] == 7
        # A task continues after its wait has ended.
        with pytest.raises(TimeoutError):
            await patience.wait(asyncio.Event().wait)
        assert await patience.wait(soon) == 7

    asyncio.run(main())


def test_a_task_that_is_cancelled_stays_so() -> None:
    async def main() -> None:
        patience = TimeoutGroup(30)
        task = asyncio.create_task(patience.wait(asyncio.Event().wait))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
