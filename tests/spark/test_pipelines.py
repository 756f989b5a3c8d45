"""Replay, compact, dedupe, validate, run and report: exact counts, once, and clear refusals."""

from __future__ import annotations

import json
import socket
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as f

from tests.conftest import Connection
from trunkline import SyncClient
from trunkline.errors import AlreadyExists, Conflict, InvalidArgument, OffsetOutOfRange
from trunkline.spark.archive.writer import write_piece
from trunkline.spark.pipelines import frames
from trunkline.spark.pipelines import validate as validating
from trunkline.spark.pipelines.compact import compact
from trunkline.spark.pipelines.query import dedupe, run_file
from trunkline.spark.pipelines.replay import replay
from trunkline.spark.pipelines.report import _distinct_keys, report
from trunkline.spark.pipelines.validate import merge, shape_of, validate
from trunkline.types import Message, NewMessage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture
def orders(db: str) -> str:
    """A topic of two partitions with 300 messages in it, and empty ones to write to."""
    with SyncClient(db) as mq:
        mq.topics.create("orders", partitions=2)
        for name in ("out", "other"):
            mq.topics.create(name)
        mq.queues.create("q")
        mq.publish_many(
            "orders", [NewMessage(body={"n": n}, key=f"k{n % 10}", headers={"h": str(n)}, label="l") for n in range(300)]
        )
    return db


def contents(db: str, topic: str) -> list[Message[Any]]:
    with SyncClient(db) as mq:
        return list(mq.topics.scan(topic))


