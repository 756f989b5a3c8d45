"""What the pages of endpoints, schedules, pipelines and the system show in tests."""

from __future__ import annotations

from typing import Any

import psycopg

_HOSTILE = "<b>bold</b>"
_STATEMENTS = (
    "select trunkline.create_endpoint(p_name => 'mine', p_url => 'https://example.com/hook?key=hidden')",
    "select trunkline.create_queue('hooks')",
    "select trunkline.bind_queue('hooks', 'mine')",
    "select trunkline.enqueue('hooks', '{}')",
    "select trunkline.pause_endpoint('mine', '<i>maintenance</i>')",
    "select trunkline.resume_endpoint('mine')",
    "select from trunkline.create_schedule('s', '0 3 * * 1-5', p_queue => 'hooks',"
    " p_payload => '{\"big\": 9007199254740993}')",
    "select trunkline.run_schedule('s')",
    "select trunkline.report_pipeline('clean', 'stream', p_batch => 7, p_rows => 900, p_rows_per_second => 42.5, p_lag => 12,"  # noqa: E501
    ' p_detail => \'{"durations": {"triggerExecution": 900, "addBatch": 700, "walCommit": 100}, "sources":'
    ' [{"description": "Trunkline[<b>bold</b>]", "rows": 30, "end": "{}"}], "sink": {"description": "x"}}\')',
    f"select trunkline.report_pipeline('{_HOSTILE}', 'stream', 'failed', p_error => '{_HOSTILE} broke')",
)


def fill(conn: psycopg.Connection[Any]) -> None:
    """Create an endpoint, a schedule and pipelines, with hostile texts in some places."""
    for statement in _STATEMENTS:
        conn.execute(statement)
