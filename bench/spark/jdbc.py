"""Spark's JDBC source and sink on the same server, tuned as their documentation recommends."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from bench.lab import Lab
from bench.spark.bed import Bed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME = "Spark JDBC"
SINK = "bench.spark_sink"
_FETCH = 10_000
_BATCH = 5_000


def read(bed: Bed, number: int, topic: str, *, tasks: int) -> DataFrame:
    """Read a topic's log by ranges of row ids, with as many tasks as our side. Spark adds the constant columns."""
    from pyspark.sql import functions as f

    query = f"(select key, payload, partition, id, created_at from trunkline.topic_{int(number)}) log"
    frame = bed.spark.read.jdbc(
        _address(bed.url), query, predicates=_ranges(bed.lab, number, tasks), properties=_properties(bed, fetchsize=_FETCH)
    )
    return frame.select(
        f.col("key").cast("binary").alias("key"),
        f.col("payload").alias("value"),
        f.lit(topic).alias("topic"),
        "partition",
        f.col("id").alias("offset"),
        f.col("created_at").alias("timestamp"),
        f.lit(1).alias("timestampType"),
    )


def make_sink(lab: Lab) -> None:
    """Create a logged table with a primary key and the minimal columns of a message.

    Unlike ours, it has no message ids.
    """
    lab.conn.execute(f"drop table if exists {SINK}".encode())
    lab.conn.execute(
        f"create table {SINK} (id bigint generated always as identity primary key, key text, value bytea not null,"
        " created_at timestamptz not null default now())".encode()
    )


def write(bed: Bed, frame: DataFrame) -> None:
    properties = _properties(bed, batchsize=_BATCH) | {"reWriteBatchedInserts": "true"}
    frame.write.jdbc(_address(bed.url), SINK, mode="append", properties=properties)


def _ranges(lab: Lab, number: int, tasks: int) -> list[str]:
    query = f"select partition, min(id), max(id) from trunkline.topic_{int(number)} group by partition order by partition"
    found = lab.conn.execute(query.encode()).fetchall()
    each = max(1, tasks // len(found))
    ranges = []
    for partition, low, high in found:
        rows = high + 1 - low
        ranges += [
            f"partition = {partition} and id >= {low + rows * step // each} and id < {low + rows * (step + 1) // each}"
            for step in range(each)
        ]
    return ranges


def _address(url: str) -> str:
    target = urlsplit(url)
    return f"jdbc:postgresql://{target.hostname}:{target.port}{target.path}"


def _properties(bed: Bed, **numbers: int) -> dict[str, str]:
    target = urlsplit(bed.url)
    return {
        "driver": "org.postgresql.Driver",
        "user": unquote(target.username or ""),
        "password": unquote(target.password or ""),
        **{name: str(value) for name, value in numbers.items()},
    }
