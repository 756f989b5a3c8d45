"""Every row of the table of features that the kernel can show has its test."""

from __future__ import annotations

import re
from pathlib import Path

ROWS = {*range(1, 66), *range(75, 89)}


def test_every_row_has_a_test() -> None:
    found: dict[int, list[str]] = {}
    for path in sorted(Path(__file__).parent.glob("test_union_*.py")):
        for number in re.findall(r"def test_row_(\d\d)_", path.read_text()):
            found.setdefault(int(number), []).append(path.name)
    assert {number: names for number, names in found.items() if len(names) > 1} == {}
    assert set(found) == ROWS
