"""Inspection: series of rates, what needs attention, and when readers lose messages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Literal

from trunkline.client.resource import Resource
from trunkline.codec import duration
from trunkline.db.calls import inspection
from trunkline.types import Attention, Duration, RetentionDeadline, SeriesPoint

SeriesKind = Literal["topic", "queue", "group", "endpoint", "label", "system"]


class Inspection(Resource):
    """`client.inspect`"""

    async def attention(self) -> list[Attention]:
        """Return what needs attention, first what loses data. Each row has its cause and the next step."""
        async with self._reading() as conn:
            return await inspection.attention(conn)

    async def series(
        self, kind: SeriesKind, names: Sequence[str] | None = None, *, since: Duration = "1h", step: Duration = "1m"
    ) -> list[SeriesPoint]:
        """Return rates, backlog and latencies of many subjects in steps, by name and time.

        A group is `"topic/group"`, a label `"queue/label"`. Without names, the first 1,000 subjects of the kind.
        """
        async with self._reading() as conn:
            return await inspection.rollup_lines(
                conn, kind, names, since=duration(since) or timedelta(hours=1), step=duration(step) or timedelta(minutes=1)
            )

    async def deadlines(self, topic: str | None = None) -> list[RetentionDeadline]:
        """Return when readers that are behind lose messages by hard retention, the earliest first."""
        async with self._session().reading(topic=topic) as conn:
            return await inspection.retention_deadlines(conn, topic)
