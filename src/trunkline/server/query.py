"""Query parameters. One declaration both parses and documents a parameter."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from trunkline.server.problems import Problem

LARGEST = 9_000_000_000_000_000
_TRUE = {"true": True, "1": True, "false": False, "0": False}


class Param(msgspec.Struct, frozen=True, kw_only=True):
    """A query parameter. `lenient`: ignore an invalid value."""

    name: str
    kind: type = str
    default: Any = None
    low: float | None = None
    high: float | None = None
    lenient: bool = False
    required: bool = False
    many: bool = False
    words: str = ""
    choices: tuple[str, ...] = ()

    def read(self, text: str) -> Any:
        value = self._convert(text)
        if (self.low is not None and value < self.low) or (self.high is not None and value > self.high):
            raise ValueError(f"must be between {self.low:g} and {self.high or LARGEST:g}")
        if self.choices and value not in self.choices:
            raise ValueError(f"must be one of {', '.join(self.choices)}")
        return value

    def _convert(self, text: str) -> Any:
        if self.kind is bool:
            if text not in _TRUE:
                raise ValueError("must be true or false")
            return _TRUE[text]
        if self.kind is int:
            # int() also accepts other scripts, spaces, underscores and any number of digits
            if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) <= 19):
                raise ValueError("must be a whole number")
            value = int(text)
            if abs(value) > LARGEST:
                raise ValueError(f"must be at most {LARGEST}")
            return value
        if self.kind is float:
            number = float(text) if text.isascii() else math.nan
            if not math.isfinite(number):
                raise ValueError("must be a number")
            return number
        if self.kind is datetime:
            return moment(text)
        if "\x00" in text:
            raise ValueError("must not contain NUL characters")
        return text

    def schema(self) -> dict[str, Any]:
        kinds: dict[type, dict[str, Any]] = {
            bool: {"type": "boolean"},
            int: {"type": "integer"},
            float: {"type": "number"},
            datetime: {"type": "string", "format": "date-time"},
        }
        schema = dict(kinds.get(self.kind, {"type": "string"}))
        if self.lenient:
            schema = {}
        else:
            if self.low is not None:
                schema["minimum"] = self.low
            if self.high is not None:
                schema["maximum"] = self.high
        if self.choices:
            schema["enum"] = list(self.choices)
        if self.many:
            schema = {"type": "array", "items": schema}
        if self.default is not None:
            schema["default"] = self.default
        return schema


def moment(text: str) -> datetime:
    """Parse a time with a time zone."""
    try:
        value = datetime.fromisoformat(text.replace(" ", "+"))
    except ValueError:
        raise ValueError("must be a time such as 2026-01-31T12:00:00Z") from None
    if value.tzinfo is None:
        raise ValueError("must have a time zone")
    return value


def read_query(query: bytes, declared: tuple[Param, ...], *, strict: bool) -> dict[str, Any]:
    """Parse a query string. `strict`: reject undeclared and repeated parameters."""
    values: dict[str, Any] = {param.name: [] if param.many else param.default for param in declared}
    if not query:
        _check_required(declared, values)
        return values
    known = {param.name: param for param in declared}
    seen: set[str] = set()
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, max_num_fields=100, errors="strict")
    except (ValueError, UnicodeDecodeError):
        raise _bad("the query string is not valid") from None
    for name, text in pairs:
        param = known.get(name)
        if param is None:
            if strict:
                raise _bad(f"unknown parameter {name[:50]!r}")
            continue
        if name in seen and not param.many:
            if param.lenient:
                continue
            raise _bad(f"{name} must be given once")
        seen.add(name)
        try:
            value = param.read(text)
        except ValueError as exc:
            if param.lenient:
                continue
            raise _bad(f"{name} {exc}") from None
        if param.many:
            values[name].append(value)
        else:
            values[name] = value
    _check_required(declared, values)
    return values


def _check_required(declared: tuple[Param, ...], values: dict[str, Any]) -> None:
    for param in declared:
        if param.required and values[param.name] in (None, ""):
            raise _bad(f"{param.name} is missing")


def _bad(detail: str) -> Problem:
    return Problem(400, "bad_param", detail)


# Shared by several routes

AFTER = Param(name="after", words="Only names after this one.")
OFFSET = Param(name="offset", kind=int, default=0, low=0, words="Number of items to skip.")
NAMES = Param(name="name", many=True, words="Only these names; * stands for any characters. May be repeated.")
LIMIT = Param(name="limit", kind=int, default=100, low=0, words="Maximum number of items; `next` indicates more.")
FORCE = Param(name="force", kind=bool, default=False, words="Delete even if it is in use.")
ENSURE = Param(name="ensure", kind=bool, default=False, words="If it exists, update it and return 200.")
WAIT = Param(name="wait", kind=float, default=0.0, low=0, high=30, words="Seconds to wait if no message is ready.")
PARTITION = Param(name="partition", kind=int, default=0, low=0, high=63, words="The partition.")
