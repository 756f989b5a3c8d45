"""Effects happen exactly once under kill -9: of consumers and publishers, and of Postgres.

Each consumer writes one row per message into `ledger`, which has no key that would hide a double, in the transaction that
settles the message. Publishers note what they publish in `publications`, in the same transaction. In the end both tables
must name the same messages, each once.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from tests.chaos.history import Recorder
from tests.chaos.nemesis import crash
from trunkline import SyncClient
from trunkline.embedded.server import EmbeddedServer
from trunkline.sql.migrate import migrate

# The processes that consume in each form; two of each, so that one takes over what the other left.
FORMS: dict[str, tuple[tuple[str, ...], ...]] = {
    "batch": (("batch",), ("batch",)),
    "queue": (("delivery",), ("deliveries",)),
    "psycopg": (("on", "psycopg"), ("on", "psycopg")),
    "sqlalchemy": (("on", "sqlalchemy"), ("on", "sqlalchemy")),
    "django": (("on", "django"), ("on", "django")),
}
BOUND = ("psycopg", "sqlalchemy", "django")
TOPICS = ("batch", *BOUND)
QUEUES = ("queue", *BOUND)
TARGETS = (*(f"topic:{name}" for name in TOPICS), *(f"queue:{name}" for name in QUEUES))
KILLS_PER_FORM = 6
PAUSES_PER_FORM = 2
PG_KILLS = 2
# Longer than the lease: a consumer that was paused inside a transaction must find its lease lost.
PAUSE_SECONDS = 3.0
DRAIN_SECONDS = 60.0
ROOT = Path(__file__).parents[2]


@dataclass
class Life:
    """One life of a process; its successor has another name and another diary."""

    name: str
    form: str
    role: tuple[str, ...]
    process: subprocess.Popen[bytes]
    diary: Path
    paused_until: float = 0.0
    spared: int = 2
    """No fault before its diary has more lines: most would only hit a start, or the moment after a pause."""

    def lines(self) -> list[str]:
        return self.diary.read_text().splitlines() if self.diary.exists() else []

    def last(self) -> str:
        """The last recorded step: `take` while it has messages that it has not begun to settle."""
        return " ".join(self.lines()[-1:]).partition(" ")[0]

    def wake(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)
        self.paused_until = 0.0


@dataclass
class Crew:
    """The processes of a run, all writing into one directory."""

    url: str
    directory: Path
    living: list[Life] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)

    def start(self, form: str, role: tuple[str, ...]) -> Life:
        name = f"{form}-{len(list(self.directory.glob('*.stderr')))}"
        command = [sys.executable, "-m", "tests.client.workers_exactly_once", self.url, str(self.directory), name, *role]
        with (self.directory / f"{name}.stderr").open("wb") as errors:
            process = subprocess.Popen(command, stdout=errors, stderr=errors, cwd=ROOT)
        life = Life(name, form, role, process, self.directory / f"{name}.diary")
        self.living.append(life)
        return life

    def of(self, form: str) -> list[Life]:
        return [life for life in self.living if life.form == form]

    def kill(self, life: Life) -> None:
        """Kill it and start its successor."""
        self.check(life)
        life.process.kill()
        life.process.wait(10)
        self.living.remove(life)
        self.kills[life.form] += 1
        self.start(life.form, life.role)

    def wake(self, *, everybody: bool = False) -> None:
        """Resume the processes whose pause is over, or wait until all are."""
        for life in self.living:
            if life.paused_until and everybody:
                time.sleep(max(0.0, life.paused_until - time.monotonic()))
            if life.paused_until and time.monotonic() >= life.paused_until:
                life.wake()

    def check(self, *lives: Life) -> None:
        """No process may end on its own: that would be an error that no consumer expects."""
        for life in lives or self.living:
            said = (self.directory / f"{life.name}.stderr").read_text()
            assert life.process.poll() is None, f"{life.name} ended with {life.process.returncode}\n{said}"

    def stop(self, lives: list[Life]) -> None:
        """Let them end what they are doing."""
        for life in lives:
            life.process.terminate()
        for life in lives:
            # the second: it had only just started, and done nothing
            ended = life.process.wait(30) in (0, -signal.SIGTERM)
            assert ended, (self.directory / f"{life.name}.stderr").read_text()
            self.living.remove(life)

    def end(self) -> None:
        for life in self.living:
            life.process.kill()
            life.process.wait(10)

    def diaries(self, form: str) -> list[list[str]]:
        """The lines of every life of this form, or of forms that begin so, as words."""
        paths = sorted(self.directory.glob(f"{form}*.diary"))
        return [line.split(" ") for path in paths for line in path.read_text().splitlines()]


@dataclass(frozen=True)
class Verdict:
    """Faults of the ledger; all empty if effects happened exactly once."""

    missing: list[str]
    """Published, without an effect."""
    doubled: list[str]
    """With more than one effect."""
    uninvited: list[str]
    """With an effect, though its publisher rolled back."""
    forgotten: list[str]
    """The publisher's commit returned, and the database does not know it."""

    @classmethod
    def of(cls, url: str, crew: Crew) -> Verdict:
        with psycopg.connect(url) as conn:
            published = Counter(f"{row[0]}/{row[1]}" for row in conn.execute("select target, value from publications"))
            ledger = Counter(f"{row[0]}/{row[1]}" for row in conn.execute("select target, value from ledger"))
        told = {value for line in crew.diaries("publish") if line[0] == "committed" for value in line[1:]}
        undone = {value for line in crew.diaries("publish") if line[0] == "undone" for value in line[1:]}
        assert not [value for value, count in published.items() if count > 1], "the test gave a name twice"
        return cls(
            missing=sorted(published - ledger),
            doubled=sorted(value for value, count in ledger.items() if count > 1),
            uninvited=sorted(value for value in ledger if value not in published or value in undone),
            forgotten=sorted(told - set(published)),
        )


