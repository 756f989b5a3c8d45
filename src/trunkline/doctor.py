"""Checks of durability and performance risks, each with a hint. `trunkline doctor` prints them.

Finding out is separate from judging: the queries are in `db/calls/doctor.py`, the limits and texts here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta

import psycopg

from trunkline.db.calls import doctor as calls
from trunkline.db.calls.doctor import Connection
from trunkline.db.calls.list_records import Finding, Level
from trunkline.sql.migrate import installed_version, latest_version

_OLDEST_SERVER = 150000
_LONG_TRANSACTION = timedelta(minutes=1)
_IDLE_TRANSACTION = timedelta(seconds=30)
_CLOCK_DIFFERENCE = timedelta(seconds=2)
_OLD_XID_AGE = 1_000_000_000
_OLD_STANDBY = 1_000_000
_MANY_DEAD_ROWS = 10_000
# Lock classes of the kernel: sql/README.md, "Lock order".
_LOCK_CLASSES = (778000, 778099)
_LONG_LOCK = timedelta(seconds=10)
_MOST_LOCKS = 10
_UPKEEP_SILENCE = 30.0
_UPKEEP_FAILS = timedelta(minutes=1)
"""Duration after which a failing task fails the check. Brief failures, such as on a lock, are normal."""
_ROLES = ("trunkline_consumer", "trunkline_owner", "trunkline_publisher", "trunkline_reader")


def examine(url: str) -> list[Finding]:
    """Run every check on one connection."""
    findings: list[Finding] = []
    with psycopg.connect(url, autocommit=True, connect_timeout=10, application_name="trunkline doctor") as conn:
        # an administrator may run this
        calls.pin_search_path(conn)
        checks: list[Callable[[Connection], Iterable[Finding]]] = [*_SERVER_CHECKS, schema_version]
        if installed_version(conn) is not None:
            checks += _SCHEMA_CHECKS
        for check in checks:
            name = check.__name__.replace("_", " ")
            try:
                findings += check(conn)
            except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedFunction, psycopg.errors.UndefinedColumn):
                # the schema has another version, which the schema check reports
                findings.append(Finding(name, "warn", "not supported by this version of the schema"))
            except psycopg.errors.InsufficientPrivilege as exc:
                findings.append(Finding(name, "warn", f"permission denied: {exc.diag.message_primary}"))
    return findings


def schema_version(conn: Connection) -> Iterator[Finding]:
    """Check that the schema is installed, in the version of this program."""
    installed, latest = installed_version(conn), latest_version()
    if installed is None:
        yield Finding("schema", "fail", "schema trunkline is not installed", "Run trunkline migrate.")
    elif installed != latest:
        hint = "Run trunkline migrate." if installed < latest else "Upgrade this program."
        yield Finding("schema", "fail", f"version {installed}, this program has {latest}", hint)
    else:
        yield Finding("schema", "ok", f"version {installed}")


def server_version(conn: Connection) -> Iterator[Finding]:
    """Check for Postgres 15 or newer."""
    number, text = conn.info.server_version, conn.info.parameter_status("server_version")
    if number < _OLDEST_SERVER:
        yield Finding("server version", "fail", f"Postgres {text}", "Upgrade to Postgres 15 or newer.")
    else:
        yield Finding("server version", "ok", f"Postgres {text}")


def durability(conn: Connection) -> Iterator[Finding]:
    """Check that a crash cannot lose confirmed messages."""
    rows = calls.durability_settings(conn)
    for name, setting in rows:
        if setting == "off":
            yield Finding(name, "fail", f"{name} is off: a crash loses messages", f"Set {name} = on.")
        else:
            yield Finding(name, "ok", f"{name} is {setting}")


def xmin_holders(conn: Connection) -> Iterator[Finding]:
    """Report sessions that hold back vacuum. This bloats the application's tables more than ours."""
    rows = calls.oldest_transactions(conn, _LONG_TRANSACTION)
    for pid, user, program, state, since, age, query in rows:
        yield Finding(
            "oldest transaction",
            "warn",
            f"process {pid} of {user} ({program or 'no name'}, {state}) holds xmin back since "
            f"{since.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z, {_short(age)}: {' '.join((query or '').split())}",
            f"End it, or run select pg_terminate_backend({pid}).",
        )
    if not rows:
        yield Finding("oldest transaction", "ok", f"none older than {_short(_LONG_TRANSACTION)}")


