"""explain_message tells the right reason in every state a message can be in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from tests.conftest import Clock, Connection
from tests.sql.calls import claim, commit, enqueue, fetch, passes, publish, refused, run_upkeep, settle, value


def explain(conn: Connection, message: Any) -> dict[str, Any]:
    answer: dict[str, Any] = value(conn, "select trunkline.explain_message(%s)", message)
    return answer


def reader(conn: Connection, message: Any) -> dict[str, Any]:
    [only] = explain(conn, message)["readers"]
    result: dict[str, Any] = only
    return result


def queue(conn: Connection, *messages: Any, **settings: Any) -> list[Any]:
    """A queue with these messages in it, all of them with an offset."""
    named = "".join(f", p_{name} => %({name})s" for name in settings)
    conn.execute(f"select trunkline.create_queue('q'{named})".encode(), settings)
    made = enqueue(conn, "q", *messages)
    run_upkeep(conn, "sequence")
    return made


def waiting(conn: Connection, clock: Clock) -> Any:
    return queue(conn, 1, 2, 3)[2]


def paused(conn: Connection, clock: Clock) -> Any:
    [message] = queue(conn, 1)
    conn.execute("select trunkline.pause_queue('q')")
    return message


def delayed_by_the_queue(conn: Connection, clock: Clock) -> Any:
    return queue(conn, 1, delivery_delay="1 hour")[0]


def leased(conn: Connection, clock: Clock) -> Any:
    [message] = queue(conn, 1)
    claim(conn, "q", p_consumer="anna")
    return message


def lease_ended(conn: Connection, clock: Clock) -> Any:
    message = leased(conn, clock)
    clock.advance(31)
    return message


def acked(conn: Connection, clock: Clock) -> Any:
    [message] = queue(conn, 1)
    settle(conn, "ack", claim(conn, "q", p_consumer="anna")[0].receipt)
    return message


def acked_and_rotated(conn: Connection, clock: Clock) -> Any:
    message = acked(conn, clock)
    passes(conn)
    enqueue(conn, "q", 2)
    claim(conn, "q")
    run_upkeep(conn, "rotate", 4)
    return message


def nacked(conn: Connection, clock: Clock) -> Any:
    [message] = queue(conn, 1)
    settle(conn, "nack", claim(conn, "q")[0].receipt, p_delay="1 minute", p_error="boom")
    return message


def nacked_and_due(conn: Connection, clock: Clock) -> Any:
    message = nacked(conn, clock)
    clock.advance(61)
    return message


def second_attempt(conn: Connection, clock: Clock) -> Any:
    message = nacked_and_due(conn, clock)
    claim(conn, "q", p_consumer="bert")
    return message


def passed_over(conn: Connection, clock: Clock) -> Any:
    [message] = queue(conn, 1)
    claim(conn, "q", p_labels=["mail"])
    return message


def dead(conn: Connection, clock: Clock) -> Any:
    [message] = queue(conn, 1, max_attempts=1)
    settle(conn, "nack", claim(conn, "q")[0].receipt, p_error="boom")
    return message


def buried(conn: Connection, clock: Clock) -> Any:
    [message] = queue(conn, 1)
    settle(conn, "bury", claim(conn, "q")[0].receipt, p_error="useless")
    return message


def dead_and_gone(conn: Connection, clock: Clock) -> Any:
    message = dead(conn, clock)
    conn.execute("select trunkline.purge_dead_letters('q')")
    return message


def too_old(conn: Connection, clock: Clock) -> Any:
    [message] = queue(conn, 1, ttl="1 minute")
    clock.advance(61)
    return message


def too_old_when_its_turn_came(conn: Connection, clock: Clock) -> Any:
    conn.execute("select trunkline.create_queue('q', p_ttl => '1 minute')")
    enqueue(conn, "q", 0)
    claim(conn, "q")
    [message] = enqueue(conn, "q", 1)
    clock.advance(61)
    enqueue(conn, "q", 2)
    claim(conn, "q", 1)
    return message


def purged(conn: Connection, clock: Clock) -> Any:
    conn.execute("select trunkline.create_queue('q')")
    enqueue(conn, "q", 0)
    claim(conn, "q")
    [message] = enqueue(conn, "q", 1)
    conn.execute("select trunkline.purge_queue('q')")
    return message


def blocked(conn: Connection, clock: Clock) -> Any:
    _, second = queue(conn, 1, 2, ordered=True)
    claim(conn, "q", 1, p_consumer="anna")
    return second


def other_key(conn: Connection, clock: Clock) -> Any:
    conn.execute("select trunkline.create_topic('t')")
    conn.execute("select trunkline.create_queue('q')")
    conn.execute("select trunkline.subscribe('q', 't', 'order.*')")
    [message] = publish(conn, "t", 1, p_routing_key="mail.sent")
    run_upkeep(conn, "sequence")
    return message


def other_headers(conn: Connection, clock: Clock) -> Any:
    conn.execute("select trunkline.create_topic('t')")
    conn.execute("select trunkline.create_queue('q')")
    conn.execute("""select trunkline.subscribe('q', 't', '#', '{"region": ["eu"]}')""")
    [message] = publish(conn, "t", 1, p_headers='{"region": "us"}')
    run_upkeep(conn, "sequence")
    return message


def before_the_start(conn: Connection, clock: Clock) -> Any:
    conn.execute("select trunkline.create_topic('t')")
    conn.execute("select trunkline.create_queue('q')")
    [message] = publish(conn, "t", 1)
    run_upkeep(conn, "sequence")
    conn.execute("select trunkline.subscribe('q', 't', p_start => 'latest')")
    return message


def group_waiting(conn: Connection, clock: Clock) -> Any:
    conn.execute("select trunkline.create_topic('t')")
    conn.execute("select trunkline.create_group('t', 'g', 'earliest')")
    [message] = publish(conn, "t", 1)
    run_upkeep(conn, "sequence")
    return message


def group_leased(conn: Connection, clock: Clock) -> Any:
    message = group_waiting(conn, clock)
    fetch(conn, "t", "g", "anna")
    return message


def group_read(conn: Connection, clock: Clock) -> Any:
    message = group_waiting(conn, clock)
    commit(conn, "t", fetch(conn, "t", "g", "anna"))
    return message


STATES: list[tuple[Callable[[Connection, Clock], Any], str, str]] = [
    (waiting, "ready", "2 messages ahead"),
    (paused, "paused", "paused"),
    (delayed_by_the_queue, "delayed", "delivery delay of 1 h"),
    (leased, "leased", "leased to anna, attempt 1"),
    (lease_ended, "ready", "lease expired"),
    (acked, "acked", "acked by anna"),
    (acked_and_rotated, "acked", "acked by anna"),
    (nacked, "delayed", "retry after attempt 1: boom"),
    (nacked_and_due, "ready", "ready for retry after attempt 1: boom"),
    (second_attempt, "leased", "leased to bert, attempt 2"),
    (passed_over, "ready", "skipped by claims for labels other than"),
    (dead, "dead", "out of attempts after 1 attempt: boom"),
    (buried, "dead", "buried after 1 attempt: useless"),
    (dead_and_gone, "gone", "was a dead letter"),
    (too_old, "expired", "older than the ttl"),
    (too_old_when_its_turn_came, "expired", "when it was next to be delivered"),
    (purged, "purged", "purged"),
    (blocked, "blocked", "ordered, and anna has leased"),
    (other_key, "not_matched", "does not match pattern"),
    (other_headers, "not_matched", "do not match filter"),
    (before_the_start, "not_matched", "starts at offset 2"),
    (group_waiting, "ready", "0 messages ahead"),
    (group_leased, "leased", 'fetched by member "anna"'),
    (group_read, "read", "committed up to offset 1"),
]


@pytest.mark.parametrize(("arrange", "state", "reason"), STATES, ids=[state[0].__name__ for state in STATES])
def test_a_reader_in_every_state(
    conn: Connection, clock: Clock, arrange: Callable[[Connection, Clock], Any], state: str, reason: str
) -> None:
    message = arrange(conn, clock)
    told = reader(conn, message)
    assert told["state"] == state
    assert reason in told["reason"]
    whole = explain(conn, message)
    assert whole["state"] == "in_log"
    if state == "not_matched":
        assert whole["reason"] == "no subscription matches the message"
    else:
        assert reason in whole["reason"]
    if state in ("leased", "delayed", "blocked"):
        assert told["until"] is not None


def test_history_of_a_message_is_told(conn: Connection, clock: Clock) -> None:
    message = second_attempt(conn, clock)
    history = reader(conn, message)["history"]
    assert [(h["attempt"], h["consumer"], h["outcome"], h["error"]) for h in history] == [
        (1, None, "nacked", "boom"),
        (2, "bert", None, None),
    ]
    passes(conn)
    assert len(reader(conn, message)["history"]) == 2, "closing a lease neither hides nor doubles it"


def test_redriven(conn: Connection, clock: Clock) -> None:
    """The same id is in the log twice: the result describes its newest position."""
    message = buried(conn, clock)
    conn.execute("select trunkline.redrive('q')")
    assert explain(conn, message)["state"] == "not_sequenced"
    run_upkeep(conn, "sequence")
    assert reader(conn, message)["state"] == "ready"
    claim(conn, "q", 1, p_consumer="anna")
    told = reader(conn, message)
    assert (told["state"], told["attempt"], told["consumer"]) == ("leased", 1, "anna")
    assert explain(conn, message)["redriven_at"]
    clock.advance(31 * 86400)
    run_upkeep(conn, "windows")
    assert value(conn, "select count(*) from trunkline.redriven") == 0


def test_before_it_has_an_offset(conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('t')")
    [message] = publish(conn, "t", 1)
    assert explain(conn, message)["state"] == "not_sequenced"
    assert value(conn, "select count(*) from trunkline.ticks") == 0, "explaining changes nothing"


def test_not_committed_yet(conn: Connection, connect: Callable[[], Connection]) -> None:
    conn.execute("select trunkline.create_topic('t')")
    other = connect()
    with other.transaction():
        [message] = publish(other, "t", 1)
        assert explain(conn, message)["state"] == "unknown"
    assert explain(conn, message)["state"] == "not_sequenced"


def test_scheduled(conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('t')")
    [message] = publish(conn, "t", 1, p_delay="1 hour")
    told = explain(conn, message)
    assert (told["state"], told["topic"]) == ("delayed", "t")
    assert told["until"]


def test_nobody_reads_the_topic(conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('t')")
    [message] = publish(conn, "t", 1)
    run_upkeep(conn, "sequence")
    assert explain(conn, message)["reason"] == "no group or queue reads this topic"


def test_unknown_ids(conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('t')")
    assert explain(conn, uuid4())["state"] == "unknown"
    assert explain(conn, value(conn, "select trunkline.new_id()"))["state"] == "unknown"


def test_an_id_of_the_clients_own_is_found_among_the_newest(conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('t')")
    publish(conn, "t", *range(10))
    [message] = publish(conn, "t", 1, p_id=uuid4())
    run_upkeep(conn, "sequence")
    assert explain(conn, message)["offset"] == 11


def test_a_message_that_was_sequenced_long_after_it_was_made(conn: Connection, connect: Callable[[], Connection]) -> None:
    conn.execute("select trunkline.create_topic('t')")
    slow = connect()
    with slow.transaction():
        [message] = publish(slow, "t", "slow")
        for number in range(30):
            publish(conn, "t", number)
            run_upkeep(conn, "sequence")
    run_upkeep(conn, "sequence")
    assert explain(conn, message)["offset"] == 31


def test_by_offset(conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('t')")
    [message] = publish(conn, "t", 1)
    run_upkeep(conn, "sequence")
    assert value(conn, "select trunkline.explain_offset('t', 0, 1)")["id"] == str(message)
    with refused("TL006"):
        conn.execute("select trunkline.explain_offset('t', 0, 2)")
    with refused("TL001"):
        conn.execute("select trunkline.explain_offset('t', 1, 1)")
    with refused("TL010"):
        conn.execute("select trunkline.explain_offset('nope', 0, 1)")
