"""Result of a check of `trunkline doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

Level = Literal["ok", "warn", "fail"]


class Finding(msgspec.Struct, frozen=True):
    """A finding and its fix. Only `fail` makes the command fail."""

    check: str
    level: Level
    message: str
    hint: str | None = None
