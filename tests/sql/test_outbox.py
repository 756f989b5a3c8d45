"""publish_row(): a table's changes become messages in the transaction that makes them."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Connection
from tests.sql.calls import call, read, refused

EVENTS = "after insert or update or delete on public.orders for each row"


@pytest.fixture(autouse=True)
def orders(conn: Connection) -> None:
    conn.execute('create table public.orders (id int primary key, customer text, "odd name" int, note text)')
    call(conn, "create_topic", "t")


def trigger(conn: Connection, arguments: str, events: str = EVENTS, name: str = "publish") -> None:
    conn.execute(f"create trigger {name} {events} execute function trunkline.publish_row({arguments})")


def test_each_change_is_a_message_with_the_row(conn: Connection) -> None:
    trigger(conn, "'t'")
    conn.execute("insert into public.orders values (1, 'anna', 7, null), (2, 'ben', null, 'ä\"\\')")
    conn.execute("update public.orders set note = 'new' where id = 1")
    conn.execute("delete from public.orders where id = 2")
    messages = read(conn, "t")
    assert [(m.headers["table"], m.headers["operation"]) for m in messages] == [
        ("orders", "insert"),
        ("orders", "insert"),
        ("orders", "update"),
        ("orders", "delete"),
    ]
    assert [json.loads(m.payload) for m in messages] == [
        {"id": 1, "customer": "anna", "odd name": 7, "note": None},
        {"id": 2, "customer": "ben", "odd name": None, "note": 'ä"\\'},
        {"id": 1, "customer": "anna", "odd name": 7, "note": "new"},
        {"id": 2, "customer": "ben", "odd name": None, "note": 'ä"\\'},
    ]
    assert {(m.content_type, m.key, m.routing_key) for m in messages} == {("application/json", None, None)}
    assert list(json.loads(messages[0].payload)) == ["id", "customer", "odd name", "note"]


def test_routing_key_and_key_column(conn: Connection) -> None:
    trigger(conn, "'t', 'orders.changed', 'customer'")
    trigger(conn, "'t', '', 'odd name'", name="second")
    conn.execute("insert into public.orders values (1, 'anna', 7, null), (2, null, null, null)")
    found = [(m.routing_key, m.key) for m in read(conn, "t")]
    assert found == [("orders.changed", "anna"), (None, "7"), ("orders.changed", None), (None, None)]


def test_message_and_row_live_and_die_together(conn: Connection) -> None:
    trigger(conn, "'t'")
    with conn.transaction(force_rollback=True):
        conn.execute("insert into public.orders values (1)")
    with conn.transaction():
        conn.execute("insert into public.orders values (2)")
        with conn.transaction(force_rollback=True):
            conn.execute("insert into public.orders values (3)")
    assert [json.loads(m.payload)["id"] for m in read(conn, "t")] == [2]


@pytest.mark.parametrize("path", ["", "fake, public", "pg_temp, fake, pg_catalog"])
def test_the_callers_search_path_does_not_matter(conn: Connection, path: str) -> None:
    conn.execute("create schema fake")
    conn.execute("create function fake.convert_to(text, text) returns bytea language sql as $$ select 'fake'::bytea $$")
    conn.execute("create function fake.lower(text) returns text language sql as $$ select 'fake' $$")
    trigger(conn, "'t'")
    conn.execute("select pg_catalog.set_config('search_path', %s, false)", (path,))
    conn.execute("insert into public.orders values (1)")
    [message] = read(conn, "t")
    assert json.loads(message.payload)["id"] == 1
    assert message.headers == {"table": "orders", "operation": "insert"}


def test_at_every_isolation_level_and_deferred(conn: Connection) -> None:
    conn.execute(
        "create constraint trigger publish after insert on public.orders deferrable initially deferred"
        " for each row execute function trunkline.publish_row('t')"
    )
    with conn.transaction():
        conn.execute("set transaction isolation level serializable")
        conn.execute("insert into public.orders values (1)")
    assert len(read(conn, "t")) == 1


def test_a_partitioned_table(conn: Connection) -> None:
    conn.execute("create table public.parted (id int) partition by list (id)")
    conn.execute("create table public.parted_1 partition of public.parted for values in (1)")
    trigger(conn, "'t'", "after insert on public.parted for each row")
    conn.execute("insert into public.parted values (1)")
    assert [m.headers["table"] for m in read(conn, "t")] == ["parted_1"]


@pytest.mark.parametrize(
    ("code", "named", "arguments"),
    [
        ("TL001", "must have 1 to 3 arguments, the first one a topic, got 0", ""),
        ("TL001", "publish_row(''topic'')".replace("''", "'"), "''"),
        ("TL001", "must have 1 to 3 arguments, the first one a topic, got 4", "'t', 'a', 'id', 'more'"),
        ("TL010", 'topic "nowhere" does not exist', "'nowhere'"),
        ("TL001", 'key column "nope" of publish_row does not exist', "'t', 'a', 'nope'"),
    ],
)
def test_wrong_arguments(conn: Connection, code: str, named: str, arguments: str) -> None:
    trigger(conn, arguments)
    with refused(code, named):
        conn.execute("insert into public.orders values (1)")
    assert conn.execute("select count(*) from public.orders").fetchone() == (0,)


@pytest.mark.parametrize(
    ("named", "events", "change"),
    [
        (
            "after insert for each statement",
            "after insert on public.orders for each statement",
            "insert into public.orders values (1)",
        ),
        ("after truncate for each statement", "after truncate on public.orders", "truncate public.orders"),
        (
            "before insert for each row",
            "before insert on public.orders for each row",
            "insert into public.orders values (1)",
        ),
    ],
)
def test_wrong_kinds_of_trigger(conn: Connection, named: str, events: str, change: str) -> None:
    trigger(conn, "'t'", events)
    with refused("TL023", named):
        conn.execute(change)
