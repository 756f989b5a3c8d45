"""Checks of `trunkline doctor` on the schema: version, tables, segments, roles, upkeep."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from trunkline.cli.commands.findings import Finding

if TYPE_CHECKING:
    from trunkline.cli.commands.findings import Connection

_MANY_DEAD_ROWS = 10_000
# Lock classes of the kernel: sql/README.md, "Lock order".
_LOCK_CLASSES = (778000, 778099)
_LONG_LOCK = timedelta(seconds=10)
_MOST_LOCKS = 10
_UPKEEP_SILENCE = 30.0
_UPKEEP_FAILS = timedelta(minutes=1)
"""Duration after which a failing task fails the check. Brief failures, such as on a lock, are normal."""
_ROLES = ("trunkline_consumer", "trunkline_owner", "trunkline_publisher", "trunkline_reader")


def unlogged_tables(conn: Connection) -> Iterator[Finding]:
    """Check for unlogged tables, which are empty after a crash."""
    rows = conn.execute(
        "select c.relname from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace"
        " where n.nspname = 'trunkline' and c.relkind in ('r', 'p') and c.relpersistence <> 'p' order by 1"
    ).fetchall()
    if rows:
        names = ", ".join(name for (name,) in rows)
        yield Finding("tables", "fail", f"unlogged: {names}", "Run alter table ... set logged.")
    else:
        yield Finding("tables", "ok", "all tables are logged")


def dead_rows(conn: Connection) -> Iterator[Finding]:
    """Check for dead rows. Hot paths only append, so many dead rows indicate a problem."""
    rows = conn.execute(
        "select relname, n_dead_tup from pg_catalog.pg_stat_user_tables"
        " where schemaname = 'trunkline' and n_dead_tup > %s order by n_dead_tup desc limit 5",
        [_MANY_DEAD_ROWS],
    ).fetchall()
    for name, count in rows:
        yield Finding("dead rows", "warn", f"{count} in trunkline.{name}", f"Run vacuum trunkline.{name}.")
    if not rows:
        yield Finding("dead rows", "ok", f"no table with more than {_MANY_DEAD_ROWS}")


def segments(conn: Connection) -> Iterator[Finding]:
    """Check that segments exist. A publish needs its segment; if upkeep has not created it, the publish has to."""
    rows = conn.execute(
        "select t.name, l.partition, x.segment, x.segment = x.current as needed"
        " from trunkline.logs l join trunkline.topics t using (topic_id)"
        " cross join lateral (select (trunkline._last_id(l.topic_id, l.partition) + 1) / t.segment_rows as current) c"
        " cross join lateral (select c.current, c.current + n as segment from generate_series(0, 1) n) x"
        " where to_regclass(format('trunkline.topic_%s_%s_%s', l.topic_id, l.partition, x.segment)) is null"
        " and not t.shared and t.kind <> 'store' order by needed desc, 1, 2 limit 5"
    ).fetchall()
    for name, partition, segment, needed in rows:
        message = f"partition {partition} of {name} has no segment {segment}" + ("" if needed else " yet, which is the next")
        yield Finding("segments", "fail" if needed else "warn", message, "Run trunkline up, or call trunkline.upkeep().")
    # a sealed, emptied segment has no rows, but its table must exist while its offsets are readable
    lost = conn.execute(
        "select t.name, l.partition, s.segment from trunkline.segments s join trunkline.logs l using (log)"
        " join trunkline.topics t using (topic_id) where coalesce(s.last_offset, 9223372036854775807) >= l.base_offset"
        " and to_regclass(format('trunkline.topic_%s_%s_%s', l.topic_id, l.partition, s.segment)) is null"
        " and t.kind <> 'store' order by 1, 2, 3 limit 5"
    ).fetchall()
    for name, partition, segment in lost:
        message = f"the table of segment {segment}, partition {partition} of {name} is gone, with its messages"
        yield Finding("segments", "fail", message, "Restore it from a backup.")
    if not rows and not lost:
        yield Finding("segments", "ok", "every partition has its segment and the next one")


def upkeep(conn: Connection) -> Iterator[Finding]:
    """Check that each upkeep task runs at its interval, succeeds, and has no last run in the future."""
    rows = conn.execute(
        "select task, state, age_seconds, extract(epoch from every)::float8, error, failing_since < trunkline.clock() - %s"
        " from trunkline.upkeep_stats()",
        [_UPKEEP_FAILS],
    ).fetchall()
    run_it = "Run trunkline up, or call trunkline.upkeep() from a scheduler."
    ages = [age for _, _, age, *_ in rows if age is not None]
    if not ages:
        yield Finding("upkeep", "warn", "upkeep never ran", run_it)
        return
    silent = min(ages) > _UPKEEP_SILENCE
    if silent:
        yield Finding("upkeep", "warn", f"upkeep last ran {min(ages):.0f} s ago", run_it)
    for task, state, age, every, error, lasting in rows:
        if state == "failing":
            hint = "Fix the cause. The task runs again at its interval."
            yield Finding("upkeep", "fail" if lasting else "warn", f"task {task} fails: {error}", hint)
        elif state == "ahead":
            message = f"task {task} last ran {-age:.0f} s in the future: the server's clock was set back"
            yield Finding("upkeep", "warn", message, f"Check the clock of the database server. {run_it}")
        elif silent:
            continue
        elif state == "never":
            yield Finding("upkeep", "warn", f"task {task} never ran; it is due every {every:g} s", run_it)
        elif state == "late":
            yield Finding("upkeep", "warn", f"task {task} last ran {age:.0f} s ago; it is due every {every:g} s", run_it)
    if not silent and all(state == "ok" for _, state, *_ in rows):
        yield Finding("upkeep", "ok", f"all {len(rows)} tasks run; last {max(0.0, min(ages)):.1f} s ago")


def roles(conn: Connection) -> Iterator[Finding]:
    """Check for the four roles that carry rights. Without them only the schema's owner can work."""
    row = conn.execute(
        "select array(select rolname::text from pg_catalog.pg_roles where rolname = any (%s) order by 1), current_user,"
        " (select nspowner::regrole::text from pg_catalog.pg_namespace where nspname = 'trunkline'),"
        " (select rolsuper from pg_catalog.pg_roles where rolname = current_user)",
        [list(_ROLES)],
    ).fetchone()
    if row is None:
        return
    there, user, owner, superuser = row
    missing = [name for name in _ROLES if name not in there]
    if missing:
        remedy = "As an administrator, run create role ... nologin, then select trunkline.grant_roles()."
        yield Finding("roles", "warn", f"missing: {', '.join(missing)}", remedy)
    else:
        held = [name for name in _ROLES if _member(conn, name)]
        kind = (
            "a superuser" if superuser else "the owner of the schema" if user == owner else ", ".join(held) or "none of them"
        )
        yield Finding("roles", "ok", f"all four exist; {user} is {kind}")


