"""Trunkline, through its public SQL functions."""

from __future__ import annotations

import struct
import time
from datetime import UTC, datetime

from bench.lab import Lab
from bench.pgbench import text
from bench.session import Session, bytea_array, column, int4, int8_array, text_array
from trunkline.codec import EncodedMessage
from trunkline.db.binary_copy import COLUMNS, new_ids
from trunkline.db.binary_copy import rows as copy_rows

NAME = "trunkline"
RECEIPTS = "trunkline, receipts"
LEASE_TABLES = ("trunkline.leases", "trunkline.settled")
# Appends n messages to a log, whether it has its own tables or is in the shared store.
APPEND = (
    "select count(*) from (select %s::int as number, %s::bytea as payload, %s::text as content_type, %s::int as n) x"
    " join trunkline.topics t on t.topic_id = x.number"
    " cross join lateral trunkline._append(t, array_fill(x.payload, array[x.n]), null, null, null, null, null,"
    " array_fill(x.content_type, array[x.n]), null)"
)


def make_topic(lab: Lab, name: str) -> int:
    """Create a topic and return its number, which is part of the names of its publish functions."""
    return int(lab.value("select (trunkline.create_topic(%s)).topic_id", name))


def make_queue(lab: Lab, name: str) -> int:
    """Create a queue and return the number of the log that stores its direct messages."""
    return int(lab.value("select (trunkline.create_queue(%s)).inbox_id", name))


def load(lab: Lab, number: int, *, messages: int, payload: int) -> None:
    """Fill a log from inside the server, in transactions of 10,000 messages."""
    load_content(lab, number, text(payload).encode(), messages=messages, content_type="application/octet-stream")


def load_content(lab: Lab, number: int, content: bytes, *, messages: int, content_type: str) -> None:
    for start in range(0, messages, 10_000):
        lab.value(APPEND, number, content, content_type, min(10_000, messages - start))


def calm(lab: Lab, number: int) -> None:
    table = lab.value(
        "select coalesce(to_regclass(format('trunkline.topic_%%s', %s::int))::text, 'trunkline.store')", number
    )
    lab.calm(table, "trunkline.ticks", *LEASE_TABLES)


def publish_script(number: int) -> str:
    """One publish through the topic's own function, which is what the Python client calls."""
    return f"select trunkline.topic_{int(number)}_publish(:payload);\n"


def publish_generic_script(topic: str) -> str:
    return f"select id from trunkline.publish_bytes('{topic}', :payload);\n"


def claim_ack_script(queue: str) -> str:
    """One claim and one ack by the public functions, both flushed."""
    return (
        f"select receipt, payload from trunkline.claim('{queue}') \\gset\n"
        "select result from trunkline.ack(array[:receipt]::text[]);\n"
    )


class PublishMany:
    """Call publish_many (or enqueue_many) with one batch and read the ids."""

    def __init__(self, session: Session, function: str, name: str, *, batch: int, payload: int) -> None:
        self.latencies: list[float] = []
        self._session = session
        self._name = name.encode()
        self._batch = batch
        self._payloads = bytea_array([text(payload).encode()] * batch)
        session.prepare("publish", f"select id, duplicate from trunkline.{function}($1::text, $2::bytea[])")

    def __call__(self) -> int:
        return self._session.call("publish", self._name, self._payloads).ntuples


