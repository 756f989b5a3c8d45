"""The pytest plug-in, in a separate run as a user has it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CONFTEST = """
import os
import pytest
from trunkline.jobs import App, Backoff, Context, Retry

app = App(os.environ["TRUNKLINE_DATABASE_URL"])
ready = set()

@app.job(queue="mail", max_attempts=3)
async def send_receipt(ctx: Context, order_id: int, email: str) -> Retry | None:
    if order_id not in ready:
        return Retry(after="10m", error="no invoice yet")
    await note.enqueue(order_id)

@app.job(queue="mail")
async def note(order_id: int) -> None: ...

@pytest.fixture
async def jobs_app():
    ready.clear()
    async with app:
        yield app
"""
TEST = """
from conftest import app, note, ready, send_receipt

async def test_waits_for_invoice(jobs):
    with jobs.captured() as added:
        await send_receipt.enqueue(order_id=42, email="a@example.com")
    assert [(job.kind, job.queue, job.arguments) for job in added] == [
        ("send_receipt", "mail", {"order_id": 42, "email": "a@example.com"})]
    [first] = await jobs.drain()
    assert (first.kind, first.outcome, first.error, first.delay) == ("send_receipt", "retry", "no invoice yet", 600)
    assert await jobs.drain() == []
    ready.add(42)
    jobs.clock.advance("10m")
    assert [(ran.kind, ran.attempt, ran.outcome) for ran in await jobs.drain()] == [
        ("send_receipt", 2, "done"), ("note", 1, "done")]

async def test_runs_one_inline(jobs):
    ran = await jobs.run(note, 5)
    assert ran.outcome == "done"
"""


def test_the_plug_in(db: str, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_receipts.py").write_text(TEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "trunkline.jobs.pytest_plugin",
        "-p",
        "no:xdist",
        "--timeout",
        "60",
    ]
    env = {**os.environ, "TRUNKLINE_DATABASE_URL": db}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_without_an_app_it_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(jobs): ...\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "trunkline.jobs.pytest_plugin", "-p", "no:xdist"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert "define a fixture `jobs_app`" in done.stdout
