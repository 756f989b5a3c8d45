"""Exactly once in a small size; `python -m tests.spark.chaos` runs the large one."""

from __future__ import annotations

import os

import pytest

from tests.spark import chaos_losses
from tests.spark.chaos import run

pytestmark = pytest.mark.xdist_group("spark-chaos")


@pytest.mark.timeout(960)
def test_topic_to_topic_under_faults() -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    outcome = run(20_000, driver_kills=3, pg_kills=1, worker_kills=2, rows=2_000, pause=0.05, limit=900, seed=seed)
    assert outcome.ok, f"seed {seed}: {outcome}"
    assert (outcome.driver_kills, outcome.pg_kills) == (3, 1), outcome
    assert outcome.messages >= 20_000, outcome


@pytest.mark.timeout(960)
def test_only_what_vanished_is_missing() -> None:
    """Holes, archives found by the topic's number, new partitions and recreated topics, beside kills of drivers."""
    seed = int.from_bytes(os.urandom(4), "big")
    faults = {"archive": 4, "hole": 4, "grow": 1, "recreate": 1}
    found = chaos_losses.run(faults, rows=1_000, limit=900, seed=seed)
    assert not found.wrong, f"seed {seed}: {found}"
    assert found.copied > 2_000 and found.vanished > 500 and found.faults["recreate"] == 1, found
