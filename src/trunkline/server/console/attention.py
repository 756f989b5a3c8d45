"""Rows for what needs attention, as the database decides it. What is lost first comes first."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Literal

import msgspec

from trunkline.server.console import shapes
from trunkline.types import Attention

Kind = Literal["loss", "delay", "info"]
_KINDS: dict[str, Kind] = {"loss": "loss", "stopped": "delay", "slow": "delay", "note": "info"}
_PAGES = {
    "queue": "queues",
    "topic": "topics",
    "endpoint": "endpoints",
    "schedule": "schedules",
    "pipeline": "pipelines",
}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line: the subject, the cause, and since when or until when."""

    kind: Kind
    name: str
    of: str
    """The sort of thing: "queue", "group on orders"."""
    headline: str
    detail: str
    due: str
    path: tuple[str, ...]
    """Parts of the address of its page."""
    object: str | None
    """The topic, queue or endpoint whose scope shows it; None: what belongs to none."""


def rows(found: Iterable[Attention], now: datetime) -> list[Row]:
    """Return the rows in the order of the database."""
    return [_row(each, now) for each in found]


def _row(each: Attention, now: datetime) -> Row:
    name, of, object = each.subject, each.kind, None
    path: tuple[str, ...] = ("system",)
    if each.kind == "group":
        topic, _, name = each.subject.partition("/")
        of, path, object = f"group on {topic}", ("groups", topic, name), topic
    elif each.rule == "dead_letters":
        path, object = ("dead", each.subject), each.subject
    elif (part := _PAGES.get(each.kind)) is not None:
        path, object = (part, each.subject), each.subject
    return Row(
        kind=_KINDS.get(each.severity, "info"),
        name=name,
        of=of,
        headline=f"{each.cause[:1].upper()}{each.cause[1:]}.",
        detail=each.next_step,
        due=_due(each, now),
        path=path,
        object=object,
    )


def _due(each: Attention, now: datetime) -> str:
    if each.deadline is not None:
        left = each.deadline - now
        return f"lost in {shapes.duration(left)}" if left.total_seconds() > 0 else "lost now"
    return f"for {shapes.duration(now - each.since)}" if each.since is not None and each.since < now else ""
