"""The chaos run in its small form: exactly once in the database, at most once outside, nothing lost (J1 to J5)."""

from __future__ import annotations

import pytest

from tests.chaos.jobs import Plan, run


@pytest.mark.timeout(600)
def test_nothing_is_lost_or_done_twice() -> None:
    report = run(Plan(jobs=2_000, kills=6, pauses=4, crashes=1, poisons=2))
    assert report.problems == []
    assert report.done["kill"] == 6 and report.done["pause"] == 4 and report.done["crash"] == 1
