"""Administration of topics, queues and subscriptions."""

from __future__ import annotations

import pytest

from tests.conftest import Clock, Connection
from tests.sql.calls import (
    assert_conserved,
    call,
    claim,
    claim_all,
    commit,
    contents,
    enqueue,
    fetch,
    passes,
    publish,
    queue_stats,
    read,
    refused,
    run_upkeep,
    settle,
    settle_all,
    value,
)

ODD_NAMES = ["order", "select", "My-Queue", "x_dead_letter", "a.b", "q" * 63, "q" * 64, "q" * 200]


def test_a_topic_is_created_by_one_call(conn: Connection) -> None:
    """One call, by name; nothing else is needed to publish and read."""
    [topic] = call(conn, "create_topic", "orders")
    assert (topic.name, topic.partitions) == ("orders", 1)
    [id_] = publish(conn, "orders", 1)
    assert [message.id for message in read(conn, "orders")] == [id_]


def test_ensure_repeats_and_create_conflicts(conn: Connection) -> None:
    """Ensure: again and again the same topic. Create: a conflict. Neither touches what is in it."""
    [first] = call(conn, "create_topic", "t", 3)
    publish(conn, "t", 1, p_key="k")
    assert call(conn, "ensure_topic", "t") == call(conn, "ensure_topic", "t", 3) == [first]
    with refused("TL020", '"t"'):
        call(conn, "create_topic", "t")
    with refused("TL020", "3 partitions"):
        call(conn, "ensure_topic", "t", 4)
    assert sum(row.head for row in call(conn, "topic_stats", "t")) == 1
    assert [topic.name for topic in call(conn, "ensure_topic", "new")] == ["new"]


def test_topics_are_listed_and_deleted_with_their_groups(conn: Connection) -> None:
    """With its groups and their lag."""
    for name in ("b", "a"):
        call(conn, "create_topic", name)
    publish(conn, "a", *range(5))
    assert commit(conn, "a", fetch(conn, "a", p_limit=2)) == "done"
    assert [topic.name for topic in call(conn, "list_topics")] == ["a", "b"]
    [stats] = call(conn, "topic_stats", "a")
    assert (stats.earliest_offset, stats.head) == (1, 5)
    [group] = call(conn, "group_stats", "a")
    assert (group.group_name, group.next_offset, group.lag, group.member) == ("g", 3, 3, "m")
    with refused("TL021", 'group "g"'):
        call(conn, "delete_topic", "a")
    call(conn, "delete_topic", "a", True)
    call(conn, "delete_topic", "b")
    assert call(conn, "list_topics") == call(conn, "group_stats") == []
    with refused("TL010"):
        read(conn, "a")


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_queue_may_have_any_legal_name(conn: Connection, name: str) -> None:
    """Any legal name, reserved words too; two names that begin alike are two queues."""
    call(conn, "create_queue", name)
    other = name[:-1] + "z"
    call(conn, "create_queue", other)
    enqueue(conn, name, 1)
    assert claim(conn, other) == []
    [delivery] = claim(conn, name)
    assert settle(conn, "bury", delivery.receipt) == ["done"]
    assert len(call(conn, "list_dead_letters", name)) == 1
    assert call(conn, "list_dead_letters", other) == []


def test_changed_settings_apply_to_existing_messages(conn: Connection, clock: Clock) -> None:
    """The given settings change at once, also for existing messages; the others stay."""
    [before] = call(conn, "create_queue", "q", p_max_attempts=7)
    enqueue(conn, "q", 1)
    [after] = call(conn, "alter_queue", "q", p_lease="2 hours", p_max_attempts=1, p_delivery_delay="1 minute")
    assert (after.max_attempts, after.backoff_cap, after.ordered) == (1, before.backoff_cap, before.ordered)
    assert claim(conn, "q") == []
    clock.advance(61)
    [delivery] = claim(conn, "q")
    clock.advance(3600)
    assert settle(conn, "nack", delivery.receipt) == ["done"]
    assert queue_stats(conn, "q").dead == 1
    with refused("TL005", "lease"):
        call(conn, "alter_queue", "q", p_lease="-1 second")
    assert call(conn, "list_queues")[0].max_attempts == 1


def test_queues_are_listed_in_pages_by_name(conn: Connection) -> None:
    """In the order of their names, so that pages of any size visit each once; the total is a count."""
    names = [f"q{n:02}" for n in range(25)]
    for name in reversed(names):
        call(conn, "create_queue", name)
    seen: list[str] = []
    while page := call(conn, "list_queues", p_after=seen[-1] if seen else None, p_limit=10):
        assert len(page) <= 10
        seen += [row.name for row in page]
    assert seen == names
    assert value(conn, "select count(*) from trunkline.list_queues()") == 25
    [one] = call(conn, "get_queue", "q07")
    assert (one.max_attempts, one.paused) == (20, False)


