"""Upkeep, the background maintenance: runs the SQL tasks in a loop. Many processes may run it; one acts at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta

from psycopg.errors import Diagnostic

from trunkline.db import calls
from trunkline.db.pool import UNLIMITED, connect
from trunkline.errors import from_psycopg

log = logging.getLogger("trunkline.upkeep")
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0


async def run(
    conninfo: str, interval: timedelta, stop: asyncio.Event, report: Callable[[str], object] = log.warning
) -> None:
    """Run upkeep every `interval` until `stop` is set.

    A task is reported when it starts to fail, fails with another error or recovers. A failing task does not delay
    others. If the database cannot be reached, retry after 0.5 s, then after twice as long each time, up to 30 s.
    """
    pause = _FIRST_PAUSE
    while not stop.is_set():
        try:
            async with await connect(conninfo, settings=UNLIMITED) as conn:
                conn.add_notice_handler(lambda notice: _report_task(notice, report))
                while not stop.is_set():
                    await calls.upkeep(conn)
                    pause = _FIRST_PAUSE
                    await _wait(stop, interval.total_seconds())
        except Exception as exc:
            error = from_psycopg(exc)
            report(f"upkeep: {error} [{error.code}]; next try in {pause:.1f} s")
            await _wait(stop, pause)
            pause = min(pause * 2, _LONGEST_PAUSE)


def _report_task(notice: Diagnostic, report: Callable[[str], object]) -> None:
    """Report a notice of upkeep() about its tasks. It raises one per change, across all processes."""
    text = notice.message_primary or ""
    if text.startswith("upkeep"):
        report(text)


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return
