"""Tuning of Spark's Python workers, which run many tasks each."""

from __future__ import annotations

import gc

from pyspark import TaskContext


def settle() -> None:
    """Exclude imported modules from garbage collection.

    Each task calls this; only the first call in a worker does work.

    Spark runs a collection after every task. Scanning all imported modules takes about 20 ms, as long as reading 10,000
    messages. Objects that exist when the first task begins live as long as the worker, so freeze them.
    """
    if TaskContext.get() is not None and not gc.get_freeze_count():
        gc.collect()
        gc.freeze()
