"""Push under faults, in a size for every day: 2,000 deliveries. `python -m tests.chaos.push` runs longer."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.chaos.push import Plan, run
from trunkline.embedded.server import EmbeddedServer


@pytest.mark.timeout(600)
def test_bad_receivers_kills_and_a_crash_lose_and_double_nothing() -> None:
    seed = int(os.environ.get("TRUNKLINE_CHAOS_SEED", "0")) or int.from_bytes(os.urandom(3), "big")
    home = Path(tempfile.mkdtemp(prefix="tl-push-chaos-pg-", dir="/tmp"))
    try:
        with EmbeddedServer(home / "data") as server:
            outcome = run(Plan(2000, 3, 1, 3, seed, 2.0), server, print)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    print(f"seed {seed}\n{outcome.table()}")
    assert outcome.problems == []
