"""The grammar of filters: `word:value` terms, joined by *and*. Shared by the console and the command line.

    state:delayed kind:send_receipt attempt:3.. -worker:host-a* error~"timed? out" body.total:100.. header.tenant:acme

A minus before a term negates it. `..` makes a range, `~` a regular expression, `*` matches any characters. Quotes keep
spaces, and a backslash in quotes keeps the next character.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from trunkline.errors import InvalidValue

Test = Literal["is", "like", "range", "matches"]
How = Literal["index", "arithmetic", "reads each message"]
_TERM = re.compile(r"(?P<not>-)?(?P<field>[a-z][a-z_]*)(?P<path>(?:\.[^\s:~\".]+)*)(?P<sign>[:~])")
_PLAIN = re.compile(r"[^\s\"]+")
_SPACE = re.compile(r"\s*")
_MOST_TERMS = 50
_MOST_CHARACTERS = 2000
_WITH_PATH = ("body", "header")
HOW: Mapping[str, How] = {
    "state": "index",
    "kind": "index",
    "queue": "index",
    "topic": "index",
    "id": "index",
    "error": "index",
    "key": "arithmetic",
    "offset": "arithmetic",
    "partition": "arithmetic",
    "at": "arithmetic",
    "age": "arithmetic",
    "attempt": "reads each message",
    "worker": "index",
    "routing": "reads each message",
    "label": "reads each message",
    "header": "reads each message",
    "body": "reads each message",
    "text": "reads each message",
}
"""The known fields, and how each is evaluated."""


class Term(msgspec.Struct, frozen=True, kw_only=True):
    """One condition. `value` is the text of `is`, `like` and `matches`; `low` and `high` are the ends of a range."""

    field: str
    path: tuple[str, ...] = ()
    test: Test = "is"
    value: str = ""
    low: str | None = None
    high: str | None = None
    negated: bool = False
    text: str
    """The term as it was written."""

    @property
    def how(self) -> How:
        """The way in which the term is evaluated: only an equal key is arithmetic, for example, not a pattern of keys."""
        how = HOW[self.field]
        if how == "arithmetic" and self.field == "key" and (self.test != "is" or self.negated):
            return "reads each message"
        return how


class Selector(msgspec.Struct, frozen=True):
    """The conditions of a filter, all of which must hold."""

    terms: tuple[Term, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.terms)

    def __str__(self) -> str:
        return " ".join(term.text for term in self.terms)

    def of(self, field: str) -> list[Term]:
        return [term for term in self.terms if term.field == field]

    def only(self, field: str) -> str | None:
        """Return the value of a field that is given once, as it is and not negated; else None."""
        found = self.of(field)
        return found[0].value if len(found) == 1 and found[0].test == "is" and not found[0].negated else None


def parse(text: str, fields: Iterable[str] = HOW) -> Selector:
    """Parse a filter. Words without a field are looked for in the text of messages. Raise `InvalidValue` with the place."""
    if len(text) > _MOST_CHARACTERS:
        raise InvalidValue(f"filter must have at most {_MOST_CHARACTERS} characters, got {len(text)}")
    known = frozenset(fields)
    terms: list[Term] = []
    place = _skip(text, 0)
    while place < len(text):
        term, end = _term(text, place, known)
        terms.append(term)
        if len(terms) > _MOST_TERMS:
            raise InvalidValue(f"filter must have at most {_MOST_TERMS} terms")
        place = _skip(text, end)
        if place == end and place < len(text):
            raise InvalidValue(f"filter needs a space before {text[end : end + 20]!r}")
    return Selector(tuple(terms))


def _skip(text: str, place: int) -> int:
    match = _SPACE.match(text, place)
    return match.end() if match else place


def _term(text: str, start: int, known: frozenset[str]) -> tuple[Term, int]:
    head = _TERM.match(text, start)
    if head is None:
        negated = text[start] == "-"
        value, _, end = _value(text, start + negated)
        return Term(field="text", value=value, negated=negated, text=text[start:end]), end
    field, path = head["field"], tuple(part for part in head["path"].split(".") if part)
    if field not in known or field not in HOW:
        raise InvalidValue(f"filter has no field {field!r}", hint=f"Use one of {', '.join(sorted(known))}.")
    if path and field not in _WITH_PATH:
        raise InvalidValue(f"field {field!r} of a filter has no parts: write {field}{head['sign']}")
    if not path and field in _WITH_PATH:
        raise InvalidValue(f"field {field!r} of a filter needs a name: write {field}.name{head['sign']}")
    value, quoted, end = _value(text, head.end())
    written, negated = text[start:end], head["not"] is not None
    if head["sign"] == "~":
        return Term(field=field, path=path, test="matches", value=_pattern(value), negated=negated, text=written), end
    if not quoted and ".." in value:
        low, _, high = value.partition("..")
        if not (low or high):
            raise InvalidValue(f"range of {field!r} needs an end: write {field}:3.. or {field}:..9")
        return (
            Term(field=field, path=path, test="range", low=low or None, high=high or None, negated=negated, text=written),
            end,
        )
    test: Test = "like" if not quoted and "*" in value else "is"
    return Term(field=field, path=path, test=test, value=value, negated=negated, text=written), end


def _value(text: str, start: int) -> tuple[str, bool, int]:
    """Return a value, whether it was quoted, and where it ends."""
    if start < len(text) and text[start] == '"':
        return _quoted(text, start)
    match = _PLAIN.match(text, start)
    if match is None:
        raise InvalidValue(f"filter needs a value at {text[max(0, start - 20) : start]!r}")
    return match[0], False, match.end()


def _quoted(text: str, start: int) -> tuple[str, bool, int]:
    out, place = [], start + 1
    while place < len(text):
        char = text[place]
        if char == "\\" and place + 1 < len(text):
            # a backslash that keeps nothing stays, so that expressions need no doubling
            out.append(text[place + 1] if text[place + 1] in '"\\' else text[place : place + 2])
            place += 2
        elif char == '"':
            return "".join(out), True, place + 1
        else:
            out.append(char)
            place += 1
    raise InvalidValue(f"filter has a quote without an end: {text[start : start + 20]!r}")


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as exc:
        raise InvalidValue(f"expression {value[:50]!r} of a filter is not valid: {exc}") from exc
    return value