def test_replay_is_exact_resumable_and_says_where_messages_were(
    spark: SparkSession, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, calls = frames.write, []

    def dies(*args: Any) -> None:
        """The driver dies right after the second chunk was published."""
        write(*args)
        calls.append(args[-1])
        if len(calls) == 2:
            raise KeyboardInterrupt

    options: dict[str, Any] = {"id": "r", "to_topic": "out", "filter": "body:n::int % 2 = 0", "chunk_rows": 100}
    dry = replay(orders, "orders", dry_run=True, spark=spark, **options)
    assert (dry.read, dry.published, contents(orders, "out")) == (300, 150, [])
    monkeypatch.setattr(frames, "write", dies)
    with pytest.raises(KeyboardInterrupt):
        replay(orders, "orders", spark=spark, **options)
    monkeypatch.setattr(frames, "write", write)
    with SyncClient(orders) as mq:
        mq.publish_many("orders", [{"n": 2}] * 10)
    done = replay(orders, "orders", spark=spark, **options)
    assert (done.chunks, done.skipped_chunks) == (3, 2)
    got = contents(orders, "out")
    assert sorted(each.body["n"] for each in got) == list(range(0, 300, 2)), (
        "what came after the first start is not part of it"
    )
    first = {(each.partition, each.offset): each for each in contents(orders, "orders")}
    places = []
    for each in got:
        headers = each.headers or {}
        places.append((int(headers["replay-partition"]), int(headers["replay-offset"])))
        source = first[places[-1]]
        assert (each.body, each.key, each.label, headers["h"]) == (
            source.body,
            source.key,
            source.label,
            source.headers["h"],  # type: ignore[index]
        )
        assert headers["replay-topic"] == "orders"
        assert headers["replay-time"] == source.created_at.astimezone(UTC).isoformat(timespec="microseconds").replace(
            "+00:00", "Z"
        )
        assert each.id != source.id
    for partition in (0, 1):
        offsets = [offset for number, offset in places if number == partition]
        assert offsets == sorted(offsets)
    with pytest.raises(Conflict, match="was started with"):
        replay(orders, "orders", spark=spark, **(options | {"to_topic": "other"}))
    with SyncClient(orders) as mq:
        mq.topics.delete("orders")
        mq.topics.create("orders", partitions=2)
    with pytest.raises(Conflict, match="deleted and created again"):
        replay(orders, "orders", spark=spark, **options)


def test_replay_into_a_queue_with_a_transformation(spark: SparkSession, orders: str, tmp_path: Path) -> None:
    file = tmp_path / "change.py"
    file.write_text("def transform(messages):\n    return messages.selectExpr('key', 'body:n::int * 2 as twice')\n")
    done = replay(orders, "orders", id="q", to_queue="q", start=100, transform=str(file), spark=spark)
    with SyncClient(orders) as mq:
        bodies = [each.body for each in mq.claim("q", limit=1000)]
    assert done.published == len(bodies) > 0
    assert all(set(body) == {"twice"} for body in bodies)
    file.write_text("transform = 1")
    with pytest.raises(InvalidArgument, match="no function"):
        replay(orders, "orders", id="x", to_queue="q", transform=str(file), spark=spark)
    with pytest.raises(OffsetOutOfRange, match="below the earliest"):
        replay(orders, "orders", id="x", to_queue="q", start=0, spark=spark)


def test_replay_at_a_rate(spark: SparkSession, orders: str) -> None:
    assert replay(orders, "orders", id="slow", to_topic="out", rate=50, spark=spark).chunks == 3
    at = [each.created_at.timestamp() for each in contents(orders, "out")]
    # in any two seconds what is allowed in two, and the chunk that begins in them
    assert len(at) == 300
    assert all(later - earlier > 1 for earlier, later in zip(at, at[100:], strict=False))
    assert at[-1] - at[0] > 3


def test_compact_keeps_the_latest_and_tombstones(spark: SparkSession, orders: str, tmp_path: Path) -> None:
    with SyncClient(orders) as mq:
        mq.publish("orders", b"", key="k3")
    table = str(tmp_path / "latest")
    done = compact(orders, "orders", table, to_topic="out", spark=spark)
    assert (done.keys, done.tombstones, done.published) == (10, 1, 10)
    rows = {row["key"]: row for row in spark.read.parquet(table).collect()}
    assert {key: json.loads(row["value"])["n"] for key, row in rows.items() if not row["deleted"]} == {
        f"k{n % 10}": n for n in range(290, 300) if n % 10 != 3
    }
    assert rows["k3"]["deleted"]
    with pytest.raises(AlreadyExists):
        compact(orders, "orders", table, spark=spark)
    compact(orders, "orders", table, to_topic="out", overwrite=True, spark=spark)
    assert len(contents(orders, "out")) == 10, "the same offsets are published once"
    with SyncClient(orders) as mq:
        mq.publish("orders", {"n": 1})
    with pytest.raises(InvalidArgument, match=r"1 of 302 messages .* have no key"):
        compact(orders, "orders", dry_run=True, spark=spark)
    assert compact(orders, "orders", dry_run=True, null_keys="skip", spark=spark).without_key == 1


def test_validate_sends_rejects_with_the_reason_once(spark: SparkSession, orders: str) -> None:
    with SyncClient(orders) as mq:
        mq.publish("orders", b"{broken")
    rules = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 296}}}
    for published in (4, 0):
        done = validate(orders, "orders", schema=rules, rejects="out", spark=spark)
        assert (done.read, done.rejected, done.published) == (301, 4, published)
    reasons = sorted((each.headers or {})["validation-error"] for each in contents(orders, "out"))
    assert reasons[0] == "n: maximum"
    assert reasons[-1].startswith("not JSON")
    inferred = validate(orders, "orders", spark=spark)
    assert inferred.json_schema["properties"] == {"n": {"type": ["integer"]}}
    assert inferred.rejected == 1
    with pytest.raises(InvalidArgument, match="not valid"):
        validating.check_schema({"type": "nonsense"})