def owner(conn: Connection) -> Iterator[Finding]:
    """Check the owner of the functions. They run with its rights, so a superuser would lend them to every caller."""
    rows = conn.execute(
        "select distinct r.rolname from pg_catalog.pg_roles r where r.rolsuper and r.oid in ("
        " select nspowner from pg_catalog.pg_namespace where nspname = 'trunkline' union all"
        " select p.proowner from pg_catalog.pg_proc p join pg_catalog.pg_namespace n on n.oid = p.pronamespace"
        " where n.nspname = 'trunkline') order by 1"
    ).fetchall()
    for (name,) in rows:
        yield Finding(
            "owner",
            "warn",
            f"superuser {name} owns the schema: its functions run with the rights of a superuser",
            "As an administrator: create role ...; alter schema trunkline owner to ...; select trunkline._set_owner('...').",
        )
    if not rows:
        yield Finding("owner", "ok", "the schema's owner is not a superuser")


def _member(conn: Connection, role: str) -> bool:
    row = conn.execute("select pg_catalog.pg_has_role(current_user, %s, 'member')", [role]).fetchone()
    return bool(row and row[0])


def alerts(conn: Connection) -> Iterator[Finding]:
    """Report alerts from upkeep of the last day."""
    rows = conn.execute(
        "select kind, count(*), max(at) from trunkline.alerts where at > trunkline.clock() - interval '1 day'"
        " group by 1 order by 3 desc limit 5"
    ).fetchall()
    for kind, count, last in rows:
        message = f"{count} x {kind} in the last day, last at {last:%Y-%m-%d %H:%M:%S%z}"
        yield Finding("alerts", "warn", message, "Read them with select * from trunkline.alerts; delete them when done.")
    if not rows:
        yield Finding("alerts", "ok", "none in the last day")


def advisory_locks(conn: Connection) -> Iterator[Finding]:
    """Report sessions that hold our advisory locks for long or without rights on Trunkline; any login can take them."""
    rows = conn.execute(
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
        [list(_ROLES), *_LOCK_CLASSES],
    ).fetchall()
    found = 0
    for lock, key, pid, user, program, age, idle, ours, waiting in rows:
        if ours and not idle and (age is None or age < _LONG_LOCK):
            continue
        if (found := found + 1) > _MOST_LOCKS:
            continue
        since = "" if age is None else f" for {int(age.total_seconds())} s"
        why = "" if ours else ", a role without rights on Trunkline,"
        kind = ", outside of a transaction" if idle else ""
        yield Finding(
            "advisory locks",
            "warn" if ours else "fail",
            f"process {pid} of {user} ({program or 'no name'}){why} holds lock {lock}, {key}{since}{kind};"
            f" {waiting} sessions wait for it",
            f"End it, or run select pg_terminate_backend({pid}).",
        )
    if not found:
        yield Finding("advisory locks", "ok", f"no session holds one for more than {int(_LONG_LOCK.total_seconds())} s")


CHECKS = (unlogged_tables, segments, dead_rows, upkeep, roles, owner, advisory_locks, alerts)
