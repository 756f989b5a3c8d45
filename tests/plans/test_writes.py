"""Append-only on the normal path: no update and no delete whose number grows with the messages.

See "Storage" in docs/explanation/architecture.md.
"""

from __future__ import annotations

from tests.conftest import Connection
from tests.plans.seeding import Counters

MESSAGES = 5000


def test_queue_and_group_traffic_only_appends(conn: Connection) -> None:
    conn.execute("select trunkline.create_topic('t'), trunkline.create_queue('q')")
    counters = Counters(conn)
    for _ in range(MESSAGES // 50):
        conn.execute("select count(*) from trunkline.publish_many('t', array_fill('1'::bytea, array[50]))")
        conn.execute("select count(*) from trunkline.enqueue_many('q', array_fill('1'::bytea, array[50]))")
        for _ in range(5):
            receipts = [row[0] for row in conn.execute("select receipt from trunkline.claim('q', 10)")]
            conn.execute("select trunkline.ack(%s)", (receipts,))
        [(partition, generation, last)] = conn.execute(
            "select partition, generation, max(log_offset) from trunkline.fetch('t', 'g', 'm', 50) group by 1, 2"
        ).fetchall()
        assert conn.execute("select trunkline.commit('t', 'g', %s, %s, %s)", (partition, generation, last)).fetchone() == (
            "done",
        )
    assert conn.execute("select acked from trunkline.queue_stats('q')").fetchone() == (MESSAGES,)
    changed = {name: counts[3] for name, counts in counters.since().items() if counts[3]}
    # the member's own row, every third of its lease
    assert sum(changed.values()) <= 10, changed


def test_upkeep_of_running_traffic_changes_a_constant_number_of_rows(conn: Connection) -> None:
    """Ten times the messages with the same upkeep tasks cause the same updates and deletes."""

    def changes(batches: int) -> int:
        counters = Counters(conn)
        for _ in range(batches):
            conn.execute("select count(*) from trunkline.enqueue_many('q', array_fill('1'::bytea, array[100]))")
            receipts = [row[0] for row in conn.execute("select receipt from trunkline.claim('q', 100)")]
            conn.execute("select trunkline.ack(%s)", (receipts,))
        for duty in ("pass", "delayed", "sequence", "segments", "retention", "rotate"):
            conn.execute("select trunkline.run_upkeep(%s)", (duty,))
        return sum(counts[3] for counts in counters.since().values())

    conn.execute("select trunkline.create_queue('q')")
    changes(1)
    few, many = changes(3), changes(30)
    assert many <= few + 5
