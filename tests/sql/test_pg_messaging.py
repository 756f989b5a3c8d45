"""The queries of a log and a queue in plain SQL, step by step, each as one function with plain types."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import Clock, Connection
from tests.sql.calls import call, publish, read, refused, rows, value

SQLC = Path(__file__).parents[2] / "docs" / "reference" / "pg_messaging.sql"


def test_the_log_step_by_step(conn: Connection) -> None:
    """Publish a batch, initialize a group, claim a range, fetch it, and claim until nothing is left."""
    call(conn, "create_topic", "topic")
    payloads = [b"one", b"two \x00\xff", b"three", b"four", b"five"]
    ids = [row[0] for row in call(conn, "publish_messages", "topic", payloads)]
    assert ids == [message.id for message in read(conn, "topic")]
    call(conn, "init_consumer_group", "my-consumer-group", "topic")

    assert call(conn, "claim_offsets", "my-consumer-group", 3, "topic") == [(1, 3)]
    got = call(conn, "get_messages", 1, 3, "topic")
    assert [(row.c_offset, row.payload) for row in got] == [(1, b"one"), (2, b"two \x00\xff"), (3, b"three")]
    assert all(row.created_at is not None for row in got)
    assert call(conn, "claim_offsets", "my-consumer-group", 100, "topic") == [(4, 5)]

    # nothing new: the end is one below the start, however often one asks
    assert call(conn, "claim_offsets", "my-consumer-group", 100, "topic") == [(6, 5)]
    assert call(conn, "claim_offsets", "my-consumer-group", 100, "topic") == [(6, 5)]
    assert call(conn, "get_messages", 6, 5, "topic") == []
    call(conn, "publish_messages", "topic", [b"six"])
    assert call(conn, "claim_offsets", "my-consumer-group", 100, "topic") == [(6, 6)]


def test_groups_are_independent_and_made_once(conn: Connection) -> None:
    call(conn, "create_topic", "topic")
    call(conn, "publish_messages", "topic", [b"1", b"2", b"3"])
    call(conn, "init_consumer_group", "a", "topic", 1)
    call(conn, "init_consumer_group", "b", "topic", 3)
    assert call(conn, "claim_offsets", "a", 10, "topic") == [(1, 3)]
    assert call(conn, "claim_offsets", "b", 10, "topic") == [(3, 3)]
    # a second initialization changes nothing
    call(conn, "init_consumer_group", "a", "topic", 1)
    assert call(conn, "claim_offsets", "a", 10, "topic") == [(4, 3)]


def test_a_group_that_was_not_initialized_gets_no_row(conn: Connection) -> None:
    call(conn, "create_topic", "topic")
    call(conn, "publish_messages", "topic", [b"1"])
    assert call(conn, "claim_offsets", "nobody", 10, "topic") == []
    assert call(conn, "group_stats", "topic") == []


def test_claims_before_anything_was_published(conn: Connection) -> None:
    call(conn, "create_topic", "topic")
    call(conn, "init_consumer_group", "g", "topic")
    assert call(conn, "claim_offsets", "g", 10, "topic") == [(1, 0)]


def test_a_claim_that_rolls_back_did_not_happen(conn: Connection) -> None:
    call(conn, "create_topic", "topic")
    call(conn, "publish_messages", "topic", [b"1", b"2"])
    call(conn, "init_consumer_group", "g", "topic")
    with conn.transaction(force_rollback=True):
        assert call(conn, "claim_offsets", "g", 10, "topic") == [(1, 2)]
    assert call(conn, "claim_offsets", "g", 10, "topic") == [(1, 2)]


def test_an_empty_batch_is_no_error(conn: Connection) -> None:
    call(conn, "create_topic", "topic")
    assert call(conn, "publish_messages", "topic", value(conn, "select '{}'::bytea[]")) == []
    with refused("TL010"):
        conn.execute("select trunkline.publish_messages('nowhere', '{}')")
    with refused("TL001"):
        conn.execute("select trunkline.publish_messages('topic', null)")


def test_a_group_starts_behind_what_retention_took(conn: Connection) -> None:
    """Offset 1 is the beginning, whatever it is by now."""
    call(conn, "create_topic", "topic", p_segment_rows=16, p_retention="0")
    for _ in range(4):
        publish(conn, "topic", *range(16))
        rows(conn, "select trunkline.head('topic')")
        for duty in ("segments", "segments", "retention"):
            rows(conn, "select trunkline.run_upkeep(%s)", duty)
    lowest = call(conn, "topic_stats", "topic")[0].earliest_offset
    assert lowest > 1
    publish(conn, "topic", *range(8))
    call(conn, "init_consumer_group", "g", "topic", 1)
    assert call(conn, "claim_offsets", "g", 5, "topic") == [(lowest, lowest + 4)]
    with refused("TL006"):
        call(conn, "get_messages", 1, 5, "topic")


def test_get_messages_leaves_out_what_is_not_there(conn: Connection) -> None:
    call(conn, "create_topic", "topic")
    call(conn, "publish_messages", "topic", [b"1", b"2"])
    assert [row.c_offset for row in call(conn, "get_messages", 2, 50, "topic")] == [2]
    assert call(conn, "get_messages", 3, 50, "topic") == []


@pytest.mark.parametrize(
    ("code", "query"),
    [
        ("TL010", "select trunkline.publish_messages('nowhere', '{x}')"),
        ("TL010", "select trunkline.init_consumer_group('g', 'nowhere')"),
        ("TL010", "select trunkline.claim_offsets('g', 1, 'nowhere')"),
        ("TL010", "select trunkline.get_messages(1, 2, 'nowhere')"),
        ("TL011", "select trunkline.enqueue_job('nowhere', 'x')"),
        ("TL011", "select trunkline.claim_job('nowhere')"),
        ("TL001", "select trunkline.archive_job(null)"),
        ("TL023", "select trunkline.init_consumer_group('g', 'wide')"),
        ("TL023", "select trunkline.claim_offsets('g', 1, 'wide')"),
        ("TL023", "select trunkline.get_messages(1, 2, 'wide')"),
        ("TL001", "select trunkline.init_consumer_group('g', 'topic', 0)"),
        ("TL007", "select trunkline.init_consumer_group('g', 'topic', 5)"),
        ("TL002", "select trunkline.init_consumer_group('', 'topic')"),
        ("TL001", "select trunkline.claim_offsets('here', 0, 'topic')"),
        ("TL001", "select trunkline.get_messages(0, 2, 'topic')"),
        ("TL001", "select trunkline.get_messages(1, null, 'topic')"),
        ("TL004", "select trunkline.get_messages(1, 100001, 'topic')"),
    ],
)
def test_refusals(conn: Connection, code: str, query: str) -> None:
    call(conn, "create_topic", "topic")
    call(conn, "create_topic", "wide", 2)
    call(conn, "init_consumer_group", "here", "topic")
    with refused(code):
        conn.execute(query)


def test_the_queue_step_by_step(conn: Connection) -> None:
    """Enqueue, claim and archive in one transaction; no other worker gets the job; an empty queue returns no row."""
    call(conn, "create_queue", "queue")
    first = call(conn, "enqueue_job", "queue", b"job 1")[0][0]
    call(conn, "enqueue_job", "queue", b"job 2")
    with conn.transaction():
        [job] = call(conn, "claim_job", "queue")
        assert (job.payload, job.created_at is not None) == (b"job 1", True)
        assert call(conn, "archive_job", job.id) == [("done",)]
    [job] = call(conn, "claim_job", "queue")
    assert job.payload == b"job 2"
    assert call(conn, "claim_job", "queue") == []
    assert call(conn, "archive_job", job.id) == [("done",)]
    # as often as one likes
    assert call(conn, "archive_job", job.id) == [("done",)]
    assert first is not None


def test_a_worker_that_rolls_back_gives_the_job_back(conn: Connection) -> None:
    call(conn, "create_queue", "queue")
    call(conn, "enqueue_job", "queue", b"job")
    with conn.transaction(force_rollback=True):
        [job] = call(conn, "claim_job", "queue")
        call(conn, "archive_job", job.id)
    assert [row.payload for row in call(conn, "claim_job", "queue")] == [b"job"]


def test_a_worker_that_is_too_late_is_told(conn: Connection, clock: Clock) -> None:
    call(conn, "create_queue", "queue")
    call(conn, "enqueue_job", "queue", b"job")
    [old] = call(conn, "claim_job", "queue")
    clock.advance(31)
    [new] = call(conn, "claim_job", "queue")
    assert call(conn, "archive_job", old.id) == [("lost",)]
    assert call(conn, "archive_job", new.id) == [("done",)]
    assert call(conn, "archive_job", "17") == [("unknown",)]
    assert call(conn, "archive_job", "no receipt") == [("unknown",)]


def test_the_file_for_sqlc_names_every_recipe_and_runs(conn: Connection) -> None:
    call(conn, "create_topic", "orders")
    call(conn, "create_queue", "jobs")
    queries = re.findall(r"-- name: (\w+) :(many|one|exec)\n(.*?;)", SQLC.read_text(encoding="utf-8"), flags=re.DOTALL)
    names = [name for name, *_ in queries]
    assert names == [
        "PublishMessages",
        "InitConsumerGroup",
        "ClaimOffsets",
        "GetMessages",
        "EnqueueJob",
        "ClaimJob",
        "ArchiveJob",
    ]
    for name, _, query in queries:
        conn.execute(f"prepare {name} as {query}")
    steps = [
        "PublishMessages('orders', array['a', 'b']::bytea[])",
        "InitConsumerGroup('billing', 'orders', 1)",
        "ClaimOffsets('billing', 10, 'orders')",
        "GetMessages(1, 2, 'orders')",
        "EnqueueJob('jobs', 'x')",
        "ClaimJob('jobs')",
    ]
    answers = {step.split("(")[0]: conn.execute(f"execute {step}").fetchall() for step in steps}
    assert len(answers["PublishMessages"]) == 2
    assert answers["ClaimOffsets"] == [(1, 2)]
    assert [row[1] for row in answers["GetMessages"]] == [b"a", b"b"]
    [(receipt, payload, _)] = answers["ClaimJob"]
    assert payload == b"x"
    assert conn.execute(f"execute ArchiveJob('{receipt}')").fetchall() == [("done",)]
