"""A database with a long past: 50,000 rows and more in every table whose size grows with traffic."""

from __future__ import annotations

from tests.conftest import Connection

ROWS = 50_000
HOT = (
    *("ticks", "leases", "settled", "extensions", "returns", "later", "cursor_states", "passes"),
    *("positions", "scheduled", "dead_letters", "idempotency"),
)
"""Tables whose size grows with traffic, by the start of their names; the messages themselves are in topic_*."""

GROWN = {
    *("ticks_0", "leases_0", "settled_0", "extensions_0", "returns_0", "later_0", "cursor_states_0", "passes_0"),
    *("positions_0", "topic_1_0_0"),
}
"""Partitions that `fill` makes large."""

# Rows as the newest one would be followed by: what differs from it, for the row number g.
HISTORY = {
    "idempotency": ("slot, win", "'key', key || g"),
    "positions": ("cursor_id, state_no", "'state_no', state_no + g, 'committed', committed + g, 'fetched', fetched + g"),
    "passes": ("rotation, pass", "'pass', pass + g"),
}

# One tick for each message, where publishing many made one for a thousand.
TICKS = """
    create temporary table old_ticks as select t as tick from trunkline.ticks t where t.n > 1;
    delete from trunkline.ticks where n > 1;
    insert into trunkline.ticks
           (slot, log, first_offset, n, ids, cut_at, snapshot, last_id, whole, own_xid, own_ids, shared)
    select r.slot, r.log, r.first_offset, r.n, r.ids, r.cut_at, r.snapshot, r.last_id, r.whole, r.own_xid, r.own_ids,
           r.shared from old_ticks o cross join lateral generate_series(0, (o.tick).n - 1) g
    cross join lateral jsonb_populate_record(o.tick, jsonb_build_object('first_offset', (o.tick).first_offset + g, 'n', 1,
        'ids', int8multirange(int8range(lower((o.tick).ids) + g, lower((o.tick).ids) + g + 1)))) r
    where upper((o.tick).ids) - lower((o.tick).ids) = (o.tick).n
"""

# What is drawn, leased and acked one by one: positions of the log of q up to the last thousand, and of its returns.
QUEUE_HISTORY = """
    create temporary table past as
    select c.cursor_id, c.queue_id, c.kind, c.drawn_seq, c.head_seq, trunkline._drawn(c) as drawn,
           case c.kind when 'log' then trunkline._head(c.log) - 1000 - trunkline._drawn(c) else {rows} end as n,
           (select x.cursor_id from trunkline.cursors x where x.queue_id = c.queue_id and x.kind = 'log') as source_id
    from trunkline.cursors c where c.drawn_seq is not null;
    insert into trunkline.leases (rotation, xid, cursor_id, first, n, skipped, expired, source_ids, offsets,
           attempts, whys, token,
                                  claimed_at, deadline)
    select 0, '3', p.cursor_id, p.drawn + g, 1, 0, 0, case p.kind when 'returns' then array[p.source_id] end,
           case p.kind when 'returns' then array[1] end, case p.kind when 'returns' then array[1] end,
           case p.kind when 'returns' then array['n']::"char"[] end, gen_random_uuid(), now(),
           now() + interval '30 seconds'
    from past p, generate_series(1, p.n) g;
    insert into trunkline.settled (rotation, xid, cursor_id, pos, n, first, kind, at)
    select 0, (3 + g % 500)::text::xid8, p.cursor_id, p.drawn + g, 1, p.drawn + g, 'a', now()
    from past p, generate_series(1, p.n) g;
    insert into trunkline.extensions (rotation, cursor_id, first, positions, until)
    select 0, p.cursor_id, p.drawn + g, int8multirange(int8range(p.drawn + g, p.drawn + g + 1)),
           now() + interval '1 minute'
    from past p, generate_series(1, p.n) g;
    insert into trunkline.returns (rotation, cursor_id, pos, source_id, log_offset, attempt, why, at)
    select 0, p.cursor_id, p.drawn + g, p.source_id, 1, 1, 'n', now() from past p, generate_series(1,
           p.n) g where p.kind = 'returns';
    insert into trunkline.later (rotation, due, kind, queue_id, cursor_id, positions, due_at, at)
    select 0, w.walked - g * interval '1 second', 'l', p.queue_id, p.cursor_id, int8multirange(int8range(p.drawn + g,
           p.drawn + g + 1)),
           now(), now()
    from past p, generate_series(1, p.n) g, (select max(walked) as walked from trunkline.passes) w;
    insert into trunkline.later (rotation, due, kind, queue_id, cursor_id, source_id, log_offset, attempt, why,
           due_at, at)
    select 0, now() + interval '1 day', 'r', p.queue_id, p.cursor_id, p.source_id, 1, 1, 'n',
           now() + interval '1 day', now()
    from past p, generate_series(1, p.n) g where p.kind = 'returns';
    insert into trunkline.cursor_states
    select 0, s.cursor_id, s.pass + g, p.drawn + k.n, p.drawn + k.n, p.drawn + k.n, '{{}}',
           s.head + case p.kind when 'log' then 0 else k.n end,
           s.delivered + k.n, s.passed, s.skipped, s.expired, s.holes, s.settled + k.n, s.acked + k.n, s.returned,
           s.dead, s.gone, s.purged,
           s.delayed + case p.kind when 'log' then 0 else p.n end
    from past p join trunkline.cursors c using (cursor_id) cross join lateral trunkline._cursor_state(c) s,
         generate_series(1, {rows}) g cross join lateral (select least(g, p.n) as n) k;
    insert into trunkline.leases (rotation, xid, cursor_id, first, n, skipped, expired, offsets, attempts, token,
           claimed_at, deadline,
                                  next_offset)
    select 0, '3', c.cursor_id, (o.l).first + (o.l).n + g - 1, 1, 0, 0, array[o.next_offset + g - 1], array[0],
           gen_random_uuid(), now(),
           now() + interval '30 seconds', o.next_offset + g
    from trunkline.cursors c join trunkline.queues q using (queue_id) cross join lateral trunkline._ordered_state(c) o,
         generate_series(1, {rows}) g
    where q.ordered;
    insert into trunkline.settled (rotation, xid, cursor_id, pos, n, first, kind, at)
    select 0, '3', l.cursor_id, l.first, 1, l.first, 'a', now()
    from trunkline.leases l join trunkline.cursors c using (cursor_id) join trunkline.queues q using (queue_id) where
           q.ordered
    on conflict do nothing;
    select setval(drawn_seq, drawn + n) from past;
    select setval(head_seq, drawn + n) from past where kind = 'returns'
"""


