"""Worker processes that are killed, paused, drained or restarted with their database. See also test_once.py."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.jobs.conftest import stats
from tests.jobs.worker_jobs import app as work_app
from tests.jobs.worker_jobs import note, slow
from tests.support.postgres import WheelServer
from tests.support.waiting import until
from trunkline import SyncClient
from trunkline.jobs import App, Worker
from trunkline.sql.migrate import migrate


def start_worker(db: str) -> subprocess.Popen[bytes]:
    line = ["worker", "tests.jobs.worker_jobs:app", "--queues", "work:2", "--grace", "20s"]
    return subprocess.Popen(
        [sys.executable, "-m", "trunkline.cli.main", *line],
        env={**os.environ, "TRUNKLINE_DATABASE_URL": db},
        stderr=subprocess.PIPE,
    )


@pytest.fixture
def worker_app(db: str) -> App:
    work_app.url = db
    return work_app


async def _acked(app: App, queue: str, n: int = 1) -> bool:
    return (await stats(app, queue)).acked == n


async def _ready(app: App, n: int) -> bool:
    return bool((await stats(app)).ready == n)


async def test_a_killed_workers_job_runs_again(worker_app: App, db: str, tmp_path: Path) -> None:
    async with worker_app:
        handle = await note.enqueue(str(tmp_path), die_first=True)
        first = start_worker(db)
        assert await asyncio.to_thread(first.wait) == -signal.SIGKILL
        second = start_worker(db)
        try:
            await until(lambda: _acked(worker_app, "work"))
        finally:
            second.terminate()
            await asyncio.to_thread(second.communicate)
    assert (tmp_path / "seen").read_text().splitlines() == [f"{handle.id} 1", f"{handle.id} 2"]


async def test_workers_of_one_host_and_pid_keep_their_leases_apart(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """J5: containers whose process id is 1 and whose host name is the same."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setattr(socket, "gethostname", lambda: "container")

    @app.job
    async def work() -> None: ...

    one, two = Worker(app), Worker(app)
    assert one.name != two.name


async def test_a_kind_without_handler_stays_for_other_workers(db: str, app: App) -> None:
    @app.job
    async def known() -> None: ...

    done: list[int] = []
    other = App(db)

    @other.job
    async def unknown_here(n: int) -> None:
        done.append(n)

    await other.enqueue_many([unknown_here.bind(n) for n in range(50)])
    await app.enqueue_many([known.bind() for _ in range(50)])
    async with other:
        async with Worker(app):
            await until(lambda: _acked(app, "default", 50))
            # the worker has one of them for a moment now and then
            await until(lambda: _ready(app, 50))
            assert (await stats(app)).dead == 0
        async with Worker(other):
            await until(lambda: _acked(app, "default", 100))
        assert {message.attempt for message in await app.client.queues.peek("default")} == set()
    assert sorted(done) == list(range(50))


@pytest.mark.timeout(600)
async def test_a_worker_continues_after_a_restart_of_the_database(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says once that the database is away, and does not wait for it when it is to end."""
    monkeypatch.setattr("trunkline.jobs.worker.LEAVE_SECONDS", 1.0)
    server = WheelServer(18)
    url = server.start()
    try:
        migrate(url)
        app = App(url)
        done: list[int] = []

        @app.job
        async def work(n: int) -> None:
            done.append(n)

        async with app, Worker(app):
            await work.enqueue(1)
            await until(lambda: done == [1])
            await asyncio.to_thread(server.server.stop)
            await asyncio.to_thread(server.server.start)
            with SyncClient(url) as mq:
                work.on(mq).enqueue(2)
            await until(lambda: done == [1, 2])
            await until(lambda: _acked(app, "default", 2))
            caplog.clear()
            await asyncio.to_thread(server.server.stop)
            await until(lambda: "poll failed" in caplog.text)
        assert caplog.text.count("poll failed") == 1
        assert "could not deregister worker" in caplog.text
        assert "error=the database did not respond" in caplog.text
    finally:
        server.stop()


async def test_sigterm_drains_a_worker_process(worker_app: App, db: str, tmp_path: Path) -> None:
    """J6, with a real signal."""
    async with worker_app:
        await slow.enqueue(str(tmp_path), 1.5)
        worker = start_worker(db)
        await until((tmp_path / "started-1").exists)
        worker.terminate()
        assert await asyncio.to_thread(worker.wait) == 0
        assert (tmp_path / "finished").exists()
        assert await _acked(worker_app, "work")


async def test_a_paused_worker_can_settle_nothing_after_its_lease(worker_app: App, db: str, tmp_path: Path) -> None:
    async with worker_app:
        await slow.enqueue(str(tmp_path), 3)
        paused = start_worker(db)
        await until((tmp_path / "started-1").exists)
        paused.send_signal(signal.SIGSTOP)
        other = start_worker(db)
        try:
            await until((tmp_path / "started-2").exists)
            paused.send_signal(signal.SIGCONT)
            await until(lambda: _acked(worker_app, "work"))
        finally:
            for worker in (paused, other):
                worker.send_signal(signal.SIGTERM)
            _, words = await asyncio.to_thread(paused.communicate)
            await asyncio.to_thread(other.communicate)
    assert b"job lease lost" in words or b"lease ended before the job was settled" in words
