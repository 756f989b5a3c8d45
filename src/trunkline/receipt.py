"""Receipts: the text that identifies a delivery until it is settled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Receipt(NamedTuple):
    """A receipt in parts. All deliveries of a claim have the same lease."""

    position: int
    lease: str

    @classmethod
    def parse(cls, text: str) -> Receipt | None:
        """Return the parts of a receipt, or None if the text is not one."""
        position, _, lease = text.partition(".")
        if not (position.isascii() and position.isdecimal() and len(position) < 19 and lease):
            return None
        return cls(int(position), lease)

    def __str__(self) -> str:
        return f"{self.position}.{self.lease}"

    @property
    def cursor(self) -> int | None:
        """The number of the cursor, or None if the lease is not one."""
        number, _, rest = self.lease.partition(".")
        if rest.count(".") == 2 and number.isascii() and number.isdigit() and len(number) < 10:
            return int(number)
        return None


def of_one_lease(texts: Sequence[str]) -> tuple[str, list[int]] | None:
    """Return the lease and the positions of receipts. None if a text is not a receipt, or has another lease."""
    if not texts or (first := Receipt.parse(texts[0])) is None:
        return None
    positions = []
    for text in texts:
        position, _, lease = text.partition(".")
        if lease != first.lease or not (position.isascii() and position.isdecimal() and len(position) < 19):
            return None
        positions.append(int(position))
    return first.lease, positions
