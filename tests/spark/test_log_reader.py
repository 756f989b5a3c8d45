"""Reading a range as Arrow, without Spark: exact, in order, also where many publish at once, and loud about what is gone."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from datetime import timedelta

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo

from tests.conftest import Clock, Connection, Servers
from trunkline.errors import InvalidArgument, OffsetAhead, OffsetOutOfRange, TopicNotFound
from trunkline.spark.database import close_all
from trunkline.spark.options import Selection
from trunkline.spark.source.columns import selected
from trunkline.spark.source.log_reader import LOG_SCHEMA, heads, read_range, resolved
from trunkline.spark.source.ranges import OffsetRange


def publish(conn: Connection, topic: str, count: int, first: int = 0) -> None:
    conn.execute(
        "select trunkline.publish(%s, to_jsonb(n), p_key => 'k' || n %% 7, p_routing_key => 'a.' || n %% 3,"
        " p_label => 'l' || n %% 2)"
        " from generate_series(%s::int, %s::int) n",
        (topic, first, first + count - 1),
    )


def read(db: str, range_: OffsetRange, columns: list[str] | None = None, **options: object) -> pa.Table:
    names = LOG_SCHEMA.names if columns is None else columns
    batches = list(read_range(db, range_, columns, **options))  # type: ignore[arg-type]
    return pa.Table.from_batches(
        batches, schema=batches[0].schema if batches else pa.schema([LOG_SCHEMA.field(n) for n in names])
    )


def test_heads_count_what_is_committed(db: str, conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('t', 2), trunkline.create_topic('u')")
    publish(conn, "u", 5)
    found = heads(db, ["u", "t"])
    assert [(head.topic, head.partition, head.base, head.head) for head in found] == [
        ("t", 0, 1, 1),
        ("t", 1, 1, 1),
        ("u", 0, 1, 6),
    ]
    with pytest.raises(TopicNotFound):
        heads(db, ["nobody"])


def test_a_range_is_what_the_log_says(db: str, conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('t')")
    publish(conn, "t", 2500)
    head = heads(db, ["t"])[0]
    whole = read(db, OffsetRange("t", head.topic_id, 0, 1, head.head))
    assert whole.schema == LOG_SCHEMA
    expected = conn.execute(
        "select log_offset, id::text, key, routing_key, label, payload, content_type, created_at"
        " from trunkline.read('t', 0, 1, 10000)"
    ).fetchall()
    names = ["offset", "id", "key", "routing_key", "label", "payload", "content_type", "created_at"]
    assert [tuple(row.values()) for row in whole.select(names).to_pylist()] == expected
    part = read(db, OffsetRange("t", head.topic_id, 0, 997, 1004), ["payload", "offset"])
    assert part.to_pylist() == [{"payload": str(n - 1).encode(), "offset": n} for n in range(997, 1004)]
    assert read(db, OffsetRange("t", head.topic_id, 0, 5, 5)).num_rows == 0


def test_a_selection_leaves_what_matches(db: str, conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('t')")
    publish(conn, "t", 420)
    range_ = OffsetRange("t", heads(db, ["t"])[0].topic_id, 0, 1, 421)

    def offsets(**selection: str) -> list[int]:
        found: list[int] = read(db, range_, ["offset"], selection=Selection(**selection)).column("offset").to_pylist()
        return found

    assert offsets(key="k3") == [n + 1 for n in range(420) if n % 7 == 3]
    assert offsets(label="l1", routing_key="a.#") == [n + 1 for n in range(420) if n % 2 == 1]
    assert offsets(routing_key="*.2", key="k0", label="l0") == [n + 1 for n in range(420) if n % 42 == 14]
    assert offsets(key="it's \\ none") == []


def test_times_that_arrow_cannot_represent_are_refused(db: str, conn: Connection) -> None:
    """Publishing refuses them; a table of an earlier version may have some."""
    conn.execute("select trunkline.create_topic('t')")
    publish(conn, "t", 5)
    (head,) = heads(db, ["t"])
    update = f"update trunkline.topic_{head.topic_id} set occurred_at = %s where payload = '3'"
    for at in ("infinity", "-infinity", "294276-01-01"):
        conn.execute(update.encode(), (at,))
        with pytest.raises(InvalidArgument, match="occurred_at of offset 4 is outside of the years 1 to 9999"):
            read(db, OffsetRange("t", head.topic_id, 0, 1, 6))
    assert read(db, OffsetRange("t", head.topic_id, 0, 1, 6), ["offset", "payload"]).num_rows == 5


_WORDS = [
    "a",
    "b",
    "ab",
    "",
    "é",
    "größe",
    "日本",
    "x-y",
    "(a",
    "[b]",
    "a+",
    "$",
    "^a",
    "a|b",
    "{2}",
    "\\",
    "?",
    "b c",
    "\n",
]


def _matches(words: list[str], pattern: list[str]) -> bool:
    """The rules themselves: * is one word that is not empty, # any number of words."""
    if not pattern:
        return not words
    first, rest = pattern[0], pattern[1:]
    if first == "#":
        return any(_matches(words[n:], rest) for n in range(len(words) + 1))
    return bool(words) and (first == words[0] or (first == "*" and words[0] != "")) and _matches(words[1:], rest)


