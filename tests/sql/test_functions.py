"""The function files themselves: they can be applied again, and their bodies are sound."""

from __future__ import annotations

import pytest

from tests.conftest import Connection
from tests.sql.verbs import call, contents, publish, read, rows
from trunkline.sql import catalog


@pytest.mark.parametrize("file", catalog.functions(), ids=lambda file: file.name)
def test_bodies_are_sound(shared_conn: Connection, file: catalog.SqlFile) -> None:
    """Installing does not check bodies, because they name functions of later files; here all functions exist."""
    with shared_conn.transaction(force_rollback=True):
        shared_conn.execute("set local check_function_bodies = on")
        shared_conn.execute(file.text.encode())


def test_no_function_file_is_left_out(shared_conn: Connection) -> None:
    from importlib import resources

    folder = resources.files("trunkline.sql") / "functions"
    assert {entry.name for entry in folder.iterdir() if entry.name.endswith(".sql")} == set(catalog.FUNCTION_FILES)


def test_nothing_runs_with_the_rights_of_its_owner_by_accident(shared_conn: Connection) -> None:
    """A function that runs as its owner must pin its search_path."""
    loose = rows(
        shared_conn,
        "select proname from pg_proc where pronamespace = 'trunkline'::regnamespace and prosecdef"
        " and not coalesce(array_to_string(proconfig, ','), '') like '%search_path=%'",
    )
    assert loose == []


def test_applying_again_keeps_topics_working(conn: Connection) -> None:
    call(conn, "create_topic", "t")
    publish(conn, "t", 1)
    for file in catalog.functions():
        conn.execute(file.text.encode())
    publish(conn, "t", 2)
    assert contents(read(conn, "t")) == [1, 2]
