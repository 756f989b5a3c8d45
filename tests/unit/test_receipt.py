"""Receipts: what is one, and what several have in common."""

from __future__ import annotations

import pytest

from trunkline.receipt import Receipt, of_one_lease

TEXT = "17.4.123.9.abc"


def test_parts() -> None:
    receipt = Receipt.parse(TEXT)
    assert receipt == Receipt(17, "4.123.9.abc")
    assert str(receipt) == TEXT
    assert receipt.cursor == 4


@pytest.mark.parametrize(
    "text", ["", "17", "17.", ".4.1.2.a", "-1.4.1.2.a", "x.4.1.2.a", "\u0661.4.1.2.a", "1" * 19 + ".4.1.2.a"]
)
def test_what_is_not_a_receipt(text: str) -> None:
    assert Receipt.parse(text) is None
    assert of_one_lease([TEXT, text]) is None


@pytest.mark.parametrize("text", ["17.4.1.2", "17.4.1.2.3.4", "17.x.1.2.a", "17.-4.1.2.a", "17.1234567890.1.2.a"])
def test_a_lease_without_a_cursor(text: str) -> None:
    receipt = Receipt.parse(text)
    assert receipt is not None and receipt.cursor is None


def test_receipts_of_one_lease() -> None:
    assert of_one_lease(["17.4.1.2.a", "18.4.1.2.a"]) == ("4.1.2.a", [17, 18])
    assert of_one_lease(["17.4.1.2.a", "18.4.1.2.b"]) is None
    assert of_one_lease([]) is None
