"""`trunkline topic`: every verb."""

from __future__ import annotations

from tests.cli.conftest import Cli
from tests.conftest import Connection


def test_create_list_show_alter_delete(cli: Cli) -> None:
    made = cli("topic", "create", "orders", "--partitions", 2, "--retention", "3d", "--max-payload", 1000).json
    assert (made["name"], made["partitions"], made["retention"], made["max_payload"]) == ("orders", 2, "3d", 1000)
    assert cli("topic", "create", "orders", code=4).stdout == ""
    cli("topic", "create", "orders", "--ensure")
    assert cli("topic", "show", "orders").json == made
    assert cli("topic", "alter", "orders", "--retention", "12h").json["retention"] == "12h"
    cli("topic", "alter", "orders", code=2)
    [row] = cli("topic", "list").json
    assert (row["topic"], row["messages"], row["retention"]) == ("orders", 0, "12h")
    assert "orders" in cli("topic", "list", "-o", "table").stdout
    cli("topic", "delete", "orders", code=2)
    assert "would delete topic orders" in cli("topic", "delete", "orders", "--dry-run").stderr
    cli("topic", "delete", "orders", "--yes")
    cli("topic", "show", "orders", code=3)
    cli("topic", "delete", "orders", "--yes", code=3)
    assert cli("topic", "list").json == []


def test_a_topic_that_is_read_is_deleted_only_by_force(cli: Cli) -> None:
    cli("topic", "create", "t")
    cli("group", "create", "t", "g")
    cli("topic", "delete", "t", "--yes", code=4)
    assert "1 groups" in cli("topic", "delete", "t", "--force", "--dry-run").stderr
    cli("topic", "delete", "t", "--force", "--yes")


def test_publish_and_read(cli: Cli) -> None:
    cli("topic", "create", "t", "--partitions", 2)
    big = '{"n": 12345678901234567890.12345678901234567890}'
    published = cli(
        "topic", "publish", "t", big, "--key", "k", "--routing-key", "a.b", "--label", "l", "-H", "x=1", "-H", "y=2"
    ).json
    [message] = cli("topic", "read", "t", "-o", "jsonl").lines
    assert message["id"] == published["id"] and not published["duplicate"]
    assert (message["key"], message["routing_key"], message["label"]) == ("k", "a.b", "l")
    assert message["headers"] == {"x": "1", "y": "2"}
    assert big.replace(" ", "") in cli("topic", "read", "t").stdout  # digit by digit
    assert cli("topic", "read", "t", "--partition", 1 - message["partition"]).json == []
    cli("topic", "read", "t", "--partition", 2, code=3)
    cli("topic", "read", "missing", code=3)


def test_bodies_that_are_not_json(cli: Cli) -> None:
    cli("topic", "create", "t")
    cli("topic", "publish", "t", "not json", code=2)
    cli("topic", "publish", "t", "hello", "--content-type", "text/plain")
    (cli.folder / "picture").write_bytes(b"\x00\xff")
    cli("topic", "publish", "t", "--body-file", "picture", "--content-type", "image/png")
    text, picture = cli("topic", "read", "t").json
    assert text["body"] == "hello"
    assert picture["payload_base64"] == "AP8="


def test_read_from_a_place(cli: Cli) -> None:
    cli("topic", "create", "t")
    for n in range(5):
        cli("topic", "publish", "t", n)
    assert [row["body"] for row in cli("topic", "read", "t", "--start", 4).json] == [3, 4]
    assert [row["body"] for row in cli("topic", "read", "t", "--limit", 2).json] == [0, 1]
    assert len(cli("topic", "read", "t", "--start", "1h").json) == 5
    assert cli("topic", "read", "t", "--start", "latest").json == []
    assert cli("topic", "read", "t", "--start", "2000-01-01").json[0]["offset"] == 1
    cli("topic", "read", "t", "--start", "yesterday", code=2)
    assert cli("topic", "offsets", "t").json == [
        {"topic": "t", "partition": 0, "earliest_offset": 1, "head": 5, "offset_at": None}
    ]
    assert cli("topic", "offsets", "t", "--at", "1h").json[0]["offset_at"] == 1
    cli("topic", "offsets", "t", "--at", "earliest", code=2)


def test_read_tail_and_peek_change_nothing(cli: Cli, conn: Connection) -> None:
    """Neither positions nor attempts nor leases: only the sequencer may have given offsets."""
    cli("topic", "create", "t")
    cli("group", "create", "t", "g")
    cli("queue", "create", "q")
    cli("subscription", "add", "q", "t")
    for n in range(3):
        cli("topic", "publish", "t", n)
    cli("topic", "read", "t", "--start", "latest")  # now all have offsets

    def state() -> list[object]:
        tables = [
            row[0]
            for row in conn.execute(
                "select relname from pg_class where relnamespace = 'trunkline'::regnamespace and relkind = 'r' order by 1"
            )
        ]
        return [
            (
                table,
                conn.execute(
                    f"select count(*), md5(string_agg(t::text, '' order by t::text)) from trunkline.{table} t"
                ).fetchall(),
            )
            for table in tables
        ]

    before = state()
    assert len(cli("topic", "read", "t").json) == 3
    assert len(cli("topic", "tail", "t", "--start", "earliest", "--limit", 3).lines) == 3
    assert [row["attempt"] for row in cli("queue", "peek", "q").json] == [0, 0, 0]
    assert state() == before


def test_tail_shows_what_comes(cli: Cli) -> None:
    cli("topic", "create", "t")
    cli("topic", "publish", "t", "1")
    tail = cli.start("topic", "tail", "t", "--start", "earliest", "--limit", 3, "-o", "jsonl")
    assert tail.stdout is not None
    assert b'"body":1' in tail.stdout.readline()
    cli("topic", "publish", "t", "2")
    assert b'"body":2' in tail.stdout.readline()
    cli("topic", "publish", "t", "3")
    assert b'"body":3' in tail.stdout.readline()
    assert tail.wait(30) == 0
    cli("topic", "tail", "t", "--timeout", "200ms", code=124)


def test_delay_and_idempotency_key(cli: Cli) -> None:
    cli("topic", "create", "t")
    cli("topic", "publish", "t", "1", "--delay", "1h")
    assert cli("topic", "list").json[0]["delayed"] == 1
    first = cli("topic", "publish", "t", "2", "--idempotency-key", "k").json
    again = cli("topic", "publish", "t", "2", "--idempotency-key", "k").json
    assert again == {"id": first["id"], "duplicate": True}
    assert (
        cli("topic", "publish", "t", "3", "--idempotency-key", "k", "-o", "json", code=4).error["code"]
        == "idempotency_conflict"
    )
