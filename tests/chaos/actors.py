"""The processes of a run."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import psycopg

from tests.chaos.consumers import GroupMember, GroupMemberSpec, QueueConsumer, QueueConsumerSpec, TailReader, TailReaderSpec
from tests.chaos.forks import Forked, Forks
from tests.chaos.http_actors import (
    HttpGroupMember,
    HttpGroupMemberSpec,
    HttpPublisher,
    HttpPublisherSpec,
    HttpQueueConsumerSpec,
    HttpTailReader,
    HttpTailReaderSpec,
    Vandal,
    VandalSpec,
)
from tests.chaos.http_session import HttpSession
from tests.chaos.operators import Purger, PurgerSpec, Seeker, SeekerSpec
from tests.chaos.publisher import Publisher, PublisherSpec
from tests.chaos.redrives import Redriver, RedriverSpec
from tests.chaos.session import Session


class UpkeepSpec(msgspec.Struct, frozen=True, tag="upkeep"):
    every: float = 0.1


class AuditorSpec(msgspec.Struct, frozen=True, tag="auditor"):
    queues: tuple[str, ...]
    every: float = 1.0


Spec = (
    PublisherSpec
    | QueueConsumerSpec
    | GroupMemberSpec
    | TailReaderSpec
    | RedriverSpec
    | SeekerSpec
    | PurgerSpec
    | UpkeepSpec
    | AuditorSpec
    | HttpPublisherSpec
    | HttpQueueConsumerSpec
    | HttpGroupMemberSpec
    | HttpTailReaderSpec
    | VandalSpec
)


class Upkeep:
    """Runs the tasks that are due."""

    def __init__(self, session: Session, spec: UpkeepSpec) -> None:
        self.session = session
        self.spec = spec

    def run(self) -> None:
        while not self.session.stopped:
            op = self.session.recorder.invoke("upkeep")
            try:
                self.session.connect().execute("call trunkline.upkeep()")
                rotated, leases = self.session.rows(
                    "select e.rotated_at::text, r.rotated_at::text from trunkline.epoch e, trunkline.rotation r"
                )[0]
                self.session.recorder.done(op, "ok", rotated=rotated, leases=leases)
            except psycopg.Error as error:
                self.session.settle_outcome(op, error)
            time.sleep(self.spec.every)


class Auditor:
    """Checks the sum of states at any instant."""

    def __init__(self, session: Session, spec: AuditorSpec) -> None:
        self.session = session
        self.spec = spec

    def run(self) -> None:
        while not self.session.stopped:
            for queue in self.spec.queues:
                audit(self.session, queue)
            time.sleep(self.spec.every)


def audit(session: Session, queue: str) -> dict[str, int] | None:
    """The states of a queue in one snapshot, that is not older than a rotation."""
    op = session.recorder.invoke("audit", queue=queue)
    try:
        conn = session.connect()
        for last in (False,) * 50 + (True,):
            conn.execute("begin isolation level repeatable read read only")
            try:
                cursor = conn.execute("select * from trunkline.audit_queue(%s)", (queue,))
                break
            except psycopg.errors.SerializationFailure:
                if last:
                    raise
                conn.execute("rollback")
                time.sleep(0.1)
        assert cursor.description is not None
        found = dict(zip([column.name for column in cursor.description], cursor.fetchall()[0], strict=True))
        conn.execute("commit")
    except psycopg.Error as error:
        session.settle_outcome(op, error)
        session.drop()
        return None
    session.recorder.done(op, "ok", audit=found)
    return found


class Runner(Protocol):
    def run(self) -> None: ...


_ACTORS: dict[Any, Callable[[Any, Any], Runner]] = {
    PublisherSpec: Publisher,
    QueueConsumerSpec: QueueConsumer,
    GroupMemberSpec: GroupMember,
    TailReaderSpec: TailReader,
    RedriverSpec: Redriver,
    SeekerSpec: Seeker,
    PurgerSpec: Purger,
    UpkeepSpec: Upkeep,
    AuditorSpec: Auditor,
    HttpPublisherSpec: HttpPublisher,
    HttpQueueConsumerSpec: QueueConsumer,
    HttpGroupMemberSpec: HttpGroupMember,
    HttpTailReaderSpec: HttpTailReader,
    VandalSpec: Vandal,
}


@dataclass
class Actor:
    """A running process; `name` is new for each life."""

    name: str
    spec: Spec
    process: Forked | subprocess.Popen[bytes]


class Stage:
    """Starts actors against one server, or the HTTP servers in front of it, writing into one directory."""

    def __init__(self, url: str, directory: Path, seed: int, http: Sequence[str] = ()) -> None:
        self.url = url
        self.http = ",".join(http)
        self.directory = directory
        self.seed = seed
        self.actors: list[Actor] = []
        self._lives: dict[str, int] = {}
        self._forks = Forks()

    def start(self, role: str, spec: Spec) -> Actor:
        self._lives[role] = self._lives.get(role, 0) + 1
        name = f"{role}-{self._lives[role]}"
        arguments = [self.url, str(self.directory), name, str(self.seed), self.http, msgspec.json.encode(spec).decode()]
        process = self._forks.start(arguments, self.directory / f"{name}.stderr")
        actor = Actor(name, spec, process)
        self.actors.append(actor)
        return actor

    def replace(self, actor: Actor) -> Actor:
        """The same role again, after its process died."""
        actor.process.wait(10)
        self.actors.remove(actor)
        return self.start(actor.name.rpartition("-")[0], actor.spec)

    def stop(self, actors: list[Actor]) -> None:
        """Ask them to finish the call they are in, and wait."""
        for actor in actors:
            actor.process.terminate()
        for actor in actors:
            try:
                actor.process.wait(30)
            except subprocess.TimeoutExpired:
                actor.process.kill()
                actor.process.wait(10)
            self.actors.remove(actor)

    def close(self) -> None:
        """Kill all that still run."""
        for actor in self.actors:
            actor.process.kill()
        self._forks.close()

    def crashed(self) -> list[str]:
        """Return the reports of actors that ended with an unexpected error."""
        return [
            f"{path.stem}: {text.strip().splitlines()[-1]}"
            for path in sorted(self.directory.glob("*.stderr"))
            if (text := path.read_text(errors="replace")).strip()
        ]


def act(url: str, directory: str, name: str, seed: str, http: str, spec: str) -> None:
    """Run an actor until it has done its part or receives a stop request."""
    decoded = msgspec.json.decode(spec, type=Spec)
    if "Http" in type(decoded).__name__ or isinstance(decoded, VandalSpec):
        session: Session = HttpSession(url, Path(directory), name, int(seed), http.split(","))
    else:
        session = Session(url, Path(directory), name, int(seed))
    session.stop_on_sigterm()
    _ACTORS[type(decoded)](session, decoded).run()
    session.close()
