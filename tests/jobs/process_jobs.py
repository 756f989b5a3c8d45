"""Jobs that run in processes: those import this module."""

from __future__ import annotations

import os
import time

from trunkline.jobs import App, ProcessContext

app = App(queue="processes")


@app.job(process=True, result=True)
def square(ctx: ProcessContext, n: int) -> int:
    assert ctx.attempt == 1
    return n * n


@app.job(process=True, result=True, max_attempts=1)
def die() -> None:
    os._exit(3)


@app.job(process=True, result=True, max_attempts=1)
def leave() -> None:
    raise SystemExit(1)


@app.job(process=True, result=True, max_attempts=1, timeout="500ms")
def hang() -> None:
    time.sleep(60)
