"""The tiered log at any size: archive a topic, let retention drop what is archived, read all of it through the source.

python -m tests.spark.tiers --messages 2000000
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from tests.conftest import Connection
from trunkline.db.calls import archive as calls
from trunkline.errors import OffsetOutOfRange
from trunkline.spark.archive.writer import archive
from trunkline.spark.run import clear_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 4
_CALL = 1_000
# every column of every message counts
SUMS = (
    "count(*)",
    "sum(offset)",
    "count(distinct partition, offset)",
    "sum(xxhash64(partition, offset, key, value, id, routing_key, label, content_type, timestamp)::decimal(38))",
)


def fill(conn: Connection, topic: str, first: int, messages: int, payload: int) -> None:
    for start in range(first, first + messages, _CALL):
        conn.execute(
            "with made as (select array_agg(convert_to(rpad(md5(n::text), %s, md5((n * 7)::text)), 'UTF8') order by n)"
            " as payloads, array_agg('k' || n %% 1000 order by n) as keys from generate_series(%s::int, %s::int) n)"
            " select count(*) from made, trunkline.publish_many(%s, payloads, p_keys => keys)",
            (payload, start, min(start + _CALL, first + messages) - 1, topic),
        )
        conn.execute("select trunkline.run_upkeep('segments')")


def drop(conn: Connection) -> None:
    """Seal what is full; drop what may go."""
    for _ in range(3):
        conn.execute("select trunkline.run_upkeep('segments')")
    conn.execute("select trunkline.run_upkeep('retention')")


def sums(spark: SparkSession, url: str, topic: str, **options: str) -> tuple[Any, ...]:
    frame = spark.read.format("trunkline").option("url", url).option("subscribe", topic).options(**options).load()
    with clear_errors():
        return tuple(frame.selectExpr(*SUMS).collect()[0])


def run(spark: SparkSession, url: str, folder: Path, *, messages: int, payload: int = 500) -> dict[str, Any]:
    """Answers figures; anything that is not equal is an error."""
    figures: dict[str, Any] = {"messages": messages, "payload": payload}

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        figures[f"{name}_seconds"] = round(time.monotonic() - started, 2)

    with psycopg.connect(url, autocommit=True) as conn:
        segment = max(256, messages // PARTITIONS // 20)
        conn.execute(
            "select trunkline.create_topic('t', %s, p_retention => '0', p_segment_rows => %s)", (PARTITIONS, segment)
        )
        # what retention takes before there is an archive is gone: reading it must be an error
        lost = segment * PARTITIONS * 3
        fill(conn, "t", 0, lost, payload)
        drop(conn)
        conn.execute("select trunkline.require_archive('t')")
        with timed("fill"):
            fill(conn, "t", lost, messages, payload)
        lowest = {row.partition: row.earliest_live for row in calls.archive_stats(conn, "t")}
        assert all(at > 1 for at in lowest.values())
        with timed("live_read"):
            before = sums(spark, url, "t", tier="live")
        assert before[0] == before[2] >= messages
        with timed("archive"):
            done = archive(url, "t", str(folder), spark=spark, rows_per_file=max(1000, min(262_144, messages // 16)))
        drop(conn)
        stats = calls.archive_stats(conn, "t")
        live = sum(row.head - row.earliest_live + 1 for row in stats)
        assert all(row.earliest_live <= row.archived_upto + 1 for row in stats)
        figures |= {
            "archived": done.rows,
            "files": done.files,
            "bytes": done.bytes,
            "dropped": before[0] - live,
            "live": live,
        }
        assert figures["dropped"] > messages // 2
        with timed("tiered_read"):
            after = sums(spark, url, "t")
        assert after == before, (before, after)
        assert sums(spark, url, "t", minPartitions="7") == before, "however it is cut into tasks"
        figures |= {"count": after[0], "sum_of_offsets": int(after[1]), "checksum": str(after[3])}
        figures["below_the_archive"] = below(spark, url, lowest)
    return figures


def below(spark: SparkSession, url: str, lowest: dict[int, int]) -> str:
    """The error of a read that starts below the archive."""
    starts = json.dumps({"t": {str(partition): at - 1 for partition, at in lowest.items()}})
    try:
        sums(spark, url, "t", startingOffsets=starts)
    except OffsetOutOfRange as exc:
        assert any(str(at) in str(exc) for at in lowest.values()), exc
        return str(exc)
    raise AssertionError("a read below the archive must fail")


def main() -> None:
    from trunkline.embedded.server import EmbeddedServer
    from trunkline.spark import open_session
    from trunkline.sql.migrate import migrate

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--payload", type=int, default=500)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tl-tiers-", dir="/var/tmp") as folder:
        home = Path(folder)
        home.chmod(0o711)
        with EmbeddedServer(home / "server") as server:
            migrate(server.url)
            spark = open_session("tiers", master="local[2]", url=server.url, conf={"spark.driver.memory": "2g"})
            spark.sparkContext.setLogLevel("ERROR")
            figures = run(spark, server.url, home / "archive", messages=chosen.messages, payload=chosen.payload)
            spark.stop()
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
