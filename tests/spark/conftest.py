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
    "spark.default.parallelism": "2",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stopTimeout": "30s",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two cores, and tasks that are tried up to four times (a plain local master tries once)."""
    from trunkline.spark import open_session
    from trunkline.spark.session.connect import connect_conf

    with tempfile.TemporaryDirectory(prefix="tl-spark-") as home:
        conf = CONF | connect_conf() | {"spark.local.dir": home, "spark.sql.warehouse.dir": f"{home}/warehouse"}
        session = open_session("tests", master="local[2,4]", conf=conf)
        session.sparkContext.setLogLevel("ERROR")
        yield session
        session.stop()


@pytest.fixture(scope="session")
def connect_spark(spark: SparkSession) -> Iterator[SparkSession]:
    """The same Java machine through Spark Connect."""
    from trunkline.spark import register
    from trunkline.spark.session.connect import connected

    session = connected(spark)
    register(session)
    yield session
    session.stop()
