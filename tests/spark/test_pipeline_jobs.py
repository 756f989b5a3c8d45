"""A queue triggers pipelines: the summary is the result, a cancelled one stops in Spark too, wrong ones are refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import Connection
from tests.spark.topics import payloads, publish
from tests.support.waiting import until
from trunkline.jobs import App, Worker
from trunkline.spark.pipelines.jobs import _below_uri, add_pipelines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")

SLOW = """
def slowly(batches):
    import time
    for batch in batches:
        time.sleep(600)
        yield batch

def transform(messages):
    return messages.select("key", "value").mapInArrow(slowly, "key string, value binary")
"""


async def test_one_runs_while_another_is_cancelled(spark: SparkSession, db: str, conn: Connection, tmp_path: Path) -> None:
    conn.execute("select trunkline.create_topic('t'), trunkline.create_topic('copy')")
    publish(conn, "t", 100)
    (tmp_path / "slow.py").write_text(SLOW)
    tracker = spark.sparkContext.statusTracker()
    async with App(db, queue="pipes") as app:
        job = add_pipelines(app, queue="pipes", files=str(tmp_path), output=str(tmp_path), spark=spark)
        async with Worker(app):
            checkpoint = str(tmp_path / "checkpoint")
            settings = {"file": "slow.py", "topic": "t", "to_topic": "copy", "checkpoint": checkpoint}
            slow = await job.enqueue("run", settings)
            await until(tracker.getActiveJobsIds)
            archived = await job.enqueue("archive", {"topic": "t", "location": str(tmp_path / "archive"), "open": True})
            summary = await archived.result("60s")
            assert (summary["topic"], summary["rows"], summary["archived_upto"]) == ("t", 100, {"0": 100})
            assert tracker.getActiveJobsIds(), "the other one still runs"
            assert await slow.cancel("not wanted") == "requested"
            (letter,) = await until(lambda: app.client.dead.list("pipes"))
            assert letter.error == "cancelled: not wanted"
            await until(lambda: not tracker.getActiveJobsIds() and not spark.streams.active)
    assert payloads(conn, "copy") == [[]]


async def test_what_is_wrong_is_refused_once(db: str, conn: Connection, tmp_path: Path) -> None:
    """Before Spark is needed: the worker has none."""
    conn.execute("select trunkline.create_topic('t')")
    (tmp_path / "link").symlink_to("/")
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("archiv", {}, "pipeline 'archiv' does not exist (Did you mean 'archive'?)"),
        ("archive", {"topics": "t"}, "has no setting 'topics' (Did you mean 'topic'?)"),
        ("archive", {"topic": "t", "spark": 1}, "has no setting 'spark'"),
        ("archive", {}, "requires topic"),
        ("run", {"topic": "t", "file": "../x.py", "checkpoint": "c"}, "../x.py is outside"),
        ("compact", {"topic": "t", "table": "/home/x", "overwrite": True}, "/home/x is outside"),
        ("compact", {"topic": "t", "table": "../x"}, "../x is outside"),
        ("compact", {"topic": "t", "table": "."}, ". is outside"),
        ("compact", {"topic": "t", "table": f"file://{tmp_path}/x"}, "is outside"),
        ("compact", {"topic": "t", "table": "link/x"}, "link/x is outside"),
        ("archive", {"topic": "t", "location": "s3://bucket/x"}, "s3://bucket/x is outside"),
        ("report", {"folder": "/etc"}, "/etc is outside"),
        ("report", {"folder": ["/etc"]}, "folder must be a text"),
        ("run", {"topic": "t", "file": {"x": 1}, "checkpoint": "c"}, "file must be a text"),
        ("dedupe", {"topic": "t", "to_topic": "t", "checkpoint": "/x"}, "/x is outside"),
        ("replay", {"topic": "t", "id": "x", "start": "sometime"}, "is not a log position"),
        ("dedupe", {"topic": "t", "to_topic": "t", "checkpoint": "c", "mode": "stream"}, "cannot run in stream mode"),
    ]
    async with App(db, queue="pipes") as app:
        job = add_pipelines(app, queue="pipes", files=str(tmp_path), output=str(tmp_path))
        async with Worker(app):
            for name, settings, words in wrong:
                handle = await job.enqueue(name, settings)
                letters = await until(lambda: app.client.dead.list("pipes"))
                assert (letters[0].id, letters[0].attempts) == (handle.id, 1)
                assert words in letters[0].error
                await app.client.dead.purge("pipes")
    async with App(db, queue="pipes") as app:
        job = add_pipelines(app, queue="pipes")
        async with Worker(app):
            await job.enqueue("run", {"topic": "t", "file": "x.py", "checkpoint": "c"})
            (letter,) = await until(lambda: app.client.dead.list("pipes"))
            assert "this worker has no folder of files to run" in letter.error
            await app.client.dead.purge("pipes")
            await job.enqueue("report", {"folder": "r"})
            (letter,) = await until(lambda: app.client.dead.list("pipes"))
            assert "this worker has no output root" in letter.error


@pytest.mark.parametrize(
    ("path", "whole"),
    [
        ("x/y", "s3://bucket/out/x/y"), ("s3://bucket/out/x", "s3://bucket/out/x"), ("/x", "s3://bucket/out/x"),
        ("s3://bucket/other", None), ("s3://bucket/out", None), ("s3://bucket/out-2/x", None), ("../x", None),
        ("x/../../y", None), ("s3://bucket/out/../x", None), ("x//y", None), ("%2e%2e/x", None), ("", None),
    ],
)  # fmt: skip
def test_an_output_root_that_is_a_uri(path: str, whole: str | None) -> None:
    for root in ("s3://bucket/out", "s3://bucket/out/"):
        assert _below_uri(root, path) == whole
