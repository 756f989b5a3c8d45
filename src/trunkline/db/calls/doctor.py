"""The queries of `trunkline doctor` on the server and the schema. They only read, most of them system catalogs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import psycopg

Connection = psycopg.Connection[tuple[Any, ...]]
Row = tuple[Any, ...]


def pin_search_path(conn: Connection) -> None:
    """Resolve unqualified names in the system catalog, so that objects of other schemas do not run with our rights."""
    conn.execute("set search_path = pg_catalog, pg_temp")


# The server


def durability_settings(conn: Connection) -> list[Row]:
    """Return the name and value of each setting that decides what survives a crash."""
    return conn.execute(
        "select name, setting from pg_catalog.pg_settings"
        " where name in ('fsync', 'full_page_writes', 'synchronous_commit') order by name"
    ).fetchall()


def oldest_transactions(conn: Connection, older_than: timedelta) -> list[Row]:
    """Return the sessions that hold back vacuum: pid, user, program, state, start, age, query."""
    return conn.execute(
        "select pid, usename, application_name, state, xact_start, "
        " pg_catalog.clock_timestamp() - xact_start, left(query, 80)"
        " from pg_catalog.pg_stat_activity"
        " where coalesce(backend_xid, backend_xmin) is not null and pid <> pg_catalog.pg_backend_pid()"
        " and xact_start < pg_catalog.clock_timestamp() - %s::interval order by xact_start limit 5",
        [older_than],
    ).fetchall()


def prepared_transactions(conn: Connection, older_than: timedelta) -> list[Row]:
    """Return id, owner and age of old prepared transactions."""
    return conn.execute(
        "select gid, owner, pg_catalog.clock_timestamp() - prepared from pg_catalog.pg_prepared_xacts"
        " where prepared < pg_catalog.clock_timestamp() - %s::interval order by prepared limit 5",
        [older_than],
    ).fetchall()


def unused_replication_slots(conn: Connection) -> list[Row]:
    """Return name, kind and WAL status of the replication slots without a reader."""
    return conn.execute(
        "select slot_name, slot_type, coalesce(wal_status, 'lost')"
        " from pg_catalog.pg_replication_slots where not active order by 1 limit 5"
    ).fetchall()


def standbys_with_feedback(conn: Connection) -> list[Row]:
    """Return the standbys that hold back vacuum: name, address, age in transactions."""
    return conn.execute(
        "select application_name, client_addr::text, pg_catalog.age(backend_xmin) from pg_catalog.pg_stat_replication"
        " where backend_xmin is not null order by 3 desc limit 5"
    ).fetchall()


def idle_transactions(conn: Connection, longer_than: timedelta) -> list[Row]:
    """Return the sessions that are idle in a transaction: pid, user, program, age."""
    return conn.execute(
        "select pid, usename, application_name, pg_catalog.clock_timestamp() - state_change"
        " from pg_catalog.pg_stat_activity where state like 'idle in transaction%%'"
        " and state_change < pg_catalog.clock_timestamp() - %s::interval order by state_change limit 5",
        [longer_than],
    ).fetchall()


def server_time(conn: Connection) -> datetime | None:
    row = conn.execute("select pg_catalog.clock_timestamp()").fetchone()
    return row[0] if row else None


def oldest_transaction_id_age(conn: Connection) -> int:
    row = conn.execute(
        "select pg_catalog.age(datfrozenxid) from pg_catalog.pg_database where datname = pg_catalog.current_database()"
    ).fetchone()
    return row[0] if row else 0


# The schema


def unlogged_tables(conn: Connection) -> list[str]:
    rows = conn.execute(
        "select c.relname from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace"
        " where n.nspname = 'trunkline' and c.relkind in ('r', 'p') and c.relpersistence <> 'p' order by 1"
    ).fetchall()
    return [name for (name,) in rows]


def tables_with_dead_rows(conn: Connection, more_than: int) -> list[Row]:
    """Return table name and number of dead rows."""
    return conn.execute(
        "select relname, n_dead_tup from pg_catalog.pg_stat_user_tables"
        " where schemaname = 'trunkline' and n_dead_tup > %s order by n_dead_tup desc limit 5",
        [more_than],
    ).fetchall()


def missing_segments(conn: Connection) -> list[Row]:
    """Return topic, partition, segment, and true if it is the current segment, false for the next one."""
    return conn.execute(
        "select t.name, l.partition, x.segment, x.segment = c.current as needed"
        " from trunkline.logs l join trunkline.topics t using (topic_id)"
        " cross join lateral (select trunkline._last_id(l.topic_id, l.partition) as last) i"
        " cross join lateral (select (i.last + 1) / t.segment_rows as current) c cross join lateral"
        " generate_series(c.current, trunkline._newest_segment(i.last, t.segment_rows)) x(segment)"
        " where to_regclass(format('trunkline.topic_%s_%s_%s', l.topic_id, l.partition, x.segment)) is null"
        " and not t.shared and t.kind <> 'store' order by needed desc, 1, 2 limit 5"
    ).fetchall()


def lost_segments(conn: Connection) -> list[Row]:
    """Return topic, partition and number of the segments with readable offsets whose table is gone."""
    return conn.execute(
        "select t.name, l.partition, s.segment from trunkline.segments s join trunkline.logs l using (log)"
        " join trunkline.topics t using (topic_id) where coalesce(s.last_offset, 9223372036854775807) >= l.base_offset"
        " and to_regclass(format('trunkline.topic_%s_%s_%s', l.topic_id, l.partition, s.segment)) is null"
        " and t.kind <> 'store' order by 1, 2, 3 limit 5"
    ).fetchall()


def upkeep_tasks(conn: Connection, failing_for: timedelta) -> list[Row]:
    """Return task, state, age and interval in seconds, error, and true if it has been failing for that long."""
    return conn.execute(
        "select task, state, age_seconds, extract(epoch from every)::float8, error, failing_since < trunkline.clock() - %s"
        " from trunkline.upkeep_stats()",
        [failing_for],
    ).fetchall()


def existing_roles(conn: Connection, names: Sequence[str]) -> Row | None:
    """Return which of these roles exist, our role, the schema's owner, and true if our role is a superuser."""
    return conn.execute(
        "select array(select rolname::text from pg_catalog.pg_roles where rolname = any (%s) order by 1), current_user,"
        " (select nspowner::regrole::text from pg_catalog.pg_namespace where nspname = 'trunkline'),"
        " (select rolsuper from pg_catalog.pg_roles where rolname = current_user)",
        [list(names)],
    ).fetchone()


