"""Topics: create, ensure, alter, list, delete."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.conftest import Connection
from tests.sql.calls import Connect, call, contents, fetch, head, publish, read, refused, rows, run_upkeep, value


def test_create_answers_the_settings_and_list_shows_them(conn: Connection) -> None:
    [made] = call(conn, "create_topic", "b", 3, p_retention="2 days", p_retention_bytes=1000, p_max_payload=10)
    assert (made.name, made.partitions, made.retention_bytes, made.max_payload) == ("b", 3, 1000, 10)
    assert made.retention == timedelta(days=2)
    call(conn, "create_topic", "a")
    call(conn, "create_queue", "not-a-topic")
    assert [topic.name for topic in call(conn, "list_topics")] == ["a", "b"]


@pytest.mark.parametrize("name", ["order", "My-Queue", "select", "0", ".", "-_.", "Z" * 200])
def test_any_name_of_letters_digits_and_marks_works(conn: Connection, name: str) -> None:
    call(conn, "create_topic", name)
    call(conn, "create_queue", name)
    publish(conn, name, 1)
    assert [(message.topic, message.payload) for message in read(conn, name)] == [(name, b"1")]


def test_names_equal_in_63_bytes_or_but_for_case_are_distinct(conn: Connection) -> None:
    names = ["n" * 63 + "1", "n" * 63 + "2", "n" * 63, "N" * 63]
    for name in names:
        call(conn, "create_topic", name)
        publish(conn, name, name)
    for name in names:
        assert contents(read(conn, name)) == [name]


def test_create_twice_is_refused_and_ensure_is_not(conn: Connection) -> None:
    [made] = call(conn, "create_topic", "t", 2)
    with refused("TL020", '"t"'):
        call(conn, "create_topic", "t")
    assert call(conn, "ensure_topic", "t") == call(conn, "ensure_topic", "t", 2) == [made]
    with refused("TL020", "2 partitions"):
        call(conn, "ensure_topic", "t", 3)
    assert call(conn, "ensure_topic", "new", 4)[0].partitions == 4


def test_alter_changes_what_is_given_and_keeps_the_rest(conn: Connection) -> None:
    call(conn, "create_topic", "t", 2, p_retention="2 days", p_max_payload=100)
    [changed] = call(conn, "alter_topic", "t", p_max_payload=5)
    assert (changed.partitions, changed.retention, changed.max_payload) == (2, timedelta(days=2), 5)
    publish(conn, "t", 12345)
    with refused("TL003", "5"):
        publish(conn, "t", 123456)


def test_partitions_can_be_added_and_readers_follow(conn: Connection) -> None:
    call(conn, "create_topic", "t")
    call(conn, "create_group", "t", "g")
    call(conn, "create_queue", "q")
    call(conn, "subscribe", "q", "t")
    call(conn, "alter_topic", "t", p_partitions=3)
    for n in range(30):
        publish(conn, "t", n, p_key=str(n))
    assert all(head(conn, "t", partition) > 0 for partition in range(3))
    got = [message for _ in range(5) for message in fetch(conn, "t")]
    assert sorted(contents(got)) == list(range(30))
    assert sorted(contents(call(conn, "claim", "q", 100))) == list(range(30))
    with refused("TL023", "3 partitions"):
        call(conn, "alter_topic", "t", p_partitions=2)


def test_a_key_always_maps_to_the_same_partition(conn: Connection) -> None:
    call(conn, "create_topic", "t", 8)
    for _ in range(3):
        for key in "abcdefghij":
            publish(conn, "t", key, p_key=key)
    homes: dict[str, set[int]] = {}
    for partition in range(8):
        for message in read(conn, "t", partition=partition):
            homes.setdefault(message.key, set()).add(partition)
    assert len(homes) == 10
    assert all(len(partitions) == 1 for partitions in homes.values())
    assert len(set.union(*homes.values())) > 1


def test_delete_leaves_no_table_sequence_or_function_behind(conn: Connection) -> None:
    objects = (
        "select relname from pg_class where relnamespace = 'trunkline'::regnamespace union all"
        " select proname from pg_proc where pronamespace = 'trunkline'::regnamespace order by 1"
    )
    before = rows(conn, objects)
    call(conn, "create_topic", "t", 2, p_segment_rows=16)
    for n in range(100):
        publish(conn, "t", n)
    head(conn, "t")
    call(conn, "delete_topic", "t")
    assert value(conn, "select count(*) from trunkline.logs where topic_id > 0") == 0
    # the first run notes transactions that may know the topic, the second one drops its tables
    run_upkeep(conn, "retention", 2)
    assert rows(conn, objects) == before
    with refused("TL010", '"t"'):
        publish(conn, "t", 1)


def test_delete_is_refused_while_somebody_reads(conn: Connection) -> None:
    call(conn, "create_topic", "t")
    call(conn, "create_group", "t", "billing")
    call(conn, "create_queue", "mail")
    call(conn, "subscribe", "mail", "t")
    with refused("TL021", 'group "billing"'):
        call(conn, "delete_topic", "t")
    call(conn, "delete_topic", "t", True)
    assert call(conn, "list_topics") == call(conn, "list_subscriptions") == []
    assert call(conn, "claim", "mail") == []


def test_delete_does_not_wait_for_an_open_publisher(conn: Connection, connect: Connect) -> None:
    call(conn, "create_topic", "t")
    other = connect()
    other.execute("begin")
    publish(other, "t", 1)
    with refused("55P03"):
        call(conn, "delete_topic", "t")
    other.execute("commit")
    assert contents(read(conn, "t")) == [1]


def test_a_topic_made_again_starts_from_nothing(conn: Connection) -> None:
    call(conn, "create_topic", "t")
    publish(conn, "t", "old")
    head(conn, "t")
    call(conn, "delete_topic", "t")
    call(conn, "create_topic", "t")
    assert head(conn, "t") == 0
    publish(conn, "t", "new")
    assert [(m.log_offset, m.payload) for m in read(conn, "t")] == [(1, b'"new"')]


def test_ensure_makes_it_so(conn: Connection) -> None:
    first = call(conn, "ensure_topic", "t", p_retention="2 days", p_retention_bytes=1000)[0]
    assert (first.partitions, first.retention_bytes, first.max_payload) == (1, 1000, 1048576)
    assert call(conn, "ensure_topic", "t") == call(conn, "ensure_topic", "t", 1, "48 hours", 1000) == [first]
    changed = call(conn, "ensure_topic", "t", p_hard_retention="3 days", p_retention_bytes=0, p_max_payload=10)[0]
    assert (changed.retention, changed.retention_bytes, changed.max_payload) == (first.retention, None, 10)
    assert call(conn, "get_topic", "t") == [changed]
    with refused("TL003"):
        publish(conn, "t", "longer than ten bytes")


def test_lists_come_in_pages(conn: Connection) -> None:
    for name in "cab":
        call(conn, "create_topic", name)
        call(conn, "create_group", name, "g")
    assert [row.name for row in call(conn, "list_topics", "a", 1)] == ["b"]
    assert [row.topic for row in call(conn, "list_groups", None, "a/g")] == ["b", "c"]
    for verb in ("list_topics", "list_queues", "list_groups"):
        for limit in (0, -1):
            with refused("TL001", "limit"):
                call(conn, verb, p_limit=limit)
