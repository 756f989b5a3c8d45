"""Exactly once in a small size; `python -m tests.chaos.spark` runs the large one."""

from __future__ import annotations

import os

import pytest

from tests.chaos.spark import run

pytestmark = pytest.mark.xdist_group("spark-chaos")


@pytest.mark.timeout(960)
def test_topic_to_topic_under_faults() -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    outcome = run(20_000, driver_kills=3, pg_kills=1, worker_kills=2, rows=2_000, pause=0.05, limit=900, seed=seed)
    assert outcome.ok, f"seed {seed}: {outcome}"
    assert (outcome.driver_kills, outcome.pg_kills) == (3, 1), outcome
    assert outcome.messages >= 20_000, outcome
