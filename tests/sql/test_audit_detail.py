"""What an audit entry was applied to is part of its hash."""

from __future__ import annotations

from psycopg.types.json import Jsonb

from tests.conftest import Connection
from tests.sql.calls import rows, value


def test_details_are_part_of_the_chain(conn: Connection) -> None:
    record = "select trunkline._record_audit('ann', null, 'PUT', 'q', %s)"
    value(conn, "select trunkline._record_audit('ann', null, 'PUT', 'q')")
    value(conn, record, Jsonb({"before": {"ttl": 5}}))
    value(conn, record, Jsonb({"ids": ["x" * 20_000]}))
    entries = rows(conn, "select * from trunkline._list_audit()")
    assert [row.detail for row in entries[:2]] == [None, {"before": {"ttl": 5}}]
    assert entries[2].detail["left_out"] > 20_000
    assert value(conn, "select trunkline._verify_audit()") is None
    conn.execute("update trunkline.audit set detail = '{}' where audit_id = 2")
    assert value(conn, "select trunkline._verify_audit()") == 2


def test_entries_of_earlier_releases_keep_their_hash(conn: Connection) -> None:
    old = value(
        conn,
        "select sha256(convert_to(jsonb_build_array("
        "1, extract(epoch from timestamptz '2026-01-01'), 'a', null, 'b', 'c')::text, 'UTF8'))",
    )
    new = value(conn, "select trunkline._audit_hash(null, 1, '2026-01-01', 'a', null, 'b', 'c', null)")
    assert bytes(old) == bytes(new)
