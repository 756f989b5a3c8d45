"""Typed jobs: a map of handlers, and an effect that runs once although the job is retried.

TRUNKLINE_DATABASE_URL=postgresql:///app python examples/jobs.py
"""

from __future__ import annotations

import asyncio
import logging
from uuid import uuid4

import msgspec

from trunkline.jobs import App, Backoff, Context, Worker

logging.getLogger("trunkline").setLevel(logging.ERROR)


class SendEmail(msgspec.Struct):
    to: str
    subject: str


class ProcessImage(msgspec.Struct):
    path: str
    output: str


app = App(queue="work", backoff=Backoff("10ms"))
send_email = app.kind("send-email", SendEmail)
process_image = app.kind("process-image", ProcessImage)
finished = asyncio.Event()


async def on_email(payload: SendEmail, ctx: Context) -> None:
    async def send() -> None:
        print(f"sending email to {payload.to}")

    await ctx.run_once("email", send)
    if ctx.attempt == 1:
        raise ConnectionError("the effect happened, the job failed")
    print(f"done in attempt {ctx.attempt}")
    finished.set()


async def on_image(payload: ProcessImage, ctx: Context) -> None:
    print(f"processing image {payload.path}")


async def main() -> None:
    async with app:
        welcome = SendEmail(to="ann@example.com", subject="Welcome")
        # The key is unique to this run: with a fixed key, a run within a day would return the job of the first run.
        key = f"email:ann:welcome:{uuid4()}"
        first = await app.add(send_email, welcome, idempotency_key=key, max_attempts=5)
        again = await app.add(send_email, welcome, idempotency_key=key, max_attempts=5)
        print("duplicate:", again.duplicate, "same job:", again.id == first.id)
        async with Worker(app, queues={"work": 1}, handlers={send_email: on_email, process_image: on_image}):
            await finished.wait()


asyncio.run(main())
