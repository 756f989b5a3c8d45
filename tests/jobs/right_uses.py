"""Uses of jobs that a strict type checker must accept. Never run."""

from __future__ import annotations

from typing import Any, assert_type

import msgspec
import psycopg

from trunkline import SyncClient
from trunkline.jobs import App, Context, Done, Handle, Job, Outcome, Retry, SyncContext, Worker


class SendEmail(msgspec.Struct):
    to: str


app = App()


@app.job
async def add(ctx: Context, a: int, b: int = 2) -> int:
    await ctx.extend("1m")
    return a + b


@app.job(queue="mail", max_attempts=8, timeout="30s", result=True)
async def plain(text: str) -> Outcome:
    return Retry(after="10s") if text else Done()


@app.job
def threaded(ctx: SyncContext, n: int) -> str:
    with ctx.transaction() as conn:
        conn.execute("select 1")
    return str(n)


email = app.kind("send-email", SendEmail)


async def right(driver: psycopg.AsyncConnection[Any], sync: psycopg.Connection[Any], mq: SyncClient) -> None:
    handle = await add.enqueue(1, b=3)
    assert_type(handle, Handle[int])
    assert_type(await handle.result("5s"), int)
    assert_type(await (await threaded.enqueue(n=1)).result(), str)
    await plain.options(delay="1h", key="k", priority=1).enqueue("x")
    await plain.options(after=[handle]).enqueue("x")
    await add.on(driver).enqueue(1)
    assert_type(add.on(sync).enqueue(1), Handle[int])
    threaded.on(mq).enqueue(1)
    await app.enqueue_many([add.bind(1), plain.bind("x")])
    await app.add(email, SendEmail("a@example.com"), idempotency_key="k")
    async with Worker(app, queues={"mail": 10}):
        pass
    job: Job[..., Any] = app.get("add")
    print(job)
