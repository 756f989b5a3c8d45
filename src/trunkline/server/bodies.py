"""Strict JSON bodies. Rejects what parsers disagree about: duplicate keys, infinite numbers, deep nesting."""

from __future__ import annotations

import json
import math
import re
from datetime import timedelta
from itertools import accumulate
from typing import Annotated, Any, NoReturn, TypeVar

import msgspec
from msgspec import Meta

from trunkline.server.problems import Problem, invalid, malformed

T = TypeVar("T")
# Possessive, and an unclosed string extends to the end of the body: one pass without backtracking, whatever the input.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_ESCAPE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.", re.DOTALL
)
"""A surrogate pair, a lone surrogate, or another escape."""
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def check_depth(body: bytes, limit: int) -> None:
    """Reject JSON that is nested deeper than `limit`, in one pass over the body.

    The depth is exact up to the first syntax error, where parsers stop.
    """
    if body.count(b"[") + body.count(b"{") <= limit:
        return
    brackets = _STRING.sub(b"", body).translate(None, _NOT_BRACKETS)
    if max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > limit:
        raise malformed(f"the JSON is nested deeper than {limit} levels", "json_too_deep")


def decode(body: bytes, kind: type[T], *, max_depth: int) -> T:
    """Decode a body as this type, or raise a 400 that says where it is invalid."""
    if not body.strip():
        raise malformed("the body is empty", "missing_body")
    check_depth(body, max_depth)
    check_json(body)
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as exc:
        raise malformed(_words(exc), "unknown_field" if "unknown field" in str(exc) else "malformed_body") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise malformed(f"the body is not JSON: {exc}", "bad_json") from None


def without_lone_surrogates(body: bytes) -> bytes:
    """Replace escapes of lone surrogates such as \\ud800, which the decoder would reject."""
    return _ESCAPE.sub(lambda found: b"\\ufffd" if found[1] else found[0], body) if _SURROGATE.search(body) else body


def check_json(body: bytes) -> list[str]:
    """Reject invalid JSON, and JSON that parsers disagree about. Return the keys of the outermost object."""
    keys: list[str] = []

    def take(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal keys
        keys = [key for key, _ in pairs]
        found = dict(pairs)
        if len(found) < len(pairs):
            raise malformed(f"duplicate key {_first_repeated(keys)[:50]!r}", "duplicate_key")
        return found

    try:
        json.loads(body, object_pairs_hook=take, parse_constant=_no_constant, parse_float=_finite, parse_int=_int)
    except UnicodeDecodeError as exc:
        raise malformed(f"the body is not UTF-8 at byte {exc.start}", "bad_utf8") from None
    except json.JSONDecodeError as exc:
        raise malformed(f"the body is not JSON: {exc.msg} at character {exc.pos}", "bad_json") from None
    except RecursionError:
        raise malformed("the JSON is nested too deeply", "json_too_deep") from None
    return keys


def check_value(raw: bytes) -> None:
    """Reject a JSON value that parsers disagree about. Lone surrogates are allowed and kept."""
    try:
        msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        check_json(raw)


def _first_repeated(keys: list[str]) -> str:
    seen: set[str] = set()
    return next(key for key in keys if key in seen or seen.add(key))  # type: ignore[func-returns-value]


def _words(exc: msgspec.ValidationError) -> str:
    return str(exc).replace("`", "'")


def _no_constant(name: str) -> NoReturn:
    raise malformed(f"{name} is not a JSON number", "bad_number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise malformed(f"the number {text[:20]} is too large", "bad_number")
    return value


def _int(text: str) -> int:
    if len(text) > 400:
        raise malformed(f"a number must have at most 400 digits, got {len(text)}", "bad_number")
    return int(text)


def too_large(limit: int) -> Problem:
    return Problem(
        413,
        "body_too_large",
        f"the body must have at most {limit} bytes",
        hint="Send large messages through SQL or Python, and many small ones as an NDJSON stream.",
        headers={"connection": "close"},
    )


# Checks of fields

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
