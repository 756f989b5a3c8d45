"""`trunkline message`: where one is, and its journey."""

from __future__ import annotations

from tests.cli.conftest import Cli


def test_explain_and_trace(cli: Cli) -> None:
    cli("queue", "create", "q", "--max-attempts", 2)
    id = cli("queue", "enqueue", "q", "1").json["id"]
    assert cli("message", "explain", id).json["state"] == "not_sequenced"
    assert "now not_sequenced" in cli("message", "trace", id, "-o", "table").stdout
    cli("queue", "peek", "q")  # who looks gives it its offset
    assert cli("message", "explain", id).json["readers"][0]["state"] == "ready"
    for _ in range(2):
        [receipt] = [row["receipt"] for row in cli("queue", "claim", "q", "--consumer", "me").json]
        cli("queue", "nack", receipt, "--delay", "0s", "--error", "broken \x1b[31m")
    found = cli("message", "explain", id).json
    assert found["id"] == id and found["readers"][0]["state"] == "dead"
    events = [(row["event"], row["who"]) for row in cli("message", "trace", id).json]
    assert events == [
        ("published", None),
        ("claimed", "me"),
        ("nacked", "me"),
        ("claimed", "me"),
        ("dead", "me"),
        ("now dead", None),
    ]
    for verb in ("explain", "trace"):
        table = cli("message", verb, id, "-o", "table").stdout
        assert "queue q" in table and "\\x1b[31m" in table and "\x1b" not in table


def test_by_place_and_without_readers(cli: Cli) -> None:
    cli("topic", "create", "t")
    id = cli("topic", "publish", "t", "1").json["id"]
    cli("topic", "read", "t")
    assert cli("message", "explain", "t/0@1").json["id"] == id
    assert [row["event"] for row in cli("message", "trace", id).json] == ["published", "now in_log"]
    assert "no group or queue" in cli("message", "explain", id, "-o", "table").stdout


def test_unknown(cli: Cli) -> None:
    cli("message", "explain", "00000000-0000-7000-8000-000000000000", code=3)
    cli("message", "explain", "nonsense", code=2)
    cli("message", "explain", "missing/0@1", code=3)


def test_trace_of_a_redriven_message(cli: Cli) -> None:
    """Its first place, the deliveries before the redrive, and the redrive itself."""
    cli("topic", "create", "orders")
    cli("queue", "create", "q")
    cli("subscription", "add", "q", "orders")
    id = cli("topic", "publish", "orders", "1").json["id"]
    cli("queue", "peek", "q")
    [receipt] = [row["receipt"] for row in cli("queue", "claim", "q", "--consumer", "me").json]
    cli("queue", "bury", receipt, "--error", "broken")
    cli("dead", "redrive", "q")
    cli("queue", "peek", "q")
    events = cli("message", "trace", id).json
    assert [(row["event"], row["where"], row["detail"]) for row in events[:4]] == [
        ("published", "topic orders", "partition 0, offset 1"),
        ("claimed", "queue q", "attempt 1"),
        ("buried", "queue q", "broken"),
        ("redriven", "queue q", "broken"),
    ]
    assert [row["event"] for row in events[4:]] == ["now ready"]
    assert [row["at"] for row in events[:4]] == sorted(row["at"] for row in events[:4])
