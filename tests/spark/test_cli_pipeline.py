"""`trunkline pipeline` and `trunkline topic read` over an archive, as real commands."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

import trunkline
from tests.cli.conftest import Cli
from tests.cli.conftest import cli as cli
from trunkline import SyncClient
from trunkline.cli.commands import pipeline as pipeline_command
from trunkline.spark.progress import report

if TYPE_CHECKING:
    from trunkline.cli.framework.command import Invocation

pytestmark = pytest.mark.xdist_group("spark")

# the same code as this test
ENVIRONMENT = {
    "PYTHONPATH": str(Path(trunkline.__file__).parents[1]),
    "JDK_JAVA_OPTIONS": os.environ["JDK_JAVA_OPTIONS"],
    "HOME": os.environ.get("HOME", "/"),
}


@pytest.mark.timeout(600)
def test_archive_list_show_and_read(cli: Cli, tmp_path: Path) -> None:
    """One command starts its own Spark session, as a user's would."""
    with SyncClient(cli.url) as mq:
        mq.topics.create("orders")
        mq.publish_many("orders", [{"n": n} for n in range(50)])
    assert (
        cli("pipeline", "archive", "orders", "--location", "archive", "--open", "--dry-run", "-o", "json").json["rows"] == 50
    )
    assert cli("pipeline", "list", "-o", "json").json == []
    answer = cli.process(
        *(
            "pipeline",
            "archive",
            "orders",
            "--location",
            "archive",
            "--open",
            "--delta",
            "--master",
            "local[1]",
            "-o",
            "json",
        ),
        env=ENVIRONMENT,
    )
    assert (answer.json["files"], answer.json["rows"]) == (1, 50)
    assert "added 1 files with 50 messages to the delta table" in answer.stderr
    assert list((tmp_path / "archive" / "orders").rglob("*.parquet"))
    (listed,) = cli("pipeline", "list", "-o", "json").json
    assert (listed["name"], listed["state"], listed["rows"]) == ("archive:orders", "done", 50)
    assert cli("pipeline", "show", "archive:orders", "-o", "json").json["kind"] == "archive"
    cli("pipeline", "show", "nothing", code=3)
    read = cli("topic", "read", "orders", "--start", "10", "--limit", "5", "-o", "json").json
    assert [each["offset"] for each in read] == [10, 11, 12, 13, 14]
    assert read == cli("topic", "read", "orders", "--start", "10", "--limit", "5", "--live", "-o", "json").json


DECLARED = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()

@dp.table
def kept():
    topic = spark.readStream.format("trunkline").option("subscribe", "orders").option("startingOffsets", "earliest")
    return topic.load().select("value")

dp.create_sink("out", "trunkline", {"topic": "out"})

@dp.append_flow(target="out")
def publish():
    return spark.readStream.table("kept")
