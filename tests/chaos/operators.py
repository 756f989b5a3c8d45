"""Operators beside the consumers: one seeks groups back, one purges queues."""

from __future__ import annotations

import time

import msgspec
import psycopg

from tests.chaos.session import Session


class SeekerSpec(msgspec.Struct, frozen=True, tag="seeker"):
    topic: str
    group: str
    every: float = 2.0
    # how far back at most: what is sought is read again, which takes time
    back: int = 300


class Seeker:
    """Seeks one partition of a group back, never forward: then every message must still be read."""

    def __init__(self, session: Session, spec: SeekerSpec) -> None:
        self.session = session
        self.spec = spec

    def run(self) -> None:
        spec, source = self.spec, self.session.random
        while not self.session.stopped:
            time.sleep(spec.every * source.uniform(0.5, 1.5))
            try:
                places = self.session.rows(
                    "select partition, next_offset from trunkline.group_stats(%s, %s)", (spec.topic, spec.group)
                )
            except psycopg.Error as error:
                self.session.settle_outcome(self.session.recorder.invoke("stats"), error)
                continue
            partition, position = source.choice(places)
            seek(self.session, spec.topic, spec.group, partition, source.randint(max(1, position - spec.back), position))


def seek(session: Session, topic: str, group: str, partition: int, offset: int) -> None:
    """`offset` is the next one to be delivered."""
    op = session.recorder.invoke("seek", topic=topic, group=group, partition=partition, offset=offset)
    try:
        session.rows("select from trunkline.seek(%s, %s, %s, %s::int)", (topic, group, str(offset), partition))
    except psycopg.Error as error:
        session.settle_outcome(op, error)
        return
    session.recorder.done(op, "ok")


class PurgerSpec(msgspec.Struct, frozen=True, tag="purger"):
    queue: str
    every: float = 3.0


class Purger:
    """Removes now and then what waits in a queue."""

    def __init__(self, session: Session, spec: PurgerSpec) -> None:
        self.session = session
        self.spec = spec

    def run(self) -> None:
        while not self.session.stopped:
            time.sleep(self.spec.every * self.session.random.uniform(0.5, 1.5))
            purge(self.session, self.spec.queue)


def _sequence(session: Session, queue: str) -> bool:
    """A purge removes what has an offset: give one to everything that is committed by now, as our client does."""
    for _ in range(20):
        if session.rows("select trunkline.sequence_logs(array[%s], '{}')", (queue,))[0][0]:
            return True
        time.sleep(0.1)
    return False


def purge(session: Session, queue: str) -> None:
    op = session.recorder.invoke("purge", queue=queue)
    try:
        before = session.rows("select extract(epoch from trunkline.clock())::float8")[0][0]
        if not _sequence(session, queue):
            before = 0.0  # another process was frozen during the purge: recent messages may survive
        count, after = session.rows(
            "select (select trunkline.purge_queue(%s)), extract(epoch from trunkline.clock())::float8", (queue,)
        )[0]
    except psycopg.Error as error:
        session.settle_outcome(op, error)
        return
    session.recorder.done(op, "ok", before=before, count=count, after=after)
