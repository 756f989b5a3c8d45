"""The list of archived files: only what follows on, and retention that waits for it."""

from __future__ import annotations

from typing import Any

from tests.conftest import Connection
from tests.sql.calls import call, publish, refused, rows, value

AT = "2026-01-01 00:00+00"


def fill(conn: Connection, topic: str, n: int, **settings: Any) -> None:
    call(conn, "create_topic", topic, p_segment_rows=16, p_retention="0", **settings)
    for number in range(n):
        publish(conn, topic, number)


def seal(conn: Connection) -> None:
    for _ in range(4):
        value(conn, "select trunkline.run_upkeep('segments')")


def add(conn: Connection, topic: str, first: int, last: int, partition: int = 0) -> int:
    return int(
        value(
            conn,
            "select trunkline.add_archive_files(%s, %s, %s, %s, %s, %s, %s::timestamptz[], %s::timestamptz[], %s)",
            topic, [partition], [first], [last], [f"{first}.parquet"], [10], [AT], [AT], ["x"],
        )
    )  # fmt: skip


def lowest(conn: Connection, topic: str) -> int:
    return int(rows(conn, "select earliest_offset from trunkline.topic_stats(%s)", topic)[0].earliest_offset)


def plan(conn: Connection, topic: str, *args: Any) -> list[tuple[int, int, int]]:
    return [tuple(row) for row in call(conn, "plan_archive", topic, *args)]


def test_plan_is_whole_segments_then_parts_of_large_ones(conn: Connection) -> None:
    fill(conn, "t", 40)
    seal(conn)
    assert plan(conn, "t", 100) == [(0, 1, 31)]
    assert plan(conn, "t", 16) == [(0, 1, 15), (0, 16, 31)]
    assert plan(conn, "t", 10) == [(0, 1, 8), (0, 9, 15), (0, 16, 23), (0, 24, 31)]
    assert plan(conn, "t", 100, True) == [(0, 1, 31), (0, 32, 40)]
    add(conn, "t", 1, 20)
    assert plan(conn, "t", 100) == [(0, 21, 31)]


def test_files_follow_each_other_without_hole_or_overlap(conn: Connection) -> None:
    fill(conn, "t", 40)
    call(conn, "head", "t")
    add(conn, "t", 1, 10)
    for first, last in ((1, 10), (10, 12), (5, 30)):
        with refused("TL060", "is already archived"):
            add(conn, "t", first, last)
    with refused("TL060", "offsets 11 to 11 are not archived yet"):
        add(conn, "t", 12, 20)
    with refused("TL007", "the head is"):
        add(conn, "t", 11, 41)
    assert add(conn, "t", 11, 40) == 1
    assert [(row.first_offset, row.last_offset) for row in call(conn, "list_archive_files", "t")] == [(1, 10), (11, 40)]


def test_required_archive_holds_retention_also_the_hard_one(conn: Connection) -> None:
    fill(conn, "t", 40, p_hard_retention="0")
    call(conn, "require_archive", "t")
    seal(conn)
    value(conn, "select trunkline.run_upkeep('retention')")
    assert lowest(conn, "t") == 1
    add(conn, "t", 1, 20)
    value(conn, "select trunkline.run_upkeep('retention')")
    assert lowest(conn, "t") == 16, "the segment that ends at 15 is archived whole, the next one is not"
    call(conn, "require_archive", "t", False)
    value(conn, "select trunkline.run_upkeep('retention')")
    assert lowest(conn, "t") == 32


def tiers(conn: Connection, first: int, last: int, prefer: str = "archive") -> list[tuple[str, int, int]]:
    return [
        (row.tier, row.first_offset, row.last_offset) for row in call(conn, "archive_tiers", "t", 0, first, last, prefer)
    ]


