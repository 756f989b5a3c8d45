"""Spark's word count for Kafka, from its guide, with a different format and options.

TRUNKLINE_DATABASE_URL=postgresql:///app python examples/word_count.py
"""

from __future__ import annotations

import os
import tempfile

from pyspark.sql.functions import explode, split

from trunkline import SyncClient
from trunkline.spark import open_session

with SyncClient(os.environ["TRUNKLINE_DATABASE_URL"]) as mq:
    if "lines" in [topic.name for topic in mq.topics.list()]:  # of an earlier run
        mq.topics.delete("lines")
    mq.topics.create("lines", partitions=2)
    for line in ("to be or not to be", "that is the question"):
        mq.publish("lines", line.encode())

spark = open_session("word-count", master="local[2]", conf={"spark.sql.shuffle.partitions": "2"})
lines = (
    spark.readStream.format("trunkline")  # "kafka", and kafka.bootstrap.servers below
    .option("subscribe", "lines")
    .option("startingOffsets", "earliest")
    .load()
    .selectExpr("CAST(value AS STRING)")
)
words = lines.select(explode(split(lines.value, " ")).alias("word"))
query = (
    words.groupBy("word")
    .count()
    .writeStream.outputMode("complete")
    .format("memory")
    .queryName("counts")
    .option("checkpointLocation", tempfile.mkdtemp())
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
for row in spark.table("counts").orderBy("word").collect():
    print(row.word, row["count"])
spark.stop()
