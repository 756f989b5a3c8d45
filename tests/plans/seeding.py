"""A database with a long past: 50,000 rows and more in every table whose size grows with traffic."""

from __future__ import annotations

from tests.conftest import Connection

ROWS = 50_000
HOT = ("ticks", "leases", "lease_events", "lease_checks", "positions", "pending", "scheduled", "dead_letters", "idempotency")
"""Tables whose size grows with traffic, by the start of their names; the messages themselves are in topic_*."""

# Rows as the newest one would be followed by: what differs from it, for the row number g.
HISTORY = {
    "ticks": (
        "log, first_offset",
        "'first_offset', first_offset + n + g - 1, 'n', 1, 'next_id', next_id + g,"
        " 'ids', int8multirange(int8range(next_id + g - 1, next_id + g))",
    ),
    "leases": (
        "cursor_id, lease_no",
        "'lease_no', lease_no + g, 'position', position + g, 'delivered', delivered + g, 'n', 1,"
        " 'offsets', int8multirange(int8range(position + g - 1, position + g))",
    ),
    "lease_events": ("cursor_id, lease_no", "'lease_no', lease_no + g, 'kind', 'a'"),
    "lease_checks": (
        "cursor_id, check_no",
        "'check_no', check_no + g, 'closed_upto', closed_upto + g, 'stragglers', '{}'::bigint[]",
    ),
    "idempotency": ("slot, win", "'key', key || g"),
    "positions": ("cursor_id, state_no", "'state_no', state_no + g, 'committed', committed + g, 'fetched', fetched + g"),
}


def create(conn: Connection) -> None:
    """One topic with a group and one queue, and a first round of traffic. Only the test decides when statistics are made."""
    conn.execute(
        "select trunkline.create_topic('t'), trunkline.create_queue('q', p_backoff_base => '0', p_backoff_jitter => 0)"
    )
    for (table,) in conn.execute(
        "select oid::regclass::text from pg_class where relnamespace = 'trunkline'::regnamespace and relkind = 'r'"
    ).fetchall():
        conn.execute(f"alter table {table} set (autovacuum_enabled = false)")  # type: ignore[arg-type]
    traffic(conn)


def fill(conn: Connection) -> None:
    """Messages by publishing them; their history (one tick, lease, ack, check and commit for each) by hand."""
    for _ in range(ROWS // 1000):
        conn.execute("select count(*) from trunkline.publish_many('t', array_fill('1'::bytea, array[1000]))")
        conn.execute("select count(*) from trunkline.enqueue_many('q', array_fill('1'::bytea, array[1000]))")
    conn.execute("select trunkline.run_upkeep('expire')")
    for table, (order, changes) in HISTORY.items():
        key, _ = order.split(", ")
        conn.execute(  # type: ignore[arg-type]
            f"insert into trunkline.{table} select r.* from ("
            f" select distinct on ({key}) x from trunkline.{table} x order by {order.replace(',', ' desc,')} desc) newest,"
            f" generate_series(1, {ROWS}) g, lateral (select (x).*) old,"
            f" jsonb_populate_record(x, jsonb_build_object({changes})) r"
        )
    rows = f"generate_series(1000000, {1000000 + ROWS}) g"
    conn.execute(  # type: ignore[arg-type]
        "insert into trunkline.pending (cursor_id, log_offset, queue_id, due_at, label, attempt)"
        " select cursor_id, g, queue_id, clock_timestamp() + interval '1 day', 'late', 1"
        f" from trunkline.cursors, {rows} where queue_id is not null and lane = 'log'"
    )
    conn.execute(  # type: ignore[arg-type]
        "insert into trunkline.scheduled (topic_id, due_at, id, payload, content_type)"
        f" select topic_id, clock_timestamp() + interval '1 day', gen_random_uuid(), '1', 'x' from trunkline.topics, {rows}"
    )
    conn.execute(  # type: ignore[arg-type]
        "insert into trunkline.dead_letters (queue_id, id, topic, partition, log_offset, cursor_id, payload, content_type,"
        " created_at, attempts, reason, dead_at)"
        " select queue_id, gen_random_uuid(), '', 0, g, cursor_id, '1', 'x', now(), 1, 'buried', now()"
        f" from trunkline.cursors, {rows} where queue_id is not null and lane = 'log'"
    )


def traffic(conn: Connection) -> None:
    """Each hot verb once: publish, claim, ack, nack, extend, redelivery, fetch, commit, poll, and an idempotency key."""
    conn.execute("select trunkline.publish('t', '1'), trunkline.enqueue('q', '1')")
    conn.execute("select trunkline.enqueue('q', '2', p_idempotency_key => gen_random_uuid()::text)")
    receipts = [row[0] for row in conn.execute("select receipt from trunkline.claim('q', 3)")]
    conn.execute("select trunkline.extend(%s)", (receipts,))
    conn.execute("select trunkline.ack(%s)", (receipts[1:],))
    conn.execute("select trunkline.nack(%s, '0')", (receipts[:1],))
    again = [row[0] for row in conn.execute("select receipt from trunkline.claim('q', 1)")]
    conn.execute("select trunkline.ack(%s)", (again,))
    for partition, generation, last in conn.execute(
        "select partition, generation, max(log_offset) from trunkline.fetch('t', 'g', 'm', 3) group by 1, 2"
    ).fetchall():
        conn.execute("select trunkline.commit('t', 'g', %s, %s, %s)", (partition, generation, last))
    number = conn.execute("select trunkline.queue_number('q')").fetchall()[0][0]
    conn.execute("select trunkline.enqueue('q', '3')")
    taken = conn.execute(f"select lease, log_offset from trunkline.queue_{number}_take(1)".encode()).fetchall()
    for lease, offset in taken:
        conn.execute("select trunkline.ack_lease(%s, array[%s]::bigint[])", (lease, offset))
    conn.execute("select * from trunkline.poll(array['q'], array['t'], array['g'], array['m'], array['t'])")
    conn.execute("select trunkline.run_upkeep('expire')")


class Counters:
    """What was read of and written to each table, from the server's own statistics."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._before = self._now()

    def _now(self) -> dict[str, tuple[int, ...]]:
        self._conn.execute("select pg_stat_force_next_flush()")
        rows = self._conn.execute(
            "select relname, coalesce(seq_scan, 0), coalesce(seq_tup_read, 0), coalesce(idx_tup_fetch, 0),"
            " n_tup_upd + n_tup_del from pg_stat_user_tables where schemaname = 'trunkline'"
        ).fetchall()
        return {row[0]: row[1:] for row in rows}

    def since(self) -> dict[str, tuple[int, ...]]:
        """Per table: sequential scans, rows they read, rows read by index, rows updated or deleted."""
        return {
            name: tuple(new - old for new, old in zip(now, self._before.get(name, (0, 0, 0, 0)), strict=True))
            for name, now in self._now().items()
        }


def is_hot(table: str) -> bool:
    return table.startswith((*HOT, "topic_"))


def big_tables(conn: Connection) -> set[str]:
    """Hot tables that have grown, by their real size."""
    rows = conn.execute(
        "select relname from pg_class where relnamespace = 'trunkline'::regnamespace and relkind = 'r'"
        " and pg_relation_size(oid) > 1000000"
    ).fetchall()
    return {row[0] for row in rows if is_hot(row[0])}
