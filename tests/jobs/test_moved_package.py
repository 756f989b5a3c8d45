"""Workers behave the same when the package has another name: nothing is recognised by a module's name."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import trunkline

IMPORT = re.compile(r"^(\s*(?:from|import)) trunkline\b", re.MULTILINE)
PROGRAM = """
import asyncio, json, sys, time

from moved.jobs import App, Context, SyncContext, Worker
from moved.jobs.backoff import Backoff
from moved.errors import InvalidArgument

app = App(sys.argv[1], backoff=Backoff("10ms"))


@app.job(result=True)
async def on_the_loop(ctx: Context) -> str:
    return ctx.kind


@app.job(result=True)
def in_a_thread(ctx: SyncContext) -> str:
    return ctx.kind


@app.job(max_attempts=1)
async def fails(number: int) -> None:
    raise ValueError(f"number {number}")


@app.job(max_attempts=1, timeout="300ms")
async def stalls() -> None:
    while True:
        pass


async def main() -> None:
    report = {}
    async with Worker(app, queues={"default": 4}):
        report["results"] = [await (await job.enqueue()).result("20s") for job in (on_the_loop, in_a_thread)]
        await fails.enqueue(7)
        await stalls.enqueue()
        end = time.monotonic() + 20
        while len(letters := await app.client.dead.list("default")) < 2 and time.monotonic() < end:
            await asyncio.sleep(0.05)
        report["dead"] = {letter.label: letter.error for letter in letters}
    try:
        await app.client.publish("t", {"a": {1}})
    except InvalidArgument as exc:
        report["rejected"] = [exc.code, isinstance(exc, TypeError)]
    await app.close()
    print(json.dumps(report))


asyncio.run(main())
"""


def test_a_package_of_another_name_behaves_the_same(db: str, tmp_path: Path) -> None:
    package = Path(trunkline.__file__).parent
    copy = tmp_path / "moved"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__", "spark", "cli", "server", "push"))
    for file in copy.rglob("*.py"):
        file.write_text(IMPORT.sub(r"\1 moved", file.read_text()))
    (tmp_path / "program.py").write_text(PROGRAM)
    run = subprocess.run(
        [sys.executable, str(tmp_path / "program.py"), db],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert report["results"] == ["on_the_loop", "in_a_thread"]
    assert report["rejected"] == ["invalid_argument", True]
    assert "HandlerStalled: the handler blocked the event loop" in report["dead"]["stalls"]
    first, head, frame, *_ = report["dead"]["fails"].splitlines()
    assert (first, head) == ("ValueError: number 7", "Traceback (most recent call last):")
    assert "program.py" in frame
