"""Entry point for Spark, which imports modules named `pyspark_*` to find data sources such as "trunkline"."""

from trunkline.spark.data_source import TrunklineSource as DefaultSource

__all__ = ["DefaultSource"]