def prepared_transactions(conn: Connection) -> Iterator[Finding]:
    """Report forgotten prepared transactions, which hold their locks forever."""
    rows = calls.prepared_transactions(conn, _LONG_TRANSACTION)
    for gid, owner, age in rows:
        message = f"{gid!r} of {owner} for {_short(age)}"
        yield Finding("prepared transaction", "warn", message, "Run commit prepared or rollback prepared.")
    if not rows:
        yield Finding("prepared transaction", "ok", "none left over")


def replication_slots(conn: Connection) -> Iterator[Finding]:
    """Report unused replication slots, which retain WAL and old rows until the disk is full."""
    rows = calls.unused_replication_slots(conn)
    for name, kind, status in rows:
        message = f"{kind} slot {name} has no reader (WAL {status})"
        yield Finding("replication slot", "warn", message, f"Run select pg_drop_replication_slot('{name}').")
    if not rows:
        yield Finding("replication slot", "ok", "no slot without a reader")


def standbys(conn: Connection) -> Iterator[Finding]:
    """Report standbys that hold back vacuum through hot_standby_feedback."""
    rows = calls.standbys_with_feedback(conn)
    for name, address, age in rows:
        message = f"standby {name} at {address or 'this machine'} holds xmin back by {age:,} transactions"
        level: Level = "warn" if age > _OLD_STANDBY else "ok"
        yield Finding("standby", level, message, "End its long queries." if level == "warn" else None)
    if not rows:
        yield Finding("standby", "ok", "none holds xmin back")


def idle_in_transaction(conn: Connection) -> Iterator[Finding]:
    """Report sessions that are idle in a transaction and may hold locks that claims wait for."""
    rows = calls.idle_transactions(conn, _IDLE_TRANSACTION)
    for pid, user, program, age in rows:
        yield Finding(
            "idle in transaction",
            "warn",
            f"process {pid} of {user} ({program or 'no name'}) for {_short(age)}",
            "Commit sooner, or set idle_in_transaction_session_timeout.",
        )
    if not rows:
        yield Finding("idle in transaction", "ok", f"no session for more than {_short(_IDLE_TRANSACTION)}")


def clock_difference(conn: Connection) -> Iterator[Finding]:
    """Compare clocks. The database's clock decides; a wrong client clock only confuses its own logs."""
    before = datetime.now(UTC)
    at = calls.server_time(conn)
    after = datetime.now(UTC)
    if at is None:
        return
    difference = at - (before + (after - before) / 2)
    message = f"the server's clock differs by {difference.total_seconds():+.3f} s"
    if abs(difference) > _CLOCK_DIFFERENCE + (after - before):
        yield Finding("clock", "warn", message, "Synchronise both machines with NTP.")
    else:
        yield Finding("clock", "ok", message)


def transaction_id_age(conn: Connection) -> Iterator[Finding]:
    """Check the age of transaction ids: Postgres stops accepting writes when they run out."""
    age = calls.oldest_transaction_id_age(conn)
    if age > _OLD_XID_AGE:
        yield Finding("transaction ids", "fail", f"the oldest is {age:,} old", "Run vacuum freeze on the database.")
    else:
        yield Finding("transaction ids", "ok", f"the oldest is {age:,} old")


def _short(age: timedelta) -> str:
    seconds = int(age.total_seconds())
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min"


def unlogged_tables(conn: Connection) -> Iterator[Finding]:
    """Check for unlogged tables, which are empty after a crash."""
    names = calls.unlogged_tables(conn)
    if names:
        yield Finding("tables", "fail", f"unlogged: {', '.join(names)}", "Run alter table ... set logged.")
    else:
        yield Finding("tables", "ok", "all tables are logged")


