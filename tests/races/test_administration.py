"""Administration against itself and against traffic: only errors of class TL, no lost message, nothing left behind.

Sessions call random verbs on a few names, many of them in transactions that stay open for a moment. The seed determines
the calls of each session, not how the sessions interleave.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.races.sessions import Session

MakeSession = Callable[[], Session]

TOPICS = ("t0", "t1", "t2")
QUEUES = ("q0", "q1", "q2")
GROUPS = ("g0", "g1")
PURGED = "q0"
"""The only queue that is purged: what it misses says nothing."""
STEPS = 60
DUTIES = ("segments", "retention", "sequence", "pass", "delayed", "schedules", "rotate", "jobs", "windows")

ADMINISTRATION = {
    "select trunkline.create_topic({topic}, {few}, p_segment_rows => 16)": 6,
    "select trunkline.ensure_topic({topic}, p_retention => {days})": 4,
    "select trunkline.alter_topic({topic}, p_partitions => (trunkline.get_topic({topic})).partitions + 1)": 12,
    "select trunkline.alter_topic({topic}, p_partitions => {many})": 2,
    "select trunkline.alter_topic({topic}, p_retention => {days})": 2,
    "select trunkline.delete_topic({topic}, {force})": 4,
    "select trunkline.create_group({topic}, {group})": 8,
    "select trunkline.ensure_group({topic}, {group})": 4,
    "select trunkline.delete_group({topic}, {group})": 14,
    "select trunkline.seek({topic}, {group}, 'earliest')": 4,
    "select trunkline.create_queue({queue}, p_segment_rows => 16, p_partitions => {few})": 6,
    "select trunkline.ensure_queue({queue}, p_max_attempts => {attempts})": 4,
    "select trunkline.alter_queue({queue}, p_max_attempts => {attempts}, p_max_payload => {payload})": 4,
    "select trunkline.delete_queue({queue}, {force})": 4,
    "select trunkline.pause_queue({queue})": 4,
    "select trunkline.resume_queue({queue})": 4,
    "select trunkline.subscribe({queue}, {topic}, p_start => 'earliest')": 10,
    "select trunkline.unsubscribe({queue}, {topic})": 8,
    "select trunkline.purge_queue('q0')": 2,
    "select trunkline.create_schedule({schedule}, '* * * * *', p_topic => {topic})": 3,
    "select trunkline.ensure_schedule({schedule}, '*/2 * * * *', p_queue => {queue})": 3,
    "select trunkline.pause_schedule({schedule})": 1,
    "select trunkline.run_schedule({schedule})": 2,
    "select trunkline.delete_schedule({schedule})": 2,
    "select trunkline.create_endpoint({endpoint}, 'http://192.0.2.1/')": 3,
    "select trunkline.bind_queue({queue}, {endpoint})": 4,
    "select trunkline.unbind_queue({queue})": 2,
    "select trunkline.delete_endpoint({endpoint}, {force})": 2,
}


class Record:
    """Actions of the sessions: messages that were committed, by the number of their topic, and messages that readers got."""

    def __init__(self) -> None:
        self.published: dict[int, set[UUID]] = defaultdict(set)
        self.fetched: dict[tuple[str, str], set[UUID]] = defaultdict(set)
        self.claimed: dict[str, set[UUID]] = defaultdict(set)
        self.done: dict[str, int] = defaultdict(int)
        self.bad: list[str] = []

    def attempt(self, session: Session, query: str, *params: Any, busy: bool = False) -> list[tuple[Any, ...]] | None:
        """Run a query; none for an error of ours. `busy`: it may also give up on a lock."""
        try:
            rows = session.run(query, *params)
        except psycopg.Error as exc:
            code = exc.sqlstate or "none"
            if not (code.startswith("TL") or code == "40001" or (busy and code == "55P03")):
                self.bad.append(f"{code}: {query}: {exc}")
            if session.conn.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                session.run("rollback")
            return None
        self.done[query.partition("(")[0]] += 1
        return rows


def administer(session: Session, record: Record, rng: random.Random) -> None:
    verbs, weights = list(ADMINISTRATION), list(ADMINISTRATION.values())
    for _ in range(STEPS):
        names = {
            "topic": f"'{rng.choice(TOPICS)}'",
            "queue": f"'{rng.choice(QUEUES)}'",
            "group": f"'{rng.choice(GROUPS)}'",
            "schedule": f"'s{rng.randrange(2)}'",
            "endpoint": f"'e{rng.randrange(2)}'",
            "few": rng.choice((1, 1, 2)),
            "many": rng.randint(2, 6),
            "days": f"'{rng.randint(1, 9)} days'",
            "attempts": rng.randint(100, 110),
            "payload": rng.randint(1000, 2000),
            "force": rng.choice(("true", "true", "false")),
        }
        verb = rng.choices(verbs, weights)[0].format(**names)
        busy = "delete" in verb or "unsubscribe" in verb
        if rng.random() < 0.3:
            record.attempt(session, verb, busy=busy)
        else:
            session.run("begin")
            if record.attempt(session, verb, busy=busy) is not None:
                session.run("select pg_sleep(%s)", rng.random() * 0.04)
                session.run(rng.choice(("commit", "commit", "commit", "rollback")))


def publish(session: Session, record: Record, kind: str, name: str, keys: list[str]) -> None:
    """A message per key. They belong to the topic that had the name before and after."""
    number = "select trunkline.topic_number(%s, %s)"
    verb = "publish_many" if kind == "topic" else "enqueue_many"
    before = record.attempt(session, number, kind, name)
    rows = record.attempt(
        session,
        f"select id from trunkline.{verb}(%s, array_fill('1'::bytea, array[%s]), p_keys => %s)",
        name,
        len(keys),
        keys,
    )
    after = record.attempt(session, number, kind, name)
    if before and rows and after == before:
        record.published[before[0][0]].update(row[0] for row in rows)


def keep_publishing(session: Session, record: Record, rng: random.Random, stop: threading.Event) -> None:
    while not stop.is_set():
        kind, name = rng.choice((*(("topic", name) for name in TOPICS), *(("inbox", name) for name in QUEUES)))
        keys = [str(rng.random()) for _ in range(rng.randint(1, 8))]
        publish(session, record, kind, name, keys)
        if rng.random() < 0.1:
            verb = "publish" if kind == "topic" else "enqueue"
            record.attempt(session, f"select trunkline.{verb}(%s, '1', p_delay => '1 hour')", name)


def claim(session: Session, record: Record, queue: str) -> int:
    """Claim, remember and settle a batch; the size of it."""
    rows = record.attempt(session, "select id, receipt from trunkline.claim(%s, 20)", queue) or []
    if rows:
        record.attempt(session, "select trunkline.ack(%s)", [row[1] for row in rows])
        record.claimed[queue].update(row[0] for row in rows)
    return len(rows)


def fetch(session: Session, record: Record, topic: str, group: str, member: str) -> int:
    rows = record.attempt(session, "select * from trunkline.fetch(%s, %s, %s, 20)", topic, group, member) or []
    if rows:
        partition, generation, _, offset = rows[-1][:4]
        answers = record.attempt(
            session, "select trunkline.commit(%s, %s, %s, %s, %s)", topic, group, partition, generation, offset
        )
        if answers == [("done",)]:
            record.fetched[topic, group].update(row[4] for row in rows)
    return len(rows)


def keep_consuming(session: Session, record: Record, rng: random.Random, stop: threading.Event) -> None:
    member = f"m{session.pid}"
    while not stop.is_set():
        if rng.random() < 0.5:
            claim(session, record, rng.choice(QUEUES))
        else:
            fetch(session, record, rng.choice(TOPICS), rng.choice(GROUPS), member)


def keep_up(session: Session, record: Record, rng: random.Random, stop: threading.Event) -> None:
    while not stop.is_set():
        record.attempt(session, "select trunkline.run_upkeep(%s)", rng.choice(DUTIES))
        # holds at every moment, not only in the end
        if left := session.run(ORPHANS["partitions without a cursor"]):
            record.bad.append(f"readers without a partition: {left}")


def run(session: MakeSession, seed: int) -> Record:
    record = Record()
    stop = threading.Event()
    # each session has a generator: its calls depend on the seed alone
    workers = [keep_publishing, keep_publishing, keep_consuming, keep_consuming, keep_up]
    with ThreadPoolExecutor(len(workers) + 3) as threads:
        running = [
            threads.submit(work, session(), record, random.Random(seed * 100 + n), stop) for n, work in enumerate(workers)
        ]
        changing = [threads.submit(administer, session(), record, random.Random(seed * 100 + 50 + n)) for n in range(3)]
        try:
            for change in changing:
                change.result(300)
        finally:
            stop.set()
        for work in running:
            work.result(60)
    return record


def drain(main: Session, record: Record) -> None:
    """A last message for each partition of each topic and queue; then every reader reads to its end."""
    for kind, name in main.run("select kind, name from trunkline.topics where kind <> 'store'"):
        if kind == "inbox":
            main.run("select trunkline.resume_queue(%s)", name)
        publish(main, record, kind, name, [f"last {n}" for n in range(100)])
    # leases of members and of claims that were interrupted end
    main.run("update public.test_clock set skew = skew + '1 hour'")
    main.run("select trunkline.run_upkeep('pass')")
    for queue in main.column("select name from trunkline.queues"):
        while claim(main, record, queue):
            pass
    for topic, group in main.run("select topic, name from trunkline.list_groups()"):
        while fetch(main, record, topic, group, "last"):
            pass


def check_readers(main: Session, record: Record) -> None:
    stored: dict[int, set[UUID]] = {}
    for topic_id, shared in main.run("select topic_id, shared from trunkline.topics where kind <> 'store'"):
        table = f"trunkline.store where log / 64 = {topic_id}" if shared else f"trunkline.topic_{topic_id}"
        stored[topic_id] = set(main.column(f"select message_id from {table}"))
        assert record.published[topic_id] <= stored[topic_id]
    for topic_id, topic, group in main.run(
        "select topic_id, t.name, s.name from trunkline.subscriptions s join trunkline.topics t using (topic_id)"
        " where s.kind = 'group'"
    ):
        missing = stored[topic_id] - record.fetched[topic, group]
        assert not missing, f"group {group} of {topic} missed {len(missing)} of {len(stored[topic_id])} messages"
    for topic_id, queue, name in main.run(
        "select s.topic_id, q.name, s.name from trunkline.subscriptions s join trunkline.queues q using (queue_id)"
        " where q.name <> %s",
        PURGED,
    ):
        missing = stored[topic_id] - record.claimed[queue]
        assert not missing, f"queue {queue} missed {len(missing)} of {len(stored[topic_id])} messages of {name}"


ORPHANS = {
    "partitions without a cursor": """
        select s.name, p from trunkline.subscriptions s join trunkline.topics t using (topic_id)
        cross join lateral generate_series(0, t.partitions - 1) p
        where (select count(*) from trunkline.cursors c
               where c.subscription_id = s.subscription_id and c.partition = p) <> 1""",
    "partitions without a log": """
        select t.name from trunkline.topics t
        where t.partitions <> (select count(*) from trunkline.logs l where l.topic_id = t.topic_id)""",
    "relations and functions": """
        select x.name from (
            select relname as name from pg_class
            where relnamespace = 'trunkline'::regnamespace and relkind in ('r', 'p', 'S')
            union all select proname from pg_proc where pronamespace = 'trunkline'::regnamespace) x
        cross join lateral (select split_part(x.name, '_', 1) as kind, split_part(x.name, '_', 2)::int as number) o
        where x.name ~ '^(topic|queue|endpoint)_[0-9]+' and not case o.kind
            when 'topic' then exists (select from trunkline.topics where topic_id = o.number)
            when 'queue' then exists (select from trunkline.queues where queue_id = o.number)
            else exists (select from trunkline.endpoints where endpoint_id = o.number) end""",
    "tables that are missing": """
        select t.name from trunkline.topics t
        where t.kind <> 'store' and not t.shared and to_regclass('trunkline.topic_' || t.topic_id) is null""",
    "deletions": "select * from trunkline.deletions",
    "schedules": """
        select s.name from trunkline.schedules s where not exists (
            select from trunkline.topics t
            where t.name = coalesce(s.queue, s.topic) and (t.kind = 'inbox') = (s.queue is not null))""",
    "ticks": "select log from trunkline.ticks where log not in (select log from trunkline.logs)",
    "leases": "select 1 from trunkline.leases where cursor_id not in (select cursor_id from trunkline.cursors)",
    "positions": "select 1 from trunkline.positions where cursor_id not in (select cursor_id from trunkline.cursors)",
}


def check_nothing_left(main: Session) -> None:
    # the first run notes open transactions, the second one drops; rotation empties one partition at a time
    main.run("update trunkline.settings set value = '0' where name = 'rotate_bytes'")
    for task in ("retention", "retention", "rotate", "rotate", "rotate", "rotate", "windows"):
        main.run("select trunkline.run_upkeep(%s)", task)
    left = {what: rows for what, query in ORPHANS.items() if (rows := main.run(query))}
    assert not left


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("seed", [2, 3])
def test_administration_against_itself_and_traffic(main: Session, session: MakeSession, seed: int) -> None:
    main.run("set lock_timeout = '10s'")
    for name in (*TOPICS, *QUEUES):
        main.run(f"select trunkline.create_{'topic' if name in TOPICS else 'queue'}(%s, p_segment_rows => 16)", name)
    record = run(session, seed)
    assert not record.bad, f"{len(record.bad)} errors\n" + "\n".join(sorted(set(record.bad))[:20])
    drain(main, record)
    check_readers(main, record)
    check_nothing_left(main)
    assert not record.bad, "\n".join(record.bad)
    # a run in which nothing happened would prove nothing
    assert {
        f"select trunkline.{verb}" for verb in ("alter_topic", "create_group", "subscribe", "delete_topic", "delete_queue")
    } <= set(record.done)
    assert record.fetched and record.claimed
