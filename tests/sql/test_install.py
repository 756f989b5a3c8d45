"""Installing the schema: which rights it needs, and that every family of functions works afterwards."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.conftest import Connection, Servers
from tests.sql.calls import (
    call,
    claim,
    commit,
    enqueue,
    fetch,
    publish,
    queue_stats,
    rows,
    run_upkeep,
    settle,
    upkeep,
    value,
)
from tests.support.postgres import missing
from trunkline.sql.migrate import migrate


def test_install_needs_no_superuser_and_no_extension(servers: Servers, pg_version: int) -> None:
    """Install on current Postgres without superuser or extensions."""
    if reason := missing(pg_version):
        pytest.skip(reason)
    url = servers.url(pg_version)
    role = "plain_owner"
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"create role {role} login password 'secret' nosuperuser nocreatedb nocreaterole")
        admin.execute(f"create database {role} owner {role}")
        try:
            theirs = make_conninfo(url, user=role, password="secret", dbname=role)
            migrate(theirs)
            assert migrate(theirs).applied == []
            with psycopg.connect(theirs, autocommit=True) as conn:
                assert value(conn, "select rolsuper from pg_roles where rolname = current_user") is False
                assert rows(conn, "select extname from pg_extension") == [("plpgsql",)]
                smoke(conn)
        finally:
            admin.execute(f"drop database {role} with (force)")
            admin.execute(f"drop role {role}")


def smoke(conn: Connection) -> None:
    """Every family of verbs once."""
    call(conn, "create_topic", "t", 2)
    call(conn, "create_queue", "q")
    call(conn, "subscribe", "q", "t")
    publish(conn, "t", 1, p_key="k", p_idempotency_key="i")
    enqueue(conn, "q", 2, p_delay="1 hour")
    batch = fetch(conn, "t")
    assert commit(conn, "t", batch) == "done"
    assert len(call(conn, "seek", "t", "g", "earliest")) == 2
    [delivery] = claim(conn, "q")
    assert settle(conn, "bury", delivery.receipt) == ["done"]
    assert value(conn, "select trunkline.redrive('q')") == 1
    [delivery] = claim(conn, "q")
    assert settle(conn, "extend", delivery.receipt) == ["done"]
    assert settle(conn, "nack", delivery.receipt, p_delay="0") == ["done"]
    [delivery] = claim(conn, "q")
    assert settle(conn, "ack", delivery.receipt) == ["done"]
    upkeep(conn, 2)
    run_upkeep(conn, "rotate", 2)
    assert (queue_stats(conn, "q").acked, queue_stats(conn, "q").delayed) == (1, 1)
    call(conn, "alter_topic", "t", p_partitions=3)
    call(conn, "purge_queue", "q")
    call(conn, "trim_queue", "q")
    call(conn, "delete_queue", "q")
    call(conn, "delete_topic", "t", True)
