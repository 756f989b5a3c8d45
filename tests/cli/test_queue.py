"""`trunkline queue`: every verb."""

from __future__ import annotations

import signal

import pytest

from tests.cli.conftest import Cli
from tests.conftest import Clock
from tests.support.waiting import wait_until


@pytest.fixture
def queue(cli: Cli) -> str:
    cli("queue", "create", "q", "--lease", "30s", "--max-attempts", 2)
    return "q"


def receipts(cli: Cli, count: int = 10) -> list[str]:
    return [row["receipt"] for row in cli("queue", "claim", "q", "--limit", count).json]


def test_create_list_show_alter_delete(cli: Cli) -> None:
    made = cli("queue", "create", "q", "--lease", "90s", "--ordered", "--partitions", 4, "--history", "0s").json
    assert (made["lease"], made["ordered"], made["partitions"], made["history"]) == ("90s", True, 4, None)
    cli("queue", "create", "q", code=4)
    cli("queue", "create", "q", "--ensure")
    cli("queue", "create", "q", "--ensure", "--partitions", 2, code=4)
    shown = cli("queue", "show", "q").json
    assert (shown["lease"], shown["ready"], shown["dead"]) == ("90s", 0, 0)
    changed = cli("queue", "alter", "q", "--max-attempts", 7, "--backoff-base", "2s", "--ttl", "1h").json
    assert (changed["max_attempts"], changed["backoff_base"], changed["ttl"]) == (7, "2s", "1h")
    cli("queue", "alter", "q", code=2)
    assert [row["queue"] for row in cli("queue", "list").json] == ["q"]
    cli("queue", "delete", "q", code=2)
    assert "would delete queue q" in cli("queue", "delete", "q", "--dry-run").stderr
    cli("queue", "delete", "q", "--yes")
    for verb in ("show", "pause", "resume", "trim", "peek", "claim"):
        cli("queue", verb, "q", code=3)


def test_enqueue_claim_settle(cli: Cli, queue: str) -> None:
    for n in range(6):
        cli("queue", "enqueue", queue, n, "--label", "odd" if n % 2 else "even")
    first = cli("queue", "claim", queue, "--label", "odd", "--consumer", "me", "--lease", "1h").json
    assert [(row["body"], row["attempt"]) for row in first] == [(1, 1)]
    rest = receipts(cli)
    assert len(rest) == 5
    assert cli("queue", "ack", first[0]["receipt"]).json == [{"receipt": first[0]["receipt"], "result": "done"}]
    cli("queue", "nack", rest[0], "--delay", "0s", "--error", "broken")
    cli("queue", "bury", rest[1], "--error", "bad")
    cli("queue", "release", rest[2])
    cli("queue", "extend", rest[3], "--lease", "1h")
    again = {row["attempt"] for row in cli("queue", "claim", queue, "--limit", 10).json}
    assert again == {1, 2}  # released, and nacked
    numbers = cli("queue", "show", queue).json
    assert (numbers["acked"], numbers["dead"], numbers["leased"]) == (1, 1, 4)


def test_a_lost_lease_is_a_conflict(cli: Cli, queue: str, clock: Clock) -> None:
    cli("queue", "enqueue", queue, "1")
    [receipt] = receipts(cli)
    clock.advance(60)
    lost = cli("queue", "ack", receipt, "-o", "json", code=4)
    assert lost.json[0]["result"] == "lost" and lost.error["code"] == "conflict"
    assert cli("queue", "claim", queue).json[0]["attempt"] == 2
    cli("queue", "ack", "nonsense", code=3)
    cli("queue", "ack", code=2)


def test_receipts_from_stdin(cli: Cli, queue: str) -> None:
    for n in range(3):
        cli("queue", "enqueue", queue, n)
    lines = "\n".join(receipts(cli))
    assert len(cli.process("queue", "ack", "-", "-o", "jsonl", input=lines.encode()).lines) == 3
    cli.process("queue", "ack", "-", code=2)
    assert cli("queue", "show", queue).json["acked"] == 3


def test_claim_with_ack(cli: Cli, queue: str) -> None:
    for n in range(3):
        cli("queue", "enqueue", queue, n)
    assert len(cli("queue", "claim", queue, "--limit", 2, "--ack").json) == 2
    assert cli("queue", "show", queue).json["acked"] == 2
    cli("queue", "claim", queue, "--ack")
    assert cli("queue", "claim", queue, "--ack").json == []


def test_peek_shows_what_waits_and_why(cli: Cli, queue: str) -> None:
    cli("queue", "enqueue", queue, "1")
    cli("queue", "nack", *receipts(cli), "--delay", "1h", "--error", "no luck")
    cli("queue", "enqueue", queue, "2")
    back, new = cli("queue", "peek", queue).json
    assert (back["body"], back["attempt"], back["error"]) == (1, 1, "no luck") and back["due_at"]
    assert (new["body"], new["attempt"], new["due_at"]) == (2, 0, None)
    assert len(cli("queue", "peek", queue, "--limit", 1).json) == 1
    assert "no luck" in cli("queue", "peek", queue, "-o", "table").stdout


def test_pause_and_resume(cli: Cli, queue: str) -> None:
    cli("queue", "enqueue", queue, "1")
    cli("queue", "pause", queue)
    assert cli("queue", "claim", queue).json == []
    cli("queue", "resume", queue)
    assert len(cli("queue", "claim", queue).json) == 1


def test_purge_and_cleanup(cli: Cli, queue: str) -> None:
    for n in range(3):
        cli("queue", "enqueue", queue, n)
    cli("queue", "purge", queue, code=2)
    assert "would purge 3 messages" in cli("queue", "purge", queue, "--dry-run").stderr
    assert cli("queue", "show", queue).json["ready"] == 3
    assert cli("queue", "purge", queue, "--yes").json == {"queue": "q", "purged": 3}
    assert cli("queue", "show", queue).json["ready"] == 0
    assert cli("queue", "trim", queue).json["segments"] >= 0


def test_priorities(cli: Cli) -> None:
    cli("queue", "create", "p", "--priorities", 3)
    cli("queue", "enqueue", "p", "1", "--priority", 2)
    cli("queue", "enqueue", "p", "1", "--priority", 3, code=2)
    cli("queue", "enqueue", "p", "1", "--priority", -1, code=2)


def test_a_killed_consumer_loses_only_its_leases(cli: Cli, queue: str, clock: Clock) -> None:
    """`claim --ack` that dies before its output is taken acks nothing."""
    cli.process("queue", "enqueue", queue, input=b"\n".join(b'"' + b"x" * 1000 + b'"' for _ in range(200)))
    reader = cli.start("queue", "claim", queue, "--limit", 500, "--ack")
    assert reader.stdout is not None
    reader.stdout.read(10)  # and no more: it hangs in the full pipe, between claim and ack
    wait_until(lambda: cli("queue", "show", queue).json["leased"] == 200)
    reader.send_signal(signal.SIGKILL)
    reader.wait(30)
    assert cli("queue", "show", queue).json["acked"] == 0
    clock.advance(60)
    assert len(receipts(cli, 1000)) == 200
