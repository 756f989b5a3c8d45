"""`python -m bench.spark.first_row helper|default TOPIC`: start a session and read the first row of a topic."""

from __future__ import annotations

import sys


def main(kind: str, topic: str) -> None:
    from pyspark.sql import SparkSession

    if kind == "helper":
        from trunkline.spark import open_session

        spark = open_session("first row", master="local[2]")
    else:
        spark = SparkSession.builder.master("local[2]").getOrCreate()
    row = spark.read.format("trunkline").option("subscribe", topic).load().first()
    print("row" if row is not None else "nothing", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