def dead_rows(conn: Connection) -> Iterator[Finding]:
    """Check for dead rows. Hot paths only append, so many dead rows indicate a problem."""
    rows = calls.tables_with_dead_rows(conn, _MANY_DEAD_ROWS)
    for name, count in rows:
        yield Finding("dead rows", "warn", f"{count} in trunkline.{name}", f"Run vacuum trunkline.{name}.")
    if not rows:
        yield Finding("dead rows", "ok", f"no table with more than {_MANY_DEAD_ROWS}")


def segments(conn: Connection) -> Iterator[Finding]:
    """Check that segments exist. A publish needs its segment; if upkeep has not created it, the publish has to."""
    rows = calls.missing_segments(conn)
    for name, partition, segment, needed in rows:
        message = f"partition {partition} of {name} has no segment {segment}" + ("" if needed else " yet, which is the next")
        yield Finding("segments", "fail" if needed else "warn", message, "Run trunkline up, or call trunkline.upkeep().")
    # a sealed, emptied segment has no rows, but its table must exist while its offsets are readable
    lost = calls.lost_segments(conn)
    for name, partition, segment in lost:
        message = f"the table of segment {segment}, partition {partition} of {name} is gone, with its messages"
        yield Finding("segments", "fail", message, "Restore it from a backup.")
    if not rows and not lost:
        yield Finding("segments", "ok", "every partition has the segments it needs")


def upkeep(conn: Connection) -> Iterator[Finding]:
    """Check that each upkeep task runs at its interval, succeeds, and has no last run in the future."""
    rows = calls.upkeep_tasks(conn, _UPKEEP_FAILS)
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
    row = calls.existing_roles(conn, _ROLES)
    if row is None:
        return
    existing, user, owner, superuser = row
    missing = [name for name in _ROLES if name not in existing]
    if missing:
        hint = "As an administrator, run create role ... nologin, then select trunkline.grant_roles()."
        yield Finding("roles", "warn", f"missing: {', '.join(missing)}", hint)
    else:
        held = [name for name in _ROLES if calls.is_member(conn, name)]
        kind = (
            "a superuser" if superuser else "the owner of the schema" if user == owner else ", ".join(held) or "none of them"
        )
        yield Finding("roles", "ok", f"all four exist; {user} is {kind}")


def owner(conn: Connection) -> Iterator[Finding]:
    """Check the owner of the functions. They run with its rights, so a superuser would lend them to every caller."""
    names = calls.superuser_owners(conn)
    for name in names:
        yield Finding(
            "owner",
            "warn",
            f"superuser {name} owns the schema: its functions run with the rights of a superuser",
            "As an administrator: create role ...; alter schema trunkline owner to ...; select trunkline._set_owner('...').",
        )
    if not names:
        yield Finding("owner", "ok", "the schema's owner is not a superuser")


def alerts(conn: Connection) -> Iterator[Finding]:
    """Report alerts from upkeep of the last day."""
    rows = calls.recent_alerts(conn)
    for kind, count, last in rows:
        message = f"{count} x {kind} in the last day, last at {last:%Y-%m-%d %H:%M:%S%z}"
        yield Finding(
            "alerts",
            "warn",
            message,
            "Read them with trunkline.list_alerts(), and close them with trunkline.close_alert(ID).",
        )
    if not rows:
        yield Finding("alerts", "ok", "none in the last day")


def advisory_locks(conn: Connection) -> Iterator[Finding]:
    """Report sessions that hold our advisory locks for long or without rights on Trunkline; any login can take them."""
    rows = calls.advisory_locks(conn, _ROLES, _LOCK_CLASSES)
    reported = 0
    for lock, key, pid, user, program, age, idle, ours, waiting in rows:
        if ours and not idle and (age is None or age < _LONG_LOCK):
            continue
        if (reported := reported + 1) > _MOST_LOCKS:
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
    if not reported:
        yield Finding("advisory locks", "ok", f"no session holds one for more than {int(_LONG_LOCK.total_seconds())} s")


_SERVER_CHECKS = (
    server_version,
    durability,
    xmin_holders,
    prepared_transactions,
    replication_slots,
    standbys,
    idle_in_transaction,
    clock_difference,
    transaction_id_age,
)
_SCHEMA_CHECKS = (unlogged_tables, segments, dead_rows, upkeep, roles, owner, advisory_locks, alerts)
