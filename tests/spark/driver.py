"""A driver for the chaos run: copies topic `source` to topic `copy` until it is killed. Some tasks fail on purpose.

python -m tests.spark.driver URL CHECKPOINT ROWS_PER_BATCH MASTER [losses]

`losses`: goes on when messages are gone, and copies payloads instead of positions.
"""

from __future__ import annotations

import random
import sys

from tests.spark.conftest import CONF
from trunkline.spark import open_session


def sometimes_fails(batches):  # type: ignore[no-untyped-def]
    """One first attempt in five fails after its rows were handed on: they are staged, and must not count."""
    from pyspark import TaskContext

    yield from batches
    if TaskContext.get().attemptNumber() == 0 and random.random() < 0.2:  # type: ignore[union-attr]
        raise RuntimeError("on purpose")


def main(url: str, checkpoint: str, rows: str, master: str, losses: str = "") -> None:
    spark = open_session("chaos", master=master, url=url, conf=CONF)
    spark.sparkContext.setLogLevel("OFF")
    frame = (
        spark.readStream.format("trunkline")
        .options(url=url, subscribe="source", startingOffsets="earliest", maxOffsetsPerTrigger=rows, minPartitions="4")
        .option("failOnDataLoss", not losses)
        .schema("key binary, value binary" if losses else "key binary, partition int, offset bigint")
        .load()
        .selectExpr("key", "value" if losses else "cast(concat(partition, ':', offset) as binary) as value")
    )
    query = (
        frame.mapInArrow(sometimes_fails, frame.schema)
        .writeStream.format("trunkline")
        .options(url=url, topic="copy", checkpointLocation=checkpoint)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
