"""`trunkline group`: every verb."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Cli
from tests.conftest import Clock


@pytest.fixture
def topic(cli: Cli) -> str:
    cli("topic", "create", "t")
    for n in range(4):
        cli("topic", "publish", "t", n)
    return "t"


def test_create_list_show_delete(cli: Cli, topic: str) -> None:
    assert cli("group", "create", topic, "g").json["name"] == "g"
    cli("group", "create", topic, "g", code=4)
    cli("group", "create", topic, "g", "--ensure")
    cli("group", "create", topic, "late", "--start", "latest")
    assert [row["name"] for row in cli("group", "list").json] == ["g", "late"]
    assert [row["name"] for row in cli("group", "list", topic).json] == ["g", "late"]
    cli("group", "list", "missing", code=3)
    shown = cli("group", "show", topic, "g").json
    assert (shown["lag"], shown["position"], shown["members"]) == (4, {"0": 1}, [])
    cli("group", "show", topic, "missing", code=3)
    cli("group", "delete", topic, "g", code=2)
    assert "4 unread messages" in cli("group", "delete", topic, "g", "--dry-run").stderr
    cli("group", "delete", topic, "g", "--yes")
    cli("group", "delete", topic, "g", "--yes", code=3)


def test_lag_is_a_check(cli: Cli, topic: str, clock: Clock) -> None:
    cli("group", "create", topic, "g")
    clock.advance(100)
    [row] = cli("group", "lag").json
    assert row["lag"] == 4 and row["lag_seconds"] >= 100
    cli("group", "lag", "--max-seconds", 1000)
    behind = cli("group", "lag", topic, "g", "--max-seconds", 60, code=5)
    assert "group g is behind" in behind.stderr and behind.json[0]["lag"] == 4
    cli("group", "lag", "--max-messages", 3, code=5)
    cli("group", "lag", "--max-messages", 4)
    cli("group", "lag", topic, "missing", code=3)


def test_watch_ends_when_a_limit_is_passed(cli: Cli, topic: str) -> None:
    cli("group", "create", topic, "g", "--start", "latest")
    watch = cli.start("group", "lag", "--watch", "--every", "50ms", "--max-messages", 0)
    assert watch.stdout is not None
    assert b'"lag":0' in watch.stdout.readline()
    assert b'"lag":0' in watch.stdout.readline()
    cli("topic", "publish", topic, "1")
    _, words = watch.communicate(timeout=30)
    assert watch.returncode == 5 and b"behind" in words


def test_seek(cli: Cli, topic: str) -> None:
    cli("group", "create", topic, "g")
    cli("group", "seek", topic, "g", "--to", "latest", code=2)
    [move] = cli("group", "seek", topic, "g", "--to", "latest", "--dry-run").json
    assert (move["from"], move["to"]) == (1, 5)
    assert cli("group", "show", topic, "g").json["position"] == {"0": 1}
    [moved] = cli("group", "seek", topic, "g", "--to", "latest", "--yes").json
    assert moved == move
    assert cli("group", "seek", topic, "g", "--to", 2, "--yes").json[0]["to"] == 2
    assert cli("group", "seek", topic, "g", "--to", "1h", "--partition", 0, "--yes").json[0]["to"] == 1
    cli("group", "seek", topic, "g", "--to", 100, "--yes", code=4)
    cli("group", "seek", topic, "g", code=2)
