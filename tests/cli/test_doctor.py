"""`trunkline doctor`, `top` and `migrate`: what they find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta

import psycopg
import pytest

from tests.cli.conftest import Cli, on_a_terminal
from tests.conftest import Clock, Connection
from trunkline import doctor
from trunkline.sql.migrate import latest_version


def level(cli: Cli, check: str, code: int = 0, *arguments: str) -> tuple[str, str]:
    """The worst level of a check, and its message."""
    found = [row for row in cli("doctor", *arguments, code=code).json if row["check"] == check]
    return max(((row["level"], row["message"]) for row in found), key=lambda each: ["ok", "warn", "fail"].index(each[0]))


@pytest.fixture
def plain_owner(conn: Connection) -> Iterator[str]:
    """A role without special rights, which owns the schema."""
    name = f"plain_{conn.info.backend_pid}"
    conn.execute(f"create role {name}")
    conn.execute(f"alter schema trunkline owner to {name}")
    conn.execute(f"select trunkline._set_owner('{name}')")
    yield name
    conn.execute(f"reassign owned by {name} to current_user")
    conn.execute(f"drop owned by {name}")
    conn.execute(f"drop role {name}")


def test_a_healthy_database(cli: Cli, conn: Connection, plain_owner: str) -> None:
    cli("topic", "create", "t")
    conn.execute("call trunkline.upkeep()")
    rows = cli("doctor", "--strict").json
    assert {row["level"] for row in rows} == {"ok"}, rows
    names = {row["check"] for row in rows}
    assert {"program", "database", "server version", "schema", "segments", "roles", "upkeep", "clock", "fsync"} <= names
    assert "embedded" in next(row["message"] for row in rows if row["check"] == "database")
    assert "segments" in cli("doctor", "-o", "table").stdout


def test_not_installed(cli: Cli, empty_db: str) -> None:
    found = cli("doctor", "--database-url", empty_db, code=5).json
    assert [row["hint"] for row in found if row["check"] == "schema"] == ["Run trunkline migrate."]
    assert "0020_baseline" in cli("migrate", "--dry-run", "--database-url", empty_db).json["pending"]
    cli("doctor", "--database-url", empty_db, code=5)
    assert cli("migrate", "--database-url", empty_db).json["applied"]
    assert cli("migrate", "--database-url", empty_db).json["applied"] == []
    assert "nothing to do" in cli("migrate", "--database-url", empty_db, "-o", "table").stdout
    quiet = cli("migrate", "--database-url", empty_db, "-q")
    assert (quiet.stdout, quiet.stderr) == ("", "")
    assert cli("migrate", "--database-url", empty_db, "-q", "-o", "json").json["applied"] == []
    assert cli("migrate", "--dry-run", "--database-url", empty_db).json["pending"] == []
    cli("doctor", "--database-url", empty_db)


def test_settings_that_lose_messages(cli: Cli, conn: Connection) -> None:
    row = conn.execute("select current_database()").fetchone()
    assert row is not None
    conn.execute(f"alter database {row[0]} set synchronous_commit = off")
    found, message = level(cli, "synchronous_commit", 5)
    assert found == "fail" and "a crash loses messages" in message


def test_tables_that_are_not_logged(cli: Cli, conn: Connection) -> None:
    conn.execute("alter table trunkline.alerts set unlogged")
    assert level(cli, "tables", 5) == ("fail", "unlogged: alerts")


def test_who_holds_xmin(cli: Cli, connect: Callable[[], Connection], monkeypatch: pytest.MonkeyPatch) -> None:
    holder = connect()
    holder.execute("begin isolation level repeatable read")
    holder.execute("select 1 from trunkline.topics")
    pid = holder.info.backend_pid
    for name in ("_LONG_TRANSACTION", "_IDLE_TRANSACTION"):
        monkeypatch.setattr(doctor, name, timedelta(0))
    found = cli("doctor").json
    assert any(
        row["check"] == "oldest transaction" and f"process {pid} " in row["message"] and "since" in row["message"]
        for row in found
    )
    assert any(row["check"] == "idle in transaction" and f"process {pid} " in row["message"] for row in found)
    cli("doctor", "--strict", code=5)
    holder.execute("rollback")


def test_a_schema_of_a_superuser(cli: Cli, conn: Connection) -> None:
    found, message = level(cli, "owner")
    assert found == "warn" and f"superuser {conn.info.user} owns the schema" in message


def test_a_schema_of_a_plain_role(cli: Cli, plain_owner: str) -> None:
    """`_set_owner` leaves nothing to the superuser."""
    assert level(cli, "owner") == ("ok", "the schema's owner is not a superuser")
    assert cli("topic", "create", "t").json["name"] == "t"


def test_advisory_locks_of_others(cli: Cli, conn: Connection, connect: Callable[[], Connection]) -> None:
    """A login without any right on Trunkline can stop a topic with one."""
    name = f"lowly_{conn.info.backend_pid}"
    conn.execute(f"create role {name} login password 'x'")
    try:
        assert level(cli, "advisory locks")[0] == "ok"
        with psycopg.connect(f"{cli.url} user={name} password=x", autocommit=True) as lowly:
            lowly.execute("select pg_advisory_lock(778001, 64), pg_advisory_lock(778100, 1), pg_advisory_lock(1)")
            found = [row for row in cli("doctor", code=5).json if row["check"] == "advisory locks"]
            pid = lowly.info.backend_pid
            assert [row["level"] for row in found] == ["fail"]
            assert f"process {pid} of {name}" in found[0]["message"] and "lock 778001, 64" in found[0]["message"]
            assert "without rights" in found[0]["message"] and f"pg_terminate_backend({pid})" in found[0]["hint"]
        # A duration longer than a transaction is not the kernel's, regardless of its owner.
        holder = connect()
        holder.execute("select pg_advisory_lock(778005, 7)")
        found_level, message = level(cli, "advisory locks")
        assert found_level == "warn" and "lock 778005, 7" in message and "outside of a transaction" in message
        holder.execute("select pg_advisory_unlock_all()")
    finally:
        conn.execute(f"drop role {name}")


def test_advisory_locks_held_for_long(cli: Cli, connect: Callable[[], Connection], monkeypatch: pytest.MonkeyPatch) -> None:
    holder = connect()
    holder.execute("begin")
    holder.execute("select pg_advisory_xact_lock(778001, 64)")
    assert level(cli, "advisory locks")[0] == "ok"
    monkeypatch.setattr(doctor, "_LONG_LOCK", timedelta(0))
    found, message = level(cli, "advisory locks")
    assert found == "warn" and f"process {holder.info.backend_pid} " in message
    holder.execute("rollback")


def test_missing_segments(cli: Cli, conn: Connection) -> None:
    cli("topic", "create", "t")
    assert level(cli, "segments") == ("ok", "every partition has the segments it needs")
    row = conn.execute("select topic_id from trunkline.topics where name = 't'").fetchone()
    assert row is not None
    conn.execute("select setval('trunkline.topic_1_0_ids', 1048576 - 10)")
    assert level(cli, "segments") == ("warn", "partition 0 of t has no segment 1 yet, which is the next")
    conn.execute("select trunkline.run_upkeep('segments')")
    assert level(cli, "segments")[0] == "ok"
    conn.execute(f"drop table trunkline.topic_{row[0]}_0_1")
    assert level(cli, "segments", 5)[0] == "fail"
    conn.execute(f"drop table trunkline.topic_{row[0]}_0_0")
    assert "partition 0 of t has no segment 0" in {each["message"] for each in cli("doctor", code=5).json}


def test_dead_rows_upkeep_and_alerts(cli: Cli, conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    assert level(cli, "upkeep") == ("warn", "upkeep never ran")
    conn.execute("insert into trunkline.alerts (at, kind, detail) values (now(), 'retention', '{}')")
    assert level(cli, "alerts")[0] == "warn"
    monkeypatch.setattr(doctor, "_MANY_DEAD_ROWS", -1)
    assert level(cli, "dead rows")[0] == "warn"


def upkeep_findings(cli: Cli, code: int = 0) -> list[tuple[str, str]]:
    return [(row["level"], row["message"]) for row in cli("doctor", code=code).json if row["check"] == "upkeep"]


def test_upkeep_tasks(cli: Cli, conn: Connection, clock: Clock) -> None:
    conn.execute("call trunkline.upkeep()")
    [(found, message)] = upkeep_findings(cli)
    assert found == "ok" and "all 15 tasks" in message
    clock.advance(100)
    [(found, message)] = upkeep_findings(cli)
    assert found == "warn" and message.startswith("upkeep last ran 10")
    conn.execute("call trunkline.upkeep()")
    conn.execute("update trunkline.upkeep_tasks set ran_at = ran_at - 3600000 where task = 'retention'")
    conn.execute("update trunkline.upkeep_tasks set ran_at = 0 where task = 'rotate'")
    assert upkeep_findings(cli) == [
        ("warn", "task retention last ran 3600 s ago; it is due every 15 s"),
        ("warn", "task rotate never ran; it is due every 300 s"),
    ]


def test_upkeep_marks_in_the_future(cli: Cli, conn: Connection, clock: Clock) -> None:
    clock.advance(timedelta(days=1))
    conn.execute("call trunkline.upkeep()")
    clock.advance(timedelta(days=-1))
    found = upkeep_findings(cli)
    assert len(found) == 15
    assert {level for level, _ in found} == {"warn"}
    assert all("s in the future: the server's clock was set back" in message for _, message in found)
    conn.execute("call trunkline.upkeep()")
    assert [level for level, _ in upkeep_findings(cli)] == ["ok"]
    assert "clock_went_back" in level(cli, "alerts")[1]


def test_a_failing_upkeep_task(cli: Cli, conn: Connection, clock: Clock) -> None:
    conn.execute("create or replace function trunkline._upkeep_jobs() returns int language sql as 'select 1 / 0'")
    conn.execute("call trunkline.upkeep()")
    assert upkeep_findings(cli) == [("warn", "task jobs fails: division by zero")]
    clock.advance(61)
    conn.execute("call trunkline.upkeep()")
    assert upkeep_findings(cli, code=5) == [("fail", "task jobs fails: division by zero")]


def test_a_schema_of_an_older_version(cli: Cli, conn: Connection) -> None:
    conn.execute("drop function trunkline.upkeep_stats()")
    conn.execute("delete from trunkline.migrations")
    conn.execute("insert into trunkline.migrations values (%s, 'x', 'x')", (latest_version() - 1,))
    assert level(cli, "schema", 5)[0] == "fail"
    assert level(cli, "upkeep", 5) == ("warn", "not supported by this version of the schema")


def test_clock(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_CLOCK_DIFFERENCE", timedelta(hours=-1))
    assert level(cli, "clock")[0] == "warn"


def test_somebody_with_few_rights(cli: Cli, conn: Connection) -> None:
    name = f"few_{conn.info.backend_pid}"
    conn.execute(f"create role {name} login password 'x'")
    conn.execute(f"grant trunkline_reader to {name}")
    try:
        url = f"{cli.url} user={name} password=x"
        found = cli("doctor", "--database-url", url).json
        assert any(row["check"] == "roles" and "trunkline_reader" in row["message"] for row in found), found
        assert cli("topic", "list", "--database-url", url).json == []
        assert cli("topic", "create", "t", "--database-url", url, "-o", "json", code=4).error["code"] == "permission_denied"
    finally:
        conn.execute(f"drop owned by {name}")
        conn.execute(f"drop role {name}")


def test_top(cli: Cli, plain_owner: str) -> None:
    cli("topic", "create", "t")
    cli("queue", "create", "q")
    cli("group", "create", "t", "g")
    cli("topic", "publish", "t", "1")
    frame = cli("top", "--once").json
    assert [row["head"] for row in frame["topics"]] == [1]
    assert [row["lag"] for row in frame["groups"]] == [1]
    assert [row["queue"] for row in frame["queues"]] == ["q"]
    assert {row["check"] for row in frame["health"]} == {"upkeep"}
    table = cli("top", "--once", "-o", "table").stdout
    assert "TOPIC" in table and "health" in table
    live = cli.start("top", "--every", "50ms", "-o", "jsonl")
    assert live.stdout is not None
    assert live.stdout.readline() and live.stdout.readline()
    live.terminate()
    live.communicate(timeout=30)


def test_top_on_a_terminal_runs_until_ctrl_c(cli: Cli) -> None:
    cli("queue", "create", "q")
    code, shown = on_a_terminal(cli, "top", "--every", "50ms", typed="\x03", after="health")
    assert code == 0 and "QUEUE" in shown and "Traceback" not in shown
