"""Baseline without a queue: INSERT and COPY into a plain table with the columns of our log."""

from __future__ import annotations

import uuid

from bench.lab import Lab
from bench.pgbench import text
from bench.session import Session, copy_buffer

INSERT = "plain INSERT"
COPY = "raw COPY"
TABLE = "bench.plain"


def make(lab: Lab) -> None:
    lab.conn.execute(f"drop table if exists {TABLE}".encode())
    lab.conn.execute(
        f"create table {TABLE} (id bigint generated always as identity primary key, message_id uuid not null, key text,"
        " routing_key text, label text, headers jsonb, payload bytea not null, content_type text not null,"
        " occurred_at timestamptz, created_at timestamptz not null default clock_timestamp())".encode()
    )


def calm(lab: Lab) -> None:
    lab.calm(TABLE)


def insert_script() -> str:
    return (
        f"insert into {TABLE} (message_id, payload, content_type)"
        " values (uuidv7(), :payload, 'application/json') returning message_id;\n"
    )


class CopyRows:
    """Run one binary COPY of a prepared buffer."""

    def __init__(self, session: Session, *, batch: int, payload: int) -> None:
        self.latencies: list[float] = []
        self._session = session
        self._batch = batch
        content = text(payload).encode()
        self._buffer = copy_buffer([(uuid.uuid4().bytes, content, b"application/json") for _ in range(batch)])

    def __call__(self) -> int:
        self._session.copy(f"copy {TABLE} (message_id, payload, content_type) from stdin (format binary)", self._buffer)
        return self._batch
