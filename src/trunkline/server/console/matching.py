"""Evaluates filters over rows that a page has read, for conditions that the database does not take."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from trunkline.errors import InvalidValue
from trunkline.filters import Selector, Term, parse

_MOST_TEXT = 4000


def parse_plain(text: str, fields: Iterable[str]) -> Selector:
    """Parse a filter without expressions: they could keep the server busy for long. Raise `InvalidValue`."""
    selector = parse(text, fields)
    for term in selector.terms:
        if term.test == "matches":
            raise InvalidValue(
                f"this list takes no expressions such as {term.text[:50]!r}",
                hint="Write a part of the text: error:*timeout*.",
            )
    return selector


def matches(selector: Selector, row: Mapping[str, str | float | None]) -> bool:
    """Return whether a row matches all terms. `row` has the value of each field; `text` is looked for in all texts."""
    return all(_holds(term, row) is not term.negated for term in selector.terms)


def _holds(term: Term, row: Mapping[str, str | float | None]) -> bool:
    if term.field == "text":
        wanted = term.value.casefold()
        return any(wanted in value[:_MOST_TEXT].casefold() for value in row.values() if isinstance(value, str))
    value = row.get(term.field)
    if value is None:
        return False
    if term.test == "range":
        low, high = _number(term.low), _number(term.high)
        known = _number(value)
        return known is not None and (low is None or known >= low) and (high is None or known <= high)
    if isinstance(value, int | float):
        return value == _number(term.value)
    if term.test == "like":
        return _like(term.value).fullmatch(value[:_MOST_TEXT]) is not None
    return value == term.value


def _number(value: str | float | None) -> float | None:
    """Return a number, or a duration such as 10m in seconds."""
    if value is None or isinstance(value, int | float):
        return value
    text = value.strip()
    scale = {"s": 1, "m": 60, "h": 3600, "d": 86400}.get(text[-1:], 0)
    try:
        return float(text[:-1]) * scale if scale else float(text)
    except ValueError:
        return None


@lru_cache(maxsize=100)
def _like(pattern: str) -> re.Pattern[str]:
    # adjoining stars are one: each star tries every length
    parts = [re.escape(part) for part in re.split(r"\*+", pattern)]
    if len(parts) > 5:
        raise InvalidValue("a filter takes at most four * in a value")
    return re.compile(".*".join(parts), re.DOTALL)
