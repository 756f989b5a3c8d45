"""Direct queues: the row that a claim reads always describes the queue."""

from __future__ import annotations

import random

import pytest

from tests.conftest import Connection
from tests.sql.calls import call, claim, contents, enqueue, passes, publish, rows, settle, value

DESCRIBE = "select trunkline._describe_direct(queue_id) from trunkline.queues"
STEPS = {
    "select trunkline.pause_queue({queue})": 2,
    "select trunkline.resume_queue({queue})": 4,
    "select trunkline.alter_queue({queue}, p_lease => {lease})": 2,
    "select trunkline.alter_queue({queue}, p_ttl => '1 day')": 1,
    "select trunkline.alter_queue({queue}, p_ttl => null)": 2,
    "select trunkline.alter_queue({queue}, p_delivery_delay => {delay})": 2,
    "select trunkline.subscribe({queue}, {topic})": 4,
    "select trunkline.subscribe({queue}, {topic}, 'a.*', p_name => 'some')": 1,
    "select trunkline.unsubscribe({queue}, {topic})": 4,
    "select trunkline.unsubscribe({queue}, 'some')": 2,
    "select trunkline.alter_topic({topic}, p_partitions => (trunkline.get_topic({topic})).partitions + 1)": 1,
    "select trunkline.delete_queue({queue}, true)": 1,
    "select trunkline.create_queue({queue})": 2,
    "select trunkline.create_queue({queue}, p_ordered => true)": 1,
    "select trunkline.create_queue({queue}, p_priorities => 3)": 1,
    "select trunkline.delete_topic({topic}, true)": 1,
    "select trunkline.create_topic({topic}, 2)": 2,
}


def described(conn: Connection) -> list[str]:
    return rows(conn, "select d::text from trunkline.direct_queues d order by name")


def is_direct(conn: Connection, queue: str) -> bool:
    return bool(value(conn, "select exists (select from trunkline.direct_queues where name = %s)", queue))


@pytest.mark.parametrize("seed", range(3))
def test_row_describes_the_queue_after_any_change(conn: Connection, seed: int) -> None:
    choose = random.Random(seed)
    direct = 0
    for _ in range(150):
        step = choose.choices(list(STEPS), list(STEPS.values()))[0].format(
            queue=choose.choice(("'q0'", "'q1'")),
            topic=choose.choice(("'t0'", "'t1'")),
            lease=choose.choice(("'20 seconds'", "'40 seconds'")),
            delay=choose.choice(("'0'", "'0'", "'1 minute'")),
        )
        with conn.transaction():
            conn.execute("savepoint before")
            try:
                conn.execute(step.encode())
            except Exception as error:
                assert getattr(error, "sqlstate", "")[:2] == "TL", f"{step}: {error!r}"
                conn.execute("rollback to savepoint before")
        kept = described(conn)
        with conn.transaction(force_rollback=True):
            conn.execute(DESCRIBE)
            assert described(conn) == kept, step
        direct += len(kept)
    assert direct > 20, "queues were direct after some of the steps"


def test_paused_queue_is_not_direct_and_its_messages_wait(conn: Connection) -> None:
    call(conn, "create_queue", "q")
    enqueue(conn, "q", 1)
    assert is_direct(conn, "q")
    call(conn, "pause_queue", "q")
    assert not is_direct(conn, "q")
    assert claim(conn, "q") == []
    call(conn, "resume_queue", "q")
    assert is_direct(conn, "q")
    assert contents(claim(conn, "q")) == [1]


def test_claim_reads_all_logs_of_a_subscribed_queue(conn: Connection) -> None:
    call(conn, "create_topic", "t", 3)
    call(conn, "create_queue", "q")
    call(conn, "subscribe", "q", "t")
    assert is_direct(conn, "q")
    publish(conn, "t", *range(30))
    enqueue(conn, "q", *range(30, 40))
    claimed = [delivery for _ in range(40) for delivery in claim(conn, "q", 1)]
    assert sorted(contents(claimed)) == list(range(40))
    assert settle(conn, "ack", *(delivery.receipt for delivery in claimed)) == ["done"] * 40
    assert claim(conn, "q", 1) == []


def test_messages_left_by_claims_of_labels_are_found(conn: Connection) -> None:
    """A pass creates the cursors of labels; the row of the queue does not change."""
    call(conn, "create_queue", "q")
    for n in range(4):
        enqueue(conn, "q", n, p_label="even" if n % 2 == 0 else "odd")
    assert contents(claim(conn, "q", 10, p_labels=["odd"])) == [1, 3]
    passes(conn, 3)
    assert value(conn, "select count(*) from trunkline.cursors where kind = 'label'") > 0
    assert is_direct(conn, "q")
    assert sorted(contents(claim(conn, "q", 10))) == [0, 2]
