"""`trunkline subscription`: every verb."""

from __future__ import annotations

from tests.cli.conftest import Cli


def test_add_list_test_remove(cli: Cli) -> None:
    cli("topic", "create", "t")
    cli("queue", "create", "q")
    cli("queue", "create", "r")
    made = cli("subscription", "add", "q", "t", "--pattern", "order.*", "-H", "region=eu").json
    assert (made["name"], made["pattern"], made["headers"]) == ("t", "order.*", {"region": "eu"})
    cli("subscription", "add", "q", "t", code=4)
    cli("subscription", "add", "r", "t", "--name", "all", "--start", "earliest")
    cli("subscription", "add", "missing", "t", code=3)
    assert [row["queue"] for row in cli("subscription", "list").json] == ["q", "r"]
    assert [row["queue"] for row in cli("subscription", "list", "--queue", "r", "--topic", "t").json] == ["r"]
    cli("subscription", "list", "--queue", "missing", code=3)

    def matching(*arguments: str) -> list[str]:
        return [row["name"] for row in cli("subscription", "test", "t", *arguments).json if row["matches"]]

    assert matching("order.new", "-H", "region=eu") == ["q", "r"]
    assert matching("order.new") == ["r"]
    assert matching() == ["r"]
    cli("subscription", "test", "t", "-H", "broken", code=2)
    cli("subscription", "remove", "q", "t", code=2)
    assert "would stop feeding queue q" in cli("subscription", "remove", "q", "t", "--dry-run").stderr
    cli("subscription", "remove", "q", "t", "--yes")
    cli("subscription", "remove", "q", "t", "--yes", code=3)
    assert len(cli("subscription", "list").json) == 1


def test_a_subscription_feeds_its_queue(cli: Cli) -> None:
    cli("topic", "create", "t")
    cli("queue", "create", "q")
    cli("subscription", "add", "q", "t", "--pattern", "a.#")
    cli("topic", "publish", "t", "1", "--routing-key", "a.b")
    cli("topic", "publish", "t", "2", "--routing-key", "b")
    assert [row["body"] for row in cli("queue", "claim", "q", "--limit", 5).json] == [1]
