"""Manual checks of body fields."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any

from msgspec import Meta

from trunkline.server.problems import invalid

NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
BLANK = "cannot be blank"
FORMAT = "must be in a valid format"

Seconds = Annotated[int, Meta(ge=0, le=2_147_483_647)]
Span = Annotated[float, Meta(ge=0, le=1e10)]
Count = Annotated[int, Meta(ge=0, le=2_147_483_647)]
Offset = Annotated[int, Meta(ge=0, le=9_000_000_000_000_000)]
Text = Annotated[str, Meta(max_length=10_000)]
Name = Annotated[str, Meta(min_length=1, max_length=200, pattern="^[A-Za-z0-9._-]+$")]


def name_fault(value: str | None) -> str | None:
    if not value:
        return BLANK
    # . and .. cannot be path segments
    return None if NAME.fullmatch(value) and value not in (".", "..") else FORMAT


def refuse(**faults: str | None) -> None:
    """Raise a 400 that lists each invalid field, sorted."""
    found = [f"{field}: {fault}" for field, fault in sorted(faults.items()) if fault is not None]
    if found:
        wrong = "invalid_name" if all(FORMAT in words for words in found) else "invalid_argument"
        raise invalid("; ".join(found) + ".", wrong)


def span(value: float | None) -> timedelta | None:
    return None if value is None else timedelta(seconds=value)


def given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
