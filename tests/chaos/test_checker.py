"""Each rule of the checker, with a small history that breaks it and one that does not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.checker import check
from tests.chaos.history import Op, Recorder, load
from tests.chaos.report import RULES, Report


def op(
    f: str,
    *,
    outcome: str = "ok",
    at: float = 0.0,
    end: float | None = None,
    proc: str = "p",
    result: Any = None,
    **args: Any,
) -> Op:
    return Op(proc, f, outcome, at, at + 0.1 if end is None else end, args, result or {})


def publish(*values: str, outcome: str = "ok", target: str = "topic:t", at: float = 0.0, **part: Any) -> Op:
    return op(
        "publish", outcome=outcome, at=at, parts=[{"target": target, "values": list(values), **part}], result={"before": at}
    )


def final_log(*values: str, target: str = "topic:t", again: list[str] | None = None) -> list[Op]:
    return [
        op("final_log", number=number, target=target, partition=0, rows=[[n, v] for n, v in enumerate(found, 1)])
        for number, found in ((1, values), (2, values if again is None else again))
    ]


def read(first: int, *values: str, at: float = 0.0, limit: int = 10, expect: tuple[str, ...] = ()) -> Op:
    rows = [[n, v] for n, v in enumerate(values, first)]
    result = {"rows": rows}
    return op("read", at=at, target="topic:t", partition=0, first=first, limit=limit, expect=expect, result=result)


def fetch(generation: str, first: int, *values: str, at: float = 0.0) -> Op:
    rows = [[n, v] for n, v in enumerate(values, first)]
    result = {"rows": rows, "partition": 0, "generation": generation}
    return op("fetch", at=at, proc=generation, topic="t", group="g", member=generation, result=result)


def commit(generation: str, offset: int, *, at: float, answer: str = "done") -> Op:
    args: dict[str, Any] = {"topic": "t", "group": "g", "partition": 0, "generation": generation, "offset": offset}
    return op("commit", at=at, proc=generation, result={"answer": answer}, **args)


def seek(offset: int, *, at: float, outcome: str = "ok") -> Op:
    return op("seek", at=at, outcome=outcome, topic="t", group="g", partition=0, offset=offset)


def final_group(effects: list[list[int]] | None = None, keys: list[str] | None = None) -> Op:
    return op("final_group", topic="t", group="g", effects=effects, keys=keys)


def filtered_fetch(generation: str, *rows: tuple[int, str], at: float) -> Op:
    result = {"rows": [list(row) for row in rows], "partition": 0, "generation": generation}
    return op("fetch", at=at, proc=generation, topic="t", group="g", member=generation, result=result)


def claim(
    receipt: str, value: str, *, at: float, attempt: int = 1, lease: float = 1.0, relaxed: bool = False, **asked: Any
) -> Op:
    """The last number of a receipt is the offset."""
    rows = [[receipt, attempt, at + lease, value, "/0", int(receipt[-1])]]
    return op("claim", at=at, proc=receipt, queue="q", lease=lease, relaxed=relaxed, result={"rows": rows}, **asked)


def settle(
    verb: str, receipt: str, *, at: float, answer: str = "done", outcome: str = "ok", seconds: float | None = None
) -> Op:
    result = {"before": at, "answers": [answer], "after": at} if outcome == "ok" else {}
    return op("settle", at=at, outcome=outcome, verb=verb, receipts=[receipt], seconds=seconds, result=result)


def purge(count: int, *, at: float, outcome: str = "ok") -> Op:
    result = {"before": at, "count": count, "after": at} if outcome == "ok" else {}
    return op("purge", at=at, outcome=outcome, queue="q", result=result)


def final_queue(
    *values: str, dead: tuple[list[Any], ...] = (), ordered: bool = False, ttl: float | None = None, **audit: int
) -> list[Op]:
    states = dict.fromkeys(("ready", "pending", "leased", "expired", "purged"), 0)
    deaths = audit.pop("deaths", len(dead))
    counts = {"accepted": len(values), "acked": len(values) - deaths, "dead": deaths} | states | audit
    args: dict[str, Any] = {"queue": "q", "feeds": [["queue:q", None]], "dead": list(dead), "audit": counts}
    return [*final_log(*values, target="queue:q"), op("final_queue", max_attempts=3, ordered=ordered, ttl=ttl, **args)]


def redrive(*letters: list[Any], outcome: str = "ok", count: int | None = None) -> Op:
    result = {"count": len(letters) if count is None else count} if outcome == "ok" else {}
    return op("redrive", at=3, outcome=outcome, queue="q", letters=list(letters), result=result)


def enqueue(*values: str, **part: Any) -> Op:
    return publish(*values, target="queue:q", **part)


def crash(at: float) -> Op:
    return op("crash", at=at, before=at, after=at)


A, B, C = "1.1.token.1", "1.2.token.1", "1.3.token.1"
LOG = [publish("a", "b"), *final_log("a", "b")]
GROUP = [*LOG, final_group()]
QUEUE = [enqueue("a"), *final_queue("a")]
DONE = [claim(A, "a", at=1), settle("ack", A, at=1.5)]
# buried at offset 1, redriven, and acked at offset 2
BURIED = ["a", 1, "buried", "/0", 1]
SECOND = "1.4.token.2"
BURY = [enqueue("a"), claim(A, "a", at=1), settle("bury", A, at=1.5)]
TWICE = [*BURY, claim(SECOND, "a", at=4), settle("ack", SECOND, at=4.5)]
TWICE_END = final_queue("a", "a", deaths=1)

# a, c and e are not for the group
SOME = [
    *(publish(value, routing_key="yes" if value in "bd" else "no", at=n / 10) for n, value in enumerate("abcde")),
    *final_log(*"abcde"),
]

CLEAN: dict[str, list[Op]] = {
    "sought back and read again": [
        *GROUP,
        fetch("g1", 1, "a", "b", at=1),
        commit("g1", 2, at=2),
        seek(1, at=3),
        commit("g1", 2, at=4, answer="lost"),
        fetch("g2", 1, "a", "b", at=5),
        commit("g2", 2, at=6),
    ],
    "perhaps sought back": [
        *GROUP,
        fetch("g1", 1, "a", "b", at=1),
        commit("g1", 2, at=2),
        seek(2, at=3, outcome="info"),
        fetch("g2", 2, "b", at=5),
    ],
    "group reads what matches": [
        *SOME,
        filtered_fetch("g1", (2, "b"), at=1),
        commit("g1", 3, at=2),
        filtered_fetch("g2", (4, "d"), at=9),
        commit("g2", 5, at=10),
        final_group([[0, 2, 3], [0, 4, 4]], keys=["yes"]),
    ],
    "expired": [enqueue("a"), *final_queue("a", ttl=5.0, acked=0, expired=1)],
    "delivered before its ttl": [enqueue("a"), *final_queue("a", ttl=5.0), *DONE],
    "purged": [enqueue("a"), purge(1, at=1), *final_queue("a", acked=0, purged=1)],
    "purged without an answer": [enqueue("a"), purge(0, at=1, outcome="info"), *final_queue("a", acked=0, purged=1)],
    "leased while it was purged": [*QUEUE, claim(A, "a", at=1), purge(0, at=1.2), settle("ack", A, at=1.5)],
    "accepted and there": LOG,
    "failed and absent": [*LOG, publish("c", outcome="fail")],
    "unknown and absent": [*LOG, publish("c", "d", outcome="info")],
    "unknown and there": [publish("a", "b", outcome="info"), *final_log("a", "b")],
    "reader goes on": [*LOG, read(1, "a", at=1), read(2, "b", at=2), read(3, at=3), read(1, "a", "b", at=4)],
    "reader finds its own": [*LOG, read(1, "a", "b", at=1, expect=("a",))],
    "group reads on and starts over": [
        *GROUP,
        fetch("g1", 1, "a", at=1),
        fetch("g2", 1, "a", "b", at=5),
        commit("g1", 1, at=6, answer="lost"),
        commit("g2", 2, at=7),
    ],
    "group fetches again before it commits": [*GROUP, fetch("g1", 1, "a", at=1), fetch("g1", 1, "a", "b", at=2)],
    "group commits between fetches": [*GROUP, fetch("g1", 1, "a", at=1), commit("g1", 1, at=2), fetch("g2", 2, "b", at=5)],
    "commit beside a take-over": [
        *GROUP,
        fetch("g1", 1, "a", "b", at=1),
        commit("g1", 1, at=2),
        op(
            "fetch",
            at=1.9,
            end=3,
            topic="t",
            group="g",
            result={"rows": [[1, "a"], [2, "b"]], "partition": 0, "generation": "g2"},
        ),
    ],
    "effects once": [*GROUP[:-1], fetch("g1", 1, "a", "b"), final_group([[0, 1, 1], [0, 2, 2]])],
    "acked once": [*QUEUE, *DONE],
    "acked twice by one receipt": [*QUEUE, *DONE, settle("ack", A, at=9)],
    "ack without answer, then again": [
        *QUEUE,
        claim(A, "a", at=1),
        settle("ack", A, at=1.5, outcome="info"),
        settle("ack", A, at=9),
    ],
    "lease ended": [
        *QUEUE,
        claim(A, "a", at=1),
        claim(B, "a", at=2, attempt=2),
        settle("ack", B, at=2.5),
        settle("ack", A, at=2.6, answer="lost"),
    ],
    "extended": [*QUEUE, claim(A, "a", at=1), settle("extend", A, at=1.5, seconds=5.0), settle("ack", A, at=6)],
    "released": [*QUEUE, claim(A, "a", at=1), settle("release", A, at=1.2), claim(B, "a", at=1.3), settle("ack", B, at=1.4)],
    "claim forgotten by a crash": [
        *QUEUE,
        claim(A, "a", at=1, relaxed=True),
        crash(1.1),
        claim(B, "a", at=1.5),
        settle("ack", B, at=1.6),
    ],
    "claim without answer counts": [
        *QUEUE,
        op("claim", at=0.5, outcome="info", queue="q", lease=1.0, relaxed=False),
        claim(A, "a", at=2, attempt=2),
        settle("ack", A, at=2.5),
    ],
    "delayed": [enqueue("a", delay=1.0), *final_queue("a"), *DONE],
    "dead after all attempts": [
        enqueue("a"),
        *(claim(f"1.{n}.token.1", "a", at=n, attempt=n, lease=0.5) for n in (1, 2, 3)),
        *final_queue("a", dead=(["a", 3, "attempts", "/0", 1],)),
    ],
    "buried": [
        enqueue("a"),
        claim(A, "a", at=1),
        settle("bury", A, at=1.5),
        *final_queue("a", dead=(["a", 1, "buried", "/0", 1],)),
    ],
    "redriven": [*TWICE, redrive(BURIED), *TWICE_END],
    "redriven without answer": [*TWICE, redrive(BURIED, outcome="info"), *TWICE_END],
    "redrive taken back": [*BURY, redrive(BURIED, outcome="fail"), *final_queue("a", dead=(BURIED,))],
    "redrive that did not happen": [*BURY, redrive(BURIED, outcome="info"), *final_queue("a", dead=(BURIED,))],
    "asked for its label": [enqueue("a", label="l"), *final_queue("a"), claim(A, "a", at=1, labels=["l"]), DONE[1]],
    "in order": [
        enqueue("a", "b"),
        *final_queue("a", "b", ordered=True),
        claim("1.1.token.1", "a", at=1),
        settle("ack", "1.1.token.1", at=1.2),
        claim("1.2.token.2", "b", at=1.3),
        settle("ack", "1.2.token.2", at=1.4),
    ],
    "error of a fault": [op("upkeep", outcome="fail", result={"code": "57P01", "message": "shutdown"})],
}

BROKEN: list[tuple[str, str, list[Op]]] = [
    (
        "commit_regress",
        "further back than sought",
        [
            *GROUP,
            fetch("g1", 1, "a", "b", at=1),
            seek(1, at=2),
            fetch("g2", 1, "a", "b", at=3),
            commit("g2", 2, at=4),
            fetch("g3", 1, "a", at=9),
        ],
    ),
    (
        "gap",
        "sought back and not read again",
        [*GROUP, fetch("g1", 1, "a", "b", at=1), commit("g1", 1, at=2), seek(1, at=3), fetch("g2", 2, "b", at=5)],
    ),
    (
        "stale_commit",
        "commit after a seek",
        [*GROUP, fetch("g1", 1, "a", "b", at=1), seek(1, at=2), commit("g1", 2, at=3)],
    ),
    ("lost", "a match passed by", [*SOME, filtered_fetch("g1", (2, "b"), at=1), final_group(keys=["yes"])]),
    ("gap", "a match in between", [*SOME, filtered_fetch("g1", (4, "d"), at=1), final_group(keys=["yes"])]),
    (
        "unexpected",
        "no match",
        [*SOME, filtered_fetch("g1", (2, "b"), (3, "c"), (4, "d"), at=1), final_group(keys=["yes"])],
    ),
    ("after_ttl", "delivered late", [enqueue("a"), *final_queue("a", ttl=0.5), *DONE]),
    ("after_purge", "delivered after a purge", [*QUEUE, purge(1, at=0.5), *DONE]),
    ("conservation", "purged more than was said", [enqueue("a"), purge(0, at=1), *final_queue("a", acked=0, purged=1)]),
    ("conservation", "expired without a ttl", [enqueue("a"), *DONE, *final_queue("a", acked=0, expired=1)]),
    (
        "conservation",
        "acked and expired",
        [enqueue("a"), *DONE, *final_queue("a", ttl=5.0, acked=0, expired=1)],
    ),
    ("lost", "accepted and absent", [publish("a", "b"), *final_log("a")]),
    ("lost", "group never saw it", [*GROUP, fetch("g1", 1, "a")]),
    ("lost", "effect missing", [*GROUP[:-1], fetch("g1", 1, "a", "b"), final_group([[0, 1, 1]])]),
    ("lost", "neither acked nor dead", [*QUEUE, claim(A, "a", at=1)]),
    ("lost", "buried and gone", [*QUEUE, claim(A, "a", at=1), settle("bury", A, at=1.5)]),
    ("duplicate", "at two offsets", [publish("a"), *final_log("a", "a")]),
    ("duplicate", "effect twice", [*GROUP[:-1], fetch("g1", 1, "a", "b"), final_group([[0, 1, 2], [0, 2, 2]])]),
    ("duplicate", "redriven and still dead", [*TWICE, redrive(BURIED), *final_queue("a", "a", dead=(BURIED,))]),
    ("duplicate", "redriven twice", [*TWICE, redrive(BURIED), redrive(BURIED), *TWICE_END]),
    ("duplicate", "redriven once and there three times", [*TWICE, redrive(BURIED), *final_queue("a", "a", "a", deaths=1)]),
    ("duplicate", "back without a redrive", [*TWICE, redrive(BURIED, outcome="fail"), *TWICE_END]),
    ("lost", "redriven and gone", [*BURY, redrive(BURIED), *final_queue("a", deaths=1)]),
    ("lost", "perhaps redriven and gone", [*BURY, redrive(BURIED, outcome="info"), *final_queue("a", deaths=1)]),
    ("lost", "redriven and never delivered", [*BURY, redrive(BURIED), *TWICE_END]),
    ("conservation", "redrive of fewer", [*TWICE, redrive(BURIED, count=0), *TWICE_END]),
    ("conservation", "acked and redriven", [enqueue("a"), *DONE, *TWICE[3:], redrive(BURIED), *TWICE_END]),
    (
        "attempts",
        "redriven before its last attempt",
        [*TWICE, redrive(["a", 2, "attempts", "/0", 1]), *TWICE_END],
    ),
    (
        "attempts",
        "not counted afresh after a redrive",
        [*BURY, claim(SECOND, "a", at=4, attempt=2), settle("ack", SECOND, at=4.5), redrive(BURIED), *TWICE_END],
    ),
    (
        "unexpected",
        "another label",
        [enqueue("a", label="l"), *final_queue("a"), claim(A, "a", at=1, labels=["m"]), DONE[1]],
    ),
    ("unexpected", "at another offset", [enqueue("a", "b"), *final_queue("b", "a"), *DONE]),
    (
        "duplicate",
        "dead twice",
        [enqueue("a"), *final_queue("a", dead=(["a", 3, "attempts", "/0", 1], ["a", 3, "attempts", "/0", 1]))],
    ),
    ("unexpected", "rolled back and there", [publish("a", outcome="fail"), *final_log("a")]),
    ("unexpected", "never sent", final_log("a")),
    ("torn", "half of a transaction", [publish("a", "b", outcome="info"), *final_log("a")]),
    (
        "gap",
        "hole in a read",
        [*LOG, op("read", target="topic:t", partition=0, first=1, limit=10, result={"rows": [[2, "b"]]})],
    ),
    (
        "gap",
        "jump in a generation",
        [publish("a", "b", "c"), *final_log("a", "b", "c"), final_group(), fetch("g1", 1, "a"), fetch("g1", 3, "c", at=1)],
    ),
    ("gap", "group starts too high", [*GROUP, fetch("g1", 2, "b")]),
    ("divergent", "two final reads", [publish("a", "b"), *final_log("a", "b", again=["b", "a"])]),
    ("divergent", "changed", [*LOG, read(1, "b")]),
    ("divergent", "seen and gone", [*LOG, read(1, "a", "b", "c")]),
    ("late_arrival", "less than before", [*LOG, read(1, "a", "b", at=1), read(1, "a", at=2)]),
    ("late_arrival", "own message missing", [*LOG, read(1, "a", at=1, expect=("b",))]),
    (
        "late_arrival",
        "head goes back",
        [
            *LOG,
            *(op("head", at=at, target="topic:t", partition=0, result={"head": head}) for at, head in ((1, 2), (2, 1))),
        ],
    ),
    ("order", "own messages swapped", [publish("a"), publish("b", at=1), *final_log("b", "a")]),
    (
        "order",
        "two leases in a partition",
        [
            enqueue("a", "b"),
            *final_queue("a", "b", ordered=True),
            claim("1.1.token.1", "a", at=1),
            claim("1.2.token.2", "b", at=1.3),
            settle("ack", "1.1.token.1", at=1.4),
            settle("ack", "1.2.token.2", at=1.5),
        ],
    ),
    ("acked_redelivered", "acked, then delivered", [*QUEUE, *DONE, claim(B, "a", at=2, attempt=2)]),
    (
        "double_lease",
        "lease still open",
        [*QUEUE, claim(A, "a", at=1), claim(B, "a", at=1.5, attempt=2), settle("ack", B, at=1.6)],
    ),
    (
        "double_lease",
        "forgotten without a crash",
        [*QUEUE, claim(A, "a", at=1, relaxed=True), claim(B, "a", at=1.5, attempt=2), settle("ack", B, at=1.6)],
    ),
    ("stale_ack", "after the deadline", [*QUEUE, claim(A, "a", at=1), settle("ack", A, at=2.5)]),
    (
        "stale_ack",
        "newer lease",
        [
            *QUEUE,
            claim(A, "a", at=1, lease=9),
            settle("nack", A, at=1.1),
            claim(B, "a", at=1.2, attempt=2),
            settle("ack", A, at=1.3),
        ],
    ),
    ("stale_ack", "nack after ack", [*QUEUE, *DONE, settle("nack", A, at=1.6)]),
    ("early", "before its delay", [enqueue("a", delay=2.0), *final_queue("a"), *DONE]),
    (
        "early",
        "before the backoff",
        [
            *QUEUE,
            claim(A, "a", at=1),
            settle("nack", A, at=1.1, seconds=1.0),
            claim(B, "a", at=1.5, attempt=2),
            settle("ack", B, at=1.6),
        ],
    ),
    ("attempts", "not counted", [*QUEUE, claim(A, "a", at=1), claim(B, "a", at=2), settle("ack", B, at=2.5)]),
    ("attempts", "counted twice", [*QUEUE, claim(A, "a", at=1), claim(B, "a", at=2, attempt=3), settle("ack", B, at=2.5)]),
    (
        "attempts",
        "too many",
        [
            *QUEUE,
            *(claim(f"1.{n}.token.1", "a", at=n, attempt=n, lease=0.5) for n in (1, 2, 3, 4)),
            settle("ack", "1.4.token.1", at=4.2),
        ],
    ),
    (
        "attempts",
        "dead too early",
        [enqueue("a"), claim(A, "a", at=1), *final_queue("a", dead=(["a", 1, "attempts", "/0", 1],))],
    ),
    ("conservation", "acked and dead", [enqueue("a"), *DONE, *final_queue("a", dead=(["a", 3, "attempts", "/0", 1],))]),
    ("conservation", "states do not add up", [enqueue("a"), *DONE, *final_queue("a", acked=0)]),
    (
        "conservation",
        "audit during the run",
        [
            *QUEUE,
            *DONE,
            op(
                "audit",
                queue="q",
                result={
                    "audit": {
                        "accepted": 2,
                        "ready": 1,
                        "pending": 0,
                        "leased": 0,
                        "acked": 0,
                        "dead": 0,
                        "expired": 0,
                        "purged": 0,
                    }
                },
            ),
        ],
    ),
    (
        "stale_commit",
        "former owner",
        [*GROUP, fetch("g1", 1, "a", "b", at=1), fetch("g2", 1, "a", "b", at=5), commit("g1", 2, at=6)],
    ),
    (
        "commit_regress",
        "position went back",
        [*GROUP, fetch("g1", 1, "a", "b", at=1), commit("g1", 2, at=2), fetch("g2", 1, "a", "b", at=5)],
    ),
    ("error", "of the server", [op("upkeep", outcome="fail", result={"code": "40P01", "message": "deadlock detected"})]),
]


@pytest.mark.parametrize("name", list(CLEAN))
def test_history_that_keeps_the_promises_counts_nothing(name: str) -> None:
    report = check(CLEAN[name])
    assert report.ok, report.table()


@pytest.mark.parametrize(
    ("rule", "history"), [pytest.param(rule, history, id=f"{rule}: {name}") for rule, name, history in BROKEN]
)
def test_history_that_breaks_a_rule_counts_it(rule: str, history: list[Op]) -> None:
    report = check(history)
    assert report.counts[rule] > 0, report.table()


def test_every_rule_has_a_history_that_breaks_it() -> None:
    assert {rule for rule, _, _ in BROKEN} == set(RULES)


def test_call_without_a_second_line_is_unknown(tmp_path: Any) -> None:
    recorder = Recorder(tmp_path, "p")
    recorder.done(recorder.invoke("publish", parts=[]), "ok", before=1.0)
    recorder.invoke("claim", queue="q")
    recorder.close()
    assert [(o.f, o.outcome) for o in load(tmp_path)] == [("publish", "ok"), ("claim", "info")]


def test_line_that_was_cut_off_is_unknown(tmp_path: Any) -> None:
    recorder = Recorder(tmp_path, "p")
    recorder.done(recorder.invoke("claim", queue="q"), "ok", rows=[])
    recorder.close()
    path = tmp_path / "p.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    assert [(o.f, o.outcome) for o in load(tmp_path)] == [("claim", "info")]


def test_report_names_the_rules_it_knows() -> None:
    with pytest.raises(KeyError):
        Report().add("nonsense", "example")
