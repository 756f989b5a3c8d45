"""Report the progress of streaming queries to `trunkline.pipelines`."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from trunkline.errors import TrunklineError
from trunkline.spark.errors import cause
from trunkline.spark.options import Secret
from trunkline.spark.progress import report
from trunkline.spark.source import offsets

_REPORT_SECONDS = 1.0
_MOST_TEXT = 500
_MOST_SOURCES = 10
_log = logging.getLogger(__name__)


class ProgressListener(StreamingQueryListener):
    """Report start, end and progress, at most once a second per query. A report that fails does not stop the query."""

    def __init__(self, url: Secret) -> None:
        self._url = url
        self._names: dict[str, str] = {}
        self._rows: dict[str, int] = {}
        self._last: dict[str, dict[str, Any]] = {}
        self._reported_at: dict[str, float] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        run = str(event.runId)
        self._names[run] = event.name or str(event.id)
        self._rows[run] = 0
        self._report(run, state="running", detail={"query": str(event.id)})

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        run = str(progress.runId)
        self._names.setdefault(run, progress.name or str(progress.id))
        self._rows[run] = self._rows.get(run, 0) + progress.numInputRows
        self._last[run] = {
            "batch": progress.batchId,
            "rows": self._rows[run],
            "rows_per_second": _finite(progress.processedRowsPerSecond),
            "lag": lag_of(progress.sources),
            "detail": _detail(progress),
        }
        if time.monotonic() - self._reported_at.get(run, 0.0) >= _REPORT_SECONDS:
            self._reported_at[run] = time.monotonic()
            self._report(run, state="running", **self._last[run])

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        self._report(str(event.runId), state="running")

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        run = str(event.runId)
        error = str(cause(event.exception)) if event.exception is not None else None
        self._report(run, state="failed" if error else "stopped", error=error, **self._last.pop(run, {}))
        for by_run in (self._names, self._rows, self._reported_at):
            by_run.pop(run, None)

    def _report(self, run: str, **values: Any) -> None:
        try:
            report(self._url.reveal(), self._names.get(run, run), "stream", **values)
        except TrunklineError as exc:
            _log.warning("could not report query progress query=%s error=%s", self._names.get(run, run), exc)


def _detail(progress: Any) -> dict[str, Any]:
    """Return the parts of a batch for operators. Offsets and descriptions are cut: a source may have many partitions."""
    return {
        "durations": dict(progress.durationMs),
        "sources": [
            {
                "description": str(source.description)[:_MOST_TEXT],
                "rows": source.numInputRows,
                "end": None if source.endOffset is None else str(source.endOffset)[:_MOST_TEXT],
            }
            for source in progress.sources[:_MOST_SOURCES]
        ],
        "sink": {"description": str(progress.sink.description)[:_MOST_TEXT], "rows": progress.sink.numOutputRows},
    }


def lag_of(sources: list[Any]) -> int | None:
    """Return the number of unread messages over all Trunkline sources; None if no source reports it."""
    lags = [_lag(source.endOffset, source.latestOffset) for source in sources]
    reported = [lag for lag in lags if lag is not None]
    return sum(reported) if reported else None


def _lag(end: str | None, latest: str | None) -> int | None:
    try:
        at, newest = json.loads(end or "null"), json.loads(latest or "null")
    except ValueError:
        return None
    if not isinstance(at, dict) or not isinstance(newest, dict) or not offsets.topic_ids(newest):
        return None
    positions = offsets.from_document(at)
    return sum(
        max(0, head - positions.get(topic, {}).get(partition, head))
        for topic, parts in offsets.from_document(newest).items()
        for partition, head in parts.items()
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and value == value and abs(value) != float("inf") else None
