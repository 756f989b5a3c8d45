"""The loop around `trunkline.upkeep()`."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import psycopg

from trunkline.db import calls
from trunkline.errors import from_psycopg


async def run(conninfo: str, interval: timedelta, stop: asyncio.Event) -> None:
    """Run upkeep every `interval` until `stop` is set. Raises when the database goes away; the caller starts it again."""
    try:
        async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as conn:
            while not stop.is_set():
                await calls.upkeep(conn)
                try:
                    await asyncio.wait_for(stop.wait(), interval.total_seconds())
                except TimeoutError:
                    continue
    except psycopg.Error as exc:
        raise from_psycopg(exc) from exc
