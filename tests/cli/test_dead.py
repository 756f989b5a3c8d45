"""`trunkline dead`: every verb."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Cli
from tests.conftest import Connection


@pytest.fixture
def letters(cli: Cli) -> list[str]:
    """Four dead letters: two buried, two out of attempts."""
    cli("queue", "create", "q", "--max-attempts", 1)
    cli("queue", "create", "other")
    cli.process("queue", "enqueue", "q", "--key", "k", input=b"0\n1\n2\n3")
    receipts = [row["receipt"] for row in cli("queue", "claim", "q", "--limit", 4).json]
    cli("queue", "bury", *receipts[:2], "--error", "no such mailbox")
    cli("queue", "nack", *receipts[2:], "--error", "ConnectTimeout: smtp")
    return [row["id"] for row in cli("dead", "list", "q").json]


def test_list_and_show(cli: Cli, letters: list[str]) -> None:
    assert [row["body"] for row in cli("dead", "list", "q").json] == [0, 1, 2, 3]
    assert [row["body"] for row in cli("dead", "list", "q", "--limit", 1).json] == [0]
    assert [row["body"] for row in cli("dead", "list", "q", "--error", "Timeout").json] == [2, 3]
    assert [row["body"] for row in cli("dead", "list", "q", "--reason", "buried").json] == [0, 1]
    assert [row["body"] for row in cli("dead", "list", "q", "--id", letters[3]).json] == [3]
    assert "no such mailbox" in cli("dead", "list", "q", "-o", "table").stdout
    shown = cli("dead", "show", "q", letters[2]).json
    assert (shown["body"], shown["attempts"], shown["reason"], shown["key"]) == (2, 1, "attempts", "k")
    cli("dead", "show", "q", "00000000-0000-7000-8000-000000000000", code=3)
    cli("dead", "show", "q", "nonsense", code=2)
    cli("dead", "list", "missing", code=3)


def test_redrive(cli: Cli, letters: list[str]) -> None:
    assert "would redrive 2 dead letters" in cli("dead", "redrive", "q", "--error", "Timeout", "--dry-run").stderr
    assert len(cli("dead", "list", "q").json) == 4
    assert cli("dead", "redrive", "q", "--error", "Timeout").json == {"queue": "q", "redriven": 2, "left": 2}
    assert cli("dead", "redrive", "q", "--id", letters[0], "--to", "other").json["redriven"] == 1
    assert [row["body"] for row in cli("queue", "claim", "other").json] == [0]
    assert cli("dead", "redrive", "q").json["redriven"] == 1
    assert cli("dead", "redrive", "q").json["redriven"] == 0
    assert sorted(row["body"] for row in cli("queue", "claim", "q", "--limit", 9).json) == [1, 2, 3]
    cli("dead", "redrive", "q", "--to", "missing", code=3)


def test_purge(cli: Cli, letters: list[str]) -> None:
    cli("dead", "purge", "q", code=2)
    assert "would purge 4" in cli("dead", "purge", "q", "--dry-run").stderr
    assert cli("dead", "purge", "q", "--limit", 1, "--yes").json == {"queue": "q", "purged": 1, "left": 3}
    assert cli("dead", "purge", "q", "--reason", "attempts", "--yes").json["purged"] == 2
    assert cli("dead", "purge", "q", "--yes").json["purged"] == 1


def test_edit(cli: Cli, letters: list[str]) -> None:
    cli("dead", "edit", "q", letters[0], "--body", '{"n": 5}', "-H", "by=me")
    [row] = cli("queue", "claim", "q").json
    assert (row["body"], row["headers"]) == ({"n": 5}, {"by": "me"})
    cli("dead", "edit", "q", letters[0], "--body", "1", code=3)
    cli("dead", "edit", "q", letters[1], "--body", "{", code=2)


def test_groups_and_runs(cli: Cli, letters: list[str], conn: Connection) -> None:
    groups = cli("dead", "groups", "q").json
    assert [(row["error"], row["messages"]) for row in groups] == [("ConnectTimeout: smtp", 2), ("no such mailbox", 2)]
    assert "ConnectTimeout" in cli("dead", "groups", "--since", "1h", "-o", "table").stdout
    fingerprint = groups[0]["fingerprint"]
    assert "attempts" in cli("dead", "spread", "q", fingerprint, "-o", "table").stdout
    assert {row["dimension"] for row in cli("dead", "spread", "q", fingerprint).json} >= {"key", "error", "hour"}
    assert cli("run", "preview", "redrive", "q", "--error", "Timeout").json["messages"] == 2
    cli("run", "preview", "redrive", "q", code=2)
    assert "would redrive 4 messages" in cli("run", "start", "redrive", "q", "--all", "--dry-run").stderr
    cli("run", "start", "purge_dead_letters", "q", "--all", code=2)
    purge = cli("run", "start", "purge_dead_letters", "q", "--all", "--yes").json["run_id"]
    cli("run", "pause", purge, "--reason", "wait")
    assert cli("run", "list", "--state", "paused").json[0]["reason"] == "wait"
    cli("run", "resume", purge)
    cli("run", "abort", purge)
    run = cli("run", "start", "redrive", "q", "--fingerprint", fingerprint, "--to", "other", "--rate", 1000).json["run_id"]
    conn.execute("select trunkline.run_upkeep('runs')")
    assert (cli("run", "show", run).json["state"], cli("run", "show", run).json["done"]) == ("running", 1)
    assert "redrive" in cli("run", "list", "-o", "table").stdout
    cli("run", "show", 99, code=3)


def test_export_and_back(cli: Cli, letters: list[str]) -> None:
    exported = cli("dead", "export", "q", "-o", "table").lines
    assert [row["id"] for row in exported] == letters
    cli("dead", "export", "q", "--file", "dead.ndjson")
    cli("dead", "export", "q", "--file", "dead.ndjson", code=1)
    cli("dead", "export", "q", "--file", "no/such/folder/x", code=1)
    lines = (cli.folder / "dead.ndjson").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == letters
    assert cli.process("queue", "enqueue", "other", "--envelope", "--file", "dead.ndjson").json["stored"] == 4
    back = cli("queue", "claim", "other", "--limit", 9).json
    assert [(row["id"], row["key"], row["body"]) for row in back] == [(id, "k", n) for n, id in enumerate(letters)]
    assert len(cli("dead", "list", "q").json) == 4


def test_more_than_a_page(cli: Cli, conn: Connection) -> None:
    cli("queue", "create", "q")
    conn.execute("select trunkline.enqueue('q', to_jsonb(n)) from generate_series(1, 1500) n")
    for _ in range(2):
        conn.execute("select * from trunkline.bury(array(select receipt from trunkline.claim('q', 1000)), 'x')")
    assert len(cli("dead", "export", "q").lines) == 1500
    assert cli("dead", "redrive", "q", "--error", "x").json["redriven"] == 1500
