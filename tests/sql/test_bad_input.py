"""Bad input: a stable code, a text that names the field or limit and says what to do, and nothing changed."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.conftest import Connection
from tests.sql.calls import (
    call,
    claim,
    contents,
    digest,
    enqueue,
    head,
    passes,
    publish,
    read,
    refused,
    rows,
    run_upkeep,
    settle,
    value,
)

BAD_NAMES = [
    "",
    "x" * 201,
    'x"; drop table t; --',
    "x' or 1=1",
    "a/b",
    "a b",
    "naïve",
    "📬",
    "a\n",
    "\n",
    "a\\",
    "a,b",
    "%",
    None,
]
NOBODY = UUID(int=7)
TOKEN = "00000000-0000-0000-0000-000000000000"
MALFORMED = [
    "",
    "nonsense",
    "1",
    "1.1",
    "1....",
    f"1.1.1.{TOKEN}",
    f".1.1.{TOKEN}",
    f"1.999999999.999999999999999999.{TOKEN}",
    f"1.9999999999.1.{TOKEN}",
    f"1.1.9999999999999999999.{TOKEN}",
    f"1.-1.1.{TOKEN}",
    f"-1.1.1.{TOKEN}",
    f"{'9' * 30}.1.1.{TOKEN}",
    f"1.1.1.{TOKEN}.1",
    "1.1.1.not-a-token",
    "1.1.1." + "f" * 36,
    "'; drop table trunkline.leases; --1",
    "📬1",
    "1" * 100_000,
]


@pytest.fixture(scope="module")
def yard(shared_conn: Connection) -> Connection:
    """A topic with 3 partitions and a short history, a queue with one message out, one dead and one ready."""
    conn = shared_conn
    call(conn, "create_topic", "t", 3, p_max_payload=100)
    call(conn, "create_topic", "old", p_segment_rows=16, p_retention="0")
    publish(conn, "old", *range(1, 21))
    run_upkeep(conn, "segments", 3)
    run_upkeep(conn, "retention", 2)
    publish(conn, "t", *range(5), p_key="k", p_idempotency_key=None)
    publish(conn, "t", 5, p_key="k", p_idempotency_key="used")
    call(conn, "create_group", "t", "g")
    call(conn, "create_group", "old", "g", "latest")
    call(conn, "create_queue", "q")
    call(conn, "create_queue", "o", p_ordered=True)
    call(conn, "subscribe", "q", "t")
    enqueue(conn, "q", 1, 2, 3)
    settle(conn, "bury", claim(conn, "q", 1)[0].receipt)
    claim(conn, "q", 1, p_lease="1 hour")
    for partition in range(3):
        head(conn, "t", partition)
    passes(conn, 3)
    return conn


def refuse(conn: Connection, code: str, named: str, verb: str, *args: Any, **more: Any) -> None:
    before = digest(conn)
    with refused(code, named):
        call(conn, verb, *args, **more)
    assert digest(conn) == before


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize("verb", ["create_topic", "ensure_topic", "create_queue", "ensure_queue"])
def test_bad_names(yard: Connection, verb: str, name: str | None) -> None:
    refuse(yard, "TL002", "1 to 200 characters", verb, name)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_names_of_groups_members_and_subscriptions(yard: Connection, name: str | None) -> None:
    refuse(yard, "TL002", "1 to 200 characters", "create_group", "t", name)
    refuse(yard, "TL002", "1 to 200 characters", "fetch", "t", name, "m")
    refuse(yard, "TL002", "1 to 200 characters", "fetch", "t", "g", name)
    if name is not None:
        refuse(yard, "TL002", "1 to 200 characters", "subscribe", "q", "t", p_name=name)


UNKNOWN = [
    ("TL010", "publish", ["nope", "1"]),
    ("TL010", "publish_bytes", ["nope", b"1"]),
    ("TL010", "publish_many", ["nope", [b"1"]]),
    ("TL010", "fetch", ["nope", "g", "m"]),
    ("TL010", "claim_range", ["nope", "g"]),
    ("TL010", "commit", ["nope", "g", 0, NOBODY, 1]),
    ("TL010", "seek", ["nope", "g", "earliest"]),
    ("TL010", "head", ["nope"]),
    ("TL010", "read", ["nope", 0, 1]),
    ("TL010", "offset_at", ["nope", 0, "2020-01-01"]),
    ("TL010", "alter_topic", ["nope"]),
    ("TL010", "delete_topic", ["nope"]),
    ("TL010", "create_group", ["nope", "g"]),
    ("TL010", "subscribe", ["q", "nope"]),
    ("TL010", "topic_stats", ["nope"]),
    ("TL011", "enqueue", ["nope", "1"]),
    ("TL011", "enqueue_many", ["nope", [b"1"]]),
    ("TL011", "claim", ["nope"]),
    ("TL011", "alter_queue", ["nope"]),
    ("TL011", "delete_queue", ["nope"]),
    ("TL011", "pause_queue", ["nope"]),
    ("TL011", "resume_queue", ["nope"]),
    ("TL011", "purge_queue", ["nope"]),
    ("TL011", "trim_queue", ["nope"]),
    ("TL011", "subscribe", ["nope", "t"]),
    ("TL011", "unsubscribe", ["nope", "t"]),
    ("TL011", "list_dead_letters", ["nope"]),
    ("TL011", "redrive", ["nope"]),
    ("TL011", "purge_dead_letters", ["nope"]),
    ("TL011", "queue_stats", ["nope"]),
    ("TL012", "commit", ["t", "nope", 0, NOBODY, 1]),
    ("TL012", "seek", ["t", "nope", "earliest"]),
    ("TL012", "leave", ["t", "nope", "m"]),
    ("TL012", "heartbeat", ["t", "nope", "m"]),
    ("TL012", "delete_group", ["t", "nope"]),
    ("TL012", "group_stats", ["t", "nope"]),
    ("TL013", "unsubscribe", ["q", "nope"]),
]


@pytest.mark.parametrize(("code", "verb", "args"), UNKNOWN, ids=[f"{row[0]}-{row[1]}" for row in UNKNOWN])
def test_unknown_things_are_named(yard: Connection, code: str, verb: str, args: list[Any]) -> None:
    refuse(yard, code, '"nope"', verb, *args)


def test_unknown_dead_letter(yard: Connection) -> None:
    refuse(yard, "TL014", str(NOBODY), "get_dead_letter", "q", NOBODY)
    assert value(yard, "select trunkline.redrive('q', %s)", [NOBODY]) == 0
    assert value(yard, "select trunkline.purge_dead_letters('q', %s)", [NOBODY]) == 0


@pytest.mark.parametrize("receipt", MALFORMED, ids=lambda receipt: receipt[:40])
@pytest.mark.parametrize("verb", ["ack", "nack", "bury", "release", "extend"])
def test_malformed_and_unknown_receipts_answer_unknown(yard: Connection, verb: str, receipt: str) -> None:
    before = digest(yard)
    assert settle(yard, verb, receipt) in (["unknown"], ["lost"])
    assert digest(yard) == before


@pytest.mark.parametrize("verb", ["ack", "nack", "bury", "release", "extend"])
def test_the_token_of_a_lease_does_not_open_other_offsets(yard: Connection, verb: str) -> None:
    newest = "select cursor_id, first, rotation, token from trunkline.leases order by deadline desc limit 1"
    [(cursor, lease, rotation, token)] = rows(yard, newest)
    before = digest(yard)
    for place in ("9" * 17, "9" * 18, "9" * 19, "9" * 100, "0", "00", "", "x", "2.2", "-2", "+2", " 2", "02x", "1", "3"):
        assert settle(yard, verb, f"{place}.{cursor}.{lease}.{rotation}.{token}") == ["unknown"], place
        assert digest(yard) == before, place
    with yard.transaction(force_rollback=True):
        assert settle(yard, verb, f"2.{cursor}.{lease}.{rotation}.{token}") == ["done"], (
            "this is what a right one looks like"
        )


def big(n: int) -> list[bytes]:
    return [b"1"] * n


BAD_CALLS: list[tuple[str, str, str, list[Any], dict[str, Any]]] = [
    # null where something is needed
    ("TL010", "NULL", "publish", [None, "1"], {}),
    ("TL011", "NULL", "claim", [None], {}),
    ("TL001", "payload must not be null", "publish", ["t", None], {}),
    ("TL001", "payload must not be null", "publish_bytes", ["t", None], {}),
    ("TL001", "message 1", "publish_many", ["t", [b"1", None]], {}),
    ("TL001", "batch must have at least one message", "publish_many", ["t", None], {}),
    ("TL001", "limit", "claim", ["q", None], {}),
    ("TL001", "limit", "fetch", ["t", "g", "m", None], {}),
    ("TL005", "lease", "fetch", ["t", "g", "m"], {"p_lease": None}),
    ("TL005", "lease", "heartbeat", ["t", "g", "m"], {"p_lease": None}),
    ("TL001", "receipts must be a one-dimensional array, got null", "ack", [None], {}),
    ("TL001", "receipts must not contain null", "ack", [["1", None]], {}),
    ("TL005", "for must be between 1 s and 12 h, got null", "extend", [["1"]], {"p_for": None}),
    ("TL001", "partition", "read", ["t", None, 1], {}),
    ("TL001", "from", "read", ["t", 0, None], {}),
    ("TL001", "limit", "read", ["t", 0, 1, None], {}),
    ("TL001", "time must not be null", "offset_at", ["t", 0, None], {}),
    ("TL001", "position", "seek", ["t", "g", None], {}),
    ("TL001", "partitions", "create_topic", ["new", None], {}),
    ("TL005", "retention", "create_topic", ["new"], {"p_retention": None}),
    ("TL001", "max_payload", "create_topic", ["new"], {"p_max_payload": None}),
    ("TL005", "lease", "create_queue", ["new"], {"p_lease": None}),
    ("TL001", "max_attempts", "create_queue", ["new"], {"p_max_attempts": None}),
    ("TL005", "backoff_base", "create_queue", ["new"], {"p_backoff_base": None}),
    ("TL001", "backoff_factor", "create_queue", ["new"], {"p_backoff_factor": None}),
    ("TL001", "backoff_jitter", "create_queue", ["new"], {"p_backoff_jitter": None}),
    ("TL005", "delivery_delay", "create_queue", ["new"], {"p_delivery_delay": None}),
    ("TL001", "ordered", "create_queue", ["new"], {"p_ordered": None}),
    ("TL001", "limit", "redrive", ["q"], {"p_limit": None}),
    ("TL001", "limit", "list_dead_letters", ["q", 0, None], {}),
    # sizes
    ("TL003", "payload must have at most 100 bytes, got 101", "publish_bytes", ["t", b"x" * 101], {}),
    ("TL003", "message 2", "publish_many", ["t", [b"1", b"2", b"x" * 101]], {}),
    ("TL003", "1048577", "enqueue_bytes", ["q", b"x" * 1_048_577], {}),
    ("TL004", "batch must have at most 1000 messages, got 1001", "publish_many", ["t", big(1001)], {}),
    ("TL004", "8388608", "enqueue_many", ["q", [b"x" * 1_048_576] * 9], {}),
    ("TL004", "more than 10,000 receipts in one call, got 100000", "ack", [["1"] * 100_000], {}),
    ("TL001", "batch must have at least one message", "publish_many", ["t", []], {}),
    ("TL001", "key", "publish", ["t", "1"], {"p_key": "x" * 1001}),
    ("TL001", "routing_key", "publish", ["t", "1"], {"p_routing_key": "x" * 1001}),
    ("TL001", "label", "publish", ["t", "1"], {"p_label": "x" * 201}),
    ("TL001", "content_type", "publish_bytes", ["t", b"1", "x" * 201], {}),
    ("TL001", "content_type", "publish_many", ["t", [b"1"]], {"p_content_type": "x" * 201}),
    ("TL001", "headers", "publish", ["t", "1"], {"p_headers": "[]"}),
    ("TL001", "headers", "publish", ["t", "1"], {"p_headers": "null"}),
    # arrays
    ("TL001", "one-dimensional", "publish_many", ["t", [[b"1", b"2"], [b"3", b"4"]]], {}),
    ("TL001", "one-dimensional", "publish_many", ["t", big(4)], {"p_keys": [["a", "b"], ["c", "d"]]}),
    ("TL001", "one-dimensional", "publish_many", ["t", big(4)], {"p_idempotency_keys": [["a", "b"], ["c", "d"]]}),
    ("TL001", "one element per message", "publish_many", ["t", big(3)], {"p_keys": ["a", "b"]}),
    ("TL001", "one element per message", "publish_many", ["t", big(3)], {"p_ids": [NOBODY]}),
    ("TL001", "one element per message", "publish_many", ["t", big(1)], {"p_labels": ["a", "b"]}),
    ("TL001", "one element per message", "publish_many", ["t", big(1)], {"p_headers": [Jsonb({}), Jsonb({})]}),
    ("TL001", "one element per message", "publish_many", ["t", big(2)], {"p_idempotency_keys": ["a"]}),
    ("TL001", "must be a one-dimensional array, got 2 dimensions", "ack", [[["a", "b"], ["c", "d"]]], {}),
    # numbers
    *[("TL001", "limit", "claim", ["q", n], {}) for n in (0, -1, 1001, 2_147_483_647)],
    *[("TL001", "limit", "fetch", ["t", "g", "m", n], {}) for n in (0, -1, 10_001)],
    *[("TL001", "limit", "claim_range", ["t", "g", n], {}) for n in (0, -1, 2**63 - 1)],
    *[("TL001", "partitions", "create_topic", ["new", n], {}) for n in (0, -1, 65)],
    *[("TL001", "max_payload", "create_topic", ["new"], {"p_max_payload": n}) for n in (0, -1, 16_777_217)],
    *[("TL001", "segment_rows", "create_topic", ["new"], {"p_segment_rows": n}) for n in (0, 15, 16_777_217)],
    *[("TL001", "retention_bytes", "create_topic", ["new"], {"p_retention_bytes": n}) for n in (0, -1)],
    *[("TL001", "max_attempts", "create_queue", ["new"], {"p_max_attempts": n}) for n in (0, -1, 1001)],
    *[
        ("TL001", "backoff_factor", "create_queue", ["new"], {"p_backoff_factor": n})
        for n in ("NaN", "Infinity", "0.5", "-1")
    ],
    *[
        ("TL001", "backoff_jitter", "create_queue", ["new"], {"p_backoff_jitter": n})
        for n in ("NaN", "-Infinity", "1.1", "-0.1")
    ],
    *[("TL001", "limit", "redrive", ["q"], {"p_limit": n}) for n in (0, -1, 1001)],
    *[("TL001", "limit", "list_dead_letters", ["q", 0, n], {}) for n in (0, -1, 10_001)],
    ("TL023", "3 partitions", "alter_topic", ["t", 2], {}),
    ("TL020", "3 partitions", "ensure_topic", ["t", 4], {}),
    # durations
    *[
        ("TL005", "delay", "publish", ["t", "1"], {"p_delay": d})
        for d in ("-1 second", "366 days", "-1 month", "1000000 days")
    ],
    *[("TL005", "delay", "nack", [["1"]], {"p_delay": d}) for d in ("-1 second", "366 days")],
    *[("TL005", "lease", "claim", ["q"], {"p_lease": d}) for d in ("0", "-1 second", "13 hours", "0.5 seconds")],
    *[("TL005", "lease", "fetch", ["t", "g", "m"], {"p_lease": d}) for d in ("0", "-1 second", "13 hours")],
    *[("TL005", "lease", "heartbeat", ["t", "g", "m"], {"p_lease": d}) for d in ("0", "13 hours")],
    *[("TL005", "for", "extend", [["1"]], {"p_for": d}) for d in ("0", "-1 second", "13 hours")],
    *[("TL005", "lease", "create_queue", ["new"], {"p_lease": d}) for d in ("0", "-1 second", "13 hours")],
    *[("TL005", "ttl", "create_queue", ["new"], {"p_ttl": d}) for d in ("0", "-1 second", "11 years")],
    *[("TL005", "lease", "alter_queue", ["q"], {"p_lease": d}) for d in ("0", "-1 second", "13 hours")],
    ("TL005", "backoff_base", "create_queue", ["new"], {"p_backoff_base": "-1 second"}),
    ("TL005", "backoff_cap", "create_queue", ["new"], {"p_backoff_cap": "31 days"}),
    ("TL005", "delivery_delay", "create_queue", ["new"], {"p_delivery_delay": "-1 second"}),
    ("TL005", "retention", "create_topic", ["new"], {"p_retention": "-1 second"}),
    ("TL005", "hard_retention", "create_topic", ["new"], {"p_hard_retention": "101 years"}),
    ("TL005", "deliver_at", "publish", ["t", "1"], {"p_deliver_at": "infinity"}),
    ("TL005", "deliver_at", "publish", ["t", "1"], {"p_deliver_at": "4000-01-01"}),
    ("TL001", "both delay and deliver_at", "publish", ["t", "1"], {"p_delay": "1 s", "p_deliver_at": "2020-01-01"}),
    # places
    *[("TL001", "from", "read", ["t", 0, n], {}) for n in (0, -1, -(2**63))],
    *[("TL001", "partition", "read", ["t", n, 1], {}) for n in (-1, 3, 2_147_483_647)],
    *[("TL001", "partition", "head", ["t", n], {}) for n in (-1, 3)],
    *[("TL001", "partition", "seek", ["t", "g", "earliest", n], {}) for n in (-1, 3)],
    ("TL001", "partition", "commit", ["t", "g", 3, NOBODY, 1], {}),
    ("TL006", "16", "read", ["old", 0, 1], {}),
    ("TL006", "16", "seek", ["old", "g", "1"], {}),
    ("TL006", "0", "seek", ["old", "g", "0"], {}),
    ("TL007", "partition 0, is 20", "seek", ["old", "g", "22"], {}),
    ("TL007", "partition 0, is 20", "seek", ["old", "g", "999999999999999999"], {}),
    ("TL007", "partition 0, is 20", "create_group", ["old", "new", "22"], {}),
    *[
        ("TL001", "position", "seek", ["t", "g", s], {})
        for s in ("", "-1", "1.5", "first", "infinity", "9" * 30, "2020-13-45")
    ],
    ("TL001", "position", "subscribe", ["q", "old"], {"p_start": "soon"}),
    # patterns, filters, idempotency
    *[
        ("TL001", "pattern", "subscribe", ["q", "old", p], {})
        for p in ("", "a*", "*a", "a#b", "**", "##", "a.b*", "x" * 1001, None)
    ],
    *[("TL001", "filter", "subscribe", ["q", "old", "#", f], {}) for f in ("[]", "1", '"x"', "null")],
    *[("TL001", "idempotency_key", "publish", ["t", "1"], {"p_idempotency_key": k}) for k in ("", "x" * 256)],
    ("TL022", "used", "publish", ["t", '"another"'], {"p_key": "k", "p_idempotency_key": "used"}),
    ("TL020", '"t"', "create_topic", ["t"], {}),
    ("TL020", '"q"', "create_queue", ["q"], {}),
    ("TL020", '"g"', "create_group", ["t", "g"], {}),
    ("TL020", '"t"', "subscribe", ["q", "t"], {}),
    ("TL021", 'group "g"', "delete_topic", ["t"], {}),
    ("TL021", "dead letters", "delete_queue", ["q"], {}),
    ("TL023", '"o"', "claim", ["o"], {"p_labels": ["a"]}),
    ("TL001", 'upkeep task "sleep" does not exist', "run_upkeep", ["sleep"], {}),
]


def label(row: tuple[str, str, str, list[Any], dict[str, Any]]) -> str:
    code, _, verb, args, more = row
    return f"{code}-{verb}-{args[1:]}-{more}"[:80]


@pytest.mark.parametrize("row", BAD_CALLS, ids=label)
def test_bad_calls(yard: Connection, row: tuple[str, str, str, list[Any], dict[str, Any]]) -> None:
    code, named, verb, args, more = row
    refuse(yard, code, named, verb, *args, **more)


def test_infinite_intervals(yard: Connection) -> None:
    """They exist from Postgres 17 on; before it the server itself refuses the word."""
    code = "TL005" if yard.info.server_version >= 170000 else "22007"
    for verb, args, field in (
        ("publish", ["t", "1"], "p_delay"),
        ("nack", [["1"]], "p_delay"),
        ("claim", ["q"], "p_lease"),
        ("create_queue", ["new"], "p_ttl"),
        ("create_topic", ["new"], "p_retention"),
    ):
        for text in ("infinity", "-infinity"):
            refuse(yard, code, "", verb, *args, **{field: text})


@pytest.mark.parametrize("text", ["1e13 years", "9999999999 days", "soon", "NaN"])
def test_intervals_that_postgres_cannot_hold(yard: Connection, text: str) -> None:
    before = digest(yard)
    with pytest.raises(psycopg.DataError):
        call(yard, "publish", "t", "1", p_delay=text)
    assert digest(yard) == before


def test_offsets_that_are_out_of_reach(yard: Connection) -> None:
    assert read(yard, "t", 2**63 - 1) == read(yard, "t", 10**18) == []
    refuse(yard, "22003", "", "read", "t", 0, "9223372036854775808")


def test_a_commit_of_nobody_is_lost(yard: Connection) -> None:
    before = digest(yard)
    for place in (-1, 0, 1, 2**63 - 1, None):
        assert value(yard, "select trunkline.commit('t', 'g', 0, %s, %s)", uuid4(), place) == "lost"
    assert digest(yard) == before


def test_nul_and_broken_text_never_arrive(yard: Connection) -> None:
    before = digest(yard)
    for args in (["a\0b", "1"], ["t", '"a\0b"']):
        with pytest.raises(psycopg.DataError):
            call(yard, "publish", *args)
    with refused("22P05"):
        call(yard, "publish", "t", '"\\u0000"')
    for raw in (b"\xff", b"\xc3", b"\xed\xa0\x80"):
        with refused("22021"):
            yard.execute(b"select trunkline.publish('t', '\"" + raw + b"\"')")
    for text in ("{", "", "nope", "{'a': 1}", "NaN"):
        with refused("22P02"):
            call(yard, "publish", "t", text)
    assert digest(yard) == before


def test_lone_surrogates_and_deep_json(yard: Connection) -> None:
    before = digest(yard)
    with refused("22P02"):
        call(yard, "publish", "t", '"\\ud800"')
    with refused("54001"):
        call(yard, "publish", "t", "[" * 100_000 + "]" * 100_000)
    assert digest(yard) == before


def test_misused_names_of_arguments(yard: Connection) -> None:
    for query in (
        "select trunkline.publish('t')",
        "select trunkline.publish(p_topic => 't', p_body => '1')",
        "select trunkline.claim('q', 'many', 1, 2, 3)",
    ):
        with refused("42883"):
            yard.execute(query)


def test_a_role_without_grants_can_do_nothing(yard: Connection) -> None:
    role = f"stranger_{yard.info.dbname}"
    yard.execute(f"create role {role}")
    try:
        yard.execute(f"set role {role}")
        for query in (
            "select trunkline.publish('t', '1')",
            "select * from trunkline.claim('q')",
            "insert into trunkline.settings values ('a', 'b')",
            "truncate trunkline.leases",
            "delete from trunkline.topic_1",
        ):
            with refused("42501"):
                yard.execute(query)
    finally:
        yard.execute("reset role")
        yard.execute(f"drop role {role}")


def test_another_client_encoding_stores_the_same_bytes(conn: Connection) -> None:
    call(conn, "create_topic", "t")
    for encoding, text in (("latin1", "é"), ("utf8", "é📬"), ("euc_jp", "漢")):
        conn.execute(f"set client_encoding to {encoding}")
        publish(conn, "t", 0, p_key=text, p_headers=Jsonb({"h": text}))
        conn.execute("select trunkline.publish('t', to_jsonb(%s::text))", (text,))
    conn.execute("set client_encoding to latin1")
    with pytest.raises(UnicodeEncodeError):
        conn.execute("select trunkline.publish('t', to_jsonb(%s::text))", ("📬",))
    conn.execute("set client_encoding to utf8")
    messages = read(conn, "t")
    assert contents(messages) == [0, "é", 0, "é📬", 0, "漢"]
    assert [(m.key, m.headers) for m in messages[::2]] == [(s, {"h": s}) for s in ("é", "é📬", "漢")]


def test_arrays_that_do_not_start_at_one_are_right_or_refused(conn: Connection) -> None:
    call(conn, "create_topic", "t")
    try:
        answers = rows(conn, "select * from trunkline.publish_many('t', '[0:1]={0,1}', p_idempotency_keys => '[5:6]={a,b}')")
    except psycopg.Error as error:
        assert error.sqlstate == "TL001"
        assert head(conn, "t") == 0
    else:
        assert [(row.ord, row.duplicate) for row in answers] == [(1, False), (2, False)]
        assert [message.id for message in read(conn, "t")] == [row.id for row in answers]


def test_members_that_nobody_knows(yard: Connection) -> None:
    assert value(yard, "select trunkline.leave('t', 'g', 'nobody')") == 0
    assert value(yard, "select trunkline.heartbeat('t', 'g', 'nobody')") == 0
    assert value(yard, "select trunkline.leave('t', 'g', null)") == 0


def test_no_labels_is_not_all_labels(conn: Connection) -> None:
    call(conn, "create_queue", "q")
    enqueue(conn, "q", 1, p_label="a")
    before = digest(conn)
    try:
        assert claim(conn, "q", p_labels=[]) == []
    except psycopg.Error as error:
        assert error.sqlstate == "TL001"
    assert digest(conn)["leases_0"] == before["leases_0"]
    assert contents(claim(conn, "q", p_labels=["a", None])) == [1]
