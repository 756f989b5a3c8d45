"""Endpoints and the queues bound to them. Deliveries to endpoints: tests/push."""

from __future__ import annotations

from tests.conftest import Connection
from tests.sql.calls import call, refused, rows


def test_endpoints_are_managed_by_name(conn: Connection) -> None:
    """Create, list, change, disable, delete; checked, and unique by name."""
    [made] = call(conn, "create_endpoint", "e", "https://example.com/hook", 10.0)
    assert made.secret.startswith("whsec_")
    with refused("TL020", "e"):
        call(conn, "create_endpoint", "e", "https://example.com/other")
    with refused("TL001", "URL"):
        call(conn, "create_endpoint", "f", "nowhere")
    call(conn, "alter_endpoint", "e", p_url="https://example.com/new", p_rate=5.0)
    call(conn, "disable_endpoint", "e", "gone")
    [shown] = call(conn, "list_endpoints")
    assert (shown.url, shown.rate, shown.state, shown.reason) == ("https://example.com/new", 5.0, "disabled", "gone")
    call(conn, "resume_endpoint", "e")
    call(conn, "delete_endpoint", "e")
    assert call(conn, "list_endpoints") == []
    with refused("TL017", "e"):
        call(conn, "pause_endpoint", "e")


def test_many_queues_are_bound_to_one_endpoint(conn: Connection) -> None:
    for endpoint in ("e", "f"):
        call(conn, "create_endpoint", endpoint, "https://example.com/")
    for queue in ("a", "b"):
        call(conn, "create_queue", queue)
        call(conn, "bind_queue", queue, "e")
    # a queue has one endpoint: the last binding counts
    call(conn, "bind_queue", "b", "f")
    bound = dict(rows(conn, "select name, queues from trunkline.list_endpoints()"))
    assert bound == {"e": ["a"], "f": ["b"]}
    with refused("TL021", "bound"):
        call(conn, "delete_endpoint", "e")
    call(conn, "delete_queue", "a")
    call(conn, "delete_endpoint", "e")
    call(conn, "unbind_queue", "b")
    with refused("TL017", "b"):
        call(conn, "unbind_queue", "b")
