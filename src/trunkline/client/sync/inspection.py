# Written by tools/unasync.py from src/trunkline/client/inspection.py; change that file, not this one.
"""Inspection: series of rates, what needs attention, and when readers lose messages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Literal

from trunkline.client.sync.resource import Resource
from trunkline.codec import duration
from trunkline.db.sync.calls import inspection
from trunkline.types import Attention, Duration, RetentionDeadline, SeriesPoint

SeriesKind = Literal["topic", "queue", "group", "endpoint", "label", "system"]


class Inspection(Resource):
    """`client.inspect`"""

    def attention(self) -> list[Attention]:
        """Return what needs attention, first what loses data. Each row has its cause and the next step."""
        with self._reading() as conn:
            return inspection.attention(conn)

    def series(
        self, kind: SeriesKind, names: Sequence[str] | None = None, *, since: Duration = "1h", step: Duration = "1m"
    ) -> list[SeriesPoint]:
        """Return rates, backlog and latencies of many subjects in steps, by name and time.

        A group is `"topic/group"`, a label `"queue/label"`. Without names, the first 1,000 subjects of the kind.
        """
        with self._reading() as conn:
            return inspection.rollup_lines(
                conn, kind, names, since=duration(since) or timedelta(hours=1), step=duration(step) or timedelta(minutes=1)
            )

    def deadlines(self, topic: str | None = None) -> list[RetentionDeadline]:
        """Return when readers that are behind lose messages by hard retention, the earliest first."""
        with self._session().reading(topic=topic) as conn:
            return inspection.retention_deadlines(conn, topic)
