"""Payloads are shown byte for byte."""

from __future__ import annotations

import gzip

import pytest

from trunkline.server.console.payloads import MOST_BYTES, Node, look_at, preview

JSON = "application/json"


def texts(node: Node | None) -> list[str]:
    assert node is not None
    return [f"{node.name}={node.text}", *(text for child in node.children or () for text in texts(child))]


def test_numbers_and_repeated_names_stay_as_they_are() -> None:
    sent = b'{"id": 9007199254740993, "x": 1e400, "y": 1.10, "z": -0, "a": "</script>", "a": [true, null]}'
    shown = look_at(sent, JSON)
    assert shown.text is not None
    assert shown.text.encode() == sent
    assert texts(shown.tree) == [
        "={6}", "id=9007199254740993", "x=1e400", "y=1.10", "z=-0", 'a="</script>"', "a=[2]", "0=true", "1=null",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("payload", "content_type", "format"),
    [
        (b'{"a": 1}', "application/octet-stream", "json"),
        (b"[1]", "application/vnd.x+json; charset=utf-8", "json"),
        (b"NaN", JSON, "text"),
        (b'{"a": ', JSON, "text"),
        (b"[" * 100_000, JSON, "text"),
        ("Grüße".encode(), "text/plain", "text"),
        (b"\x00\x01", JSON, "binary"),
        (b"\xff\xfe", "text/plain", "binary"),
        (b"", JSON, "text"),
        (b'"\\ud800"', JSON, "json"),
    ],
)
def test_formats(payload: bytes, content_type: str, format: str) -> None:
    shown = look_at(payload, content_type)
    assert shown.format == format
    assert shown.size == len(payload)
    for text in texts(shown.tree) if shown.tree else []:
        text.encode()


def test_gzip_is_unpacked_and_bounded() -> None:
    shown = look_at(gzip.compress(b'{"a": 1}'), JSON)
    assert (shown.packed, shown.format, shown.text, shown.cut) == ("gzip", "json", '{"a": 1}', False)
    bomb = look_at(gzip.compress(b"a" * 50_000_000), "text/plain")
    assert bomb.cut
    assert bomb.text is not None
    assert len(bomb.text) <= MOST_BYTES
    assert look_at(b"\x1f\x8bnot gzip", "text/plain").packed is None


def test_large_payloads_are_cut_between_characters() -> None:
    shown = look_at("ä".encode() * MOST_BYTES, "text/plain")
    assert shown.cut
    assert shown.text is not None
    assert set(shown.text) == {"ä"}


def test_trees_are_bounded() -> None:
    shown = look_at(b"[" + b"1," * 999 + b"1]", JSON)
    assert shown.tree is not None
    assert shown.tree.text == "[1000]"
    assert len(shown.tree.children or ()) + shown.tree.more == 1000
    assert shown.tree.more > 700


def test_hex_and_preview() -> None:
    assert look_at(b"A\x00\xffz", "x/y").hex == "00000000  41 00 ff 7a                                      A..z"
    assert preview(b'{"a":\n  1}') == '{"a": 1}'
    assert preview(b"x" * 500).endswith("…")