def create(conn: Connection) -> None:
    """A topic with a group, two queues (one ordered), a first round of traffic. The test decides when to analyze."""
    conn.execute(
        "select trunkline.create_topic('t'), trunkline.create_queue('q', p_backoff_base => '0', p_backoff_jitter => 0),"
        " trunkline.create_queue('o', p_ordered => true)"
    )
    for (table,) in conn.execute(
        "select oid::regclass::text from pg_class where relnamespace = 'trunkline'::regnamespace and relkind = 'r'"
    ).fetchall():
        conn.execute(f"alter table {table} set (autovacuum_enabled = false)")  # type: ignore[arg-type]
    traffic(conn)


def fill(conn: Connection) -> None:
    """Messages by publishing them; their history (a tick, lease, ack, return, pass and commit for each) by hand."""
    for _ in range(ROWS // 1000):
        conn.execute("select count(*) from trunkline.publish_many('t', array_fill('1'::bytea, array[1000]))")
        for queue in ("q", "o"):
            conn.execute("select count(*) from trunkline.enqueue_many(%s, array_fill('1'::bytea, array[1000]))", (queue,))
    conn.execute("select trunkline.run_upkeep('pass')")
    # Every draw is accounted for, so that the rows below are the state that passes would have left.
    for _ in range(3):
        conn.execute("call trunkline.sequence()")
    conn.execute(TICKS)
    conn.execute(QUEUE_HISTORY.format(rows=ROWS))  # type: ignore[arg-type]
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
        "insert into trunkline.delayed (rotation, topic_id, due_at, id, payload, content_type, published_at, purge_no)"
        " select 0, topic_id, clock_timestamp() + interval '1 day', gen_random_uuid(), '1', 'x', clock_timestamp(), 0"
        f" from trunkline.topics, {rows}"
    )
    conn.execute(  # type: ignore[arg-type]
        "insert into trunkline.dead_letters (queue_id, id, topic, partition, log_offset, cursor_id, payload, content_type,"
        " created_at, attempts, reason, dead_at)"
        " select queue_id, gen_random_uuid(), '', 0, g, cursor_id, '1', 'x', now(), 1, 'buried', now()"
        f" from trunkline.cursors, {rows} where queue_id is not null and kind = 'log'"
    )


def traffic(conn: Connection) -> None:
    """Each hot verb once: publish, claim, ack, nack, extend, redelivery, fetch, commit, stats, poll; an idempotency key."""
    conn.execute("select trunkline.publish('t', '1'), trunkline.enqueue('q', '1')")
    conn.execute("select trunkline.enqueue('q', '2', p_idempotency_key => gen_random_uuid()::text)")
    conn.execute("call trunkline.sequence(array['q'])")
    receipts = [row[0] for row in conn.execute("select receipt from trunkline.claim('q', 3)")]
    assert len(receipts) >= 2, "there is something to claim"
    conn.execute("select trunkline.extend(%s)", (receipts,))
    conn.execute("select trunkline.ack(%s)", (receipts[1:],))
    conn.execute("select trunkline.nack(%s, '0')", (receipts[:1],))
    conn.execute("call trunkline.sequence(array['q'], array['t'])")
    again = [row[0] for row in conn.execute("select receipt from trunkline.claim('q', 1)")]
    conn.execute("select trunkline.ack(%s)", (again,))
    for partition, generation, last in conn.execute(
        "select partition, generation, max(log_offset) from trunkline.fetch('t', 'g', 'm', 3) group by 1, 2"
    ).fetchall():
        conn.execute("select trunkline.commit('t', 'g', %s, %s, %s)", (partition, generation, last))
    conn.execute("select trunkline.enqueue('q', '3')")
    for (receipt,) in conn.execute("select receipt from trunkline.claim('q', 1, p_relaxed => true)").fetchall():
        position, _, lease = receipt.partition(".")
        conn.execute("select trunkline.ack_lease(%s, array[%s]::bigint[])", (lease, position))
    conn.execute("select trunkline.enqueue('o', '1')")
    for settle in ("select trunkline.nack(%s, '0')", "select trunkline.ack(%s)"):
        receipts = [row[0] for row in conn.execute("select receipt from trunkline.claim('o', 1)")]
        assert len(receipts) == 1
        conn.execute(settle, (receipts,))  # type: ignore[arg-type]
    conn.execute("select * from trunkline.queue_stats('q')")
    conn.execute("select * from trunkline.poll(array['q', 'o'], array['t'], array['g'], array['m'], array['t'])")
    conn.execute("select trunkline.run_upkeep('pass')")


class Counters:
    """Return reads and writes per table, from the server's statistics."""

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
