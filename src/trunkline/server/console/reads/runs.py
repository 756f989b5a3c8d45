"""Reads of the pages of runs and dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec

from trunkline.db.calls import dead_letters, runs
from trunkline.db.pool import Connection
from trunkline.types import DeadGroup, DeadLetter, DeadShare, Run, RunPreview

GROUPS = "dead groups"
ACTIVE = "active runs"
LIVE_STATES = ("waiting", "canary", "running", "paused", "stopped")
_BYTES = 4_000_000


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """The dead letters of one group: how they are spread, and a page of them."""

    spread: list[DeadShare]
    letters: list[DeadLetter[Any]]


async def groups(conn: Connection, queue: str | None) -> list[DeadGroup]:
    return await runs.dead_groups(conn, queue, limit=200)


async def group(conn: Connection, queue: str, fingerprint: str, before: int | None, limit: int) -> Group:
    return Group(
        spread=await runs.dead_spread(conn, queue, fingerprint, limit=6),
        letters=await dead_letters.list_dead_group(conn, queue, fingerprint, before=before, limit=limit, max_bytes=_BYTES),
    )


async def letters(conn: Connection, queue: str, after: int, limit: int) -> list[DeadLetter[Any]]:
    return await dead_letters.list_dead_letters(conn, queue, after=after, limit=limit, max_bytes=_BYTES)


async def letter(conn: Connection, queue: str, id: UUID) -> DeadLetter[Any]:
    return await dead_letters.get_dead_letter(conn, queue, id)


async def preview(conn: Connection, kind: str, selector: Mapping[str, Any]) -> RunPreview:
    return await runs.preview_run(conn, kind, selector)


async def active(conn: Connection) -> list[Run]:
    """Return the runs that have not ended, which the live updates compare."""
    return await runs.list_runs(conn, LIVE_STATES, limit=100)


async def rows(conn: Connection, states: tuple[str, ...] | None, before: int | None, limit: int) -> list[Run]:
    return await runs.list_runs(conn, states, before=before, limit=limit)


async def get(conn: Connection, run: int) -> Run:
    return await runs.get_run(conn, run)
