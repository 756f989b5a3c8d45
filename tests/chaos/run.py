"""One run: load with faults, heal, drain until empty and quiet, final reads, check."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from tests.chaos.actors import Actor, AuditorSpec, Stage, UpkeepSpec, audit
from tests.chaos.checker import check
from tests.chaos.consumers import GroupMemberSpec, QueueConsumerSpec
from tests.chaos.history import load
from tests.chaos.http_actors import HttpGroupMemberSpec, HttpPublisherSpec, HttpQueueConsumerSpec, HttpTailReaderSpec
from tests.chaos.nemesis import Faults, Nemesis
from tests.chaos.publisher import PublisherSpec
from tests.chaos.report import Report
from tests.chaos.services import Services
from tests.chaos.session import Session
from tests.chaos.workloads import MAX_ATTEMPTS, SEGMENT_ROWS, Queue, Workload
from trunkline.embedded.server import EmbeddedServer
from trunkline.sql.migrate import migrate

_DRAIN_SECONDS = 300.0
_QUIET_SECONDS = 1.0
# Longer than any lease that a consumer asks for.
_PAUSE_SECONDS = 2.6
_PAGE = 10_000


@dataclass
class Plan:
    workload: Workload
    messages: int
    faults: Faults
    seconds: float
    seed: int
    say: Callable[[str], None] = field(default=lambda _: None)


@dataclass
class Outcome:
    report: Report
    directory: Path
    seconds: float
    faults: dict[str, int]


def run(plan: Plan, server: EmbeddedServer, url: str) -> Outcome:
    """Run a plan on a server that may be killed; `url` is a fresh database on it. The history stays in `directory`."""
    begun = time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix=f"tl-chaos-{plan.workload.name}-"))
    migrate(url)
    main = Session(url, directory, "main", plan.seed)
    services = Services(url) if plan.workload.http else None
    stage = Stage(url, directory, plan.seed, services.urls if services else ())
    complaints: list[str] = []
    try:
        create(main, plan.workload)
        if services:
            services.start()
        nemesis = _load(plan, server, stage, main, services)
        plan.say(f"{plan.workload.name}: drain")
        _drain(plan.workload, stage, main, services)
        read_everything(main, plan.workload)
    finally:
        stage.close()
        if services:
            complaints = services.end()
    main.close()
    plan.say(f"{plan.workload.name}: check")
    report = check(load(directory))
    for failure in stage.crashed() + complaints:
        report.add("error", failure)
    return Outcome(report, directory, time.monotonic() - begun, dict(nemesis.done))


def create(session: Session, workload: Workload) -> None:
    session.connect().execute("update trunkline.settings set value = '2 seconds' where name = 'rotate_every'")
    session.connect().execute("update trunkline.settings set value = '200000' where name = 'rotate_bytes'")
    session.connect().execute(
        "create table public.effects (topic text, group_name text, partition int, first_offset bigint, last_offset bigint)"
    )
    for topic, partitions in workload.topics.items():
        session.rows(
            "select from trunkline.create_topic(%s, %s::int, p_segment_rows => %s::int)", (topic, partitions, SEGMENT_ROWS)
        )
    for group in workload.groups:
        call = "select from trunkline.create_group(%s, %s, p_pattern => %s)"
        session.rows(call, (group.topic, group.name, group.pattern))
    # The store keeps messages for six seconds and queues keep them for a day: all of them are copied out meanwhile.
    session.connect().execute("update trunkline.topics set retention = '6 seconds' where kind = 'store'")
    for number, queue in enumerate(workload.queues):
        session.rows(
            "select from trunkline.create_queue(%s, p_lease => '1 second', p_max_attempts => %s::int,"
            " p_backoff_base => '0.1 seconds', p_ordered => %s, p_partitions => %s::int, p_segment_rows => %s::int,"
            " p_ttl => make_interval(secs => %s))",
            (queue.name, MAX_ATTEMPTS, queue.ordered, queue.partitions, SEGMENT_ROWS if number % 2 else None, queue.ttl),
        )
        for topic, pattern, _ in queue.feeds:
            session.rows("select from trunkline.subscribe(%s, %s, %s)", (queue.name, topic, pattern))


def _load(plan: Plan, server: EmbeddedServer, stage: Stage, main: Session, services: Services | None) -> Nemesis:
    """Publishers at work, and the faults spread evenly over the time."""
    source = random.Random(plan.seed)
    workload = plan.workload
    share = plan.messages // workload.publishers
    kind = HttpPublisherSpec if workload.http else PublisherSpec
    spec = kind(workload.targets, share, share / plan.seconds)
    publishers = [stage.start(f"pub{number}", spec) for number in range(workload.publishers)]
    for role, consumer in workload.consumers:
        stage.start(role, consumer)
    for role, reader in workload.readers:
        stage.start(role, reader)
    stage.start("auditor", AuditorSpec(tuple(queue.name for queue in workload.queues)))
    if not workload.http:
        stage.start("upkeep", UpkeepSpec())

    nemesis = Nemesis(server, stage, main.recorder, source, _PAUSE_SECONDS, services)
    faults = plan.faults.shuffled(source)
    begun = time.monotonic()
    said = begun
    while faults or any(actor.process.poll() is None for actor in publishers):
        nemesis.wake()
        now = time.monotonic()
        late = plan.seconds * (1 - (len(faults) - 0.5) / max(1, sum(nemesis.done.values()) + len(faults)))
        if faults and now - begun >= late:
            roles = {role for role, _ in workload.consumers}
            victims = [actor for actor in stage.actors if actor.name.rpartition("-")[0] in roles]
            nemesis.strike(faults.pop(), victims, _upkeep(stage))
        if now - said > 10:
            said = now
            plan.say(f"{workload.name}: {now - begun:.0f} s, faults so far: {dict(nemesis.done)}")
        time.sleep(0.02)
    nemesis.heal()
    main.drop()
    return nemesis


def _upkeep(stage: Stage) -> Actor | None:
    return next((actor for actor in stage.actors if isinstance(actor.spec, UpkeepSpec)), None)


def _drain(workload: Workload, stage: Stage, main: Session, services: Services | None) -> None:
    """Calm consumers finish everything; then nothing may happen for a while."""
    stage.stop([actor for actor in stage.actors if not isinstance(actor.spec, UpkeepSpec)])
    # Exclude those of killed consumers: their outcome is unknown, so they may not have happened.
    for (name,) in main.rows("select gid from pg_prepared_xacts where database = current_database()"):
        main.connect().execute(f"rollback prepared '{name}'".encode())
    consumer = HttpQueueConsumerSpec if workload.http else QueueConsumerSpec
    member = HttpGroupMemberSpec if workload.http else GroupMemberSpec
    for number in range(2):
        for queue in workload.queues:
            stage.start(f"drain.{queue.name}.{number}", consumer(queue.name, lease=5.0, ordered=queue.ordered, calm=True))
    for group in workload.groups:
        spec = member(group.topic, group.name, lease=5.0, effects=group.effects, calm=True)
        stage.start(f"drain.{group.topic}.{group.name}", spec)
    tails = [
        stage.start(f"drain.{topic}", HttpTailReaderSpec(topic, partitions, to_the_end=True))
        for topic, partitions in (workload.topics.items() if workload.http else ())
    ]
    left, changed_at = None, time.monotonic()
    # until it is empty and quiet; or, if something is stuck, until nothing has changed for long
    while time.monotonic() - changed_at < (_DRAIN_SECONDS if left != (0, 0) else _QUIET_SECONDS):
        if services:
            services.look()
        before, left = left, _left(main)
        if left != before:
            changed_at = time.monotonic()
        time.sleep(0.1)
    for tail in tails:
        tail.process.wait(60)
    stage.stop(list(stage.actors))


def _left(session: Session) -> tuple[int, int] | None:
    """Messages that queues have not finished, and those that groups have not read; None while that cannot be asked."""
    try:
        queues = session.rows("select coalesce(sum(ready + delayed + leased), 0) from trunkline.queue_stats()")[0][0]
        groups = session.rows("select coalesce(sum(lag), 0) from trunkline.group_stats()")[0][0]
    except psycopg.Error as error:
        session.settle_outcome(session.recorder.invoke("stats"), error)
        return None
    return int(queues), int(groups)


def read_everything(session: Session, workload: Workload) -> None:
    """The whole log twice, dead letters, effects and the sums: the only state of the database that the checker believes."""
    for _ in range(4):
        session.connect().execute("call trunkline.sequence()")
    logs = [("topic", topic, partitions) for topic, partitions in workload.topics.items()]
    logs += [("queue", queue.name, queue.partitions) for queue in workload.queues]
    for number in (1, 2):
        for kind, name, partitions in logs:
            for partition in range(partitions):
                _read_log(session, kind, name, partition, number)
    for queue in workload.queues:
        _read_queue(session, queue)
    sealed = session.rows("select count(*) from trunkline.segments where sealed_at is not null")[0][0]
    session.recorder.note("final_store", sealed=sealed)
    for group in workload.groups:
        rows = session.rows(
            "select partition, first_offset, last_offset from public.effects where topic = %s and group_name = %s",
            (group.topic, group.name),
        )
        effects = [list(row) for row in rows] if group.effects else None
        session.recorder.note("final_group", topic=group.topic, group=group.name, effects=effects, keys=group.keys)


def _read_log(session: Session, kind: str, name: str, partition: int, number: int) -> None:
    # nothing may be gone, and what is gone is lost
    first = session.rows(
        "select l.base_offset from trunkline.topics t join trunkline.logs l using (topic_id)"
        " where t.kind = %s and t.name = %s and l.partition = %s",
        ("topic" if kind == "topic" else "inbox", name, partition),
    )[0][0]
    while True:
        if kind == "topic":
            rows = session.rows(
                "select log_offset, convert_from(payload, 'UTF8')"
                " from trunkline.read(%s, %s, %s, %s::int) order by log_offset",
                (name, partition, first, _PAGE),
            )
        else:
            rows = session.rows(
                "select r.log_offset, convert_from(r.payload, 'UTF8') from trunkline.topics t,"
                " trunkline._head(t.topic_id * 64 + %s) h,"
                " trunkline._read(t.topic_id, %s, t.segment_rows, %s, least(h, %s)) r"
                " where t.kind = 'inbox' and t.name = %s order by r.log_offset",
                (partition, partition, first, first + _PAGE - 1, name),
            )
        if not rows and first > 1:
            return
        found: list[list[Any]] = [list(row) for row in rows]
        session.recorder.note("final_log", number=number, target=f"{kind}:{name}", partition=partition, rows=found)
        if len(rows) < _PAGE:
            return
        first += _PAGE


def _read_queue(session: Session, queue: Queue) -> None:
    found = audit(session, queue.name)
    dead: list[list[Any]] = []
    after = 0
    while page := session.rows(
        "select dead_id, convert_from(payload, 'UTF8'), attempts, reason, topic || '/' || partition, log_offset"
        " from trunkline.list_dead_letters(%s, %s, 10000)",
        (queue.name, after),
    ):
        after = page[-1][0]
        dead += [list(row[1:]) for row in page]
    feeds = [[f"queue:{queue.name}", None], *([f"topic:{topic}", keys] for topic, _, keys in queue.feeds)]
    max_attempts = session.rows("select max_attempts from trunkline.get_queue(%s)", (queue.name,))[0][0]
    session.recorder.note(
        "final_queue",
        queue=queue.name,
        ordered=queue.ordered,
        ttl=queue.ttl,
        max_attempts=max_attempts,
        feeds=feeds,
        audit=found,
        dead=dead,
    )
