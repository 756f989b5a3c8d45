"""Objects are frozen in Spark's workers, and nowhere else."""

from __future__ import annotations

import gc

import pytest

from trunkline.spark.session import python_workers


def test_only_workers_set_aside_what_they_have_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    python_workers.settle()
    assert gc.get_freeze_count() == 0
    monkeypatch.setattr(python_workers.TaskContext, "get", lambda: object())  # type: ignore[attr-defined]
    try:
        python_workers.settle()
        once = gc.get_freeze_count()
        assert once > 0
        kept = [[] for _ in range(1000)]  # type: ignore[var-annotated]
        python_workers.settle()
        # a frozen object may have gone since, but the thousand were not added
        assert gc.get_freeze_count() <= once, kept
    finally:
        gc.unfreeze()
