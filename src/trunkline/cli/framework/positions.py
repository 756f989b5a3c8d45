"""Parameter types for positions in a log and for times."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from trunkline.errors import TrunklineError
from trunkline.settings import parse_duration

if TYPE_CHECKING:
    from trunkline.messaging import Messaging


class Position(click.ParamType):  # type: ignore[type-arg]  # not generic in click 8.1
    """A position in a log: `earliest`, `latest`, an offset, a time, or an age."""

    name = "position"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | int | datetime:
        if not isinstance(value, str) or value in ("earliest", "latest"):
            return value  # type: ignore[no-any-return]
        if value.isascii() and value.isdigit() and len(value) < 19:
            return int(value)
        return _moment(value) or self.fail(
            f"must be earliest, latest, an offset, a time (2026-01-31T12:00:00Z) or an age (1h), got {value!r}", param, ctx
        )


class Moment(click.ParamType):  # type: ignore[type-arg]  # not generic in click 8.1
    """A time or an age."""

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        return _moment(value) or self.fail(
            f"must be a time (2026-01-31T12:00:00Z) or an age (2h), got {value!r}", param, ctx
        )


def _moment(text: str) -> datetime | None:
    """Parse a time or an age; None if the text is neither."""
    if text.isascii() and text.isdigit():
        # fromisoformat also accepts 20260131, which is more likely an offset
        return None
    try:
        at = datetime.fromisoformat(text)
        return at if at.tzinfo else at.replace(tzinfo=UTC)
    except ValueError:
        pass
    try:
        return datetime.now(UTC) - parse_duration(text)
    except (TrunklineError, OverflowError):
        return None


async def resolve(mq: Messaging, topic: str, position: str | int | datetime) -> dict[int, int]:
    """Resolve a position to an offset per partition."""
    offsets = {}
    for row in await mq.topics.stats(topic):
        if isinstance(position, datetime):
            offsets[row.partition] = await mq.topics.offset_at(topic, row.partition, at=position)
        elif isinstance(position, int):
            offsets[row.partition] = position
        else:
            offsets[row.partition] = row.earliest_offset if position == "earliest" else row.head + 1
    return offsets
