"""The place where everything is measured: one fresh embedded Postgres, migrated, with upkeep running as in production."""

from __future__ import annotations

import asyncio
import multiprocessing
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg

from trunkline import upkeep
from trunkline.db.embedded import EmbeddedServer
from trunkline.sql.migrate import migrate


class Lab:
    """The server's addresses and one connection for preparing and cleaning up."""

    def __init__(self, directory: Path, url: str, tcp_url: str, conn: psycopg.Connection[Any]) -> None:
        self.directory = directory
        self.url = url
        self.tcp_url = tcp_url
        self.conn = conn

    def value(self, query: str, *args: Any) -> Any:
        row = self.conn.execute(query.encode(), args).fetchone()
        return row[0] if row else None

    def calm(self, *tables: str) -> None:
        """Before each measurement, for everybody alike: vacuum and analyze what was loaded, then a checkpoint."""
        for table in tables:
            self.conn.execute(f"vacuum (analyze) {table}".encode())
        self.conn.execute("checkpoint")


@contextmanager
def open_lab() -> Iterator[Lab]:
    """A lab in a directory of its own, removed at the end."""
    # /tmp may be memory, where a flush costs nothing; /var/tmp is a disk.
    home = Path(tempfile.mkdtemp(prefix="trunkline-bench-", dir="/var/tmp"))
    try:
        with EmbeddedServer(home / "data") as server:
            migrate(server.url)
            with psycopg.connect(server.url, autocommit=True) as conn, _upkeep(server.url):
                conn.execute("create schema bench")
                yield Lab(home, server.url, server.tcp_url, conn)
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def _upkeep(url: str) -> Iterator[None]:
    fork = multiprocessing.get_context("fork")
    process = fork.Process(target=_run_upkeep, args=(url,), daemon=True)
    process.start()
    try:
        yield
        if not process.is_alive():
            raise RuntimeError("upkeep stopped during the run: the figures do not count")
    finally:
        process.terminate()
        process.join()


def _run_upkeep(url: str) -> None:
    asyncio.run(upkeep.run(url, timedelta(milliseconds=500), asyncio.Event()))