"""


@pytest.mark.timeout(600)
def test_a_declared_pipeline_finds_its_tables_again(cli: Cli, tmp_path: Path) -> None:
    """Two commands in sequence: the second processes new messages, in its own Spark session."""
    (tmp_path / "shop.py").write_text(DECLARED)
    with SyncClient(cli.url) as mq:
        mq.topics.create("orders")
        mq.topics.create("out")
        for first in (0, 50):
            mq.publish_many("orders", [{"n": n} for n in range(first, first + 50)])
            command = (
                "pipeline",
                "run",
                "shop.py",
                "--declared",
                "--checkpoint",
                "shop",
                "--master",
                "local[2]",
                "-o",
                "json",
            )
            with cli.start(*command, env=ENVIRONMENT) as started:
                said, complaints = started.communicate(timeout=140)
            assert started.returncode == 0, complaints.decode()
            assert json.loads(said)["flows"] == ["kept", "publish"]
            assert [each.body["n"] for each in mq.topics.scan("out")] == list(range(first + 50))
    assert not (tmp_path / "derby.log").exists()
    assert not (tmp_path / "spark-warehouse").exists()


def test_a_list_fits_and_can_be_filtered(cli: Cli) -> None:
    report(cli.url, "compact:orders", "compact", state="failed", error="no room: " + "x" * 500)
    report(cli.url, "archive:orders", "archive", state="done")
    shown = cli("pipeline", "list", "-o", "table").stdout
    assert "no room" in shown and max(map(len, shown.splitlines())) < 250
    assert [each["name"] for each in cli("pipeline", "list", "--state", "failed", "-o", "json").json] == ["compact:orders"]
    assert cli("pipeline", "list", "--state", "failed", "-o", "json").json[0]["error"].endswith("xxx"), "the whole text"


def test_the_bar_says_that_spark_starts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("trunkline.cli.framework.output.stderr_is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    session = SimpleNamespace(quiet=False, limited=nullcontext, out=SimpleNamespace(one=lambda summary: None))

    def call(told: Callable[[int, int | None], None]) -> dict[str, int]:
        time.sleep(0.3)
        shown.append(capsys.readouterr().err)
        for done in (100, 200, 300):
            told(done, 1000)
            time.sleep(0.3)
        shown.append(capsys.readouterr().err)
        return {}

    shown: list[str] = []
    pipeline_command._run(cast("Invocation", session), "archive orders", call)
    assert "archive orders: starting Spark" in shown[0]
    last = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown[1]).splitlines()[-1]
    assert "archive orders " in last and "starting" not in last and re.search(r"300/1000\D+\d+/s", last), last


def test_pipelines_are_enqueued(cli: Cli) -> None:
    settings = '{"topic": "orders"}'
    first = cli("pipeline", "enqueue", "archive", settings, "--key", "nightly", "-o", "json").json
    again = cli("pipeline", "enqueue", "archive", settings, "--key", "nightly", "-o", "json").json
    assert (first["duplicate"], again["duplicate"], first["id"]) == (False, True, again["id"])
    with SyncClient(cli.url) as mq:
        (delivery,) = mq.claim("pipelines", limit=10)
    assert str(delivery.id) == first["id"]
    assert "Did you mean archive?" in cli("pipeline", "enqueue", "archve", settings, code=3).stderr
    assert "not valid JSON" in cli("pipeline", "enqueue", "archive", "{", code=2).stderr
    assert "must be a JSON object" in cli("pipeline", "enqueue", "archive", "[]", code=2).stderr
    kinds = cli("job", "kinds", "trunkline.spark.pipelines.jobs:app", "-o", "json").json
    assert [(each["kind"], each["queue"]) for each in kinds] == [("pipeline", "pipelines")]


def test_refusals_need_no_spark(cli: Cli, tmp_path: Path) -> None:
    with SyncClient(cli.url) as mq:
        mq.topics.create("orders")
    assert cli("pipeline", "archive", "nothing", "--location", "a", "-o", "json", code=3).error["code"] == "topic_not_found"
    assert cli("pipeline", "archive", "orders", "-o", "json", code=2).error["code"] == "invalid_argument"
    assert "No new complete segments" in cli("pipeline", "archive", "orders", "--location", "a").stderr
    assert "exactly one" in cli("pipeline", "replay", "orders", "--id", "x", code=2).stderr
    near = cli("pipeline", "replay", "orders", "--id", "x", "--to", "order", "-o", "json", code=3).error
    assert (near["code"], near["hint"]) == ("topic_not_found", "Did you mean orders?")
    swapped = cli("pipeline", "replay", "orders", "--id", "x", "--to", "orders", "--start", "5", "--end", "2", code=2)
    assert "is after end" in swapped.stderr
    assert "orders is replayed into itself: it will have these messages twice" in swapped.stderr
    lost = cli("pipeline", "replay", "orders", "--id", "x", "--to", "orders", "--transform", "lost.py", code=2)
    assert "there is no file lost.py" in lost.stderr
    (tmp_path / "bad.json").write_text("[]")
    assert "must be an object" in cli("pipeline", "validate", "orders", "--schema", "bad.json", code=2).stderr
    assert "Give a table (--table)" in cli("pipeline", "compact", "orders", code=2).stderr
    (tmp_path / "x.sql").write_text("select value from messages")
    assert "--from is missing" in cli("pipeline", "run", "x.sql", "--to", "orders", code=2).stderr
    run = ("pipeline", "run", "x.sql", "--checkpoint", "c")
    assert "Did you mean orders?" in cli(*run, "--from", "order", "--to", "orders", code=3).stderr
    assert 'queue "orders" does not exist' in cli(*run, "--from", "orders", "--to-queue", "orders", code=3).stderr
    assert "--checkpoint is missing" in cli("pipeline", "run", "x.sql", "--from", "orders", code=2).stderr
    assert "does not accept --to" in cli("pipeline", "run", "x.sql", "--declared", "--to", "orders", code=2).stderr
    assert "storage for its checkpoints" in cli("pipeline", "run", "x.sql", "--declared", code=2).stderr
    for_declared = cli("pipeline", "run", "x.sql", "--from", "orders", "--checkpoint", "c", "--dry-run", code=2)
    assert "--dry-run requires a declared pipeline" in for_declared.stderr
