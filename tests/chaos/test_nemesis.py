"""The faults themselves: a fault that finds every consumer paused waits for one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.actors import Actor, Stage
from tests.chaos.consumers import QueueConsumerSpec
from tests.chaos.history import Recorder
from tests.chaos.nemesis import Nemesis
from trunkline.embedded.server import EmbeddedServer


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


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """Of actors that wait for a server which never comes."""
    stage = Stage(f"host={tmp_path} dbname=nothing", tmp_path, seed=1)
    yield stage
    stage.close()


def test_actors_are_killed_told_to_stop_and_started_again(stage: Stage) -> None:
    first = stage.start("consumer", QueueConsumerSpec("mail"))
    os.kill(first.process.pid, signal.SIGSTOP)
    assert first.process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        first.process.wait(0.01)
    first.process.kill()
    second = stage.replace(first)
    assert first.process.poll() is not None
    assert (second.name, second.process.poll()) == ("consumer-2", None)
    second.process.terminate()
    second.process.terminate()
    assert stage.crashed() == []


def test_what_an_actor_died_of_is_told(stage: Stage) -> None:
    stage.url = "nonsense"
    actor = stage.start("consumer", QueueConsumerSpec("mail"))
    actor.process.wait(60)
    assert actor.process.poll() is not None
    [failure] = stage.crashed()
    assert failure == "consumer-1: AssertionError", "the last line of its traceback"


def test_no_actor_outlives_its_stage(stage: Stage) -> None:
    actor = stage.start("consumer", QueueConsumerSpec("mail"))
    stage.close()
    actor.process.wait(30)
    assert actor.process.poll() is not None
