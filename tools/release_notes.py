"""Print the section of CHANGELOG.md for a tag: `python tools/release_notes.py v0.1.0`.

Fails if the tag is not the package's version, or if the section is missing or has no date.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def version() -> str:
    """Return the version of the package. It is written in one place."""
    found = re.search(r'^__version__ = "([^"]+)"$', (ROOT / "src/trunkline/__init__.py").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def notes(tag: str, changelog: str, expected: str) -> str:
    """Return the text of the section, without its heading."""
    if tag != f"v{expected}":
        raise SystemExit(f"tag {tag} does not match version {expected}: expected v{expected}")
    heading = re.search(rf"^## {re.escape(expected)} - (.*)$", changelog, re.MULTILINE)
    if heading is None:
        raise SystemExit(f"CHANGELOG.md has no section for {expected}: expected a line '## {expected} - 2026-01-31'")
    if re.fullmatch(r"\d{4}-\d\d-\d\d", heading[1]) is None:
        raise SystemExit(f"the section for {expected} in CHANGELOG.md has no date: got '{heading[1]}'")
    return changelog[heading.end() :].partition("\n## ")[0].strip() + "\n"


if __name__ == "__main__":
    print(notes(sys.argv[1], (ROOT / "CHANGELOG.md").read_text(), version()), end="")