class PublishCopy:
    """Publish a large batch as the client does: draw the row ids, then COPY the rows, in one transaction.

    The COPY stream is encoded once and only the row ids change, so the load generator costs no more than a plain COPY.
    """

    def __init__(self, session: Session, number: int, *, batch: int, payload: int) -> None:
        self.latencies: list[float] = []
        self._session = session
        self._batch = batch
        now = datetime.now(UTC)
        messages = [EncodedMessage(text(payload).encode(), "application/octet-stream")] * batch
        stream = copy_rows(messages, None, [0] * batch, new_ids(batch, now), now)
        self._stream = bytearray(stream)
        # 19 bytes precede the first row, 2 follow the last. In a row, the id starts after 2 + 4 + 4 + 4 bytes.
        self._row = (len(stream) - 21) // batch
        self._ids = struct.Struct("!" + "4xq" * batch)
        self._into = f"copy trunkline.topic_{int(number)} ({COLUMNS}) from stdin (format binary)"
        session.prepare("draw", f"select ids, trunkline.clock() from trunkline.topic_{int(number)}_draw($1::int)")

    def __call__(self) -> int:
        self._session.run("begin")
        drawn = self._session.call("draw", int4(self._batch)).get_value(0, 0) or b""
        for place, id in enumerate(self._ids.unpack_from(drawn, 20)):
            struct.pack_into("!q", self._stream, 19 + place * self._row + 14, id)
        self._session.copy(self._into, bytes(self._stream))
        self._session.run("commit")
        return self._batch


class ClaimAck:
    """Claim up to `batch`, then ack every message, by the functions that the Python client calls."""

    def __init__(self, session: Session, queue: str, *, batch: int) -> None:
        self.latencies: list[float] = []
        self._session = session
        self._batch = int4(batch)
        self._queue = queue.encode()
        session.prepare("claim", "select * from trunkline.claim($1::text, $2::int, p_relaxed => true)")
        session.prepare("ack", "select trunkline.ack_lease($1::text, $2::bigint[])")

    def __call__(self) -> int:
        start = time.perf_counter()
        claimed = self._session.call("claim", self._queue, self._batch)
        if claimed.ntuples == 0:
            return 0
        self.latencies.append(time.perf_counter() - start)
        leases: dict[bytes, list[bytes]] = {}
        for receipt in column(claimed, 0):
            position, _, lease = receipt.partition(b".")
            leases.setdefault(lease, []).append(int(position).to_bytes(8))
        for lease, positions in leases.items():
            result = self._session.call("ack", lease, int8_array(positions)).get_value(0, 0)
            if result is not None:
                raise RuntimeError(f"all acks must be done, got {result!r}")
        return claimed.ntuples


class ClaimAckReceipts:
    """The same in plain SQL: claim by name, ack by receipt, and check every result."""

    def __init__(self, session: Session, queue: str, *, batch: int) -> None:
        self.latencies: list[float] = []
        self._session = session
        self._queue = queue.encode()
        self._batch = int4(batch)
        session.prepare("claim", "select * from trunkline.claim($1::text, $2::int, p_relaxed => true)")
        session.prepare("ack", "select * from trunkline.ack($1::text[])")

    def __call__(self) -> int:
        claimed = self._session.call("claim", self._queue, self._batch)
        if claimed.ntuples == 0:
            return 0
        results = column(self._session.call("ack", text_array(column(claimed, 0))), 2)
        if results != [b"done"] * claimed.ntuples:
            raise RuntimeError(f"all acks must be done, got {sorted(set(results))}")
        return claimed.ntuples


class FetchCommit:
    """Fetch up to `batch` for a group, then commit the last offset."""

    def __init__(self, session: Session, topic: str, group: str, *, batch: int) -> None:
        self.latencies: list[float] = []
        self._session = session
        self._names = (topic.encode(), group.encode())
        self._member = f"member-{time.monotonic_ns()}".encode()
        self._batch = int4(batch)
        session.prepare("fetch", "select * from trunkline.fetch($1::text, $2::text, $3::text, $4::int, p_relaxed => true)")
        session.prepare("commit", "select trunkline.commit($1::text, $2::text, $3::int, $4::uuid, $5::bigint)")

    def __call__(self) -> int:
        rows = self._session.call("fetch", *self._names, self._member, self._batch)
        if rows.ntuples == 0:
            return 0
        partition, generation = rows.get_value(0, 0) or b"", rows.get_value(0, 1) or b""
        last = rows.get_value(rows.ntuples - 1, 3) or b""
        result = self._session.call("commit", *self._names, partition, generation, last).get_value(0, 0)
        if result != b"done":
            raise RuntimeError(f"commit must return done, got {result!r}")
        return rows.ntuples
