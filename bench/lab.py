"""The test bed: a fresh embedded Postgres with the schema installed and upkeep running as in production."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psycopg

from trunkline import upkeep
from trunkline.embedded.server import EmbeddedServer
from trunkline.sql.migrate import migrate


class Lab:
    """The server's addresses, and a connection for setup and cleanup."""

    def __init__(
        self, directory: Path, url: str, tcp_url: str, conn: psycopg.Connection[Any], upkeep_process: BaseProcess
    ) -> None:
        self.directory = directory
        self.url = url
        self.tcp_url = tcp_url
        self.conn = conn
        self._upkeep_process = upkeep_process

    def value(self, query: str, *args: Any) -> Any:
        row = self.conn.execute(query.encode(), args).fetchone()
        return row[0] if row else None

    def calm(self, *tables: str) -> None:
        """Vacuum and analyze the loaded tables, then run a checkpoint.

        Called before each measurement of any contestant.
        """
        for table in tables:
            self.conn.execute(f"vacuum (analyze) {table}".encode())
        self.conn.execute("checkpoint")

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Stop upkeep and autovacuum, so that all activity of the server comes from the measured program."""
        pid = self._upkeep_process.pid
        assert pid is not None
        self._autovacuum("off")
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)
            self._autovacuum("on")

    def _autovacuum(self, state: str) -> None:
        self.conn.execute(f"alter system set autovacuum = {state}".encode())
        self.conn.execute("select pg_reload_conf()")


@contextmanager
def open_lab(*, slower_flush_ms: float = 0) -> Iterator[Lab]:
    """Open a lab in a temporary directory. `slower_flush_ms` delays WAL flushes, to simulate a slow disk."""
    # /tmp may be memory, where a flush costs nothing; /var/tmp is a disk.
    home = Path(tempfile.mkdtemp(prefix="trunkline-bench-", dir="/var/tmp"))
    try:
        with EmbeddedServer(home / "data") as server:
            migrate(server.url)
            with psycopg.connect(server.superuser_url, autocommit=True) as admin:
                # Privileges that the lab needs beyond those of the database owner.
                admin.execute("grant pg_checkpoint to trunkline")
                admin.execute("grant alter system on parameter autovacuum, commit_delay, commit_siblings to trunkline")
                admin.execute("grant execute on function pg_reload_conf() to trunkline")
            with psycopg.connect(server.url, autocommit=True) as conn, _upkeep(server.url) as upkeep_process:
                conn.execute("create schema bench")
                if slower_flush_ms:
                    # commit_delay sleeps with the WAL lock held: as with a slow disk, others join the next flush.
                    conn.execute(f"alter system set commit_delay = {round(slower_flush_ms * 1000)}".encode())
                    conn.execute("alter system set commit_siblings = 0")
                    conn.execute("select pg_reload_conf()")
                yield Lab(home, server.url, server.tcp_url, conn, upkeep_process)
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def _upkeep(url: str) -> Iterator[BaseProcess]:
    fork = multiprocessing.get_context("fork")
    process = fork.Process(target=_run_upkeep, args=(url,), daemon=True)
    process.start()
    try:
        yield process
        if not process.is_alive():
            raise RuntimeError("upkeep stopped during the run: the figures are invalid")
    finally:
        process.terminate()
        process.join()


def _run_upkeep(url: str) -> None:
    asyncio.run(upkeep.run(url, timedelta(milliseconds=500), asyncio.Event()))
