"""Groups of dead letters with the same masked error."""

from __future__ import annotations

import pytest

from tests.conftest import Connection
from tests.sql.calls import call, claim, enqueue, settle_all, value
from tests.sql.test_runs import bury
from trunkline.sql import catalog


@pytest.mark.parametrize(
    ("error", "masked"),
    [
        ("job 01890a5d-ac96-774b-bcce-b302099a8057 failed", "job <id> failed"),
        ("no mailbox a.b+c@example.com", "no mailbox <address>"),
        ("connect to 10.0.0.12:5432 failed", "connect to <ip>:<n> failed"),
        ("at 2026-11-16T09:12:00.123Z: late", "at <time>: late"),
        ("pointer 0xdeadBEEF", "pointer <hex>"),
        ("commit 3f2a9c1d44 is gone", "commit <hex> is gone"),
        ("timeout after 1.5 s, 3 attempts", "timeout after <n> s, <n> attempts"),
        ("été 7 naïve", "été <n> naïve"),
        ("", ""),
        ("x" * 2000, "x" * 300),
    ],
)
def test_masks(shared_conn: Connection, error: str, masked: str) -> None:
    assert value(shared_conn, "select trunkline._masked(%s)", error) == masked


def test_the_migration_has_the_functions_of_the_file(shared_conn: Connection) -> None:
    """The stored fingerprints of an upgraded database were made by the migration."""
    [made] = [file.text for file in catalog.migrations() if file.number == 28]
    [kept] = [file.text for file in catalog.functions() if file.name == "dead_groups.sql"]
    for name in ("_masked", "_fingerprint"):
        body = f"function trunkline.{name}("
        assert made.split(body)[1].split("$$;")[0] == kept.split(body)[1].split("$$;")[0]


def test_groups_add_up_to_all_dead_letters(conn: Connection) -> None:
    for queue in ("a", "b"):
        call(conn, "create_queue", queue)
    bury(conn, "a", 3, "timeout after 1 s")
    bury(conn, "a", 2, "timeout after 2 s")
    bury(conn, "a", 1, "no user 7")
    bury(conn, "a", 1, "no user 8", p_labels=["job"])
    bury(conn, "b", 4, "timeout after 3 s")
    groups = call(conn, "dead_groups")
    assert [(row.queue, row.label, row.error, row.messages) for row in groups] == [
        ("a", None, "timeout after <n> s", 5),
        ("b", None, "timeout after <n> s", 4),
        ("a", "job", "no user <n>", 1),
        ("a", None, "no user <n>", 1),
    ]
    assert groups[0].last_error == "timeout after 2 s"
    assert groups[0].first_at < groups[0].last_at
    assert call(conn, "get_dead_letter", "a", groups[0].last_id)[0].error == "timeout after 2 s"
    assert groups[0].fingerprint == groups[1].fingerprint != groups[2].fingerprint != groups[3].fingerprint
    first, rest = call(conn, "dead_groups", "a", p_limit=1)
    assert (first.messages, rest.messages, rest.rest, rest.queue) == (5, 2, "groups", None)
    assert call(conn, "dead_groups", p_since="0 s") == []


def test_what_is_not_grouped_is_counted(conn: Connection) -> None:
    call(conn, "create_queue", "a")
    bury(conn, "a", 1, "old")
    conn.execute(
        "insert into trunkline.dead_letters (queue_id, id, topic, partition, log_offset, cursor_id, payload, content_type,"
        " created_at, attempts, error, reason, dead_at)"
        " select queue_id, id, topic, partition, -i, cursor_id, payload, content_type,"
        " created_at, attempts, 'new ' || i, reason, dead_at from trunkline.dead_letters, generate_series(1, 100000) i"
    )
    new, older = call(conn, "dead_groups", "a")
    assert (new.error, new.messages, new.rest) == ("new <n>", 100000, None)
    assert (older.messages, older.rest, older.fingerprint) == (1, "older", None)
    assert [row.messages for row in call(conn, "dead_groups", p_since="1 hour")] == [100000, 1]


def test_spread(conn: Connection) -> None:
    call(conn, "create_queue", "a")
    for key in ("x", "x", "x", "y", "z"):
        enqueue(conn, "a", 1, p_key=key)
    settle_all(conn, "bury", claim(conn, "a", 4, p_consumer="worker-1"), p_error="bad 1")
    settle_all(conn, "bury", claim(conn, "a", 1, p_consumer="worker-2"), p_error="bad 2")
    [group] = call(conn, "dead_groups", "a")
    spread = call(conn, "dead_spread", "a", group.fingerprint, 1)
    assert [(row.value, row.messages, row.others) for row in spread if row.dimension == "key"] == [
        ("x", 3, False),
        (None, 2, True),
    ]
    assert [(row.value, row.messages) for row in spread if row.dimension == "consumer"] == [("worker-1", 4), (None, 1)]
    assert [(row.value, row.messages) for row in spread if row.dimension == "error"] == [("bad 1", 4), (None, 1)]
    assert [row.messages for row in spread if row.dimension == "hour"] == [5]
    assert call(conn, "dead_spread", "a", "nothing") == []
