"""Uses of jobs that a strict type checker must refuse. Each wrong line names the kind of its error. Never run."""

from __future__ import annotations

from typing import Any

import msgspec
import psycopg

from trunkline.jobs import App, Context, Retry, Snooze, Worker


class SendEmail(msgspec.Struct):
    to: str


app = App()


@app.job
async def add(ctx: Context, a: int, b: int = 2) -> int:
    await ctx.extend(30)  # error: arg-type
    ctx.attempt = 5  # error: misc
    return a + b


@app.job
def plain(text: str) -> str:
    return text


email = app.kind("send-email", SendEmail)


async def wrong(driver: psycopg.AsyncConnection[Any], sync: psycopg.Connection[Any]) -> None:
    app.job(queue=5)  # error: call-overload
    await add.enqueue()  # error: call-arg
    await add.enqueue("1")  # error: arg-type
    await add.enqueue(1, c=2)  # error: call-arg
    await add.enqueue(1, b="2")  # error: arg-type
    await plain.enqueue(5)  # error: arg-type
    add.bind("x")  # error: arg-type
    await add.options(delay=30).enqueue(1)  # error: arg-type
    await add.options(dely="1s").enqueue(1)  # error: call-arg
    await add.options(after=[5]).enqueue(1)  # error: list-item
    text: str = await (await add.enqueue(1)).result()  # error: assignment
    await add.on(sync).enqueue(1)  # error: misc
    print(add.on(driver).enqueue(1).id)  # error: attr-defined
    await app.add(email, {"to": "x"})  # error: arg-type
    await email.enqueue("x")  # error: arg-type
    Worker(app, queues={"mail": "10"})  # error: dict-item
    Retry(after=10)  # error: arg-type
    Snooze()  # error: call-arg
    print(text)
