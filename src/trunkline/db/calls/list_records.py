"""Records of lists, shared by the async and sync twins."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import msgspec

Level = Literal["ok", "warn", "fail"]


class DelayedRow(msgspec.Struct, frozen=True):
    """A message that was returned or published with a delay. `offset` is None if it is not in the log yet."""

    state: str
    topic: str | None
    partition: int | None
    log_offset: int | None
    id: UUID
    key: str | None
    label: str | None
    due_at: datetime | None
    attempt: int
    why: str | None
    error: str | None
    created_at: datetime | None
    position: str


class ConsumerRow(msgspec.Struct, frozen=True):
    """A consumer of a queue: the deliveries that it holds, and those that it had settled lately."""

    consumer: str | None
    leased: int
    oldest_claim_at: datetime | None
    settled: int
    failed: int
    last_claim_at: datetime | None
    last_settle_at: datetime | None


class Fire(msgspec.Struct, frozen=True):
    """The outcome of a time of a schedule: on_time, late, caught_up, skipped, manual or failed."""

    fire_no: int
    outcome: str
    tick: datetime
    fired_at: datetime
    id: UUID | None
    error: str | None


class EndpointEvent(msgspec.Struct, frozen=True):
    """A change of an endpoint's state or circuit breaker."""

    event_no: int
    at: datetime
    event: str
    detail: str | None


class Progress(msgspec.Struct, frozen=True):
    """A report of a pipeline, with None for what it left out."""

    report_no: int
    at: datetime
    state: str
    batch: int | None
    rows: int | None
    rows_per_second: float | None
    lag: int | None
    error: str | None
    detail: dict[str, Any]


class SinkVersion(msgspec.Struct, frozen=True):
    """A version that a Spark writer has published."""

    version: int
    rows: int
    at: datetime


class UpkeepTask(msgspec.Struct, frozen=True):
    """An upkeep task: ok, never, late, ahead or failing. `took_seconds`: its last run that had something to do."""

    task: str
    state: str
    every: timedelta
    last_run_at: datetime | None
    age_seconds: float | None
    failing_since: datetime | None
    error_code: str | None
    error: str | None
    took_seconds: float | None


class SessionRow(msgspec.Struct, frozen=True):
    """A database session that holds back vacuum (`xmin`), is idle in a transaction, or holds locks others wait for."""

    pid: int
    role: str | None
    application: str | None
    state: str | None
    holds: list[str]
    blocks: int
    began_at: datetime
    age_seconds: float
    query: str | None


class SegmentRow(msgspec.Struct, frozen=True):
    """A segment of a log: open, sealed or staged."""

    log: int
    kind: str
    name: str
    partition: int
    segment: int
    state: str
    last_offset: int | None
    sealed_at: datetime | None
    bytes: int | None


class SizeRow(msgspec.Struct, frozen=True):
    """The size of one part of the schema."""

    part: str
    tables: int
    bytes: int


class Alert(msgspec.Struct, frozen=True):
    """A message for the operator."""

    alert_id: int
    at: datetime
    kind: str
    detail: dict[str, Any]
    done_at: datetime | None
    done_by: str | None


class Finding(msgspec.Struct, frozen=True):
    """A finding and its fix. Only `fail` makes the command fail."""

    check: str
    level: Level
    message: str
    hint: str | None = None
