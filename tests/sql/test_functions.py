"""The function files themselves: they can be applied again, and their bodies are sound."""

from __future__ import annotations

import pytest

from tests.conftest import Connection
from tests.sql.calls import call, contents, publish, read, rows
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


# Numbers in parameters that are no limit of rows. A new name needs a decision: a limit is called p_limit.
NUMBERS = {
    "p_after", "p_after_log", "p_after_segment", "p_alert_id", "p_batch", "p_batch_size", "p_before",
    "p_burst", "p_endpoint_id", "p_expected", "p_first", "p_from", "p_lag", "p_last", "p_max_attempts",
    "p_max_bytes", "p_max_in_flight", "p_max_payload", "p_max_running", "p_offset", "p_openings",
    "p_partition", "p_partitions", "p_priorities", "p_priority", "p_retention_bytes", "p_run_id",
    "p_segment_rows", "p_status", "p_topic_id", "p_until", "p_version", "p_want",
}  # fmt: skip
# Of a pipeline: the rows of a file, or those written up to now; of a COPY: the rows that the caller brings.
AMOUNTS = {("plan_archive", "p_rows"), ("report_pipeline", "p_rows"), ("draw_ids", "p_n"), ("search_log", "p_scan")}
# The names that pg-messaging uses.
FOREIGN = {
    ("claim_offsets", "p_max"),
    ("get_messages", "p_end"),
    ("get_messages", "p_start"),
    ("init_consumer_group", "p_start"),
}


def test_limit_of_rows_has_one_name(shared_conn: Connection) -> None:
    parameters = {
        (row.proname, row.name)
        for row in rows(
            shared_conn,
            """select p.proname, a.name from pg_proc p,
                   unnest(p.proargnames, coalesce(p.proallargtypes, p.proargtypes::oid[]), p.proargmodes) a(name, type, mode)
               where p.pronamespace = 'trunkline'::regnamespace and p.proname !~ '^(_|topic_[0-9])'
                 and coalesce(a.mode, 'i') in ('i', 'b') and a.type = any ('{int2,int4,int8}'::regtype[])""",
        )
    }
    limits = {function for function, name in parameters if name == "p_limit"}
    assert limits > {"claim", "claim_many", "claim_range", "fetch", "next_runs", "list_dead_letters", "peek_queue", "read"}
    others = {(function, name) for function, name in parameters if name != "p_limit" and name not in NUMBERS}
    assert others == AMOUNTS | FOREIGN


def test_applying_again_keeps_topics_working(conn: Connection) -> None:
    call(conn, "create_topic", "t")
    publish(conn, "t", 1)
    for file in catalog.functions():
        conn.execute(file.text.encode())
    publish(conn, "t", 2)
    assert contents(read(conn, "t")) == [1, 2]
