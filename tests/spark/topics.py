"""Topics with known messages, and what is in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.conftest import Connection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def publish(conn: Connection, topic: str, count: int, *, first: int = 0, keys: int = 10) -> None:
    """Messages with the payloads first, first + 1, ...; payload n has the key k<n % keys>."""
    conn.execute(
        "select trunkline.publish(%s, to_jsonb(n), p_key => 'k' || n %% %s::int, p_routing_key => 'a.' || n %% 3,"
        " p_label => 'l' || n %% 2, p_headers => jsonb_build_object('n', n::text, 'x', null))"
        " from generate_series(%s::int, %s::int) n",
        (topic, keys, first, first + count - 1),
    )


def payloads(conn: Connection, topic: str) -> list[list[int]]:
    """The payloads of each partition, in order."""
    conn.execute("call trunkline.sequence()")
    (count,) = conn.execute("select partitions from trunkline.list_topics() where name = %s", (topic,)).fetchone() or (0,)
    return [
        [int(row[0]) for row in conn.execute("select payload from trunkline.read(%s, %s, 1, 100000)", (topic, partition))]
        for partition in range(count)
    ]


def flat(lists: list[list[int]]) -> list[int]:
    return sorted(number for numbers in lists for number in numbers)


def in_order_of_keys(lists: list[list[int]], keys: int = 10) -> bool:
    """Return true if numbers of the same key ascend, in a topic whose payloads were published in ascending order."""
    for numbers in lists:
        for key in range(keys):
            mine = [number for number in numbers if number % keys == key]
            if mine != sorted(mine):
                return False
    return True


def load(spark: SparkSession, db: str, topic: str | None = "t", schema: str | None = None, **options: Any) -> DataFrame:
    reader = spark.read.format("trunkline").option("url", db)
    if topic is not None:
        reader = reader.option("subscribe", topic)
    if schema is not None:
        reader = reader.schema(schema)
    return reader.options(**options).load()
