"""Run all tests in three processes, then rerun a few failed ones alone.

Some tests depend on real processes and clocks, and three at a time on two cores may starve one of them. A failure that
does not recur alone is printed but does not count. Kernel tests are not rerun. Tests of planted bugs are, because the
bug may not have been triggered.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

FEW = 5
NO_SECOND_TRY = ("tests/chaos/", "tests/property/", "tests/races/", "tests/sql/")
PLANTED = "tests/chaos/test_planted"
LAST_FAILED = Path(".cache/pytest/v/cache/lastfailed")


def run(*arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *arguments]).returncode


def main() -> int:
    LAST_FAILED.unlink(missing_ok=True)
    # Keep the order of tests/conftest.py: by default xdist starts the groups with the most tests first.
    code = run("-n", "3", "--dist", "loadgroup", "--no-loadscope-reorder", *sys.argv[1:])
    # 1 means failed tests; other codes are an interruption or an error of pytest itself.
    if code != 1 or not LAST_FAILED.exists():
        return code
    failed = sorted(json.loads(LAST_FAILED.read_text()))
    if len(failed) > FEW or any(test.startswith(NO_SECOND_TRY) and not test.startswith(PLANTED) for test in failed):
        return code
    code = run(*failed)
    if code == 0:
        print("Failed under load, passed alone:", *failed, sep="\n  ")
    return code


if __name__ == "__main__":
    sys.exit(main())
