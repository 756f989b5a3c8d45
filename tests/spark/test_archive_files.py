"""The archive without Spark: files equal the log, damage is noticed, no gap between tiers, retention waits."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pyarrow as pa
import pytest

from tests.conftest import Connection
from trunkline import SyncClient
from trunkline.db.calls import archive as calls
from trunkline.db.calls.archive import ArchiveRange, NewFile
from trunkline.errors import ArchiveDamaged, Busy, Conflict, InvalidArgument, OffsetOutOfRange, TopicNotFound
from trunkline.spark.archive import files, positions
from trunkline.spark.archive import writer as archiving
from trunkline.spark.archive.cleanup import clean
from trunkline.spark.archive.export import export, store_settings
from trunkline.spark.archive.writer import write_piece
from trunkline.spark.source import tiered_messages
from trunkline.spark.source.log_reader import read_range
from trunkline.spark.source.ranges import OffsetRange
from trunkline.types import NewMessage


def fill(db: str, topic: str, n: int, *, partitions: int = 1, conn: Connection) -> int:
    """Create messages of all kinds in a topic of small segments; return its number."""
    made = conn.execute(
        "select (trunkline.create_topic(%s, %s, p_retention => '0', p_segment_rows => 64)).topic_id", (topic, partitions)
    ).fetchone()
    assert made is not None
    with SyncClient(db) as mq:
        if n:
            mq.publish_many(topic, [message(number) for number in range(n)])
        for partition in range(partitions):
            mq.topics.head(topic, partition)
    return int(made[0])


def message(number: int) -> NewMessage:
    return NewMessage(
        body=[{"n": number}, f"text {number}\0".encode(), b""][number % 3] if number % 3 else {"n": number, "ä": "ü"},
        key=None if number % 4 == 0 else f"k{number % 7}",
        routing_key="a.b" if number % 2 else None,
        headers={"h": "v", "other": str(number)} if number % 5 == 0 else None,
        content_type="application/octet-stream" if number % 3 else "application/json",
    )


def live(db: str, topic: str, topic_id: int, lo: int, hi: int, partition: int = 0, columns: Any = None) -> pa.Table:
    return pa.Table.from_batches(read_range(db, OffsetRange(topic, topic_id, partition, lo, hi), columns))


def seal(conn: Connection) -> None:
    for _ in range(3):
        conn.execute("select trunkline.run_upkeep('segments')")


def archive_all(db: str, conn: Connection, topic: str, topic_id: int, location: Path, rows: int = 100) -> list[NewFile]:
    calls.ensure_archive(conn, topic, str(location))
    made = []
    for piece in calls.plan_archive(conn, topic, rows=rows, open=False):
        made.append(write_piece(db, topic, topic_id, str(location), piece))
        calls.add_archive_files(conn, topic, [made[-1]])
    return made


def lowest(conn: Connection, topic: str) -> int:
    row = conn.execute("select min(earliest_offset) from trunkline.topic_stats(%s)", (topic,)).fetchone()
    assert row is not None
    return int(row[0])


def test_file_equals_the_log(db: str, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    number = fill(db, "t", 300, conn=conn)
    monkeypatch.setattr(files, "_GROUP_ROWS", 70)
    made = write_piece(db, "t", number, str(tmp_path), ArchiveRange(0, 11, 290))
    assert (made.rows, made.first_offset, made.last_offset) == (280, 11, 290)
    for columns in (None, ["payload", "offset"], ["offset", "header_keys", "header_values"]):
        got = pa.Table.from_batches(files.read(str(tmp_path), made.path, 11, 40, 200, columns, size=made.bytes))
        assert got.equals(live(db, "t", number, 40, 200, columns=columns))
    again = write_piece(db, "t", number, str(tmp_path), ArchiveRange(0, 11, 290))
    assert again.path != made.path
    assert again.checksum == made.checksum


def test_headers_of_all_kinds_equal_the_log(db: str, conn: Connection, tmp_path: Path) -> None:
    number = fill(db, "t", 0, conn=conn)
    kinds = ('{"b": 1.10, "B": 12345678901234567890.5, "a": null}', '{"ä": {"x": [1.5, true, "ü"]}, "f": false}', "{}", None)
    for kind in kinds:
        conn.execute("select trunkline.publish('t', '1', p_headers => %s::jsonb)", (kind,))
    conn.execute("call trunkline.sequence()")
    made = write_piece(db, "t", number, str(tmp_path), ArchiveRange(0, 1, 4))
    columns = ["offset", "header_keys", "header_values"]
    got = pa.Table.from_batches(files.read(str(tmp_path), made.path, 1, 1, 5, columns))
    assert got.equals(live(db, "t", number, 1, 5, columns=columns))
    assert got["header_values"][0].as_py() == ["12345678901234567890.5", None, "1.10"]


def test_ids_that_do_not_go_up(db: str, conn: Connection, tmp_path: Path) -> None:
    """Order is that of offsets, whatever ids the publisher chose."""
    number = fill(db, "t", 0, conn=conn)
    with SyncClient(db) as mq:
        mq.publish_many("t", [NewMessage(body=each, id=uuid4()) for each in range(200)])
        mq.topics.head("t")
    made = write_piece(db, "t", number, str(tmp_path), ArchiveRange(0, 1, 200))
    payloads = [
        row for batch in files.read(str(tmp_path), made.path, 1, 1, 201, ["payload"]) for row in batch[0].to_pylist()
    ]
    assert [int(payload) for payload in payloads] == list(range(200))


def test_damage_is_noticed_and_names_the_file(db: str, conn: Connection, tmp_path: Path) -> None:
    number = fill(db, "t", 50, conn=conn)
    made = write_piece(db, "t", number, str(tmp_path), ArchiveRange(0, 1, 50))
    path = tmp_path / made.path
    whole = path.read_bytes()

    def read() -> int:
        return sum(batch.num_rows for batch in files.read(str(tmp_path), made.path, 1, 1, 51, size=made.bytes))

    assert read() == 50
    path.write_bytes(whole[:-10])
    with pytest.raises(ArchiveDamaged, match=made.path):
        read()
    # a page, and the name of a column
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    for at in (len(whole) // 3, whole.index(b"payload", footer)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x01]) + whole[at + 1 :])
        with pytest.raises(ArchiveDamaged, match=made.path):
            read()
    path.unlink()
    with pytest.raises(ArchiveDamaged, match="is missing"):
        read()


def test_location_that_cannot_be_written(db: str, conn: Connection, tmp_path: Path) -> None:
    number = fill(db, "t", 5, conn=conn)
    (tmp_path / "file").write_text("")
    for location in (str(tmp_path / "file" / "x"), "relative/folder", "nothing://x/y"):
        with pytest.raises(InvalidArgument):
            write_piece(db, "t", number, location, ArchiveRange(0, 1, 5))


def test_a_location_with_settings(db: str, conn: Connection, tmp_path: Path) -> None:
    """They stay at the end of a file's name, and tables of other programs are refused."""
    assert files.join("s3://bucket/log/?scheme=http", "t/0/a") == "s3://bucket/log/t/0/a?scheme=http"
    assert files.join("/srv/what?/log", "t/0/a") == "/srv/what?/log/t/0/a"
    number = fill(db, "t", 300, conn=conn)
    seal(conn)
    assert archive_all(db, conn, "t", number, tmp_path)
    calls.move_archive(conn, "t", "s3://bucket/log?scheme=http")
    with pytest.raises(InvalidArgument, match="settings after"):
        export(db, "t", "delta")


