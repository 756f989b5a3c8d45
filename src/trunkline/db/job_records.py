"""The records of jobs that cross between Python and the database; the same for both twins."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec


class Ending(msgspec.Struct, frozen=True):
    """What belongs to the end of one job: its receipt, its id, and what somebody wants to know or to have back."""

    receipt: str
    id: UUID
    result: bytes | None = None
    tracked: bool = False
    unique: str | None = None


class JobResult(msgspec.Struct, frozen=True):
    """How a job ended: `done` with what it answered as JSON, or `failed` with the reason."""

    job_id: UUID
    state: str
    result: bytes | None
    error: str | None
    at: datetime


class JobRow(msgspec.Struct, frozen=True):
    """A job that has not ended well: running, waiting, delayed, blocked or dead."""

    id: UUID
    queue: str
    kind: str | None
    state: str
    attempt: int
    due_at: datetime | None
    worker: str | None
    error: str | None
    created_at: datetime | None


class JobView(msgspec.Struct, frozen=True):
    """One job, whatever its state: running, waiting, delayed, blocked, dead, done, cancelled, failed or gone."""

    id: UUID
    queue: str | None
    kind: str | None
    state: str
    reason: str | None
    attempt: int
    due_at: datetime | None
    worker: str | None
    error: str | None
    created_at: datetime | None
    ended_at: datetime | None
    key: str | None
    headers: dict[str, Any] | None
    payload: bytes | None
    result: bytes | None
    history: list[dict[str, Any]]
    waits_for: list[UUID] | None
    cancel: str | None


class WorkerRow(msgspec.Struct, frozen=True):
    """A worker as it described itself."""

    worker: str
    started_at: datetime
    seen_at: datetime
    info: dict[str, Any]