def _expected(key: str | None, pattern: str) -> bool:
    words = (key or "").split(".")
    return _matches(words, pattern.split(".")) or (not key and _matches([], pattern.split(".")))


def test_patterns_mean_the_same_in_the_log_the_archive_and_a_group(db: str, conn: Connection) -> None:
    """Random patterns over random routing keys: by SQL, by Arrow (which filters what is archived), and by the rules."""
    source = random.Random(11)
    keys: list[str | None] = [None, "", ".", "a..b"]
    keys += [".".join(source.choice(_WORDS) for _ in range(source.randint(1, 4))) for _ in range(150)]
    conn.execute("select trunkline.create_topic('t')")
    conn.execute("select count(trunkline.publish('t', 'null', p_routing_key => k)) from unnest(%s::text[]) k", (keys,))
    range_ = OffsetRange("t", heads(db, ["t"])[0].topic_id, 0, 1, len(keys) + 1)
    table = pa.record_batch({"offset": pa.array(range(1, len(keys) + 1)), "routing_key": pa.array(keys, pa.string())})
    made = [".".join(source.choice([*_WORDS, *"*#*#*#"]) for _ in range(source.randint(1, 4))) for _ in range(60)]
    hits = 0
    for number, pattern in enumerate(["#", "#.#", "*", "a.#", *(pattern for pattern in made if pattern)]):
        wanted = [offset for offset, key in enumerate(keys, 1) if _expected(key, pattern)]
        selection = resolved(db, Selection(routing_key=pattern))
        assert read(db, range_, ["offset"], selection=selection).column("offset").to_pylist() == wanted, pattern
        assert selected(table, selection).column("offset").to_pylist() == wanted, pattern
        if number < 4:
            group = f"g{number}"
            conn.execute("select trunkline.create_group('t', %s, 'earliest', p_pattern => %s)", (group, pattern))
            fetched = conn.execute("select log_offset from trunkline.fetch('t', %s, 'me', 1000)", (group,)).fetchall()
            assert [row[0] for row in fetched] == wanted, pattern
        hits += len(wanted)
    assert hits > 500


