"""Records of the job functions, shared by the async and sync twins."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec


class JobEnd(msgspec.Struct, frozen=True):
    """The data that settles one job: receipt, id, result, and the unique key to free."""

    receipt: str
    id: UUID
    result: bytes | None = None
    tracked: bool = False
    unique: str | None = None


class JobResult(msgspec.Struct, frozen=True):
    """The outcome of a job: `done` with its result as JSON, or `failed` with the error."""

    job_id: UUID
    state: str
    result: bytes | None
    error: str | None
    at: datetime


class JobRow(msgspec.Struct, frozen=True):
    """A job of a list: running, ready, delayed, blocked, dead or done. `position`: where the next page begins."""

    id: UUID
    queue: str
    kind: str | None
    state: str
    attempt: int
    due_at: datetime | None
    worker: str | None
    error: str | None
    created_at: datetime | None
    ended_at: datetime | None
    position: str


class JobView(msgspec.Struct, frozen=True):
    """One job in any state: running, ready, delayed, blocked, dead, done, cancelled, failed or gone."""

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
    """A worker, as it registered itself. `schemas`: the JSON schema of the arguments of each kind."""

    worker: str
    started_at: datetime
    seen_at: datetime
    info: dict[str, Any]
    schemas: dict[str, Any] | None


class LimitHolder(msgspec.Struct, frozen=True):
    """A worker with a share of a limit. `waits`: it wanted more when the share was written."""

    worker: str
    running: int
    waits: bool
    until: datetime


class LimitRow(msgspec.Struct, frozen=True):
    """A limit over all processes. `tokens`: tokens that can be taken now; `waiting`: workers that want more."""

    name: str
    max_running: int | None
    rate: float | None
    burst: float | None
    tokens: float | None
    running: int
    waiting: int
    holders: list[LimitHolder]
