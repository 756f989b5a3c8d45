"""A stream over everything that can happen to its topic: each message is read once, or named as missing. Without Spark."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.conftest import Connection
from trunkline.db.calls import archive as calls
from trunkline.spark.archive.writer import write_piece
from trunkline.spark.options import ReadOptions
from trunkline.spark.source import micro_batch, offsets
from trunkline.spark.source.micro_batch import TopicStream

SCHEMA = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("value", pa.binary())])
ROWS = 16
STEPS = [*["publish", "drop", "batch"] * 3, "archive", "grow", "crash", "restart", "create"]
Place = tuple[int, int, int]
"""Number of the topic, partition, offset."""


class Model:
    def __init__(self, db: str, conn: Connection, folder: Path, source: random.Random, records: Any) -> None:
        self.db, self.conn, self.folder, self.random, self.records = db, conn, folder, source, records
        self.published: dict[Place, int] = {}
        self.read: list[tuple[Place, int]] = []
        self.missing: set[Place] = set()
        self.dropped: dict[tuple[int, int], int] = {}
        self.count = 0
        self.stream: TopicStream | None = None
        self.at: dict[str, Any] | None = None
        self.planned: dict[str, Any] | None = None
        self.create()

    def one(self, query: str, *values: Any) -> int:
        row = self.conn.execute(query.encode(), values).fetchone()
        assert row is not None
        return int(row[0])

    @property
    def partitions(self) -> int:
        return self.one("select partitions from trunkline.list_topics() where name = 't'")

    def create(self) -> None:
        if self.random.random() < 0.2:
            self.conn.execute("select trunkline.delete_topic(name) from trunkline.list_topics()")
        if not self.one("select count(*) from trunkline.list_topics()"):
            self.conn.execute("select trunkline.create_topic('t', p_segment_rows => %s)", (ROWS,))
        self.id = self.one("select topic_id from trunkline.list_topics() where name = 't'")

    def grow(self) -> None:
        self.conn.execute("select trunkline.alter_topic('t', %s)", (min(4, self.partitions + 1),))
        if self.random.random() < 0.5:
            # retention is quicker than the query
            for _ in range(3):
                self.publish()
            self.drop(self.partitions - 1)

    def publish(self) -> None:
        first, self.count = self.count, self.count + self.random.randint(1, 80)
        query = "select trunkline.publish('t', to_jsonb(n), p_key => 'k' || n) from generate_series(%s::int, %s::int) n"
        self.conn.execute(query.encode(), (first, self.count - 1))
        self.conn.execute("call trunkline.sequence()")
        for partition in range(self.partitions):
            base = self.one("select base_offset from trunkline.logs where log = %s", self.id * 64 + partition)
            rows = self.conn.execute("select log_offset, payload from trunkline.read('t', %s, %s, 9999)", (partition, base))
            self.published |= {(self.id, partition, at): int(payload) for at, payload in rows}

    def drop(self, partition: int | None = None) -> None:
        """Remove a segment, as retention does."""
        partition = self.random.randrange(self.partitions) if partition is None else partition
        segment = self.dropped.get((self.id, partition), 0)
        if (segment + 1) * ROWS <= self.one("select trunkline._head(%s)", self.id * 64 + partition):
            ids = (self.id, partition, segment, segment * ROWS + ROWS - 1)
            self.conn.execute("select trunkline._empty_segment(%s, %s, %s, %s)", ids)
            self.dropped[self.id, partition] = segment + 1

    def archive(self) -> None:
        where = str(self.folder / str(self.id))
        calls.ensure_archive(self.conn, "t", where)
        plan = calls.plan_archive(self.conn, "t", rows=self.random.randint(5, 50), open=True)
        for piece in plan[: self.random.randint(0, 3)]:
            calls.add_archive_files(self.conn, "t", [write_piece(self.db, "t", self.id, where, piece)], topic_id=self.id)

    def restart(self) -> None:
        self.stream = None

    def crash(self) -> None:
        """A batch is planned, and the query ends before it is done."""
        self._plan()
        self.restart()

    def batch(self) -> None:
        if (tasks := self._plan()) is None or self.stream is None or self.planned is None:
            return
        number = offsets.topic_ids(self.planned)["t"]
        for task in tasks:
            for rows in self.stream.read(task):
                self.read += [((number, row["partition"], row["offset"]), int(row["value"])) for row in rows.to_pylist()]
        for record in self.records():
            for lo, hi, partition in re.findall(r"offsets (\d+) to (\d+) of partition (\d+)", record.message):
                self.missing |= {(number, int(partition), at) for at in range(int(lo), int(hi) + 1)}
        self.at, self.planned = self.planned, None

    def _plan(self) -> Any:
        if self.stream is None:
            limit = {"maxOffsetsPerTrigger": "25"} if self.random.random() < 0.5 else {}
            options = {"url": self.db, "subscribe": "t", "startingOffsets": "earliest", "failOnDataLoss": "false"} | limit
            self.stream = TopicStream(ReadOptions.parse(options), SCHEMA)
        self.at = self.at or self.stream.initialOffset()
        self.records().clear()
        if self.planned is None:
            end = self.stream.latestOffset(self.at, self.stream.getDefaultReadLimit())
            if end == self.at:
                return None
            self.planned = end
        return self.stream.partitions(self.at, self.planned)


@pytest.mark.parametrize("seed", range(4))
def test_each_message_is_read_once_or_named(
    db: str, conn: Connection, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(micro_batch, "_IDLE_WAIT", 0)
    model = Model(db, conn, tmp_path, random.Random(seed), lambda: caplog.records)
    model.batch()
    for _ in range(60):
        getattr(model, model.random.choice(STEPS))()
    model.publish()
    before = None
    while before != model.at:
        before = model.at
        model.batch()
    places = [place for place, _ in model.read]
    assert len(set(places)) == len(places), "read twice"
    assert all(model.published[place] == value for place, value in model.read)
    assert not model.missing & set(places)
    assert {place for place in model.published if place[0] == model.id} <= set(places) | model.missing
    assert len(places) > 20
