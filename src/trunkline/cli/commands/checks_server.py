"""Checks of `trunkline doctor` on the server: settings, sessions, clocks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from trunkline.cli.commands.findings import Finding, Level

if TYPE_CHECKING:
    from trunkline.cli.commands.findings import Connection

_OLDEST_SERVER = 150000
_LONG_TRANSACTION = timedelta(minutes=1)
_IDLE_TRANSACTION = timedelta(seconds=30)
_CLOCK_DIFFERENCE = timedelta(seconds=2)
_OLD_XID_AGE = 1_000_000_000
_OLD_STANDBY = 1_000_000


def server_version(conn: Connection) -> Iterator[Finding]:
    """Check for Postgres 15 or newer."""
    number, text = conn.info.server_version, conn.info.parameter_status("server_version")
    if number < _OLDEST_SERVER:
        yield Finding("server version", "fail", f"Postgres {text}", "Upgrade to Postgres 15 or newer.")
    else:
        yield Finding("server version", "ok", f"Postgres {text}")


def durability(conn: Connection) -> Iterator[Finding]:
    """Check that a crash cannot lose confirmed messages."""
    rows = conn.execute(
        "select name, setting from pg_catalog.pg_settings"
        " where name in ('fsync', 'full_page_writes', 'synchronous_commit') order by name"
    ).fetchall()
    for name, setting in rows:
        if setting == "off":
            yield Finding(name, "fail", f"{name} is off: a crash loses messages", f"Set {name} = on.")
        else:
            yield Finding(name, "ok", f"{name} is {setting}")


def xmin_holders(conn: Connection) -> Iterator[Finding]:
    """Report sessions that hold back vacuum. This bloats the application's tables more than ours."""
    rows = conn.execute(
        "select pid, usename, application_name, state, xact_start, "
        " pg_catalog.clock_timestamp() - xact_start, left(query, 80)"
        " from pg_catalog.pg_stat_activity"
        " where coalesce(backend_xid, backend_xmin) is not null and pid <> pg_catalog.pg_backend_pid()"
        " and xact_start < pg_catalog.clock_timestamp() - %s::interval order by xact_start limit 5",
        [_LONG_TRANSACTION],
    ).fetchall()
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
    rows = conn.execute(
        "select gid, owner, pg_catalog.clock_timestamp() - prepared from pg_catalog.pg_prepared_xacts"
        " where prepared < pg_catalog.clock_timestamp() - %s::interval order by prepared limit 5",
        [_LONG_TRANSACTION],
    ).fetchall()
    for gid, owner, age in rows:
        message = f"{gid!r} of {owner} for {_short(age)}"
        yield Finding("prepared transaction", "warn", message, "Run commit prepared or rollback prepared.")
    if not rows:
        yield Finding("prepared transaction", "ok", "none left over")


def replication_slots(conn: Connection) -> Iterator[Finding]:
    """Report unused replication slots, which retain WAL and old rows until the disk is full."""
    rows = conn.execute(
        "select slot_name, slot_type, coalesce(wal_status, 'lost')"
        " from pg_catalog.pg_replication_slots where not active order by 1 limit 5"
    ).fetchall()
    for name, kind, status in rows:
        message = f"{kind} slot {name} has no reader (WAL {status})"
        yield Finding("replication slot", "warn", message, f"Run select pg_drop_replication_slot('{name}').")
    if not rows:
        yield Finding("replication slot", "ok", "no slot without a reader")


def standbys(conn: Connection) -> Iterator[Finding]:
    """Report standbys that hold back vacuum through hot_standby_feedback."""
    rows = conn.execute(
        "select application_name, client_addr::text, pg_catalog.age(backend_xmin) from pg_catalog.pg_stat_replication"
        " where backend_xmin is not null order by 3 desc limit 5"
    ).fetchall()
    for name, address, age in rows:
        message = f"standby {name} at {address or 'this machine'} holds xmin back by {age:,} transactions"
        level: Level = "warn" if age > _OLD_STANDBY else "ok"
        yield Finding("standby", level, message, "End its long queries." if level == "warn" else None)
    if not rows:
        yield Finding("standby", "ok", "none holds xmin back")


def idle_in_transaction(conn: Connection) -> Iterator[Finding]:
    """Report sessions that are idle in a transaction and may hold locks that claims wait for."""
    rows = conn.execute(
        "select pid, usename, application_name, pg_catalog.clock_timestamp() - state_change"
        " from pg_catalog.pg_stat_activity where state like 'idle in transaction%%'"
        " and state_change < pg_catalog.clock_timestamp() - %s::interval order by state_change limit 5",
        [_IDLE_TRANSACTION],
    ).fetchall()
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
    row = conn.execute("select pg_catalog.clock_timestamp()").fetchone()
    after = datetime.now(UTC)
    if row is None:
        return
    difference = row[0] - (before + (after - before) / 2)
    message = f"the server's clock differs by {difference.total_seconds():+.3f} s"
    if abs(difference) > _CLOCK_DIFFERENCE + (after - before):
        yield Finding("clock", "warn", message, "Synchronise both machines with NTP.")
    else:
        yield Finding("clock", "ok", message)


def transaction_id_age(conn: Connection) -> Iterator[Finding]:
    """Check the age of transaction ids: Postgres stops accepting writes when they run out."""
    row = conn.execute(
        "select pg_catalog.age(datfrozenxid) from pg_catalog.pg_database where datname = pg_catalog.current_database()"
    ).fetchone()
    age = row[0] if row else 0
    if age > _OLD_XID_AGE:
        yield Finding("transaction ids", "fail", f"the oldest is {age:,} old", "Run vacuum freeze on the database.")
    else:
        yield Finding("transaction ids", "ok", f"the oldest is {age:,} old")


def _short(age: timedelta) -> str:
    seconds = int(age.total_seconds())
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min"


CHECKS = (
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
