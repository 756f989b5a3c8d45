"""`trunkline schedule`: every verb."""

from __future__ import annotations

from tests.cli.conftest import Cli


def test_life_of_a_schedule(cli: Cli) -> None:
    cli("queue", "create", "q")
    body = '{"kind": "daily"}'
    made = cli("schedule", "create", "s", "0 3 * * *", "--queue", "q", "--body", body, "--timezone", "Europe/Berlin").json
    assert (made["cron"], made["timezone"], made["queue"], made["body"]) == (
        "0 3 * * *",
        "Europe/Berlin",
        "q",
        {"kind": "daily"},
    )
    cli("schedule", "create", "s", "0 3 * * *", "--queue", "q", code=4)
    assert cli("schedule", "create", "s", "0 4 * * *", "--queue", "q", "--ensure").json["cron"] == "0 4 * * *"
    assert cli("schedule", "show", "s").json["cron"] == "0 4 * * *"
    cli("schedule", "show", "missing", code=3)
    assert [row["name"] for row in cli("schedule", "list").json] == ["s"]
    assert "queue q" in cli("schedule", "list", "-o", "table").stdout
    cli("schedule", "pause", "s")
    assert cli("schedule", "show", "s").json["paused"]
    cli("schedule", "resume", "s")
    assert not cli("schedule", "show", "s").json["paused"]
    assert "would publish one message to queue q" in cli("schedule", "run", "s", "--dry-run").stderr
    fired = cli("schedule", "run", "s").json["id"]
    assert [row["id"] for row in cli("queue", "claim", "q").json] == [fired]
    cli("schedule", "delete", "s", code=2)
    assert "would delete schedule s" in cli("schedule", "delete", "s", "--dry-run").stderr
    cli("schedule", "delete", "s", "--yes")
    for verb in ("pause", "resume", "run", "next"):
        cli("schedule", verb, "s", code=3)


def test_next(cli: Cli) -> None:
    cli("topic", "create", "t")
    cli("schedule", "create", "s", "*/5 * * * *", "--topic", "t")
    assert len(cli("schedule", "next", "s").json) == 5
    times = [row["at"] for row in cli("schedule", "next", "--cron", "0 12 * * *", "--timezone", "Asia/Tokyo", "-n", 2).json]
    assert all(at.endswith("T03:00:00Z") for at in times)
    cli("schedule", "next", "--cron", "nonsense", code=2)
    cli("schedule", "next", code=2)
    cli("schedule", "next", "s", "--cron", "* * * * *", code=2)
    cli("schedule", "next", "s", "--timezone", "UTC", code=2)


def test_bad_schedules_are_refused(cli: Cli) -> None:
    cli("topic", "create", "t")
    cli("schedule", "create", "s", "* * * * *", code=2)
    cli("schedule", "create", "s", "* * * * *", "--topic", "t", "--queue", "q", code=2)
    cli("schedule", "create", "s", "* * * *", "--topic", "t", code=2)
    cli("schedule", "create", "s", "* * * * *", "--topic", "t", "--body", "{", code=2)
    cli("schedule", "create", "s", "* * * * *", "--topic", "t", "--timezone", "Mars/Olympus", code=2)
    cli("schedule", "create", "s", "* * * * *", "--topic", "missing", code=3)
    assert cli("schedule", "list").json == []
