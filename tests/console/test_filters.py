"""The grammar of filters."""

from __future__ import annotations

import pytest

from trunkline.errors import InvalidValue
from trunkline.filters import HOW, parse


def test_terms_of_every_kind() -> None:
    found = parse(
        'state:delayed kind:send_receipt attempt:3.. age:..10m -worker:host-a* error~"timed? out" body.total.net:100..200 '
        'header.tenant:acme routing:order.*.eu refund "two words"'
    )
    told = [(t.field, t.path, t.test, t.value, t.low, t.high, t.negated) for t in found.terms]
    assert told == [
        ("state", (), "is", "delayed", None, None, False),
        ("kind", (), "is", "send_receipt", None, None, False),
        ("attempt", (), "range", "", "3", None, False),
        ("age", (), "range", "", None, "10m", False),
        ("worker", (), "like", "host-a*", None, None, True),
        ("error", (), "matches", "timed? out", None, None, False),
        ("body", ("total", "net"), "range", "", "100", "200", False),
        ("header", ("tenant",), "is", "acme", None, None, False),
        ("routing", (), "like", "order.*.eu", None, None, False),
        ("text", (), "is", "refund", None, None, False),
        ("text", (), "is", "two words", None, None, False),
    ]
    assert found.only("state") == "delayed"
    assert found.only("worker") is None


@pytest.mark.parametrize(
    "text",
    ["key:cust-7", 'error~"a\\"b"', "-state:dead", 'key:"a b"', "at:2026-11-16T03:12Z..", '"state:dead"', "body.a:1..2"],
)
def test_a_filter_is_written_as_it_was_read(text: str) -> None:
    assert str(parse(text)) == text
    assert parse(str(parse(text))) == parse(text)


def test_how_a_term_is_answered() -> None:
    assert [term.how for term in parse("state:dead key:a key:a* -key:a body.x:1").terms] == [
        "index", "arithmetic", "reads each message", "reads each message", "reads each message",
    ]  # fmt: skip


def test_quotes_take_the_meaning_of_signs() -> None:
    assert [(t.test, t.value) for t in parse('key:"a*" key:"1..2"').terms] == [("is", "a*"), ("is", "1..2")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("colour:red", "no field 'colour'"),
        ("state.x:1", "has no parts"),
        ("body:1", "needs a name"),
        ("key:", "needs a value"),
        ("attempt:..", "needs an end"),
        ('error~"(', "without an end"),
        ('error~"("', "not valid"),
        ('key:"a"b', "needs a space"),
        ("x " * 51, "at most 50 terms"),
        ("x" * 2001, "at most 2000 characters"),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        parse(text)


def test_only_the_fields_of_a_page() -> None:
    with pytest.raises(InvalidValue, match="no field 'body'"):
        parse("body.x:1", fields=("state", "queue"))
    assert set(HOW) >= {"state", "key", "body"}