def test_tables_are_written_to_the_store_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9000")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-1")
    settings = store_settings("s3://bucket/log")
    assert settings.delta == {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000", "AWS_ALLOW_HTTP": "true"}
    assert settings.iceberg == {"s3.endpoint": "http://127.0.0.1:9000", "s3.region": "eu-1"}
    assert store_settings("/srv/log") == ({}, {})
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    assert store_settings("s3://bucket/log") == ({}, {})


def test_only_what_killed_runs_left_is_cleaned(db: str, conn: Connection, tmp_path: Path) -> None:
    number = fill(db, "t", 200, conn=conn)
    old = tmp_path / "t" / "0" / f"{1:020d}-{9:020d}-{'0' * 12}.parquet"
    old.parent.mkdir(parents=True)
    old.write_text("of an earlier topic with this name")
    os.utime(old, (0, 0))
    calls.ensure_archive(conn, "t", str(tmp_path))
    calls.add_archive_files(conn, "t", [write_piece(db, "t", number, str(tmp_path), ArchiveRange(0, 1, 100))])
    left = [write_piece(db, "t", number, str(tmp_path), ArchiveRange(0, 101, 150)).path for _ in range(2)]
    other = tmp_path / "t" / "_delta_log" / "0.json"
    other.parent.mkdir()
    other.write_text("{}")
    before = set(tmp_path.rglob("*"))
    assert clean(db, "t").files == 0, "they are young"
    assert clean(db, "t", age=timedelta(0), dry_run=True).files == 2
    assert set(tmp_path.rglob("*")) == before
    with psycopg.connect(db) as run:
        calls.lock_archive(run, "t")
        with pytest.raises(Busy):
            clean(db, "t", age=timedelta(0))
    done = clean(db, "t", age=timedelta(0))
    assert done.files == 2 and done.bytes > 0
    assert before - set(tmp_path.rglob("*")) == {tmp_path / path for path in left}
    assert len(list(tiered_messages.read(db, "t"))) == 200
    with pytest.raises(TopicNotFound):
        clean(db, "nothing")


def test_reading_goes_from_archive_to_log(db: str, conn: Connection, tmp_path: Path) -> None:
    number = fill(db, "t", 400, partitions=2, conn=conn)
    before = [list(tiered_messages.read(db, "t"))]
    seal(conn)
    made = archive_all(db, conn, "t", number, tmp_path)
    assert len(made) > 2
    conn.execute("select trunkline.run_upkeep('retention')")
    assert lowest(conn, "t") > 1
    before.append(list(tiered_messages.read(db, "t")))
    first, second = (
        [(m.partition, m.offset, m.id, m.key, m.headers, m.payload, m.created_at) for m in each] for each in before
    )
    assert first == second
    assert len(first) == 400
    middle = first[250][-1]
    found = positions.spans(db, "t", middle)
    late = [(partition, offset) for partition, offset, *_, at in first if at >= middle]
    assert [(p, o) for p, (lo, hi) in found.items() for o in range(lo, hi)] == late
    path = tmp_path / made[0].path
    path.rename(path.with_suffix(".away"))
    with pytest.raises(ArchiveDamaged, match=made[0].path):
        list(tiered_messages.read(db, "t"))


def test_below_the_archive_is_a_clear_error(db: str, conn: Connection, tmp_path: Path) -> None:
    number = fill(db, "t", 200, conn=conn)
    seal(conn)
    conn.execute("select trunkline.run_upkeep('retention')")
    base = lowest(conn, "t")
    assert base > 1
    with pytest.raises(OffsetOutOfRange, match=f"below the earliest available offset, {base}"):
        list(tiered_messages.read(db, "t", start=1))
    calls.ensure_archive(conn, "t", str(tmp_path))
    with pytest.raises(OffsetOutOfRange):
        write_piece(db, "t", number, str(tmp_path), ArchiveRange(0, 1, 100))
    assert list(tmp_path.rglob("*.parquet")) == []


def test_no_message_is_ever_in_neither_place(db: str, connect: Callable[[], Connection], tmp_path: Path) -> None:
    """Publishing, archiving (by two at once, which die before or after each step) and retention run against each other."""
    conn = connect()
    number = fill(db, "t", 100, conn=conn)
    calls.require_archive(conn, "t")
    calls.ensure_archive(conn, "t", str(tmp_path))
    stop = threading.Event()
    failures: list[BaseException] = []

    def repeatedly(step: Callable[[Connection, int], None]) -> threading.Thread:
        def work() -> None:
            mine = connect()
            turn = 0
            try:
                while not stop.is_set():
                    with suppress(psycopg.errors.DeadlockDetected):
                        step(mine, turn)
                    turn += 1
            except BaseException as exc:
                failures.append(exc)
                stop.set()

        return threading.Thread(target=work)

    def archive(mine: Connection, turn: int) -> None:
        for piece in calls.plan_archive(mine, "t", rows=150, open=False)[:2]:
            try:
                made = write_piece(db, "t", number, str(tmp_path), piece)
            except OffsetOutOfRange:
                return  # the other one archived it, and retention dropped it already
            try:
                with mine.transaction():
                    calls.add_archive_files(mine, "t", [made])
                    if turn % 3 == 0:
                        raise InterruptedError
            except InterruptedError:
                return
            except psycopg.Error as exc:
                # the other one was faster
                if exc.sqlstate != "TL060":
                    raise

    def drop(mine: Connection, turn: int) -> None:
        mine.execute("select trunkline.run_upkeep('segments'), trunkline.run_upkeep('retention')")

    def publish(mine: Connection, turn: int) -> None:
        mine.execute("select trunkline.publish_many('t', array_fill('x'::bytea, array[40]))")

    threads = [repeatedly(step) for step in (archive, archive, drop, publish)]
    for thread in threads:
        thread.start()
    while not stop.is_set() and (stats := calls.archive_stats(conn, "t")[0]).earliest_live < 600:
        tiers = calls.archive_tiers(conn, "t", 0, 1, max(stats.head, 1))
        assert not [tier for tier in tiers if tier.tier == "gone"]
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures, failures
    read = list(tiered_messages.read(db, "t"))
    assert [each.offset for each in read] == list(range(1, len(read) + 1))
    assert len({each.id for each in read}) == len(read)


def create_again(db: str, conn: Connection, messages: int) -> int:
    conn.execute("select trunkline.delete_topic('t')")
    return fill(db, "t", messages, conn=conn)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_table_holds_one_topic_only(db: str, conn: Connection, tmp_path: Path, kind: str) -> None:
    """A topic that was created again has other messages at the same offsets."""
    pytest.importorskip("deltalake" if kind == "delta" else "pyiceberg")
    number = fill(db, "t", 200, conn=conn)
    seal(conn)
    before = archive_all(db, conn, "t", number, tmp_path)
    assert export(db, "t", kind).files == len(before)
    number = create_again(db, conn, 200)
    seal(conn)
    rows = sum(file.rows for file in archive_all(db, conn, "t", number, tmp_path))
    with pytest.raises(Conflict, match="has the files of another topic"):
        export(db, "t", kind)
    if kind == "iceberg":
        assert export(db, "t", kind, table="trunkline.other").rows == rows
    else:
        shutil.rmtree(tmp_path / "t" / "_delta_log")
        assert export(db, "t", kind).rows == rows > 0


def test_a_read_ends_where_the_topic_was_created_again(
    db: str, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiered_messages, "_PAGE", 100)
    fill(db, "t", 400, conn=conn)
    rows = tiered_messages.read(db, "t")
    first = [next(rows) for _ in range(100)]
    create_again(db, conn, 400)
    with pytest.raises(OffsetOutOfRange, match="created again"):
        next(rows)
    # also if that happens between the question where the messages are and the read
    rows, page = tiered_messages.read(db, "t"), tiered_messages.calls.read  # type: ignore[attr-defined]
    assert len(first) == 100

    def read_another(*args: Any, **options: Any) -> Any:
        create_again(db, conn, 400)
        return page(*args, **options)

    monkeypatch.setattr(tiered_messages.calls, "read", read_another)  # type: ignore[attr-defined]
    with pytest.raises(OffsetOutOfRange, match="created again"):
        next(rows)


def test_a_round_that_fails_gives_its_space_back(
    db: str, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One task fails, for example because the disk is full; the others have written their files."""
    number = fill(db, "t", 200, conn=conn)
    calls.ensure_archive(conn, "t", str(tmp_path))
    kept = write_piece(db, "t", number, str(tmp_path), ArchiveRange(0, 1, 100))

    def fails(run: Any, topic: str, topic_id: int, location: str, part: Any, name: str) -> list[NewFile]:
        write_piece(db, topic, topic_id, location, part[0], name)
        assert len(list(tmp_path.rglob("*.parquet"))) == 2
        raise InvalidArgument("No space left on device")

    monkeypatch.setattr(archiving, "_write", fails)
    with pytest.raises(InvalidArgument, match="No space left"):
        archiving._archive_part(None, "t", number, str(tmp_path), [ArchiveRange(0, 1, 100)])  # type: ignore[arg-type]
    assert list(tmp_path.rglob("*.parquet")) == [tmp_path / kept.path]
