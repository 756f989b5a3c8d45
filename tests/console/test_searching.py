"""Filters of the message browser as searches of the database."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from trunkline.errors import InvalidValue
from trunkline.server.console.searching import after_of, after_text, place, wanted

NOW = datetime(2026, 11, 16, 14, 2, tzinfo=UTC)


def test_terms_become_a_selection() -> None:
    found = wanted('key:cust-7 routing:order.*.eu header.tenant:acme label:vip "two words"', "", "", "", NOW)
    assert found.selection == {
        "key": "cust-7", "routing": "order.*.eu", "headers": {"tenant": "acme"}, "label": "vip", "text": "two words",
    }  # fmt: skip
    assert (found.partitions, found.start, found.end) == (None, "earliest", "latest")
    assert found.narrowed
    assert not wanted("partition:2 offset:5..9", "", "", "", NOW).narrowed


@pytest.mark.parametrize(
    ("where", "path"),
    [
        ("body.total:100..", '$."total" ? (@ >= 100)'),
        ("body.total:1..2", '$."total" ? (@ >= 1 && @ <= 2)'),
        ("body.lines.0.sku:A", '$."lines"[0]."sku" ? (@ == "A")'),
        ("body.id:9007199254740993", '$."id" ? (@ == 9007199254740993 || @ == "9007199254740993")'),
        ('body.a:"x\\" || true"', '$."a" ? (@ == "x\\" || true")'),
        ("body.a:b*c", '$."a" ? (@ like_regex "^b.*c$")'),
    ],
)
def test_fields_of_the_body_become_json_paths(where: str, path: str) -> None:
    assert wanted(where, "", "", "", NOW).selection == {"body": [path]}


def test_places() -> None:
    assert place("10m", NOW) == "2026-11-16T13:52:00+00:00"
    assert place("2h ago", NOW) == "2026-11-16T12:02:00+00:00"
    assert place("2026-11-16 09:00", NOW) == "2026-11-16T09:00:00+00:00"
    assert [place(text, NOW) for text in ("now", "earliest", "17")] == ["latest", "earliest", "17"]
    found = wanted("partition:3 offset:5..9", "10m", "", "", NOW)
    assert (found.partitions, found.start, found.end) == ([3], "5", "9")
    found = wanted("age:10m..1h", "", "", "", NOW)
    assert (found.start, found.end) == ("2026-11-16T13:02:00+00:00", "2026-11-16T13:52:00+00:00")


@pytest.mark.parametrize(
    "where", ["-key:a", "key:a*", "offset:x", "partition:1..2", "one two", 'text~a text~"b"', "at:soon"]
)
def test_what_a_search_cannot_do(where: str) -> None:
    with pytest.raises(InvalidValue):
        wanted(where, "", "", "", NOW)


def test_where_a_search_continues() -> None:
    assert after_of(after_text({"0": 41, "13": 99})) == {"0": 41, "13": 99}
    assert after_of("") is None
    with pytest.raises(InvalidValue):
        after_of("0:1;drop")
