"""Pipeline progress in the table `trunkline.pipelines`, which `trunkline pipeline list` shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trunkline.db.calls import spark as calls
from trunkline.db.calls.pipelines import merge_queries
from trunkline.db.calls.spark import Pipeline
from trunkline.spark.database import plain


def report(
    url: str,
    name: str,
    kind: str,
    *,
    state: str = "running",
    batch: int | None = None,
    rows: int | None = None,
    rows_per_second: float | None = None,
    lag: int | None = None,
    error: str | None = None,
    detail: Mapping[str, Any] | None = None,
) -> None:
    """Record a pipeline's progress. `rows` is the total so far; None leaves a value unchanged."""
    with plain(url) as conn:
        calls.report_pipeline(
            conn,
            name,
            kind,
            state=state,
            batch=batch,
            rows=rows,
            rows_per_second=rows_per_second,
            lag=lag,
            error=error,
            detail=detail,
        )


def with_queries(url: str) -> list[Pipeline]:
    """Return all pipelines like `pipelines`, each with the rate and lag of its streaming query instead of a second row."""
    return merge_queries(pipelines(url))


def pipelines(url: str) -> list[Pipeline]:
    """Return all pipelines, the most recent report first."""
    with plain(url) as conn:
        return calls.list_pipelines(conn)
