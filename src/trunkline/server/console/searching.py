"""Turns a filter of the message browser into a search of the database: what to select, and where."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta

import msgspec

from trunkline.errors import InvalidValue
from trunkline.filters import Selector, Term, parse
from trunkline.settings import parse_duration
from trunkline.types import Selection

FIELDS = ("key", "routing", "label", "kind", "header", "body", "text", "offset", "partition", "at", "age")
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
_PLACE = re.compile(r"(?P<partition>\d{1,2}):(?P<offset>\d{1,18})")
DIRECT = 20_000
"""A search that reads at most this many messages runs at once; a longer one waits for its button."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A search: which messages, and in which range."""

    selector: Selector
    selection: Selection
    partitions: list[int] | None
    start: str
    end: str

    @property
    def narrowed(self) -> bool:
        """True if the payload, key or headers decide which messages are found."""
        return bool(self.selection)


def wanted(where: str, start: str, end: str, partition: str, now: datetime) -> Wanted:
    """Return the search that a filter describes. Raise `InvalidValue` for what a search cannot do."""
    selector = parse(where, FIELDS)
    selection: Selection = {}
    partitions = [_whole("partition", partition)] if partition else None
    start, end = place(start or "earliest", now), place(end or "latest", now)
    for term in selector.terms:
        if term.negated:
            raise InvalidValue(f"a search of messages cannot negate {term.text!r}", hint="Leave the minus out.")
        if term.field == "partition":
            partitions = [_whole("partition", _exact(term))]
        elif term.field in ("offset", "at", "age"):
            low, high = _range(term, now)
            start, end = low or start, high or end
        else:
            _select(selection, term)
    return Wanted(selector=selector, selection=selection, partitions=partitions, start=start, end=end)


def place(text: str, now: datetime) -> str:
    """Return a place as the database takes it: also "10m" and "10 minutes ago" are understood."""
    text = text.strip()
    if text == "now":
        return "latest"
    short = text.removesuffix(" ago").removeprefix("-")
    if text in ("earliest", "latest") or text.isdigit():
        return text
    if re.fullmatch(r"\d+(\.\d+)?\s*[a-z]+", short):
        return (now - parse_duration(short)).isoformat()
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidValue(
            f"{text[:50]!r} is no place in a log", hint="Write earliest, latest, an offset, a time or 10m."
        ) from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).isoformat()


def _whole(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise InvalidValue(f"{name} must be a number, got {text[:50]!r}")
    return int(text)


def _exact(term: Term) -> str:
    if term.test != "is":
        raise InvalidValue(f"{term.field!r} of a search takes one exact value", hint=f"Write {term.field}:value.")
    return term.value


def _range(term: Term, now: datetime) -> tuple[str | None, str | None]:
    if term.test == "is":
        low = high = term.value
    elif term.test == "range":
        low, high = term.low or "", term.high or ""
    else:
        raise InvalidValue(f"{term.field!r} of a search takes a value or a range")
    if term.field == "age":
        # from 10m on: older than ten minutes; a single age means at most this old
        if term.test == "is":
            return _ago(low, now), None
        return (_ago(high, now) if high else None), (_ago(low, now) if low else None)
    if term.field == "offset":
        return (str(_whole("offset", low)) if low else None), (str(_whole("offset", high)) if high else None)
    return (place(low, now) if low else None), (place(high, now) if high else None)


def _ago(text: str, now: datetime) -> str:
    return (now - max(timedelta(0), parse_duration(text))).isoformat()


def _select(selection: Selection, term: Term) -> None:
    if term.field == "key":
        selection["key"] = _exact(term)
    elif term.field == "routing":
        if term.test not in ("is", "like"):
            raise InvalidValue("routing takes a pattern", hint="Write routing:order.*.eu")
        selection["routing"] = term.value
    elif term.field in ("label", "kind"):
        selection["label"] = _exact(term)
    elif term.field == "header":
        headers = dict(selection.get("headers") or {})
        headers[".".join(term.path)] = _exact(term)
        selection["headers"] = headers
    elif term.field == "body":
        paths = list(selection.get("body") or ())
        selection["body"] = [*paths, _path(term)]
    elif term.test == "matches":
        if "regex" in selection:
            raise InvalidValue("a search takes one expression", hint='Put both into one: text~"a.*b"')
        selection["regex"] = term.value
    else:
        if "text" in selection:
            raise InvalidValue("a search takes one text", hint='Put the words between quotes, or use text~"a.*b".')
        selection["text"] = term.value


def _path(term: Term) -> str:
    """Return the condition on a field of the body as a JSON path of Postgres."""
    path = "$" + "".join(f"[{part}]" if part.isdigit() else f".{json.dumps(part)}" for part in term.path)
    if term.test == "range":
        ends = [("@ >= ", term.low), ("@ <= ", term.high)]
        return f"{path} ? ({' && '.join(sign + _literal(value) for sign, value in ends if value is not None)})"
    if term.test == "matches":
        return f"{path} ? (@ like_regex {json.dumps(term.value)})"
    if term.test == "like":
        pattern = ".*".join(re.escape(part) for part in term.value.split("*"))
        return f"{path} ? (@ like_regex {json.dumps(f'^{pattern}$')})"
    value = _literal(term.value)
    text = json.dumps(term.value)
    return f"{path} ? (@ == {value})" if value == text else f"{path} ? (@ == {value} || @ == {text})"


def _literal(value: str) -> str:
    return value if _NUMBER.fullmatch(value) or value in ("true", "false", "null") else json.dumps(value)


def after_text(after: dict[str, int] | None) -> str:
    """Return where a search continues, for an address: "0:41,3:99"."""
    return ",".join(f"{partition}:{offset}" for partition, offset in (after or {}).items())


def after_of(text: str) -> dict[str, int] | None:
    """Return where a search continues; None from the start."""
    if not text:
        return None
    found: dict[str, int] = {}
    for part in text.split(","):
        match = _PLACE.fullmatch(part)
        if match is None:
            raise InvalidValue("the place to continue from is not valid", hint="Start the search again.")
        found[match["partition"]] = int(match["offset"])
    return found
