"""The types of jobs, proven by a strict checker: right uses pass, each wrong one is found where it is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def test_right_uses_pass_and_wrong_ones_are_found_where_they_are() -> None:
    files = [HERE / "right_uses.py", HERE / "wrong_uses.py"]
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", ".cache/mypy-typing"]
    result = subprocess.run([*command, *map(str, files)], capture_output=True, text=True, cwd=ROOT, timeout=110)
    assert not result.stderr, result.stderr
    found: dict[str, dict[int, str]] = {file.name: {} for file in files}
    for line in result.stdout.splitlines():
        if match := re.match(r"(?:.*/)?(\w+\.py):(\d+): error: .*\[([a-z-]+)\]$", line):
            found.setdefault(match[1], {})[int(match[2])] = match[3]
    expected = {
        number: match[1]
        for number, line in enumerate((HERE / "wrong_uses.py").read_text().splitlines(), start=1)
        if (match := re.search(r"# error: ([a-z-]+)$", line))
    }
    assert found["right_uses.py"] == {}, result.stdout
    assert len(expected) >= 20
    assert found["wrong_uses.py"] == expected, result.stdout