def test_a_fragmented_log_is_read_in_windows_of_bounded_size(
    db: str, connect: Callable[[], Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where small messages are followed by large ones."""
    conn, late = connect(), connect()
    conn.execute("select trunkline.create_topic('t')")
    sizes = [10] * 120 + [20_000] * 40 + [150_000] * 4 + [10] * 40
    for size in sizes:
        late.execute("begin")
        late.execute("select trunkline.publish('t', to_jsonb(repeat('x', %s)))", (size,))
        conn.execute("select trunkline.publish('t', to_jsonb(repeat('y', %s)))", (size,))
        conn.execute("call trunkline.sequence()")
        late.execute("commit")
        conn.execute("call trunkline.sequence()")
    (head,) = heads(db, ["t"])
    monkeypatch.setattr("trunkline.spark.source.log_reader._WINDOW_BYTES", 60_000)
    monkeypatch.setattr("trunkline.spark.source.log_reader._BATCH_BYTES", 30_000)
    batches = list(read_range(db, OffsetRange("t", head.topic_id, 0, 1, head.head), ["offset", "payload"]))
    assert [at for batch in batches for at in batch.column("offset").to_pylist()] == list(range(1, 2 * len(sizes) + 1))
    payloads = [value for batch in batches for value in batch.column("payload").to_pylist()]
    assert [len(value) - 2 for value in payloads] == [size for size in sizes for _ in range(2)]
    assert max(batch.nbytes for batch in batches if batch.num_rows > 1) <= 2 * 60_000
    assert len(batches) < len(payloads) / 2


def test_ticks_are_scanned_not_searched_one_by_one(db: str, conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('t')")
    for n in range(300):
        publish(conn, "t", 2, first=2 * n)
        conn.execute("call trunkline.sequence()")
    (head,) = heads(db, ["t"])
    conn.execute("set track_functions = 'pl'")
    (rows,) = conn.execute(
        "select sum(n)::int from trunkline.log_runs('t', %s, 0, 2, 600)", (head.topic_id,)
    ).fetchone() or (0,)
    assert rows == 598
    conn.execute("select pg_stat_force_next_flush()")
    (calls,) = conn.execute(
        "select coalesce(sum(calls), 0)::int from pg_stat_user_functions where funcname in ('_tick_of', '_next_ticks')"
    ).fetchone() or (0,)
    assert 1 <= calls <= 10
    # any range gives the same as the messages say
    expected = [row[0] for row in conn.execute("select payload from trunkline.read('t', 0, 1, 1000)")]
    for lo, hi in ((1, 601), (2, 3), (2, 4), (3, 600), (599, 601), (600, 601)):
        table = read(db, OffsetRange("t", head.topic_id, 0, lo, hi), ["payload"])
        assert table.column("payload").to_pylist() == expected[lo - 1 : hi - 1]


def test_many_publishers_and_late_commits(db: str, connect: Callable[[], Connection]) -> None:
    """Ids jump back and forth, some by far: offsets do not."""
    conn = connect()
    conn.execute("select trunkline.create_topic('t', p_segment_rows => 512)")
    late = connect()
    late.execute("begin")
    publish(late, "t", 3, first=900_000)

    def publisher(number: int) -> None:
        mine = connect()
        for step in range(25):
            with mine.transaction(force_rollback=step % 10 == 9):
                publish(mine, "t", 4, first=number * 1000 + step * 4)

    threads = [threading.Thread(target=publisher, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        conn.execute("call trunkline.sequence()")
    late.execute("commit")
    head = heads(db, ["t"])[0]
    runs = conn.execute("select count(*) from trunkline.log_runs('t', null, 0, 1, %s)", (head.head,)).fetchone()
    assert runs is not None and runs[0] > 10, "the log is not fragmented: the test shows nothing"
    found = read(db, OffsetRange("t", head.topic_id, 0, 1, head.head), ["offset", "payload", "key"])
    assert np.array_equal(found.column("offset").to_numpy(), np.arange(1, head.head))
    expected = []
    for at in range(1, head.head, 1000):
        expected += conn.execute("select log_offset, payload, key from trunkline.read('t', 0, %s, 1000)", (at,)).fetchall()
    assert [tuple(row.values()) for row in found.to_pylist()] == expected[: head.head - 1]
    # the same range in other pieces, and after ticks were folded together
    conn.execute("select trunkline.run_upkeep('rotate')")
    conn.execute("select trunkline.run_upkeep('rotate')")
    again = [
        read(db, OffsetRange("t", head.topic_id, 0, lo, min(lo + 100, head.head)), ["offset", "payload", "key"])
        for lo in range(1, head.head, 100)
    ]
    assert pa.concat_tables(again).equals(found)


def test_what_retention_took_is_told(db: str, conn: Connection, clock: Clock) -> None:
    conn.execute("select trunkline.create_topic('t', p_retention => '1 hour', p_segment_rows => 16)")
    publish(conn, "t", 100)
    topic_id = heads(db, ["t"])[0].topic_id
    for _ in range(2):
        conn.execute("select trunkline.run_upkeep('segments')")
    clock.advance(timedelta(hours=2))
    for _ in range(3):
        conn.execute("select trunkline.run_upkeep('segments')")
        conn.execute("select trunkline.run_upkeep('retention')")
    base = heads(db, ["t"])[0].base
    assert base > 1
    with pytest.raises(OffsetOutOfRange, match=f"the earliest available offset is {base}"):
        read(db, OffsetRange("t", topic_id, 0, 1, 101))
    assert read(db, OffsetRange("t", topic_id, 0, base, 101)).num_rows == 101 - base
    with pytest.raises(OffsetOutOfRange):
        read(db, OffsetRange("t", topic_id, 0, base - 1, 101), selection=Selection(key="nobody"))
    with pytest.raises(OffsetAhead, match="is out of range: the head of topic"):
        read(db, OffsetRange("t", topic_id, 0, base, 102))
    with pytest.raises(OffsetOutOfRange, match="created again"):
        read(db, OffsetRange("t", topic_id + 1, 0, base, 101))


def test_rows_that_vanish_during_the_read(db: str, conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention empties a segment between the query of the runs and the read."""
    from trunkline.spark.source import log_reader

    conn.execute("select trunkline.create_topic('t', p_segment_rows => 16)")
    publish(conn, "t", 60)
    head = heads(db, ["t"])[0]
    rows = log_reader._rows

    def emptied_first(*args: object, **options: object) -> object:
        conn.execute("select trunkline._empty_segment(%s, 0, 0, 15)", (head.topic_id,))
        return rows(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(log_reader, "_rows", emptied_first)
    with pytest.raises(OffsetOutOfRange, match="offset 1 is gone"):
        read(db, OffsetRange("t", head.topic_id, 0, 1, 61))


def test_a_reader_needs_no_right_on_tables(db: str, conn: Connection, servers: Servers) -> None:
    conn.execute("select trunkline.create_topic('t')")
    publish(conn, "t", 3000)
    name = f"reader_{conn.info.backend_pid}"
    conn.execute(f"create role {name} login password 'x' in role trunkline_reader")
    try:
        head = heads(db, ["t"])[0]
        mine = make_conninfo(db, user=name, password="x")
        assert heads(mine, ["t"]) == [head]
        for range_ in (OffsetRange("t", head.topic_id, 0, 1, 3001), OffsetRange("t", head.topic_id, 0, 1234, 2345)):
            assert read(mine, range_).equals(read(db, range_))
        with pytest.raises(psycopg.errors.InsufficientPrivilege), psycopg.connect(mine) as other:
            other.execute(f"select * from trunkline.topic_{head.topic_id}")
    finally:
        close_all()
        conn.execute(f"drop role {name}")


@pytest.mark.parametrize("size", [0, 1_048_576])
def test_smallest_and_largest_payloads(db: str, conn: Connection, size: int) -> None:
    conn.execute("select trunkline.create_topic('t')")
    conn.execute("select trunkline.publish_bytes('t', decode(repeat('ab', %s), 'hex')) from generate_series(1, 5)", (size,))
    found = read(db, OffsetRange("t", heads(db, ["t"])[0].topic_id, 0, 1, 6), ["payload"])
    assert [len(payload) for payload in found.column("payload").to_pylist()] == [size] * 5


def test_a_lost_connection_is_replaced(db: str, conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('t')")
    publish(conn, "t", 3)
    range_ = OffsetRange("t", heads(db, ["t"])[0].topic_id, 0, 1, 4)
    assert read(db, range_).num_rows == 3
    conn.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
    )
    assert read(db, range_).num_rows == 3
    assert heads(db, ["t"])[0].head == 4
