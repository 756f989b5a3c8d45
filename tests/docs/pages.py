"""The pages of the documentation, cut into blocks that can be run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
RUN = frozenset(("sql", "python", "bash", "console"))
SHOWN = frozenset(("text", "ini", "json", "yaml"))
"""Blocks that only show something: output, the files of other programs."""

_FENCE = re.compile(r"^```(\w*)\s*$")
_NOT_RUN = re.compile(r"^<!-- not run: (.+) -->$")
_WITH = re.compile(r"^<!-- with: (.+) -->$", re.MULTILINE)


class Block(NamedTuple):
    """A fenced block: its language, the line it begins at, and what must come out of it (None: anything but an error)."""

    page: str
    line: int
    language: str
    text: str
    expected: str | None
    not_run: str | None

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """All pages, as paths below the checkout."""
    found = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    return sorted(str(path.relative_to(ROOT)) for path in found)


def wants(page: str) -> frozenset[str]:
    """Return the requirements of a page besides a database: `<!-- with: a second server -->`."""
    return frozenset(_WITH.findall((ROOT / page).read_text()))


def blocks(page: str) -> list[Block]:
    """The blocks of a page in their order. A text block right behind one that is run is its output."""
    found: list[Block] = []
    lines = (ROOT / page).read_text().splitlines()
    number = 0
    before = ""
    while number < len(lines):
        fence = _FENCE.match(lines[number])
        if fence is None:
            if lines[number].strip():
                before = lines[number].strip()
            number += 1
            continue
        end = next(n for n in range(number + 1, len(lines)) if lines[n].rstrip() == "```")
        reason = _NOT_RUN.match(before)
        block = Block(
            page, number + 2, fence[1], "\n".join(lines[number + 1 : end]) + "\n", None, reason[1] if reason else None
        )
        if fence[1] == "text" and before == "```" and found and found[-1].language in RUN:
            found[-1] = found[-1]._replace(expected=block.text)
        found.append(block)
        before = "```"
        number = end + 1
    return found


# Comparing: ids, times, receipts and the width of columns are different every time.

_CHANGING = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "<id>"),
    (re.compile(r"\b\d+\.\d+\.\d+\.[0-9a-f]{6,}"), "<receipt>"),
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?([+-]\d\d(:\d\d)?|Z)?"), "<time>"),
    (re.compile(r"[-+]{3,}"), "---"),
    (re.compile(r"[ \t]+"), " "),
)


def plain(output: str) -> list[str]:
    """Output without what changes from run to run."""
    for pattern, instead in _CHANGING:
        output = pattern.sub(instead, output)
    return [line.strip() for line in output.splitlines() if line.strip()]


def agree(expected: str, output: str) -> bool:
    """Return true if the output matches the page; `...` in the page stands for anything on that line."""
    shown, came = plain(expected), plain(output)
    if len(shown) != len(came):
        return False
    for want, got in zip(shown, came, strict=True):
        pattern = ".*".join(re.escape(part) for part in want.split("..."))
        if re.fullmatch(pattern, got) is None:
            return False
    return True