@pytest.mark.parametrize("ref", ["{url}/schema", "file:///etc/hostname", "other.json", "#/$defs/none"])
def test_a_schema_is_not_downloaded(ref: str) -> None:
    """A message in the queue of pipelines can contain a schema, and the worker may reach what its sender cannot."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(0)
        schema = {"$ref": ref.format(url="http://{}:{}".format(*listener.getsockname()))}
        validating.check_schema(schema)
        with pytest.raises(InvalidArgument, match="which is not part of it"):
            validating._reason(validating._validator(schema), b"{}")
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_references_within_a_schema() -> None:
    schema = {"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}
    validator = validating._validator(schema)
    assert validating._reason(validator, b"[[], [[]]]") is None
    assert validating._reason(validator, b"[1]") == '*: type "array"'
    deep = b"[" * 900 + b"]" * 900
    assert validating._reason(validator, deep) in (None, "nested too deeply for the JSON Schema")
    standard = validating._validator({"$ref": "https://json-schema.org/draft/2020-12/schema"})
    assert validating._reason(standard, b'{"type": 5}') is not None


def test_inferred_schemas_merge() -> None:
    one, two = shape_of({"a": 1, "b": [1, None]}), shape_of({"a": 1.5, "c": {"d": "x"}})
    assert merge(one, two) == {
        "type": ["object"],
        "properties": {
            "a": {"type": ["number"]},
            "b": {"type": ["array"], "items": {"type": ["integer", "null"]}},
            "c": {"type": ["object"], "properties": {"d": {"type": ["string"]}}, "required": ["d"]},
        },
        "required": ["a"],
    }


def test_dedupe_and_run_take_what_is_new(spark: SparkSession, orders: str, tmp_path: Path) -> None:
    done = dedupe(orders, "orders", "out", by="key", checkpoint=str(tmp_path / "dedupe"), spark=spark)
    assert done.read == 300
    assert sorted(each.key or "" for each in contents(orders, "out")) == [f"k{n}" for n in range(10)]
    file = tmp_path / "large.sql"
    file.write_text("select key, body:n::int as n from messages where body:n::int >= 290;")
    for expected in (300, 0):
        ran = run_file(orders, str(file), "orders", to_topic="other", checkpoint=str(tmp_path / "run"), spark=spark)
        assert ran.read == expected
    assert sorted(each.body["n"] for each in contents(orders, "other")) == list(range(290, 300))


def test_report_is_one_page_and_its_tables(spark: SparkSession, orders: str, conn: Connection, tmp_path: Path) -> None:
    with SyncClient(orders) as mq:
        mq.subscriptions.add("q", "orders", start="earliest")
        mq.enqueue_many("q", [{"own": n} for n in range(20)])
        number = 0
        while deliveries := list(mq.claim("q", limit=100)):
            for delivery in deliveries:
                number += 1
                if number % 10 == 0:
                    delivery.bury(f"user {number} at 10.0.0.{number}: <b>no</b>")
                elif number % 10 == 1:
                    delivery.nack(error="later", delay="1h")
                else:
                    delivery.ack()
    conn.execute("select trunkline.run_upkeep('rollups')")
    done = report(orders, str(tmp_path), spark=spark)
    assert (done.messages, done.deliveries) == (300, 320)
    page = (tmp_path / "report.html").read_text()
    assert "<script" not in page
    assert "http" not in page
    assert "user &lt;n&gt; at &lt;ip&gt;: &lt;b&gt;no&lt;/b&gt;" in page
    tables = {path.stem: spark.read.parquet(str(path)).collect() for path in tmp_path.glob("*.parquet")}
    assert set(tables) == {
        "topics",
        "throughput",
        "sizes",
        "hot_keys",
        "queues",
        "latency",
        "attempts",
        "dead_letters",
        "lag",
    }
    assert sum(row["messages"] for row in tables["throughput"]) == 300
    (queue,) = tables["queues"]
    assert (queue["acked"], queue["nacked"], queue["buried"]) == (256, 32, 32)
    assert queue["wait_p50"] > 0
    assert [row["messages"] for row in tables["dead_letters"]] == [32]
    assert tables["hot_keys"][0]["messages"] == 30
    # the tables of this run are beside its page, and those of the run before are not
    last = report(orders, str(tmp_path), topics=["out"], spark=spark)
    assert last.messages == 0
    assert not {"topics", "throughput", "sizes", "hot_keys"} & {path.stem for path in tmp_path.glob("*.parquet")}


def test_a_report_shows_no_more_keys_than_messages(spark: SparkSession) -> None:
    keys = spark.range(60_000).selectExpr("id div 2000 as part", "cast(id as string) as key")
    found = keys.groupBy("part").agg(_distinct_keys(), f.approx_count_distinct("key")).collect()
    assert len(found) == 30 and all(1600 < row[1] <= 2000 for row in found)
    assert max(row[2] for row in found) > 2000, "the bound was needed"


def test_a_report_leaves_out_a_topic_whose_archive_is_not_there(
    spark: SparkSession, orders: str, conn: Connection, tmp_path: Path
) -> None:
    from trunkline.db.calls import archive as calls

    conn.execute("select trunkline.create_topic('t', p_segment_rows => 16)")
    conn.execute("select trunkline.publish('t', '1') from generate_series(1, 30)")
    conn.execute("call trunkline.sequence()")
    number = calls.ensure_archive(conn, "t", str(tmp_path / "archive")).topic_id
    piece = write_piece(orders, "t", number, str(tmp_path / "archive"), calls.ArchiveRange(0, 1, 20))
    calls.add_archive_files(conn, "t", [piece])
    conn.execute("select trunkline._empty_segment(%s, 0, 0, 15)", (number,))
    (tmp_path / "archive").rename(tmp_path / "elsewhere")
    done = report(orders, str(tmp_path / "report"), topics=["t", "orders"], spark=spark)
    assert done.messages == 300
    assert list(done.skipped) == ["t"] and "is missing" in done.skipped["t"]


def test_topics_that_are_created_again_are_others(spark: SparkSession, orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source of a pipeline has other messages then, and its target none."""

    def create_again(name: str, partitions: int = 1) -> None:
        with SyncClient(orders) as mq:
            mq.topics.delete(name)
            mq.topics.create(name, partitions=partitions)
            if name == "orders":
                mq.publish_many("orders", [NewMessage(body={"n": n + 1000}, key=f"k{n % 10}") for n in range(300)])

    def compacted() -> int:
        return compact(orders, "orders", to_topic="out", spark=spark).published

    assert (compacted(), compacted()) == (10, 0)
    create_again("orders", 2)
    assert compacted() == 10
    assert sorted(each.body["n"] for each in contents(orders, "out")) == [*range(290, 300), *range(1290, 1300)]
    create_again("out")
    assert compacted() == len(contents(orders, "out")) == 10
    options: dict[str, Any] = {"id": "r", "chunk_rows": 100, "spark": spark}
    replay(orders, "orders", to_topic="other", **options)
    create_again("other")
    with pytest.raises(Conflict, match="topic 'other' before that was deleted and created again"):
        replay(orders, "orders", to_topic="other", **options)
    write = frames.write

    def write_and_create_again(*args: Any) -> None:
        write(*args)
        create_again("orders", 2)

    monkeypatch.setattr(frames, "write", write_and_create_again)
    with pytest.raises(Conflict, match="topic 'orders' before that was deleted and created again"):
        replay(orders, "orders", to_queue="q", **options | {"id": "s"})


def test_pipelines_of_many_partitions(spark: SparkSession, orders: str) -> None:
    with SyncClient(orders) as mq:
        mq.topics.create("wide", partitions=64)
        mq.publish_many("wide", [NewMessage(body={"n": n}, key=f"k{n}") for n in range(100)])
    assert compact(orders, "wide", to_topic="out", spark=spark).published == 100
    assert validate(orders, "wide", schema={"type": "array"}, rejects="other", spark=spark).published == 100
