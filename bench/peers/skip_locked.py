"""The textbook queue: one table, claimed by UPDATE of rows found with SKIP LOCKED, acked by DELETE (pgmq's statements)."""

from __future__ import annotations

import time

from bench.lab import Lab
from bench.pgbench import text
from bench.session import Session, bytea_array, column, int4, int8_array

NAME = "SKIP LOCKED table"
RELAXED = "SKIP LOCKED table, relaxed claim"
TABLE = "bench.skip_locked"

_RETURNING = "m.msg_id, m.read_ct, m.enqueued_at, m.vt, m.message"


def make(lab: Lab) -> None:
    lab.conn.execute(f"drop table if exists {TABLE}".encode())
    lab.conn.execute(
        f"create table {TABLE} (msg_id bigint generated always as identity primary key, read_ct int not null default 0,"
        " enqueued_at timestamptz not null default now(), vt timestamptz not null, message bytea not null)".encode()
    )
    lab.conn.execute(f"create index on {TABLE} (vt)".encode())


def load(lab: Lab, *, messages: int, payload: int) -> None:
    for start in range(0, messages, 10_000):
        lab.conn.execute(
            f"insert into {TABLE} (vt, message) select clock_timestamp(), %s from generate_series(1, %s)".encode(),
            (text(payload).encode(), min(10_000, messages - start)),
        )


def calm(lab: Lab) -> None:
    lab.calm(TABLE)


def publish_script() -> str:
    return f"insert into {TABLE} (vt, message) values (clock_timestamp(), :payload) returning msg_id;\n"


def _claim(limit: str, *, relaxed: bool) -> str:
    """Return the claim statement. With `relaxed`, it does not wait for a flush, as ours does not."""
    extra = ", (select set_config('synchronous_commit', 'off', true)) as commit_mode" if relaxed else ""
    return (
        f"with c as (select msg_id from {TABLE} where vt <= clock_timestamp() order by msg_id"
        f" for update skip locked limit {limit})"
        f" update {TABLE} m set vt = clock_timestamp() + interval '30 seconds', read_ct = m.read_ct + 1"
        f" from c where m.msg_id = c.msg_id returning {_RETURNING}{extra}"
    )


def claim_ack_script(*, relaxed: bool = False) -> str:
    return f"{_claim('1', relaxed=relaxed)} \\gset\ndelete from {TABLE} where msg_id = :msg_id returning msg_id;\n"


class Enqueue:
    """Insert one batch, returning the ids."""

    def __init__(self, session: Session, *, batch: int, payload: int) -> None:
        self.latencies: list[float] = []
        self._session = session
        self._payloads = bytea_array([text(payload).encode()] * batch)
        session.prepare(
            "publish",
            f"insert into {TABLE} (vt, message) select clock_timestamp(), p from unnest($1::bytea[]) p returning msg_id",
        )

    def __call__(self) -> int:
        return self._session.call("publish", self._payloads).ntuples


class ClaimAck:
    """Claim up to `batch` messages, then delete them by id, returning the deleted ids."""

    def __init__(self, session: Session, *, batch: int, relaxed: bool = False) -> None:
        self.latencies: list[float] = []
        self._session = session
        self._batch = int4(batch)
        session.prepare("claim", _claim("$1::int", relaxed=relaxed))
        session.prepare("ack", f"delete from {TABLE} where msg_id = any($1::bigint[]) returning msg_id")

    def __call__(self) -> int:
        start = time.perf_counter()
        claimed = self._session.call("claim", self._batch)
        if claimed.ntuples == 0:
            return 0
        self.latencies.append(time.perf_counter() - start)
        deleted = self._session.call("ack", int8_array(column(claimed, 0)))
        if deleted.ntuples != claimed.ntuples:
            raise RuntimeError(f"{claimed.ntuples} claimed, {deleted.ntuples} deleted")
        return claimed.ntuples
