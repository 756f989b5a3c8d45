"""Texts and tables."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.cli.framework.output import body, duration_text, safe, show, size_text, to_json
from trunkline.settings import parse_duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.25, "250ms"), (1.5, "1.5s"), (30, "30s"), (90, "90s"), (120, "2m"), (3600, "1h"), (604800, "7d")],
)
def test_durations_are_written_as_they_are_read(seconds: float, text: str) -> None:
    assert duration_text(timedelta(seconds=seconds)) == text
    assert parse_duration(text) == timedelta(seconds=seconds)


@given(st.text())
def test_no_control_character_leaves(text: str) -> None:
    for written in (safe(text), to_json({"x": text}) if text.isprintable() else safe(text)):
        assert not any(c < " " or "\x7f" <= c <= "\x9f" for c in written)


def test_json_escapes_what_a_terminal_would_obey() -> None:
    text = "a\x1b[31m\x7f\x9b1m\u202e\u2028\ufeffz"
    line = to_json({"x": text})
    assert line.isascii() and json.loads(line)["x"] == text


def test_values_as_people_read_them() -> None:
    assert [show(value) for value in (None, True, 12345, 1.25, "a\nb", {"a": 1})] == [
        "-",
        "yes",
        "12,345",
        "1.2",
        "a\\nb",
        '{"a":1}',
    ]
    assert [size_text(count) for count in (None, 5, 1500, 2_500_000, 10**13)] == ["-", "5 B", "1.5 kB", "2.5 MB", "10.0 TB"]


def test_bodies() -> None:
    assert json.loads(to_json(body(b'{"a": 1.10}', "application/json"))) == {"body": {"a": 1.1}}
    assert "1.10" in to_json(body(b'{"a": 1.10}', "application/problem+json; charset=utf-8"))
    assert body(b"hi", "text/plain; charset=utf-8") == {"body": "hi"}
    for payload, kind in (
        (b"{", "application/json"),
        (b"\xff", "text/plain"),
        (b"x", "image/png"),
        (b'"\xff"', "application/json"),
    ):
        assert "payload_base64" in body(payload, kind)
    assert "payload_base64" in body(b"[" * 100_000, "application/json")
