"""Redrive dead letters during other traffic, and check which of them were redelivered.

A message that is redriven is appended to the queue's inbox again: it lives once more, at another offset. So a delivery
belongs to a place and an offset, never to a content alone.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import msgspec
import psycopg

from tests.chaos.history import Op
from tests.chaos.report import Report
from tests.chaos.session import Session

# (partition as "topic/number", "/number" for an inbox; offset)
Life = tuple[str, int]


class RedriverSpec(msgspec.Struct, frozen=True, tag="redriver"):
    queues: tuple[str, ...]
    every: float = 0.5


class Redriver:
    """Takes some dead letters of a queue and sends them back; sometimes it waits before it commits, or rolls back."""

    def __init__(self, session: Session, spec: RedriverSpec) -> None:
        self.session = session
        self.spec = spec

    def run(self) -> None:
        source = self.session.random
        while not self.session.stopped:
            redrive(
                self.session,
                source.choice(self.spec.queues),
                limit=source.choice((1, 3, 20)),
                hold=source.uniform(0, 0.5) if source.random() < 0.3 else 0.0,
                keep=source.random() > 0.15,
            )
            time.sleep(self.spec.every * source.uniform(0.5, 1.5))


def redrive(session: Session, queue: str, *, limit: int, hold: float = 0.0, keep: bool = True) -> None:
    """Lock the letters first, so that their identity is known although others redrive at the same time."""
    sent = False
    op = None
    try:
        conn = session.connect()
        conn.execute("begin")
        rows = session.rows(
            "select d.id, convert_from(d.payload, 'UTF8'), d.attempts, d.reason, d.topic || '/' || d.partition, d.log_offset"
            " from trunkline.dead_letters d join trunkline.queues q using (queue_id) where q.name = %s"
            " order by random() limit %s for update of d skip locked",
            (queue, limit),
        )
        letters = [list(row[1:]) for row in rows]
        op = session.recorder.invoke("redrive", queue=queue, letters=letters)
        count = session.rows("select trunkline.redrive(%s, %s::uuid[])", (queue, [row[0] for row in rows]))[0][0]
        time.sleep(hold)
        sent = keep
        conn.execute("commit" if keep else "rollback")
    except psycopg.Error as error:
        if op is not None:
            session.settle_outcome(op, error, sent=sent)
        session.drop()
        return
    session.recorder.done(op, "ok" if keep else "fail", count=count)


@dataclass
class Redriven:
    """Per queue: the lives that ended as a dead letter and were followed by another one."""

    lives: dict[str, dict[Life, list[Any]]] = field(default_factory=lambda: defaultdict(dict))

    def again(self, queue: str) -> Counter[str]:
        """Return how often each content was returned to the queue's direct messages."""
        return Counter(letter[0] for letter in self.lives[queue].values())


def collect_redriven(by_call: dict[str, list[Op]], report: Report) -> Redriven:
    """A redrive without a response took effect if its letters are neither dead at the end nor redriven later."""
    redriven = Redriven()
    for op in by_call["redrive"]:
        if op.outcome != "ok":
            continue
        queue, letters = op.args["queue"], op.args["letters"]
        if op.result["count"] != len(letters):
            report.add(
                "conservation", f"{op.proc} redrove {len(letters)} letters of {queue}, and was told {op.result['count']}"
            )
        for letter in letters:
            if life_of(letter) in redriven.lives[queue]:
                report.add("duplicate", f"{letter[0]} of queue {queue} was redriven twice from {life_of(letter)}")
            redriven.lives[queue][life_of(letter)] = letter
    for final in by_call["final_queue"]:
        queue = final.args["queue"]
        dead = {life_of(letter) for letter in final.args["dead"]}
        for life in dead & redriven.lives[queue].keys():
            report.add("duplicate", f"queue {queue}: {life} was redriven and is still a dead letter")
        for op in by_call["redrive"]:
            if op.outcome == "info" and op.args["queue"] == queue:
                for letter in op.args["letters"]:
                    if life_of(letter) not in dead:
                        redriven.lives[queue].setdefault(life_of(letter), letter)
        report.totals["redriven"] += len(redriven.lives[queue])
    return redriven


def life_of(letter: list[Any]) -> Life:
    """Of content, attempts, reason, place and offset."""
    return letter[3], letter[4]