def test_deleting_a_queue_leaves_nothing_behind(conn: Connection, clock: Clock) -> None:
    """And nothing of it stays behind, no schedule either that fed it."""
    call(conn, "create_topic", "t")
    relations = value(conn, "select count(*) from pg_class where relnamespace = 'trunkline'::regnamespace")
    functions = value(conn, "select count(*) from pg_proc where pronamespace = 'trunkline'::regnamespace")
    call(conn, "create_queue", "q")
    call(conn, "subscribe", "q", "t")
    enqueue(conn, "q", 1, 2, 3)
    enqueue(conn, "q", 4, p_delay="1 hour")
    publish(conn, "t", 5)
    first, second, *_ = claim(conn, "q", 2)
    settle(conn, "nack", first.receipt)
    settle(conn, "bury", second.receipt)
    call(conn, "create_schedule", "tick", "* * * * *", p_queue="q")
    with refused("TL021", "dead letters"):
        call(conn, "delete_queue", "q")
    call(conn, "delete_queue", "q", True)
    assert call(conn, "list_subscriptions") == call(conn, "list_queues") == []
    for table in ("dead_letters", "cursors"):
        assert value(conn, f"select count(*) from trunkline.{table}") == 0, table
    # Messages that were leased and returned, or were delayed, are removed by the rotation.
    conn.execute("update trunkline.settings set value = '0' where name = 'rotate_bytes'")
    run_upkeep(conn, "delayed", 4)
    assert value(conn, "select count(*) from trunkline.delayed") == 0
    for _ in range(3):
        passes(conn)
        run_upkeep(conn, "rotate")
    for table in ("leases", "settled", "extensions", "returns", "later", "cursor_states"):
        assert value(conn, f"select count(*) from trunkline.{table}") == 0, table
    # upkeep drops the tables in its second run, and the sequences
    run_upkeep(conn, "retention", 2)
    run_upkeep(conn, "windows")
    assert value(conn, "select count(*) from pg_class where relnamespace = 'trunkline'::regnamespace") == relations
    assert value(conn, "select count(*) from pg_proc where pronamespace = 'trunkline'::regnamespace") == functions
    clock.advance(120)
    assert run_upkeep(conn, "schedules", 2) == [0, 0]
    assert call(conn, "list_schedules") == []
    assert contents(read(conn, "t")) == [5]


def test_a_purge_counts_and_keeps_leased_messages(conn: Connection) -> None:
    """With the count; what is out with a consumer stays out."""
    call(conn, "create_queue", "q")
    enqueue(conn, "q", *range(30))
    [kept, *back] = claim(conn, "q", 13)
    settle_all(conn, "nack", back)
    enqueue(conn, "q", *range(12), p_delay="1 hour")
    counts = [value(conn, "select trunkline.purge_queue('q')") for _ in range(2)]
    # what is in the queue goes with one row per cursor; what is not yet due is dropped when it is
    assert counts == [29 + 12, 0]
    stats = queue_stats(conn, "q")
    assert (stats.ready, stats.delayed, stats.leased, stats.purged) == (0, 0, 1, 29 + 12)
    assert settle(conn, "ack", kept.receipt) == ["done"]
    assert_conserved(conn, "q")
    enqueue(conn, "q", "next")
    assert contents(claim(conn, "q")) == ["next"]


def test_queues_and_topics_are_subscribed_many_to_many(conn: Connection) -> None:
    """One queue from several topics and its own inbox, one topic to several queues; no copy is made."""
    for topic in ("orders", "users"):
        call(conn, "create_topic", topic)
    for queue in ("mail", "audit"):
        call(conn, "create_queue", queue)
        call(conn, "subscribe", queue, "orders")
    call(conn, "subscribe", "mail", "users", "user.*", '{"country": ["de", "fr"]}')
    publish(conn, "orders", "order")
    publish(conn, "users", "user", p_routing_key="user.new", p_headers='{"country": "fr"}')
    publish(conn, "users", "filtered", p_routing_key="user.new", p_headers='{"country": "us"}')
    publish(conn, "users", "other key", p_routing_key="user.new.twice", p_headers='{"country": "fr"}')
    enqueue(conn, "mail", "own")
    assert sorted(contents(claim_all(conn, "mail"))) == ["order", "own", "user"]
    assert contents(claim_all(conn, "audit")) == ["order"]
    assert sum(row.head for row in call(conn, "topic_stats")) == 4


def test_subscriptions_are_listed_and_deleted(conn: Connection) -> None:
    call(conn, "create_topic", "t")
    call(conn, "create_queue", "q")
    call(conn, "subscribe", "q", "t", "a.*", '{"x": "1"}', p_name="first")
    call(conn, "subscribe", "q", "t", "b.*", p_name="second")
    found = call(conn, "list_subscriptions", "q")
    assert [(s.name, s.topic, s.pattern, s.filter) for s in found] == [
        ("first", "t", "a.*", {"x": "1"}),
        ("second", "t", "b.*", None),
    ]
    call(conn, "unsubscribe", "q", "first")
    publish(conn, "t", 1, p_routing_key="a.x", p_headers='{"x": "1"}')
    publish(conn, "t", 2, p_routing_key="b.x")
    assert contents(claim_all(conn, "q")) == [2]
    with refused("TL013", "first"):
        call(conn, "unsubscribe", "q", "first")
    assert [s.name for s in call(conn, "list_subscriptions")] == ["second"]


@pytest.mark.parametrize("name", ["", "a" * 201, "a b", "a/b", "ä", "a;b", "'", "a\n", None])
def test_an_illegal_name_is_refused_with_the_rule(conn: Connection, name: str | None) -> None:
    """One rule for all things with a name, with a limit of length; the error says the rule."""
    call(conn, "create_topic", "t")
    call(conn, "create_queue", "q")
    for verb, args in (
        ("create_topic", [name]),
        ("ensure_topic", [name]),
        ("create_queue", [name]),
        ("ensure_queue", [name]),
        ("create_group", ["t", name]),
        ("fetch", ["t", "g", name]),
        ("create_schedule", [name, "* * * * *", "t"]),
    ):
        with refused("TL002", "1 to 200 characters, only letters, digits"):
            call(conn, verb, *args)
    if name is not None:
        with refused("TL002"):
            call(conn, "subscribe", "q", "t", p_name=name)
    assert [topic.name for topic in call(conn, "list_topics")] == ["t"]
