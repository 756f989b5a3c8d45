"""Four workloads under faults: nothing lost, nothing twice, nothing late, nothing early. `make chaos` runs longer."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.nemesis import Faults
from tests.chaos.run import Plan, run
from tests.chaos.workloads import WORKLOADS
from trunkline.embedded.server import EmbeddedServer

# The first three together: 100,000 accepted messages, 15 crashes of Postgres, 30 kills and 20 pauses of consumers.
SHARES = {
    "log": (33_600, Faults(pg_kills=5, consumer_kills=10, pauses=6)),
    "queue": (33_200, Faults(pg_kills=5, consumer_kills=10, pauses=7)),
    "mixed": (33_200, Faults(pg_kills=5, consumer_kills=10, pauses=7)),
    "http": (
        4_500,
        Faults(pg_kills=3, consumer_kills=5, pauses=3, server_kills=5, worker_kills=2, server_stops=3),
    ),
}
LOAD_SECONDS = {"http": 24.0}


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    """A server of the test's own: it is going to be killed."""
    home = Path(tempfile.mkdtemp(prefix="tl-chaos-pg-", dir="/tmp"))
    with EmbeddedServer(home / "data") as server:
        yield server
    shutil.rmtree(home, ignore_errors=True)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", list(WORKLOADS))
def test_workload_under_faults_keeps_every_promise(name: str, server: EmbeddedServer) -> None:
    messages, faults = SHARES[name]
    seed = int(os.environ.get("TRUNKLINE_CHAOS_SEED", "0")) or int.from_bytes(os.urandom(4), "big")
    outcome = run(Plan(WORKLOADS[name], messages, faults, LOAD_SECONDS.get(name, 50.0), seed, say=print), server, server.url)
    print(f"{name}: seed {seed}, {outcome.seconds:.0f} s, faults {outcome.faults}\n{outcome.report.table()}")
    assert outcome.report.ok, f"seed {seed}, history kept in {outcome.directory}\n{outcome.report.table()}"
    assert outcome.faults == faults.counts()
    assert outcome.report.totals["messages accepted"] >= messages
    if name == "http":
        assert outcome.report.totals["reads of messages"] > messages // 10
    else:
        # the paths that only upkeep takes were taken too; claims and fetches that stay open delay rotations
        assert outcome.report.totals["rotations"] > 0
        assert outcome.report.totals["sealed segments"] > 0
    if name == "queue":
        assert outcome.report.totals["redriven"] > 0
        assert outcome.report.totals["deliveries by label"] > 0
        assert outcome.report.totals["expired"] > 0
        assert outcome.report.totals["purged"] > 0
    if name == "log":
        assert outcome.report.totals["seeks"] > 0
    shutil.rmtree(outcome.directory)
