"""A declared pipeline: tables, a view and a sink over topics; a second run takes what is new."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trunkline import SyncClient
from trunkline.errors import InvalidArgument, TrunklineError
from trunkline.spark.pipelines.declarative import run_declared
from trunkline.spark.progress import pipelines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")

FILE = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()


@dp.table
def declared_orders():
    topic = spark.readStream.format("trunkline").option("url", "{url}").option("subscribe", "orders")
    return topic.option("startingOffsets", "earliest").load().selectExpr("key", "parse_json(string(value)):n::int as n")


@dp.materialized_view
def declared_totals():
    return spark.read.table("declared_orders").groupBy("key").agg(f.sum("n").alias("total"))


dp.create_sink("large", "trunkline", {{"url": "{url}", "topic": "large"}})


@dp.append_flow(target="large")
def publish_large():
    return spark.readStream.table("declared_orders").where("n >= 90").selectExpr("key", "string(n) as value")
"""


@pytest.fixture
def orders(db: str) -> str:
    with SyncClient(db) as mq:
        mq.topics.create("orders", partitions=2)
        mq.topics.create("large")
        mq.publish_many("orders", [{"n": n} for n in range(100)])
    return db


def numbers(db: str) -> list[int]:
    with SyncClient(db) as mq:
        return sorted(int(each.payload) for each in mq.topics.scan("large"))


def test_tables_views_and_sinks(connect_spark: SparkSession, orders: str, tmp_path: Path) -> None:
    file = tmp_path / "shop.py"
    file.write_text(FILE.format(url=orders))
    storage = str(tmp_path / "storage")
    told: list[tuple[int, int | None]] = []
    dry = run_declared(orders, str(file), storage=storage, dry_run=True, spark=connect_spark)
    assert (dry.name, dry.flows, numbers(orders)) == ("shop", [], [])
    done = run_declared(orders, str(file), storage=storage, spark=connect_spark, on_progress=lambda *each: told.append(each))
    assert done.flows == ["declared_orders", "declared_totals", "publish_large"]
    assert told[-1] == (3, 3)
    assert numbers(orders) == list(range(90, 100))
    assert connect_spark.table("declared_totals").agg({"total": "sum"}).first()[0] == 4950  # type: ignore[index]
    with SyncClient(orders) as mq:
        mq.publish_many("orders", [{"n": n} for n in range(100, 110)])
    # the same by a spec, as Spark's own command takes it
    spec = tmp_path / "spark-pipeline.yml"
    spec.write_text("name: shop\nstorage: storage\nlibraries:\n  - glob:\n      include: shop.py\n")
    run_declared(orders, str(spec), spark=connect_spark)
    assert numbers(orders) == list(range(90, 110)), "each once"
    (known,) = [each for each in pipelines(orders) if each.name == "run:shop"]
    assert (known.state, known.kind) == ("done", "run")


def test_what_is_wrong_is_told(connect_spark: SparkSession, spark: SparkSession, orders: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    options = {"storage": str(tmp_path / "storage"), "spark": connect_spark}
    file.write_text("nothing = no_such_name")
    with pytest.raises(InvalidArgument, match="NameError"):
        run_declared(orders, str(file), **options)  # type: ignore[arg-type]
    file.write_text(FILE.format(url=orders).replace('"orders"', '"ordres"'))
    with pytest.raises(TrunklineError, match=r"(?i)topic.*ordres"):
        run_declared(orders, str(file), **options)  # type: ignore[arg-type]
    assert [(each.name, each.state) for each in pipelines(orders)] == [("run:bad", "failed")]
    with pytest.raises(InvalidArgument, match="needs a Spark Connect session"):
        run_declared(orders, str(file), storage="x", spark=spark)
    with pytest.raises(InvalidArgument, match="storage for its checkpoints"):
        run_declared(orders, str(file))
    (tmp_path / "spec.yml").write_text("nothing: 1")
    with pytest.raises(InvalidArgument, match="not a pipeline spec"):
        run_declared(orders, str(tmp_path / "spec.yml"))
