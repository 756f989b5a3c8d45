"""Spark imports this module by its name and finds the format "trunkline"."""

from trunkline.spark.source import TrunklineSource as DefaultSource

__all__ = ["DefaultSource"]
