"""The jobs of the chaos run; workers import this module."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from trunkline.jobs import App, Backoff, Context

app = App(queue="chaos", max_attempts=100, backoff=Backoff("100ms", cap="1s"))
app.queue("chaos", lease="3s").queue("poison", lease="3s")
POISON_ATTEMPTS = 3
_WORK_SECONDS = 0.06
_INNOCENT_SECONDS = 0.3


def _write(name: str, line: str) -> None:
    """On disk at once, in one piece: what the outside world would have seen."""
    path = Path(os.environ["CHAOS_FOLDER"]) / name
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


@app.job
async def book(ctx: Context, n: int) -> None:
    """An effect in the same database."""
    await asyncio.sleep(_WORK_SECONDS)
    async with ctx.transaction() as tx:
        await tx.execute("insert into chaos_effects (n) values (%s)", (n,))


@app.job
async def send(ctx: Context, n: int) -> None:
    """An effect outside."""

    async def effect() -> Any:
        _write("sent", str(n))
        await asyncio.sleep(_WORK_SECONDS / 2)
        return n

    await asyncio.sleep(_WORK_SECONDS / 2)
    assert await ctx.run_once("send", effect) == n


@app.job(max_attempts=POISON_ATTEMPTS)
async def poison(ctx: Context, n: int) -> None:
    """Kills its worker. The extension is on disk when it returns, and with it the claim: no crash forgets this attempt."""
    _write("poison", f"{n} {ctx.attempt} {os.getpid()}")
    if await ctx.extend("3s") == "done":
        os.kill(os.getpid(), signal.SIGKILL)


@app.job(max_attempts=POISON_ATTEMPTS)
async def poison_at_once(ctx: Context, n: int) -> None:
    _write("poison", f"{n} {ctx.attempt} {os.getpid()}")
    os.kill(os.getpid(), signal.SIGKILL)


@app.job(max_attempts=POISON_ATTEMPTS)
async def innocent(n: int) -> None:
    """Has no more attempts than those that kill the worker it runs on."""
    await asyncio.sleep(_INNOCENT_SECONDS)
    _write("innocent", str(n))
