"""Spark's Python workers, which run one task after the other."""

from __future__ import annotations

import gc

from pyspark import TaskContext


def settle() -> None:
    """Called by each task; its first call in a worker pays.

    After every task Spark makes the worker look for garbage, through all that was ever imported: some 20 ms, as much as it
    takes to read ten thousand messages. What is there when the first task begins stays anyway, so it is set aside.
    """
    if TaskContext.get() is not None and not gc.get_freeze_count():
        gc.collect()
        gc.freeze()
