"""Groups with a pattern or a header filter: they get what matches, in order, and pass the rest by for good."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import Clock, Connection
from tests.sql.calls import call, commit, contents, fetch, head, offsets, publish, refused, rows, run_upkeep, value


@pytest.fixture(autouse=True)
def topic(conn: Connection) -> None:
    call(conn, "create_topic", "t")
    call(conn, "create_group", "t", "g", p_pattern="yes.*")


def publish_run(conn: Connection, text: str) -> None:
    """One message per letter, with its offset as payload: y is for the group, n is not."""
    start = head(conn, "t")
    for number, letter in enumerate(text, start + 1):
        publish(conn, "t", number, p_routing_key="yes.1" if letter == "y" else "no.1")


def state(conn: Connection) -> tuple[int, int]:
    """Committed and fetched."""
    [row] = call(conn, "group_stats", "t", "g")
    return row.next_offset - 1, row.fetched


def states(conn: Connection) -> int:
    return int(value(conn, "select count(*) from trunkline.positions"))


def test_only_what_matches_is_fetched_and_the_position_passes_the_rest(conn: Connection) -> None:
    publish_run(conn, "nnynynn")
    batch = fetch(conn, "t")
    assert offsets(batch) == contents(batch) == [3, 5]
    assert state(conn) == (2, 7), "what is before the first match is passed, what is behind the last was looked at"
    assert commit(conn, "t", batch) == "done"
    assert state(conn) == (7, 7), "the end of the batch passes what follows it"
    assert fetch(conn, "t") == []
    publish_run(conn, "ny")
    assert contents(fetch(conn, "t")) == [9]


def test_a_part_of_a_batch_can_be_committed(conn: Connection) -> None:
    publish_run(conn, "yynyn")
    batch = fetch(conn, "t")
    assert commit(conn, "t", batch, 2) == "done"
    assert state(conn) == (2, 5)
    again = fetch(conn, "t", p_generation=batch[0].generation)
    assert contents(again) == [4]
    assert state(conn) == (3, 5)
    assert commit(conn, "t", batch, 1) == "done"
    assert state(conn) == (3, 5), "going back changes nothing"
    with refused("TL007", "5"):
        commit(conn, "t", again, 6)
    assert commit(conn, "t", again, 5) == "done", "what was looked at can be committed"
    assert state(conn) == (5, 5)


def test_a_batch_ends_at_its_last_match(conn: Connection) -> None:
    publish_run(conn, "nynynnny")
    first = fetch(conn, "t", p_limit=2)
    assert contents(first) == [2, 4]
    assert state(conn) == (1, 4)
    commit(conn, "t", first)
    second = fetch(conn, "t", p_limit=2)
    assert contents(second) == [8]
    assert state(conn) == (7, 8)


def test_what_does_not_match_is_looked_at_once(conn: Connection) -> None:
    publish_run(conn, "nnnnn")
    assert fetch(conn, "t") == []
    assert state(conn) == (5, 5)
    written = states(conn)
    assert fetch(conn, "t") == fetch(conn, "t") == []
    assert states(conn) == written, "an idle fetch writes nothing"


def test_one_fetch_looks_at_a_bounded_number_of_messages(conn: Connection) -> None:
    conn.execute(
        "select count(*) from generate_series(1, 120) n cross join lateral"
        " trunkline.publish_many('t', array_fill('1'::bytea, array[1000]),"
        "                        p_routing_keys => array_fill('no.' || n, array[1000]))"
    )
    publish(conn, "t", "last", p_routing_key="yes.1")
    assert head(conn, "t") == 120_001
    assert fetch(conn, "t", p_limit=10) == []
    assert state(conn) == (100_000, 100_000)
    assert contents(fetch(conn, "t", p_limit=10)) == ["last"]
    assert state(conn) == (120_000, 120_001)


def test_the_next_owner_gets_the_same_matches_and_the_former_is_refused(conn: Connection, clock: Clock) -> None:
    publish_run(conn, "nynyn")
    batch = fetch(conn, "t", member="a")
    assert fetch(conn, "t", member="b") == []
    clock.advance(31)
    assert commit(conn, "t", batch) == "lost"
    again = fetch(conn, "t", member="b")
    assert contents(again) == contents(batch) == [2, 4]
    assert commit(conn, "t", batch) == "lost"
    assert commit(conn, "t", again) == "done"
    assert state(conn) == (5, 5)


def test_a_member_that_left_leaves_what_it_did_not_commit(conn: Connection) -> None:
    publish_run(conn, "ynyn")
    fetch(conn, "t", member="a")
    call(conn, "leave", "t", "g", "a")
    again = fetch(conn, "t", member="b", p_limit=1)
    assert contents(again) == [1]
    commit(conn, "t", again)
    assert state(conn) == (1, 1)


def test_a_rotation_keeps_the_state(conn: Connection) -> None:
    publish_run(conn, "nyn")
    batch = fetch(conn, "t")
    conn.execute("update trunkline.epoch set rotated_at = rotated_at - interval '1 day'")
    run_upkeep(conn, "rotate", 2)
    assert state(conn) == (1, 3)
    assert commit(conn, "t", batch) == "done"
    assert state(conn) == (3, 3)


def test_after_a_seek_back_the_same_matches_come_again(conn: Connection) -> None:
    publish_run(conn, "nyny")
    batch = fetch(conn, "t")
    commit(conn, "t", batch)
    call(conn, "seek", "t", "g", "earliest")
    assert contents(fetch(conn, "t")) == contents(batch)


def test_headers_filter_too(conn: Connection) -> None:
    call(conn, "create_group", "t", "h", p_filter=json.dumps({"land": ["de", "at"]}))
    for number, land in enumerate(["de", "fr", "at", None]):
        publish(conn, "t", number, p_headers=None if land is None else json.dumps({"land": land}))
    assert contents(fetch(conn, "t", "h")) == [0, 2]


def test_partitions_where_nothing_matches_are_not_taken_beyond_the_share(conn: Connection) -> None:
    call(conn, "create_topic", "wide", 4)
    call(conn, "create_group", "wide", "g", p_pattern="yes")
    for number in range(40):
        publish(conn, "wide", number, p_key=str(number), p_routing_key="no")
    assert fetch(conn, "wide", member="a") == []
    call(conn, "seek", "wide", "g", "earliest")
    fetch(conn, "wide", member="b", p_lease="12 hours")
    call(conn, "seek", "wide", "g", "earliest")
    # both are members now, so two partitions each are the share
    assert fetch(conn, "wide", member="a") == []
    owned = [row.member for row in call(conn, "group_stats", "wide", "g")]
    assert owned.count("a") == 2


def test_a_group_keeps_what_it_reads(conn: Connection) -> None:
    assert call(conn, "ensure_group", "t", "g")[0].pattern == "yes.*"
    assert call(conn, "ensure_group", "t", "g", p_pattern="yes.*", p_filter="{}")[0].pattern == "yes.*"
    for named in ({"p_pattern": "no.*"}, {"p_pattern": "#"}, {"p_filter": '{"a": 1}'}):
        with refused("TL020", "yes.*"):
            call(conn, "ensure_group", "t", "g", **named)
    with refused("TL023", "fetch"):
        call(conn, "claim_range", "t", "g")


BAD: list[tuple[str, dict[str, Any]]] = [
    ("pattern", {"p_pattern": ""}),
    ("wildcard", {"p_pattern": "a*"}),
    ("pattern", {"p_pattern": "a" * 1001}),
    ("object", {"p_filter": "[1]"}),
]


@pytest.mark.parametrize(("named", "arguments"), BAD)
def test_bad_patterns_and_filters_are_refused(conn: Connection, named: str, arguments: dict[str, Any]) -> None:
    for verb in ("create_group", "ensure_group"):
        with refused("TL001", named):
            call(conn, verb, "t", "new", **arguments)
    assert [row.name for row in rows(conn, "select name from trunkline.subscriptions where kind = 'group'")] == ["g"]


def test_explain_says_who_is_not_matched(conn: Connection) -> None:
    publish_run(conn, "nyny")
    head(conn, "t")

    def states_of(offset: int) -> str:
        [[told]] = call(conn, "explain_offset", "t", 0, offset)
        return str(told["readers"][0]["state"])

    assert [states_of(offset) for offset in (1, 2, 3, 4)] == ["not_matched", "ready", "not_matched", "ready"]
    batch = fetch(conn, "t", p_limit=1)
    assert [states_of(offset) for offset in (1, 2, 3, 4)] == ["not_matched", "leased", "not_matched", "ready"]
    commit(conn, "t", batch)
    assert [states_of(offset) for offset in (1, 2, 3, 4)] == ["not_matched", "read", "not_matched", "ready"]
    [[told]] = call(conn, "explain_offset", "t", 0, 1)
    assert "no.1" in told["readers"][0]["reason"]


def test_a_fetch_sees_what_was_published_before_it_behind_a_backlog_without_a_match(conn: Connection) -> None:
    publish_run(conn, "nnnnnnnnnn")
    head(conn, "t")
    publish(conn, "t", "new", p_routing_key="yes.1")
    assert contents(fetch(conn, "t", p_limit=1)) == ["new"], "a partition that was free"
    call(conn, "seek", "t", "g", "earliest")
    assert contents(fetch(conn, "t", p_limit=100)) == ["new"]
