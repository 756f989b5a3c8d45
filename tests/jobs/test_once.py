"""Effects that happen once: in the job's own transaction (J2), and outside with a marker (J3)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.conftest import Clock, Connection
from tests.jobs.conftest import dead, stats
from tests.support.waiting import until
from trunkline import LeaseLost
from trunkline.jobs import App, Context, SyncContext, Worker


async def test_key_effects_result_and_end_are_one_transaction(app: App, conn: Connection) -> None:
    """J2: and what is enqueued in it belongs to it too."""
    conn.execute("create table booked (n int)")
    ran: list[str] = []

    @app.job
    async def follow(n: int) -> None:
        ran.append(f"follow {n}")

    async def book(tx: Any) -> dict[str, int]:
        ran.append("book")
        await tx.execute("insert into booked values (1)")
        return {"invoice": 7}

    @app.job(result=True)
    async def work(ctx: Context) -> dict[str, int]:
        async with ctx.transaction() as tx:
            got = await ctx.run_once("book", book, on=tx, scope="order 5")
            await follow.on(tx).enqueue(got["invoice"])
            if ctx.attempt == 1 and "failed" not in ran:
                ran.append("failed")
                raise ValueError("after the effect")
            ctx.set_result(got)
        return got

    async with Worker(app):
        assert await (await work.enqueue()).result("10s") == {"invoice": 7}
        # A repeat returns the stored result and books nothing.
        assert await (await work.enqueue()).result("10s") == {"invoice": 7}
        await until(lambda: ran.count("follow 7") == 2)
    assert conn.execute("select count(*) from booked").fetchone() == (1,)
    assert ran.count("book") == 2 and ran.count("failed") == 1


async def test_a_transaction_without_its_lease_is_rolled_back(app: App, conn: Connection, clock: Clock) -> None:
    conn.execute("create table effects (n int)")
    refused: list[str] = []

    @app.job(result=True)
    async def work(ctx: Context) -> None:
        try:
            async with ctx.transaction() as tx:
                await tx.execute("insert into effects values (1)")
                if ctx.attempt == 1:
                    clock.advance(60)
        except LeaseLost as exc:
            refused.append(exc.code)
            raise

    async with Worker(app):
        await (await work.enqueue()).result("20s")
    assert refused == ["lease_lost"]
    assert conn.execute("select count(*) from effects").fetchone() == (1,)


async def test_plain_handlers_have_the_same(app: App, conn: Connection) -> None:
    conn.execute("create table booked (n int)")
    sent: list[int] = []

    def book(tx: Any) -> int:
        tx.execute("insert into booked values (1)")
        return 7

    @app.job(result=True)
    def work(ctx: SyncContext) -> int:
        assert ctx.run_once("mail", lambda: sent.append(1)) is None
        with ctx.transaction() as tx:
            got = ctx.run_once("book", book, on=tx)
            ctx.set_result(got)
        return got

    async with Worker(app):
        assert await (await work.enqueue()).result("10s") == 7
    assert conn.execute("select count(*) from booked").fetchone() == (1,)
    assert sent == [1]


async def test_an_outside_effect_is_not_repeated_by_the_next_attempt(app: App) -> None:
    sent: list[int] = []
    answers: list[Any] = []

    @app.job
    async def work(ctx: Context) -> None:
        async def send() -> str:
            sent.append(ctx.attempt)
            return "message 5"

        async def refuse() -> None:
            sent.append(-ctx.attempt)
            if ctx.attempt == 1:
                raise ConnectionError("refused, so it did not happen")

        answers.append(await ctx.run_once("mail", send))
        await ctx.run_once("other", refuse)
        if ctx.attempt < 3:
            raise ValueError("later")

    async with Worker(app):
        await work.enqueue()
        await until(lambda: len(answers) == 3)
    assert answers == ["message 5"] * 3
    assert sent == [1, -1, -2]


@pytest.mark.parametrize(("choice", "sent_again"), [("raise", 0), ("skip", 0), ("rerun", 1)])
async def test_a_crash_between_effect_and_answer_is_reported_as_unknown(
    app: App, conn: Connection, choice: Any, sent_again: int
) -> None:
    """J3: the marker is on disk, the response is not."""
    sent: list[int] = []

    @app.job(result=True)
    async def work(ctx: Context) -> str:
        async def send() -> str:
            sent.append(1)
            return "sent"

        return str(await ctx.run_once("mail", send, on_unknown=choice))

    handle = await work.enqueue()
    # State left by a worker that dies during the effect.
    conn.execute("select trunkline.begin_once(%s, 'mail')", (str(handle.id),))
    async with Worker(app):
        if choice == "raise":
            [letter] = await dead(app)
            assert letter.error.startswith("EffectUnknown: effect 'mail' was started by an earlier attempt")
            assert letter.attempts == 1
        else:
            assert await handle.result("10s") == ("None" if choice == "skip" else "sent")
    assert len(sent) == sent_again


async def test_a_cancelled_effect_stays_unknown(app: App) -> None:
    # long enough for a busy machine to begin the effect within it
    @app.job(timeout="3s", max_attempts=2)
    async def work(ctx: Context) -> None:
        async def send() -> None:
            await asyncio.sleep(60)

        await ctx.run_once("mail", send)

    async with Worker(app):
        await work.enqueue()
        [letter] = await dead(app)
    assert "may or may not have happened" in letter.error and letter.attempts == 2
    assert (await stats(app)).acked == 0
