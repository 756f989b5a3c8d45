"""How often a stream without new messages asks the database."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.spark.test_loss import document
from trunkline.spark.options import ReadOptions
from trunkline.spark.source import micro_batch, planner
from trunkline.spark.source.ranges import Head


def test_an_idle_stream_polls_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, head, polls = [0.0], [5], [0]

    def heads(_: object) -> list[Head]:
        polls[0] += 1
        return [Head("t", 1, 0, 1, head[0])]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(micro_batch, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    monkeypatch.setattr(planner, "heads", heads)
    options = ReadOptions.parse({"url": "postgresql://me@127.0.0.1:9/none", "subscribe": "t"})
    stream = micro_batch.TopicStream(options, pa.schema([]))
    start = document({"t": {0: 5}})
    for _ in range(100):
        assert stream.latestOffset(start, ReadAllAvailable()) == start
    assert polls[0] == 100 and clock[0] > 45, "about two polls per second"
    before, head[0] = clock[0], 9
    end = stream.latestOffset(start, ReadAllAvailable())
    assert end != start and clock[0] - before <= 0.5
    before, head[0] = clock[0], 12
    assert stream.latestOffset(end, ReadAllAvailable()) != end
    assert clock[0] == before, "no wait after a batch"
