"""Shared by the generators of reference pages: write a page, or compare it with the existing one."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"


def settle(name: str, text: str, arguments: list[str]) -> int:
    """Write docs/reference/<name>, or with --check verify that it is up to date. Return the exit status."""
    page = REFERENCE / name
    if "--check" not in arguments:
        page.write_text(text)
        return 0
    if page.exists() and page.read_text() == text:
        return 0
    print(f"out of date: {page.relative_to(ROOT)}; run python {sys.argv[0]}", file=sys.stderr)
    return 1


def cell(text: str) -> str:
    """Escape text for a table cell."""
    return " ".join(text.split()).replace("|", "\\|")