def test_tiers_cover_a_range_once(conn: Connection) -> None:
    fill(conn, "t", 40)
    seal(conn)
    assert tiers(conn, 1, 40) == [("live", 1, 40)]
    add(conn, "t", 1, 10)
    add(conn, "t", 11, 25)
    assert tiers(conn, 5, 40) == [("archive", 5, 10), ("archive", 11, 25), ("live", 26, 40)]
    assert tiers(conn, 5, 20) == [("archive", 5, 10), ("archive", 11, 20)]
    assert tiers(conn, 5, 40, "live") == [("live", 5, 40)]
    value(conn, "select trunkline.run_upkeep('retention')")
    assert lowest(conn, "t") == 32
    assert tiers(conn, 5, 40) == [("archive", 5, 10), ("archive", 11, 25), ("gone", 26, 31), ("live", 32, 40)]
    assert tiers(conn, 12, 13, "live") == [("archive", 12, 13)]
    assert tiers(conn, 33, 34) == [("live", 33, 34)]
    # Missing offsets are not requested again, and the archive continues after them.
    assert plan(conn, "t", 100, True) == [(0, 32, 40)]
    add(conn, "t", 32, 40)
    assert tiers(conn, 30, 40) == [("gone", 30, 31), ("archive", 32, 40)]


def test_tiers_of_every_range_over_a_file_that_reaches_into_the_log(conn: Connection) -> None:
    fill(conn, "t", 40)
    seal(conn)
    add(conn, "t", 1, 10)
    add(conn, "t", 11, 36)
    value(conn, "select trunkline.run_upkeep('retention')")
    assert lowest(conn, "t") == 32
    for prefer, border in (("archive", 37), ("live", 32)):
        for first in range(1, 41):
            for last in range(first, 41):
                found = tiers(conn, first, last, prefer)
                covered = [(tier, offset) for tier, lo, hi in found for offset in range(lo, hi + 1)]
                assert covered == [("archive" if n < border else "live", n) for n in range(first, last + 1)]
                assert all(lo <= hi for _, lo, hi in found), "an empty part would be asked for again and again"


def test_group_may_start_in_the_archive(conn: Connection) -> None:
    fill(conn, "t", 40)
    seal(conn)
    add(conn, "t", 1, 31)
    value(conn, "select trunkline.run_upkeep('retention')")
    call(conn, "create_group", "t", "old", "archive")
    call(conn, "create_group", "t", "middle", "20")
    assert rows(conn, "select start_position from trunkline.cursors order by cursor_id") == [(1,), (20,)]
    with refused("TL006", "is only in the archive"):
        call(conn, "fetch", "t", "middle", "m")
    assert call(conn, "seek", "t", "middle", "33") == [(0, 33)]
    assert call(conn, "fetch", "t", "middle", "m")[0].log_offset == 33


def test_one_run_at_a_time_and_one_folder(conn: Connection, connect: Any) -> None:
    fill(conn, "t", 3)
    other = connect()
    with conn.transaction():
        assert value(conn, "select trunkline.lock_archive('t')")
        assert not value(other, "select trunkline.lock_archive('t')")
    assert value(other, "select trunkline.lock_archive('t')")
    call(conn, "ensure_archive", "t", "/a")
    assert call(conn, "ensure_archive", "t", "/c")[0].location == "/c", "nothing is there yet"
    assert call(conn, "ensure_archive", "t", "/a")[0].location == "/a"
    call(conn, "head", "t")
    add(conn, "t", 1, 3)
    with refused("TL060", "its archive is in /a"):
        call(conn, "ensure_archive", "t", "/b")
    assert call(conn, "move_archive", "t", "/b")[0].location == "/b"


def test_a_location_holds_no_password(conn: Connection) -> None:
    fill(conn, "t", 3)
    for secret in ("s3://key:word@bucket/log", "s3://bucket/log?region=x&secret_key=word", "hdfs://me@host/log"):
        with refused("TL001", "must not contain a password or key"):
            call(conn, "ensure_archive", "t", secret)
    for plain in ("/srv/a@b", "s3://bucket/log?region=eu-west-1", "file:///srv/me@home/log"):
        assert call(conn, "ensure_archive", "t", plain)[0].location == plain
