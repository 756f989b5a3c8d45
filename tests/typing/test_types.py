"""The types of the client, proven by a strict checker: right uses pass, each wrong one is found where it is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.fixture(scope="module")
def errors() -> dict[str, dict[int, set[str]]]:
    """Return mypy's errors: kinds by file and line."""
    files = [HERE / "right_uses.py", HERE / "wrong_uses.py"]
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", ".cache/mypy-typing"]
    result = subprocess.run([*command, *map(str, files)], capture_output=True, text=True, cwd=ROOT, timeout=110)
    found: dict[str, dict[int, set[str]]] = {file.name: {} for file in files}
    for line in result.stdout.splitlines():
        if match := re.match(r"(?:.*/)?(\w+\.py):(\d+): error: .*\[([a-z-]+)\]$", line):
            found.setdefault(match[1], {}).setdefault(int(match[2]), set()).add(match[3])
    assert not result.stderr, result.stderr
    return found


def test_right_uses_have_no_errors(errors: dict[str, dict[int, set[str]]]) -> None:
    assert errors["right_uses.py"] == {}


def test_wrong_uses_are_found_where_they_are(errors: dict[str, dict[int, set[str]]]) -> None:
    expected: dict[int, set[str]] = {}
    for number, line in enumerate((HERE / "wrong_uses.py").read_text().splitlines(), start=1):
        if match := re.search(r"# error: ([a-z-]+)$", line):
            expected[number] = {match[1]}
    assert len(expected) > 25
    assert errors["wrong_uses.py"] == expected