CLEAN = Verdict([], [], [], [])


@pytest.fixture
def directory() -> Path:
    """For the diaries; a test that ends well removes it."""
    return Path(tempfile.mkdtemp(prefix="tl-once-", dir="/tmp"))


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    """A server of the test's own: it is going to be killed."""
    home = Path(tempfile.mkdtemp(prefix="tl-once-pg-", dir="/tmp"))
    with EmbeddedServer(home / "data") as server:
        yield server
    shutil.rmtree(home, ignore_errors=True)


def create(url: str) -> None:
    columns = "(id bigint generated by default as identity primary key, target text, value text, worker text)"
    with psycopg.connect(url) as conn:
        # the role of the test servers has our schema first in its path
        conn.execute(f"create table public.ledger {columns}")
        conn.execute(f"create table public.publications {columns}")
    with SyncClient(url) as mq:
        for name in TOPICS:
            mq.topics.create(name, partitions=2)
            mq.groups.create(name, "g")
        for name in QUEUES:
            # a kill counts as an attempt, and nothing may end among the dead letters here
            mq.queues.create(name, lease="2s", max_attempts=1000, backoff_base="0.1s", backoff_cap="0.2s")


def wait_for_work(crew: Crew, form: str, within: float = 20.0) -> Life:
    """One of this form that is awake and has worked."""
    limit = time.monotonic() + within
    while True:
        crew.wake()
        busy = [life for life in crew.of(form) if len(life.lines()) > life.spared and not life.paused_until]
        if busy:
            return random.choice(busy)
        crew.check()
        assert time.monotonic() < limit, f"nobody works in form {form}"
        time.sleep(0.02)


def pause_at_work(crew: Crew, form: str) -> None:
    """Stop one of this form for a while, with messages in hand."""
    while True:
        life = wait_for_work(crew, form)
        os.kill(life.process.pid, signal.SIGSTOP)
        if life.last() == "take":
            life.paused_until, life.spared = time.monotonic() + PAUSE_SECONDS, len(life.lines())
            return
        life.wake()
        time.sleep(0.02)


