"""`trunkline pipeline` and `trunkline topic read` over an archive, as real commands."""

from __future__ import annotations

from pathlib import Path

import pytest

import trunkline
from tests.cli.conftest import Cli
from tests.cli.conftest import cli as cli
from trunkline import SyncClient

pytestmark = pytest.mark.xdist_group("spark")


@pytest.mark.timeout(240)
def test_archive_list_show_and_read(cli: Cli, tmp_path: Path) -> None:
    """One command starts a Spark of its own, as a user's would."""
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
        # the same code as this test
        env={"PYTHONPATH": str(Path(trunkline.__file__).parents[1])},
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


def test_refusals_need_no_spark(cli: Cli, tmp_path: Path) -> None:
    with SyncClient(cli.url) as mq:
        mq.topics.create("orders")
    assert cli("pipeline", "archive", "nothing", "--location", "a", "-o", "json", code=3).error["code"] == "topic_not_found"
    assert cli("pipeline", "archive", "orders", "-o", "json", code=2).error["code"] == "invalid_argument"
    assert "exactly one" in cli("pipeline", "replay", "orders", "--id", "x", code=2).stderr
    lost = cli("pipeline", "replay", "orders", "--id", "x", "--to", "orders", "--transform", "lost.py", code=2)
    assert "there is no file lost.py" in lost.stderr
    (tmp_path / "bad.json").write_text("[]")
    assert "not an object" in cli("pipeline", "validate", "orders", "--schema", "bad.json", code=2).stderr
    assert "nowhere" in cli("pipeline", "compact", "orders", code=2).stderr
