"""Exactly once in a small size; `python -m tests.chaos.spark` runs the large one."""

from __future__ import annotations

import os

import pytest

from tests.chaos import spark_losses
from tests.chaos.spark import run

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
    faults = {"archive": 3, "hole": 3, "grow": 1, "recreate": 1}
    found = spark_losses.run(faults, rows=1_000, limit=900, seed=seed)
    assert not found.wrong, f"seed {seed}: {found}"
    assert found.copied > 2_000 and found.vanished > 500 and found.faults["recreate"] == 1, found


@pytest.mark.parametrize(
    ("copied", "said"),
    [
        ([0, 1, 2, 4, 5, 100, 101], None),
        ([0, 1, 2, 3, 4, 5, 100, 101], None),
        ([0, 1, 2, 4, 5, 101, 100], None),
        ([0, 1, 2, 4, 5, 5, 100, 101], "1 twice, such as [5]"),
        ([0, 1, 4, 5, 100, 101], "1 lost, such as [2]"),
        ([0, 1, 2, 4, 5, 100, 101, 777], "1 from nowhere"),
        ([100, 0, 1, 2, 4, 5, 101], "1 out of order, such as [0]"),
    ],
)
def test_the_check_sees_what_is_wrong(copied: list[int], said: str | None) -> None:
    """Of 0 to 5, 100 and 101, message 3 has vanished. 0 and 100 have the same key, as have 1 and 101."""
    run = object.__new__(spark_losses.Run)
    run.result, run._vanished, run._eras, run._sent = spark_losses.Losses(), {3, *range(6, 100)}, [101], 102
    run._numbers = lambda topic: {(0, offset): n for offset, n in enumerate(copied)}  # type: ignore[method-assign]
    run._check()
    assert run.result.wrong == ([] if said is None else [said])