def torment(crew: Crew, server: EmbeddedServer, recorder: Recorder, source: random.Random) -> None:
    """All the faults, in random order at random moments; each waits until its victim's form works."""
    faults = [("kill", form) for form in FORMS for _ in range(KILLS_PER_FORM)]
    faults += [("kill", f"publish-{form}") for form in BOUND]
    faults += [("pause", form) for form in FORMS for _ in range(PAUSES_PER_FORM)]
    source.shuffle(faults)
    for number in range(PG_KILLS):
        faults.insert(len(faults) * (number + 1) // (PG_KILLS + 1), ("crash", ""))
    for fault, form in faults:
        time.sleep(source.uniform(0.0, 0.25))
        crew.wake()
        if fault == "crash":
            crash(server, recorder)
        elif fault == "kill":
            crew.kill(wait_for_work(crew, form))
        else:
            pause_at_work(crew, form)
    crew.wake(everybody=True)


def drain(url: str, crew: Crew) -> None:
    """Wait until nothing is open and it stays so for a second."""
    (crew.directory / "calm").touch()
    limit = time.monotonic() + DRAIN_SECONDS
    quiet_since = time.monotonic()
    with psycopg.connect(url, autocommit=True) as conn:
        while time.monotonic() - quiet_since < 1.0:
            crew.check()
            left = conn.execute(
                "select (select sum(ready + delayed + leased) from trunkline.queue_stats())"
                " + (select coalesce(sum(lag), 0) from trunkline.group_stats())"
            ).fetchall()[0][0]
            if left:
                quiet_since = time.monotonic()
            assert time.monotonic() < limit, f"{left} messages are still open after {DRAIN_SECONDS:.0f} s"
            time.sleep(0.1)


@pytest.mark.timeout(600)
def test_effects_happen_exactly_once_under_kill_9(server: EmbeddedServer, directory: Path) -> None:
    seed = int(os.environ.get("TRUNKLINE_CHAOS_SEED", "0")) or int.from_bytes(os.urandom(4), "big")
    begun = time.monotonic()
    url = server.url
    migrate(url)
    create(url)
    crew = Crew(url, directory)
    try:
        crew.start("upkeep", ("upkeep",))
        for form in BOUND:
            crew.start(f"publish-{form}", ("publish", form, *TARGETS))
        for form, roles in FORMS.items():
            for role in roles:
                crew.start(form, role)
        torment(crew, server, Recorder(directory, "main"), random.Random(seed))
        tormented = time.monotonic()
        crew.stop([life for form in BOUND for life in crew.of(f"publish-{form}")])
        drain(url, crew)
    finally:
        crew.end()
    verdict = Verdict.of(url, crew)

    taken = {form: Counter(v for line in crew.diaries(form) if line[0] == "take" for v in line[2:]) for form in FORMS}
    again = {form: sum(count > 1 for count in values.values()) for form, values in taken.items()}
    done = sum(line[0] == "committed" for line in crew.diaries("publish"))
    undone = sum(line[0] == "undone" for line in crew.diaries("publish"))
    lost = {form: sum(line[:1] == ["failed"] and "LeaseLost" in line[1] for line in crew.diaries(form)) for form in FORMS}
    print(
        f"seed {seed}, {tormented - begun:.0f} s of faults, {time.monotonic() - begun:.0f} s in all,"
        f" kills {dict(crew.kills)}; {sum(map(len, taken.values()))} messages in {done} transactions, {undone} rolled back;"
        f" delivered more than once {again}, leases lost {lost}"
    )
    assert verdict == CLEAN, f"seed {seed}, diaries kept in {directory}: {verdict}"
    # Verify that the faults happened, and hit consumers in the middle of their work.
    assert {form: crew.kills[form] for form in FORMS} == dict.fromkeys(FORMS, KILLS_PER_FORM)
    assert all(again.values()), again
    assert any(lost.values()), lost
    assert done > 100 and undone > 20
    shutil.rmtree(directory)


@pytest.mark.parametrize("first", ["effect", "ack"])
def test_a_consumer_with_two_transactions_is_caught(first: str, db: str, directory: Path) -> None:
    """The same judge finds the planted bug: the effect before the ack doubles, the ack before the effect loses."""
    create(db)
    crew = Crew(db, directory)
    try:
        crew.start("upkeep", ("upkeep",))
        crew.start("publish-psycopg", ("publish", "psycopg", "queue:queue"))
        crew.start("queue", ("wrong", first))
        for _ in range(4):
            victim = wait_for_work(crew, "queue")
            while victim.last() != "half":
                time.sleep(0.001)
            crew.kill(victim)
        crew.stop(crew.of("publish-psycopg"))
        drain(db, crew)
    finally:
        crew.end()
    verdict = Verdict.of(db, crew)
    assert (bool(verdict.doubled), bool(verdict.missing)) == (first == "effect", first == "ack"), verdict
    assert (verdict.uninvited, verdict.forgotten) == ([], [])
    shutil.rmtree(directory)
