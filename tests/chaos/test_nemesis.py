"""The faults themselves: a fault that finds every consumer paused waits for one."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.actors import Actor, Stage
from tests.chaos.consumers import QueueConsumerSpec
from tests.chaos.history import Recorder
from tests.chaos.nemesis import Nemesis
from trunkline.db.embedded import EmbeddedServer


@pytest.fixture
def victim() -> Iterator[Actor]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield Actor("consumer-1", QueueConsumerSpec("mail"), process)
        process.kill()


def test_a_fault_waits_for_a_consumer_that_is_not_paused(victim: Actor, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "main")
    server = EmbeddedServer(tmp_path / "data")
    nemesis = Nemesis(server, Stage("", tmp_path, seed=1), recorder, random.Random(1), pause=0.1)
    for _ in range(3):
        nemesis.strike("pause", [victim], None)
    nemesis.heal()
    assert nemesis.done == {"pause": 3}
    assert victim.process.poll() is None
