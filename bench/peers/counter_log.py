"""The counter-row log: publishers take offsets from one row, groups claim ranges by moving one row each.

A claim is final (at most once): there are no acks, redeliveries or leases.
"""

from __future__ import annotations

from bench.lab import Lab
from bench.pgbench import text
from bench.session import Session, bytea_array, int8

NAME = "counter-row log"
_LOG = "bench.counter_topic"
_COUNTER = "bench.log_counter"
_OFFSETS = "bench.consumer_offsets"

_PUBLISH = (
    f"with reserve as (update {_COUNTER} set next_offset = next_offset + {{n}} where id = 0"
    " returning (next_offset - {n}) as first_off)"
    f" insert into {_LOG} (topic_id, c_offset, payload) select 0, r.first_off + p.ord - 1, p.payload"
    " from reserve r, unnest({payloads}::bytea[]) with ordinality as p(payload, ord)"
)
_CLAIM = (
    f"with counter_tip as (select (next_offset - 1) as highest from {_COUNTER} where id = 0), to_claim as ("
    "  select c.group_id, c.next_offset as n0,"
    "         least({n}::bigint, greatest(0, (select highest from counter_tip) - c.next_offset + 1)) as delta"
    f"  from {_OFFSETS} c where c.group_id = {{group}} and c.topic_id = 0 for update), upd as ("
    f"  update {_OFFSETS} c set next_offset = c.next_offset + t.delta from to_claim t"
    "  where c.group_id = t.group_id and c.topic_id = 0"
    "  returning t.n0 as first_offset, (c.next_offset - 1) as last_offset)"
    " select first_offset, last_offset from upd"
)
_FETCH = (
    f"select c_offset, payload, created_at from {_LOG}"
    " where topic_id = 0 and c_offset between {first} and {last} order by c_offset"
)


def make(lab: Lab, *, groups: int = 1) -> None:
    for table in (_LOG, _COUNTER, _OFFSETS):
        lab.conn.execute(f"drop table if exists {table}".encode())
    lab.conn.execute(f"create table {_COUNTER} (id int primary key, next_offset bigint not null)".encode())
    lab.conn.execute(f"insert into {_COUNTER} values (0, 1)".encode())
    lab.conn.execute(
        f"create table {_LOG} (id bigserial primary key, topic_id int not null, c_offset bigint not null,"
        " payload bytea not null, created_at timestamptz not null default now(), unique (topic_id, c_offset))".encode()
    )
    lab.conn.execute(
        f"create table {_OFFSETS} (group_id text not null, topic_id int not null, next_offset bigint not null default 1,"
        " primary key (group_id, topic_id))".encode()
    )
    lab.conn.execute(
        f"insert into {_OFFSETS} select 'group-' || g, 0, 1 from generate_series(0, %s - 1) g".encode(), (groups,)
    )


def load(lab: Lab, *, messages: int, payload: int) -> None:
    for start in range(0, messages, 10_000):
        n = min(10_000, messages - start)
        lab.conn.execute(
            _PUBLISH.format(n="%(n)s", payloads="array_fill(%(payload)s::bytea, array[%(n)s])").encode(),
            {"n": n, "payload": text(payload).encode()},
        )


def calm(lab: Lab) -> None:
    lab.calm(_LOG, _COUNTER, _OFFSETS)


def publish_script() -> str:
    return _PUBLISH.format(n="1", payloads="array[:payload]") + ";\n"


def claim_script() -> str:
    """Claim one offset and fetch its message."""
    claim, fetch = _CLAIM.format(n="1", group="'group-0'"), _FETCH.format(first=":first_offset", last=":last_offset")
    return f"{claim} \\gset\n{fetch};\n"


class PublishMany:
    """Reserve offsets and insert one batch."""

    def __init__(self, session: Session, *, batch: int, payload: int) -> None:
        self.latencies: list[float] = []
        self._session = session
        self._batch = batch
        self._payloads = bytea_array([text(payload).encode()] * batch)
        session.prepare("publish", _PUBLISH.format(n="$1::bigint", payloads="$2"))

    def __call__(self) -> int:
        self._session.call("publish", int8(self._batch), self._payloads)
        return self._batch


class ClaimFetch:
    """Claim a range and fetch it."""

    def __init__(self, session: Session, group: int, *, batch: int) -> None:
        self.latencies: list[float] = []
        self._session = session
        self._params = (f"group-{group}".encode(), int8(batch))
        session.prepare("claim", _CLAIM.format(n="$2", group="$1::text"))
        session.prepare("fetch", _FETCH.format(first="$1::bigint", last="$2::bigint"))

    def __call__(self) -> int:
        claimed = self._session.call("claim", *self._params)
        first, last = claimed.get_value(0, 0) or b"", claimed.get_value(0, 1) or b""
        if last < first:
            return 0
        return self._session.call("fetch", first, last).ntuples