def is_member(conn: Connection, role: str) -> bool:
    row = conn.execute("select pg_catalog.pg_has_role(current_user, %s, 'member')", [role]).fetchone()
    return bool(row and row[0])


def superuser_owners(conn: Connection) -> list[str]:
    """Return the superusers that own the schema or its functions."""
    rows = conn.execute(
        "select distinct r.rolname from pg_catalog.pg_roles r where r.rolsuper and r.oid in ("
        " select nspowner from pg_catalog.pg_namespace where nspname = 'trunkline' union all"
        " select p.proowner from pg_catalog.pg_proc p join pg_catalog.pg_namespace n on n.oid = p.pronamespace"
        " where n.nspname = 'trunkline') order by 1"
    ).fetchall()
    return [name for (name,) in rows]


def recent_alerts(conn: Connection) -> list[Row]:
    """Return kind, number and last time of the open alerts of the last day."""
    return conn.execute(
        "select kind, count(*), max(at) from trunkline.alerts where at > trunkline.clock() - interval '1 day'"
        " and done_at is null"
        " group by 1 order by 3 desc limit 5"
    ).fetchall()


def advisory_locks(conn: Connection, roles: Sequence[str], classes: tuple[int, int]) -> list[Row]:
    """Return the advisory locks of these classes that other sessions hold, the oldest transaction first.

    Each row: class, key, pid, user, program, age, true if the session is idle, true if its role has rights on
    Trunkline, and the number of sessions that wait for it.
    """
    return conn.execute(
        "select l.classid::int, l.objid::int, l.pid, a.usename, a.application_name,"
        " pg_catalog.clock_timestamp() - coalesce(a.xact_start, a.state_change),"
        # session locks: ours end with a transaction, which an idle session does not have
        " coalesce(a.state = 'idle', false),"
        " r.rolsuper or pg_catalog.pg_has_role(r.oid, n.nspowner, 'member')"
        "  or exists (select from pg_catalog.pg_roles o where o.rolname = any (%s)"
        "             and pg_catalog.pg_has_role(r.oid, o.oid, 'member')),"
        " (select count(*) from pg_catalog.pg_locks w where w.locktype = 'advisory' and not w.granted"
        "  and (w.database, w.classid, w.objid, w.objsubid) = (l.database, l.classid, l.objid, l.objsubid))"
        " from pg_catalog.pg_locks l join pg_catalog.pg_database d on d.oid = l.database"
        " join pg_catalog.pg_stat_activity a on a.pid = l.pid left join pg_catalog.pg_roles r on r.oid = a.usesysid"
        " cross join (select nspowner from pg_catalog.pg_namespace where nspname = 'trunkline') n"
        " where l.locktype = 'advisory' and l.granted and l.objsubid = 2 and l.classid between %s and %s"
        " and d.datname = pg_catalog.current_database() and l.pid <> pg_catalog.pg_backend_pid() order by 6 desc nulls last",
        [list(roles), *classes],
    ).fetchall()
