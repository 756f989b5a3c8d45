"""Jobs for tests that start real worker processes."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from trunkline.jobs import App, Context

app = App(queue="work")
app.queue("work", lease="1s")


@app.job
async def note(ctx: Context, folder: str, die_first: bool = False) -> None:
    with (Path(folder) / "seen").open("a") as file:
        file.write(f"{ctx.id} {ctx.attempt}\n")
    if die_first and ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@app.job
async def slow(ctx: Context, folder: str, seconds: float) -> None:
    (Path(folder) / f"started-{ctx.attempt}").touch()
    await asyncio.sleep(seconds)
    (Path(folder) / "finished").touch()
