"""Searching and inspecting over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Unpack

import msgspec

from trunkline.codec import position_text
from trunkline.http_client.transport import Transport
from trunkline.messaging import RangeOptions, SearchOptions
from trunkline.types import Attention, Duration, RetentionDeadline, Search, SearchRange, Selection, SeriesPoint
from trunkline.wire import MessageView, seconds

SeriesKind = Literal["topic", "queue", "group", "endpoint", "label", "system"]


class MessagesPage(msgspec.Struct):
    data: list[MessageView]


class _Found(msgspec.Struct):
    matches: list[MessageView]
    scanned: int
    matched: int
    stopped: Literal["end", "limit", "rows", "bytes", "time"]
    next: dict[str, int] | None
    seconds: float


class _Ranges(msgspec.Struct):
    partitions: list[SearchRange]


class _Series(msgspec.Struct):
    data: list[SeriesPoint]


class _Attention(msgspec.Struct):
    data: list[Attention]


class _Deadlines(msgspec.Struct):
    data: list[RetentionDeadline]


def _range(selection: Selection | None, options: RangeOptions) -> dict[str, Any]:
    partitions = options.get("partitions")
    return {
        "selection": selection or {},
        "partitions": None if partitions is None else list(partitions),
        "start": position_text(options.get("start", "earliest")),
        "end": position_text(options.get("end", "latest")),
    }


async def estimate(
    transport: Transport, path: str, selection: Selection | None, **options: Unpack[RangeOptions]
) -> list[SearchRange]:
    """Return what a search would read at most."""
    body = _range(selection, options)
    return (await transport.ask("POST", f"{path}/search/estimate", body, kind=_Ranges)).partitions


async def search(
    transport: Transport, path: str, selection: Selection | None, *, type: Any, **options: Unpack[SearchOptions]
) -> Search[Any]:
    """Search a topic or a queue's own log."""
    body = {
        **_range(selection, options),
        "limit": options.get("limit"),
        "backwards": options.get("backwards"),
        "max_rows": options.get("max_rows"),
        "budget_seconds": seconds(options.get("budget")),
        "after": options.get("after"),
    }
    found = await transport.ask("POST", f"{path}/search", body, kind=_Found)
    return Search(
        matches=[row.message(type) for row in found.matches],
        scanned=found.scanned,
        matched=found.matched,
        stopped=found.stopped,
        next=found.next,
        seconds=found.seconds,
    )


class HttpInspection:
    """`client.inspect`"""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def attention(self) -> list[Attention]:
        """Return what needs attention, first what loses data. Each row has its cause and the next step."""
        return (await self._transport.ask("GET", "/v1/attention", kind=_Attention)).data

    async def series(
        self, kind: SeriesKind, names: Sequence[str] | None = None, *, since: Duration = "1h", step: Duration = "1m"
    ) -> list[SeriesPoint]:
        """Return rates, backlog and latencies of many subjects in steps, by name and time."""
        query = {"kind": kind, "name": names, "since_seconds": seconds(since), "step_seconds": seconds(step)}
        return (await self._transport.ask("GET", "/v1/series", query=query, kind=_Series)).data

    async def deadlines(self, topic: str | None = None) -> list[RetentionDeadline]:
        """Return when readers that are behind lose messages by hard retention, the earliest first."""
        return (await self._transport.ask("GET", "/v1/deadlines", query={"topic": topic}, kind=_Deadlines)).data
