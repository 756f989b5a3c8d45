"""Enqueuing: typed arguments, options, the caller's own transaction, unique jobs, jobs that wait for others, schedules."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import psycopg
import pydantic
import pytest

from tests.conftest import Clock, Connection
from tests.jobs.conftest import dead, stats
from tests.support.waiting import until
from trunkline import SyncClient
from trunkline.errors import IdempotencyConflict, InvalidArgument, JobNotFound, PayloadTooLarge, QueueNotFound
from trunkline.jobs import App, Context, InvalidArguments, JobFailed, UnknownKind, Worker


class Struct(msgspec.Struct):
    n: int
    at: datetime


@dataclasses.dataclass
class Record:
    names: set[str]


class Model(pydantic.BaseModel):
    email: str
    size: int


async def test_arguments_are_typed_there_and_back(app: App) -> None:
    seen: list[Any] = []

    @app.job(result=True)
    async def work(s: Struct, r: Record, m: Model, *, many: list[int] | None = None, text: str = "x") -> Model:
        seen.append((s, r, m, many, text))
        return m

    at = datetime(2026, 1, 2, tzinfo=UTC)
    given = (Struct(1, at), Record({"a", "b"}), Model(email="a@example.com", size=3))
    async with Worker(app):
        back = await (await work.enqueue(*given, many=[1, 2])).result("10s")
    assert seen == [(*given, [1, 2], "x")]
    assert back == given[2]


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        (("1",), {}, "Expected `int`, got `str` - at `\\$.n`"),
        ((), {}, "Missing required argument 'n'"),
        ((1, 2, 3), {}, "takes 2 positional arguments, got 3"),
        ((1,), {"n": 2}, "got 'n' twice"),
        ((1,), {"other": 2}, "Unexpected keyword argument 'other'"),
        ((1,), {"extra": object()}, "object cannot be sent as JSON"),
    ],
)
async def test_wrong_arguments_are_refused_before_anything_is_sent(app: App, args: Any, kwargs: Any, words: str) -> None:
    @app.job
    async def work(n: int, extra: Any = None) -> None: ...

    with pytest.raises(InvalidArguments, match=words):
        await work.enqueue(*args, **kwargs)
    assert await app.client.queues.list() == []


async def test_what_cannot_be_a_job_is_refused_where_it_is_defined(app: App) -> None:
    async def no_names(*args: int) -> None: ...

    with pytest.raises(TypeError, match="must be named arguments"):
        app.job(no_names)

    @app.job
    async def twice() -> None: ...

    with pytest.raises(ValueError, match="job 'twice' is already defined"):

        @app.job(name="twice")
        async def other() -> None: ...

    with pytest.raises(UnknownKind, match="job 'nobody' does not exist"):
        await app.add("nobody", {})
    with pytest.raises(ValueError, match="is not kept"):
        await (await twice.enqueue()).result()
    with pytest.raises(ValueError, match="whole number from 1 to 5"):
        twice.options(max_attempts=0)


async def test_old_messages_and_new_code_meet_in_the_dead_letters(app: App) -> None:
    @app.job
    async def work(n: int) -> None: ...

    await app.setup()
    await app.client.enqueue("default", {"m": 1}, label="work")
    await app.client.enqueue("default", b"\xff", label="work")
    async with Worker(app):
        await until(lambda: _dead(app, 2))
        letters = await dead(app)
    assert all("do not match the function" in letter.error for letter in letters)


async def _dead(app: App, n: int) -> bool:
    return bool((await stats(app)).dead == n)


async def test_an_idempotency_key_answers_the_first_job(app: App) -> None:
    @app.job
    async def work(n: int) -> None: ...

    first = await work.options(idempotency_key="k").enqueue(1)
    again = await work.options(idempotency_key="k").enqueue(1)
    assert (again.id, again.duplicate, first.duplicate) == (first.id, True, False)
    with pytest.raises(IdempotencyConflict):
        await work.options(idempotency_key="k").enqueue(2)
    many = await app.enqueue_many([work.options(idempotency_key="k").bind(1), work.bind(5)])
    assert [handle.duplicate for handle in many] == [True, False]


async def test_delay_run_at_and_priority(app: App, clock: Clock) -> None:
    app.queue("urgent", priorities=3)
    ran: list[str] = []

    @app.job(queue="urgent")
    async def work(what: str) -> None:
        ran.append(what)

    await app.setup()
    await work.options(delay="1h").enqueue("later")
    await work.options(run_at=datetime.now(UTC) + timedelta(hours=2)).enqueue("at")
    await work.options(priority=2).enqueue("now")
    with pytest.raises(InvalidArgument, match="priority"):
        await work.options(priority=7).enqueue("never")
    async with Worker(app) as worker:
        await until(lambda: ran == ["now"] and not worker.busy)
        clock.advance(timedelta(hours=1, minutes=1))
        await until(lambda: ran == ["now", "later"] and not worker.busy)  # or its lease ends with the next step of the clock
        clock.advance(timedelta(hours=1))
        await until(lambda: ran == ["now", "later", "at"])


async def test_outbox_on_any_connection(app: App, db: str) -> None:
    @app.job
    async def work(n: int) -> None: ...

    await app.setup()
    with psycopg.connect(db) as conn:
        work.on(conn).enqueue(1)
        conn.rollback()
        work.on(conn).enqueue(2)
        work.options(unique="u").on(conn).enqueue(3)
    async with await psycopg.AsyncConnection.connect(db) as aconn:
        await work.on(aconn).enqueue(4)
    async with app.transaction() as own:
        await work.on(own).enqueue(5)
    with SyncClient(db) as mq:
        work.on(mq).enqueue(6)
    with psycopg.connect(db, autocommit=True) as conn:
        conn.execute("call trunkline.sequence()")
    assert [message.body["n"] for message in await app.client.queues.peek("default")] == [2, 3, 4, 5, 6]


async def test_unique_while_pending(app: App) -> None:
    go = asyncio.Event()

    @app.job(unique=True, max_attempts=1)
    async def report(year: int) -> None:
        await go.wait()
        if year == 0:
            raise ValueError("no such year")

    first = await report.enqueue(2026)
    assert (await report.enqueue(2026)).id == first.id
    other = await report.enqueue(0)
    assert not other.duplicate
    async with Worker(app):
        await until(lambda: _leased(app))
        assert (await report.enqueue(2026)).duplicate
        go.set()
        await until(lambda: _dead(app, 1))
        await until(lambda: _acked(app, 1))
        # ended, well or not: the key is free
        assert not (await report.enqueue(2026)).duplicate
        assert not (await report.enqueue(0)).duplicate


async def _leased(app: App) -> bool:
    return bool((await stats(app)).leased)


async def _acked(app: App, n: int) -> bool:
    return bool((await stats(app)).acked >= n)


async def test_jobs_that_wait_for_others(app: App) -> None:
    ran: list[str] = []

    @app.job
    async def part(n: int) -> None:
        ran.append(f"part {n}")

    @app.job(result=True)
    async def whole() -> str:
        ran.append("whole")
        return "whole"

    parts = await app.enqueue_many([part.options(track=True).bind(n) for n in range(20)])
    last = await whole.options(after=parts).enqueue()
    chain = await app.chain(part.bind(101), part.bind(102), whole.bind())
    loose = await part.enqueue(0)
    with pytest.raises(ValueError, match="not tracked"):
        whole.options(after=[loose]).bind()
    async with Worker(app, queues={"default": 4}):
        assert await last.result("20s") == "whole"
        assert await chain[-1].result("20s") == "whole"
        # all done already: at once
        assert await (await whole.options(after=parts[:2]).enqueue()).result("20s") == "whole"
    assert ran.count("whole") == 3 and {f"part {n}" for n in range(20)} <= set(ran[: ran.index("whole")] + ran)
    assert ran.index("part 101") < ran.index("part 102")


async def test_a_job_whose_queue_is_deleted_while_it_waits_raises(app: App, conn: Connection) -> None:
    @app.job(result=True)
    async def first() -> None: ...

    @app.job(result=True, queue="other")
    async def second() -> None: ...

    conn.execute("select trunkline.create_queue('other')")
    waiting = await second.options(after=[await first.enqueue()]).enqueue()
    conn.execute("select trunkline.delete_queue('other', true)")
    with pytest.raises(JobFailed, match='queue "other" was deleted'):
        await waiting.result("20s")


async def test_a_job_that_waits_can_be_cancelled(app: App) -> None:
    @app.job(result=True)
    async def work(n: int) -> None: ...

    first = await work.enqueue(1)
    second = await work.options(after=[first]).enqueue(2)
    assert await second.cancel("not wanted") == "cancelled"
    assert await second.cancel() == "cancelled"
    with pytest.raises(JobNotFound, match="does not exist"):
        await app.cancel(UUID("019a8d2e-7c1b-7000-8000-000000000000"))
    async with Worker(app):
        await first.result("10s")
    assert await first.cancel() == "done"
    with pytest.raises(JobFailed, match="not wanted"):
        await second.result("10s")
    assert (await stats(app)).acked == 1


async def test_schedules_are_declared_in_code(app: App, clock: Clock, conn: Connection) -> None:
    ran: list[str] = []

    @app.job(cron="*/5 * * * *", timezone="Europe/Berlin")
    async def tidy() -> None:
        ran.append("tidy")

    @app.job
    async def report(kind: str) -> None:
        ran.append(kind)

    app.schedule("daily", "0 3 * * *", report.bind("daily"))
    with pytest.raises(ValueError, match="schedule 'daily' is already defined"):
        app.schedule("daily", "0 4 * * *", report.bind("daily"))
    async with Worker(app), Worker(app):
        clock.advance(timedelta(days=1))
        conn.execute("call trunkline.upkeep()")
        await until(lambda: sorted(ran) == ["daily", "tidy"])
    app.schedule("wrong", "61 * * * *", report.bind("x"))
    with pytest.raises(InvalidArgument, match="61"):
        await app.setup()


async def test_a_payload_that_is_too_big_and_a_queue_that_nobody_declared(app: App) -> None:
    @app.job
    async def work(text: str) -> None: ...

    with pytest.raises(PayloadTooLarge):
        await work.enqueue("x" * 2_000_000)
    with pytest.raises(QueueNotFound):
        await work.options(queue="nowhere").enqueue("x")


async def test_results_go_when_their_time_is_over(app: App, clock: Clock, conn: Connection) -> None:
    @app.job(result=True)
    async def work(ctx: Context) -> int:
        async def effect() -> int:
            return 5

        return await ctx.run_once("e", effect)

    async with Worker(app):
        assert await (await work.enqueue()).result("10s") == 5
    # kept for 30 days, and removed fifteen days at a time
    for _ in range(46):
        clock.advance(timedelta(days=1))
        conn.execute("select trunkline.run_upkeep('jobs')")
    assert conn.execute(
        "select (select count(*) from trunkline.job_results), (select count(*) from trunkline.job_once)"
    ).fetchone() == (0, 0)
