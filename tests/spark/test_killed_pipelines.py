"""Pipelines that are killed -9 half-way, with their Java machine: a second run completes the first, and nothing is twice."""

from __future__ import annotations

import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import Cli
from tests.cli.conftest import cli as cli
from tests.spark.test_cli_pipeline import ENVIRONMENT
from tests.support.waiting import wait_until
from trunkline import SyncClient
from trunkline.types import NewMessage

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]
ROWS, KEYS = 3_000, 100


@pytest.fixture
def orders(cli: Cli) -> Cli:
    """A topic of two partitions, and empty targets."""
    with SyncClient(cli.url) as mq:
        mq.topics.create("orders", partitions=2)
        mq.topics.create("out")
        mq.queues.create("q")
        mq.publish_many("orders", [NewMessage(body={"n": n}, key=f"k{n % KEYS}") for n in range(ROWS)])
    return cli


def kill_when(cli: Cli, condition: Callable[[], object], *arguments: object) -> None:
    """Start the command and kill all of its processes as soon as the condition holds."""
    silent = subprocess.DEVNULL
    process = cli.start(*arguments, "--master", "local[2]", env=ENVIRONMENT, stdout=silent, stderr=silent)
    wait_until(lambda: condition() or process.poll() is not None, 180)
    root = psutil.Process(process.pid)
    for each in [root, *root.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            each.send_signal(signal.SIGKILL)
    assert process.wait(30) == -signal.SIGKILL, "it ended before it could be killed"


def finish(cli: Cli, *arguments: object) -> None:
    cli.process(*arguments, "--master", "local[2]", env=ENVIRONMENT)


def published(cli: Cli, topic: str = "out") -> list[int]:
    with SyncClient(cli.url) as mq:
        return [each.body["n"] for each in mq.topics.scan(topic)]


def test_a_replay_into_a_queue(orders: Cli) -> None:
    command = ("pipeline", "replay", "orders", "--to-queue", "q", "--id", "r", "--rate", 150)
    with SyncClient(orders.url) as mq:
        kill_when(orders, lambda: mq.queues.stats("q")[0].ready >= 600, *command)
        half = mq.queues.stats("q")[0].ready
        assert 0 < half < ROWS
        finish(orders, *command[:-2])
        seen: list[int] = []
        while deliveries := list(mq.claim("q", limit=1000)):
            seen += [delivery.body["n"] for delivery in deliveries]
            mq.ack([delivery.receipt for delivery in deliveries])
    assert Counter(seen) == Counter(range(ROWS))


def test_a_compact_of_a_table_and_a_topic(orders: Cli, tmp_path: Path) -> None:
    command = ("pipeline", "compact", "orders", "--table", "latest", "--to", "out", "--overwrite")
    finish(orders, *command[:-3], "--overwrite")
    with SyncClient(orders.url) as mq:
        mq.publish_many("orders", [NewMessage(body={"n": n}, key=f"k{n % KEYS}") for n in range(ROWS, 2 * ROWS)])

    table = tmp_path / "latest"
    before = {path.name for path in tmp_path.glob(".latest.*")}
    kill_when(orders, lambda: {path.name for path in tmp_path.glob(".latest.*")} - before, *command)
    rows = pq.read_table(table).num_rows
    assert rows == KEYS, "the former table is whole"
    finish(orders, *command)
    assert pq.read_table(table).num_rows == KEYS
    assert sorted(published(orders)) == list(range(2 * ROWS - KEYS, 2 * ROWS))
    finish(orders, *command)
    assert len(published(orders)) == KEYS


def test_a_dedupe(orders: Cli, tmp_path: Path) -> None:
    command = ("pipeline", "dedupe", "orders", "--to", "out", "--checkpoint", "state")
    # the batch is planned, but not committed
    kill_when(orders, lambda: (tmp_path / "state" / "offsets" / "0").exists(), *command)
    assert not (tmp_path / "state" / "commits" / "0").exists()
    finish(orders, *command)
    assert len(published(orders)) == KEYS
    finish(orders, *command)
    assert len(published(orders)) == KEYS
