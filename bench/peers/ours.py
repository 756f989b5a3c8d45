"""Trunkline, through its public SQL functions."""

from __future__ import annotations

import time

from bench.lab import Lab
from bench.pgbench import text
from bench.session import Session, bytea_array, column, int4, text_array

NAME = "trunkline"


def make_topic(lab: Lab, name: str) -> int:
    """Create a topic; answers the number in the names of its own publish functions."""
    return int(lab.value("select (trunkline.create_topic(%s)).topic_id", name))


def make_queue(lab: Lab, name: str) -> int:
    """Create a queue; answers the number of its inbox."""
    return int(lab.value("select (trunkline.create_queue(%s)).inbox_id", name))


def load(lab: Lab, number: int, *, messages: int, payload: int) -> None:
    """Fill a log from inside the server, in transactions of 10,000 messages."""
    statement = (
        f"select count(*) from trunkline.topic_{int(number)}_append(array_fill(%s::bytea, array[%s]),"
        " null, null, null, null, null, null, 'application/octet-stream', null)"
    )
    for start in range(0, messages, 10_000):
        lab.value(statement, text(payload).encode(), min(10_000, messages - start))


def calm(lab: Lab, number: int) -> None:
    lab.calm(f"trunkline.topic_{int(number)}", "trunkline.ticks", "trunkline.leases", "trunkline.lease_events")


def publish_script(number: int) -> str:
    """One publish through the topic's own function, which is what the Python client calls."""
    return f"select trunkline.topic_{int(number)}_publish(:payload);\n"


def publish_generic_script(topic: str) -> str:
    return f"select id from trunkline.publish_bytes('{topic}', :payload);\n"


def claim_ack_script(queue: str) -> str:
    return (
        f"select receipt, payload from trunkline.claim('{queue}', 1, p_relaxed => true) \\gset\n"
        "select result from trunkline.ack(array[:receipt]::text[]);\n"
    )


class PublishMany:
    """publish_many (or enqueue_many) of one batch; the ids come back."""

    def __init__(self, session: Session, function: str, name: str, *, batch: int, payload: int) -> None:
        self.latencies: list[float] = []
        self._session = session
        self._name = name.encode()
        self._batch = batch
        self._payloads = bytea_array([text(payload).encode()] * batch)
        session.prepare("publish", f"select id, duplicate from trunkline.{function}($1::text, $2::bytea[])")

    def __call__(self) -> int:
        return self._session.call("publish", self._name, self._payloads).ntuples


class ClaimAck:
    """Claim up to `batch`, then ack every receipt and look at every answer."""

    def __init__(self, session: Session, queue: str, *, batch: int) -> None:
        self.latencies: list[float] = []
        self._session = session
        self._queue = queue.encode()
        self._batch = int4(batch)
        session.prepare("claim", "select * from trunkline.claim($1::text, $2::int, p_relaxed => true)")
        session.prepare("ack", "select * from trunkline.ack($1::text[])")

    def __call__(self) -> int:
        start = time.perf_counter()
        claimed = self._session.call("claim", self._queue, self._batch)
        if claimed.ntuples == 0:
            return 0
        self.latencies.append(time.perf_counter() - start)
        answers = column(self._session.call("ack", text_array(column(claimed, 0))), 2)
        if answers != [b"done"] * claimed.ntuples:
            raise RuntimeError(f"not every ack was done: {sorted(set(answers))}")
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
        answer = self._session.call("commit", *self._names, partition, generation, last).get_value(0, 0)
        if answer != b"done":
            raise RuntimeError(f"a commit was answered with {answer!r}")
        return rows.ntuples
