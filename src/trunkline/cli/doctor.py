"""`trunkline doctor`: what endangers durability or speed, with a remedy for each finding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

import click
import msgspec

from trunkline.settings import Settings

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

Level = Literal["ok", "warn", "fail"]
_UNHEALTHY = 5
_OLDEST_SERVER = 150000
_LONG_TRANSACTION = timedelta(minutes=1)
_IDLE_TRANSACTION = timedelta(seconds=30)
_MANY_DEAD_ROWS = 10_000
_CLOCK_DIFFERENCE = timedelta(seconds=2)
_OLD_XID_AGE = 1_000_000_000


class Finding(msgspec.Struct, frozen=True):
    """The answer of one check. Only `fail` makes the command fail."""

    check: str
    level: Level
    message: str
    hint: str | None = None


@click.command("doctor")
@click.option("--database-url", metavar="URL", help="The database; without it the embedded server of --data.")
@click.option("--data", metavar="DIR", help="Data directory of a running `trunkline up`.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), help="Default: table on a terminal.")
@click.pass_context
def command(ctx: click.Context, database_url: str | None, data: str | None, output: str | None) -> None:
    """Look for what endangers durability or speed; exits with 5 when a check fails. Changes nothing."""
    from trunkline.cli.output import wants_table, write_json_lines, write_table
    from trunkline.cli.target import conninfo

    findings = examine(conninfo(Settings.load({"database_url": database_url, "data": data})))
    if wants_table(output):
        rows = [(f.level, f.check, f.message, f.hint or "") for f in findings]
        write_table(("", "check", "found", "what to do"), rows)
    else:
        write_json_lines(findings)
    if any(finding.level == "fail" for finding in findings):
        ctx.exit(_UNHEALTHY)


def examine(url: str) -> list[Finding]:
    """Run every check on one connection."""
    import psycopg

    with psycopg.connect(url, autocommit=True, connect_timeout=10, application_name="trunkline doctor") as conn:
        return [finding for check in CHECKS for finding in check(conn)]


def server_version(conn: Connection) -> Iterator[Finding]:
    """Postgres 15 is the oldest we work on."""
    number, text = conn.info.server_version, conn.info.parameter_status("server_version")
    if number < _OLDEST_SERVER:
        yield Finding("server version", "fail", f"Postgres {text}", "upgrade to Postgres 15 or newer")
    else:
        yield Finding("server version", "ok", f"Postgres {text}")


def schema_installed(conn: Connection) -> Iterator[Finding]:
    """The schema is there, and at the version this program brings along."""
    from trunkline.sql.migrate import installed_version, latest_version

    installed, latest = installed_version(conn), latest_version()
    if installed is None:
        yield Finding("schema", "fail", "schema trunkline is not installed", "run trunkline migrate")
    elif installed != latest:
        remedy = "run trunkline migrate" if installed < latest else "upgrade this program"
        yield Finding("schema", "fail", f"version {installed}, this program has {latest}", remedy)
    else:
        yield Finding("schema", "ok", f"version {installed}")


def durability(conn: Connection) -> Iterator[Finding]:
    """Nothing that was confirmed may be lost by a crash."""
    rows = conn.execute(
        "select name, setting from pg_catalog.pg_settings"
        " where name in ('fsync', 'full_page_writes', 'synchronous_commit') order by name"
    ).fetchall()
    for name, setting in rows:
        if setting == "off":
            yield Finding(name, "fail", f"{name} is off: a crash loses messages", f"set {name} = on")
        else:
            yield Finding(name, "ok", f"{name} is {setting}")


def unlogged_tables(conn: Connection) -> Iterator[Finding]:
    """An unlogged table is empty after a crash."""
    rows = conn.execute(
        "select c.relname from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace"
        " where n.nspname = 'trunkline' and c.relkind in ('r', 'p') and c.relpersistence <> 'p' order by 1"
    ).fetchall()
    if rows:
        names = ", ".join(name for (name,) in rows)
        yield Finding("tables", "fail", f"unlogged: {names}", "alter table ... set logged")
    else:
        yield Finding("tables", "ok", "all tables are logged")


def oldest_transactions(conn: Connection) -> Iterator[Finding]:
    """Old snapshots keep dead rows everywhere; ours are few, but the rest of the database suffers."""
    rows = conn.execute(
        "select pid, usename, state, pg_catalog.clock_timestamp() - xact_start, left(query, 80)"
        " from pg_catalog.pg_stat_activity"
        " where coalesce(backend_xid, backend_xmin) is not null and pid <> pg_catalog.pg_backend_pid()"
        " and xact_start < pg_catalog.clock_timestamp() - %s::interval order by xact_start limit 5",
        [_LONG_TRANSACTION],
    ).fetchall()
    for pid, user, state, age, query in rows:
        yield Finding(
            "oldest transaction",
            "warn",
            f"process {pid} of {user} ({state}) for {_short(age)}: {' '.join((query or '').split())}",
            f"end it, or select pg_terminate_backend({pid})",
        )
    if not rows:
        yield Finding("oldest transaction", "ok", f"none older than {_short(_LONG_TRANSACTION)}")


def prepared_transactions(conn: Connection) -> Iterator[Finding]:
    """A forgotten prepared transaction holds its locks for ever."""
    rows = conn.execute(
        "select gid, owner, pg_catalog.clock_timestamp() - prepared from pg_catalog.pg_prepared_xacts"
        " where prepared < pg_catalog.clock_timestamp() - %s::interval order by prepared limit 5",
        [_LONG_TRANSACTION],
    ).fetchall()
    for gid, owner, age in rows:
        message = f"{gid!r} of {owner} for {_short(age)}"
        yield Finding("prepared transaction", "warn", message, "commit prepared or rollback prepared")
    if not rows:
        yield Finding("prepared transaction", "ok", "none is left over")


def replication_slots(conn: Connection) -> Iterator[Finding]:
    """A slot that nobody reads keeps WAL and old rows until the disk is full."""
    rows = conn.execute(
        "select slot_name, slot_type, coalesce(wal_status, 'lost')"
        " from pg_catalog.pg_replication_slots where not active order by 1 limit 5"
    ).fetchall()
    for name, kind, status in rows:
        message = f"{kind} slot {name} has no reader (WAL {status})"
        yield Finding("replication slot", "warn", message, f"select pg_drop_replication_slot('{name}')")
    if not rows:
        yield Finding("replication slot", "ok", "no slot without a reader")


def idle_in_transaction(conn: Connection) -> Iterator[Finding]:
    """A session that sleeps inside a transaction may hold a lock that claims wait for."""
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
            "commit sooner, or set idle_in_transaction_session_timeout",
        )
    if not rows:
        yield Finding("idle in transaction", "ok", f"no session for more than {_short(_IDLE_TRANSACTION)}")


def dead_rows(conn: Connection) -> Iterator[Finding]:
    """Hot paths only append, so dead rows in our tables mean that something is wrong."""
    rows = conn.execute(
        "select relname, n_dead_tup from pg_catalog.pg_stat_user_tables"
        " where schemaname = 'trunkline' and n_dead_tup > %s order by n_dead_tup desc limit 5",
        [_MANY_DEAD_ROWS],
    ).fetchall()
    for name, count in rows:
        yield Finding("dead rows", "warn", f"{count} in trunkline.{name}", f"vacuum trunkline.{name}")
    if not rows:
        yield Finding("dead rows", "ok", f"no table with more than {_MANY_DEAD_ROWS}")


def clock_difference(conn: Connection) -> Iterator[Finding]:
    """Only the database's clock decides; a client that is off reads its own logs wrongly."""
    before = datetime.now(UTC)
    row = conn.execute("select pg_catalog.clock_timestamp()").fetchone()
    after = datetime.now(UTC)
    if row is None:
        return
    difference = row[0] - (before + (after - before) / 2)
    message = f"the server's clock differs by {difference.total_seconds():+.3f} s"
    if abs(difference) > _CLOCK_DIFFERENCE + (after - before):
        yield Finding("clock", "warn", message, "synchronise both machines with NTP")
    else:
        yield Finding("clock", "ok", message)


def transaction_id_age(conn: Connection) -> Iterator[Finding]:
    """Postgres stops accepting writes when transaction ids run out."""
    row = conn.execute(
        "select pg_catalog.age(datfrozenxid) from pg_catalog.pg_database where datname = pg_catalog.current_database()"
    ).fetchone()
    age = row[0] if row else 0
    if age > _OLD_XID_AGE:
        yield Finding("transaction ids", "fail", f"the oldest is {age:,} old", "vacuum freeze the database")
    else:
        yield Finding("transaction ids", "ok", f"the oldest is {age:,} old")


def _short(age: timedelta) -> str:
    seconds = int(age.total_seconds())
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min"


CHECKS: tuple[Callable[[Connection], Iterator[Finding]], ...]
CHECKS = (
    server_version,
    schema_installed,
    durability,
    unlogged_tables,
    oldest_transactions,
    prepared_transactions,
    replication_slots,
    idle_in_transaction,
    dead_rows,
    clock_difference,
    transaction_id_age,
)
