"""Reads from a real streaming standby: a prefix without holes, never beyond what it has; writes are refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.test_faults import Pair
from tests.e2e.test_faults import home as home
from tests.e2e.test_faults import pair as pair
from tests.spark.topics import load
from tests.sql.calls import head, publish
from trunkline.errors import ReadOnly
from trunkline.spark.run import clear_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")


@pytest.mark.timeout(600)
def test_a_standby_is_read_as_far_as_it_is(spark: SparkSession, pair: Pair, tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    known: list[Any] = []
    for turn in range(4):
        pair.admin.execute(f"select pg_wal_replay_{'pause' if turn == 1 else 'resume'}()")
        publish(pair.primary, "t", *range(10))
        # only the primary gives offsets: in a turn without this the standby gets messages that have none yet
        if turn != 2:
            head(pair.primary, "t")
        if turn != 1:
            pair.catch_up()
        rows = load(spark, pair.standby_url).select("offset", "id").orderBy("offset").collect()
        assert [row.offset for row in rows] == list(range(1, len(rows) + 1))
        assert rows[: len(known)] == known
        assert len(rows) == {0: 15, 1: 15, 2: 25, 3: 45}[turn]
        known = rows
        stream(spark, pair.standby_url, table, str(tmp_path / "checkpoint"))
        assert sorted(row.offset for row in spark.read.parquet(table).select("offset").collect()) == list(
            range(1, len(rows) + 1)
        )
    with pytest.raises(ReadOnly, match=r"(?i)read-only"), clear_errors():
        out = spark.range(3).selectExpr("string(id) as value").write.format("trunkline")
        out.options(url=pair.standby_url, topic="t").mode("append").save()
    head(pair.primary, "t")
    assert load(spark, pair.standby_url).count() == 45


def stream(spark: SparkSession, url: str, table: str, checkpoint: str) -> None:
    topic = spark.readStream.format("trunkline").options(url=url, subscribe="t", startingOffsets="earliest").load()
    writer = topic.select("offset").writeStream.format("parquet").options(path=table, checkpointLocation=checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
