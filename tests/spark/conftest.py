"""One Spark for all tests of this folder: a Java machine takes seconds to start and half a gigabyte to keep."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONF = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.default.parallelism": "2",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stopTimeout": "30s",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two cores, and tasks that are tried up to four times (a plain local master tries once)."""
    from trunkline.spark import open_session

    with tempfile.TemporaryDirectory(prefix="tl-spark-") as home:
        conf = CONF | {"spark.local.dir": home, "spark.sql.warehouse.dir": f"{home}/warehouse"}
        session = open_session("tests", master="local[2,4]", conf=conf)
        session.sparkContext.setLogLevel("ERROR")
        yield session
        session.stop()
