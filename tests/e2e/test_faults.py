"""Faults of the server: a full disk, a standby, a stop in the middle of a call. Each has its code; nothing is half-done."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.conftest import Connection
from tests.sql.calls import (
    assert_conserved,
    call,
    claim,
    claim_all,
    contents,
    digest,
    enqueue,
    fetch,
    head,
    offsets,
    publish,
    read,
    settle,
    settle_all,
    value,
)
from trunkline.embedded import install
from trunkline.embedded.postmaster import find_processes
from trunkline.embedded.server import EmbeddedServer
from trunkline.errors import DiskFull, OutcomeUnknown, TrunklineError, from_psycopg
from trunkline.sql.migrate import migrate

PATIENCE = 60.0
MEGABYTE = 1024 * 1024


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory that the server's account can pass through; what still runs below it is ended."""
    home = Path(tempfile.mkdtemp(prefix="tl-faults-", dir="/tmp"))
    home.chmod(0o711)
    yield home
    for data in home.iterdir():
        for pid in find_processes(data / "pgdata"):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(home, ignore_errors=True)


def wait(question: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not question():
        assert time.monotonic() < deadline, "still not true"
        time.sleep(0.01)


# A full disk


class SmallDisk:
    """A file system of a few megabytes, with a file in it that can be removed to make room."""

    def __init__(self, path: Path, megabytes: int) -> None:
        self.path = path
        self._filler = path / "filler"
        path.mkdir(mode=0o711)
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0711", "tmpfs", str(path)]
        mounted = subprocess.run(command, capture_output=True, text=True)
        if mounted.returncode:
            pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")

    def fill(self, leave: int) -> None:
        self._filler.write_bytes(b"x" * (shutil.disk_usage(self.path).free - leave))

    def make_room(self) -> None:
        self._filler.unlink()

    def unmount(self) -> None:
        subprocess.run(["umount", str(self.path)], check=True)


@pytest.fixture
def small_disk(home: Path) -> Iterator[SmallDisk]:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    disk = SmallDisk(home / "small", 200)
    yield disk
    for pid in find_processes(disk.path / "pgdata"):
        os.kill(pid, signal.SIGKILL)
    wait(lambda: not find_processes(disk.path / "pgdata"))
    disk.unmount()


@pytest.fixture
def tight_url(home: Path, small_disk: SmallDisk) -> Iterator[str]:
    """A migrated database whose tables are on the small disk; the server's own files are not."""
    with EmbeddedServer(home / "data") as server:
        account = install.choose_account(server.pgdata)
        place = small_disk.path / "tables"
        place.mkdir()
        os.chown(place, account.uid, account.gid)
        with psycopg.connect(server.superuser_url, autocommit=True) as admin:
            admin.execute(f"create tablespace small location '{place}'")
            admin.execute("create database tight owner trunkline tablespace small strategy file_copy")
        url = make_conninfo(server.url, dbname="tight")
        migrate(url)
        yield url


def code_of(work: Callable[[], Any]) -> str:
    """The stable code of the error that a call ends with, or "done"."""
    try:
        work()
    except psycopg.Error as error:
        return from_psycopg(error, writing=True).code
    return "done"


def fill_up(conn: Connection) -> list[UUID]:
    """Publish until refused; return the ids of the accepted messages."""
    accepted: list[UUID] = []
    with pytest.raises(psycopg.Error) as caught:
        while len(accepted) < 200:
            accepted += [row.id for row in call(conn, "publish_bytes", "t", random.randbytes(900_000))]
    error = from_psycopg(caught.value, writing=True)
    assert (error.code, error.status, error.sqlstate) == ("disk_full", 503, "53100")
    assert error.hint
    return accepted


def test_a_full_disk_refuses_what_needs_room_and_nothing_is_half_done(tight_url: str, small_disk: SmallDisk) -> None:
    """Readers and calls that need no new page continue; with space again, everything works without a restart."""
    keyed = random.randbytes(900_000)
    batch = [random.randbytes(7_000) for _ in range(1000)]
    with psycopg.connect(tight_url, autocommit=True) as conn:
        for topic in ("t", "u"):
            call(conn, "create_topic", topic)
        publish(conn, "u", "first")  # so that it has a page with room in it
        call(conn, "create_queue", "q")
        enqueue(conn, "q", *range(5))
        out = claim(conn, "q", 2)
        small_disk.fill(leave=16 * MEGABYTE)
        accepted = fill_up(conn)

        def both() -> None:
            with conn.transaction():
                publish(conn, "u", "second")
                call(conn, "publish_bytes", "t", random.randbytes(900_000))

        assert code_of(both) == "disk_full"
        assert code_of(lambda: call(conn, "publish_many", "t", batch)) == "disk_full"
        assert code_of(lambda: call(conn, "publish_bytes", "t", keyed, p_idempotency_key="once")) == "disk_full"
        assert code_of(lambda: call(conn, "create_topic", "new")) == "disk_full"
        # those that have an offset; the others get it when there is room
        found = [id for (id,) in conn.execute("select id from trunkline.read('t', 0, 1, 1000)")]
        assert found == accepted[: len(found)]
        # these need little room: they are done, or refused with the same code
        more: list[Any] = []
        assert code_of(lambda: settle(conn, "ack", out[0].receipt)) in ("done", "disk_full")
        assert code_of(lambda: more.extend(claim(conn, "q", 1))) in ("done", "disk_full")

        small_disk.make_room()
        assert [message.id for message in read(conn, "t")] == accepted
        assert head(conn, "u") == 1
        sent = [call(conn, "publish_bytes", "t", keyed, p_idempotency_key="once")[0] for _ in range(2)]
        assert [answer.duplicate for answer in sent] == [False, True]
        assert len(call(conn, "publish_many", "t", batch)) == 1000
        assert offsets(read(conn, "t", 1, 2000)) == list(range(1, len(accepted) + 1002))
        call(conn, "create_topic", "new")
        rest = claim(conn, "q")
        assert len(rest) == 3 - len(more)
        assert settle_all(conn, "ack", [*out, *more, *rest]) == ["done"] * 5
        assert assert_conserved(conn, "q").acked == 5
        conn.execute("call trunkline.upkeep()")


def test_no_room_for_the_write_ahead_log_loses_nothing_that_was_answered(small_disk: SmallDisk) -> None:
    """The server stops. With space again it starts, and all acknowledged messages exist."""
    server = EmbeddedServer(small_disk.path)
    url = server.start()
    migrate(url)
    accepted: list[UUID] = []
    with psycopg.connect(url, autocommit=True) as conn:
        call(conn, "create_topic", "t", p_max_payload=2 * MEGABYTE)
        small_disk.fill(leave=40 * MEGABYTE)
        with pytest.raises(psycopg.OperationalError) as caught:
            while len(accepted) < 200:
                accepted += [row.id for row in call(conn, "publish_bytes", "t", random.randbytes(MEGABYTE))]
    assert isinstance(from_psycopg(caught.value, writing=True), DiskFull | OutcomeUnknown)
    small_disk.make_room()
    wait(lambda: restarted(server))
    with psycopg.connect(url, autocommit=True) as conn:
        found = [message.id for message in read(conn, "t")]
        # The last one has no response: it may or may not exist.
        assert found[: len(accepted)] == accepted
        assert len(found) <= len(accepted) + 1
        publish(conn, "t", "after")
        assert read(conn, "t", len(found) + 1)[0].log_offset == len(found) + 1
    server.stop()


def restarted(server: EmbeddedServer) -> bool:
    """Postgres restarts by itself after a panic, or gives up: then it is ours to start."""
    with suppress(TrunklineError, psycopg.OperationalError):
        server.start()
        psycopg.connect(server.url).close()
        return True
    return False


# A standby


class Pair(NamedTuple):
    primary: Connection
    standby: Connection
    standby_url: str
    admin: Connection
    """A superuser of the standby."""

    def catch_up(self) -> None:
        """Wait until the standby has all that the primary has."""
        place = value(self.primary, "select pg_current_wal_lsn()::text")
        wait(lambda: value(self.standby, "select pg_last_wal_replay_lsn() >= %s::pg_lsn", place))


@pytest.fixture
def pair(home: Path) -> Iterator[Pair]:
    """A primary with a topic, a group and a queue, and a standby that streams from it."""
    with EmbeddedServer(home / "primary") as primary:
        migrate(primary.url)
        with psycopg.connect(primary.url, autocommit=True) as conn:
            call(conn, "create_topic", "t")
            call(conn, "create_group", "t", "g")
            call(conn, "create_queue", "q", p_max_attempts=1)
            publish(conn, "t", *range(1, 6))
            enqueue(conn, "q", *range(1, 6))
            settle(conn, "bury", claim(conn, "q", 1)[0].receipt)
            head(conn, "t")
            copy_cluster(primary, home / "standby")
            with (
                EmbeddedServer(home / "standby") as standby,
                psycopg.connect(standby.url, autocommit=True) as other,
                psycopg.connect(standby.superuser_url, autocommit=True) as admin,
            ):
                yield Pair(conn, other, standby.url, admin)


def copy_cluster(primary: EmbeddedServer, data: Path) -> None:
    account = install.choose_account(primary.pgdata)
    program = install.programs(primary.version, account) / "pg_basebackup"
    if not program.exists():
        pytest.skip("the wheel has no pg_basebackup")
    data.mkdir(mode=0o711)
    shutil.copy(primary.password_file, data)
    shutil.copy(primary.superuser_password_file, data)
    (data / "pgdata").mkdir(mode=0o700)
    if account.switch:
        os.chown(data / "pgdata", account.uid, account.gid)
    command = [
        str(program),
        "-d",
        primary.superuser_url,
        "-D",
        str(data / "pgdata"),
        "--write-recovery-conf",
        "--checkpoint=fast",
    ]
    copied = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, **account.popen())
    assert copied.returncode == 0, copied.stderr


def test_a_standby_refuses_every_write(pair: Pair) -> None:
    [out] = claim(pair.primary, "q", 1)
    batch = fetch(pair.primary, "t")
    pair.catch_up()
    writes: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("publish", ("t", "1"), {}),
        ("publish", ("t", "1"), {"p_idempotency_key": "k"}),
        ("publish", ("t", "1"), {"p_delay": "1 hour"}),
        ("publish_many", ("t", [b"1", b"2"]), {}),
        ("enqueue", ("q", "1"), {}),
        ("claim", ("q",), {}),
        *[(verb, ([out.receipt],), {}) for verb in ("ack", "nack", "bury", "release", "extend")],
        ("fetch", ("t", "g", "m"), {"p_generation": batch[0].generation}),
        ("commit", ("t", "g", 0, batch[0].generation, 5), {}),
        ("claim_range", ("t", "other"), {}),
        ("seek", ("t", "g", "earliest"), {}),
        ("redrive", ("q",), {}),
        ("purge_dead_letters", ("q",), {}),
        ("purge_queue", ("q",), {}),
        ("pause_queue", ("q",), {}),
        ("create_topic", ("new",), {}),
        ("create_queue", ("new",), {}),
        ("delete_topic", ("t", True), {}),
        ("subscribe", ("q", "t"), {}),
        ("run_upkeep", ("pass",), {}),
    ]
    for verb, args, named in writes:
        with pytest.raises(psycopg.Error) as caught:
            call(pair.standby, verb, *args, **named)
        error = from_psycopg(caught.value, writing=True)
        found = (error.code, error.status, error.hint)
        assert found == ("read_only", 503, "Connect to the primary server."), (verb, error)
    assert settle(pair.primary, "ack", out.receipt) == ["done"]
    assert call(pair.primary, "commit", "t", "g", 0, batch[0].generation, 5)[0][0] == "done"


def test_a_standby_reads_a_contiguous_prefix(pair: Pair) -> None:
    """However far behind it is; and what it once read stays as it was."""
    known: list[Any] = []
    for turn in range(20):
        pair.admin.execute(f"select pg_wal_replay_{'pause' if turn % 3 == 0 else 'resume'}()")
        publish(pair.primary, "t", *range(10))
        # only the primary gives offsets: in every other turn the standby gets messages that have none yet
        if turn % 2:
            head(pair.primary, "t")
        elif turn % 3:
            pair.catch_up()
        found = read(pair.standby, "t")
        assert head(pair.standby, "t") >= len(found)
        assert [message.log_offset for message in found] == list(range(1, len(found) + 1))
        assert found[: len(known)] == known
        known = found
    pair.admin.execute("select pg_wal_replay_resume()")
    head(pair.primary, "t")
    pair.catch_up()
    assert read(pair.standby, "t") == read(pair.primary, "t")
    assert head(pair.standby, "t") == 205
    assert contents(call(pair.standby, "list_dead_letters", "q")) == [1]
    assert call(pair.standby, "queue_stats", "q")[0].ready == 4


def test_a_promoted_standby_goes_on_where_the_primary_was(pair: Pair) -> None:
    [out] = claim(pair.primary, "q", 1)
    before = read(pair.primary, "t")
    pair.catch_up()
    assert value(pair.admin, "select pg_promote()")
    publish(pair.standby, "t", "after")
    after = read(pair.standby, "t")
    assert after[:5] == before
    assert (after[5].log_offset, len(after)) == (6, 6)
    assert settle(pair.standby, "ack", out.receipt) == ["done"]
    assert contents(claim_all(pair.standby, "q")) == [3, 4, 5]
    assert_conserved(pair.standby, "q")


# A stop in the middle of a call


@pytest.fixture(scope="module")
def victim() -> Iterator[EmbeddedServer]:
    """A server that is stopped over and over."""
    home = Path(tempfile.mkdtemp(prefix="tl-faults-", dir="/tmp"))
    with EmbeddedServer(home / "data") as server:
        with psycopg.connect(server.superuser_url, autocommit=True) as conn:
            conn.execute("create database tl_template owner trunkline")
        migrate(make_conninfo(server.url, dbname="tl_template"))
        yield server
    shutil.rmtree(home, ignore_errors=True)


def kill_all(server: EmbeddedServer) -> None:
    for pid in find_processes(server.pgdata):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def stop_at_once(server: EmbeddedServer) -> None:
    """Stop the server like `pg_ctl stop -m immediate`."""
    os.kill(server.postmaster_pid, signal.SIGQUIT)


def restart(server: EmbeddedServer, stop: Callable[[EmbeddedServer], None]) -> None:
    stop(server)
    wait(lambda: not server.alive())
    server.start()


class Scene(NamedTuple):
    """Create objects for calls to work on: a leased message, a fetched batch, a dead letter, and more of each."""

    receipt: str
    generation: str


def set_scene(conn: Connection) -> Scene:
    call(conn, "create_topic", "t")
    call(conn, "create_queue", "q", p_lease="1 hour")
    publish(conn, "t", *range(1, 11))
    enqueue(conn, "q", *range(1, 11))
    settle(conn, "bury", claim(conn, "q", 1)[0].receipt)
    batch = fetch(conn, "t", p_limit=5, p_lease="1 hour")
    [out] = claim(conn, "q", 1)
    head(conn, "t")
    return Scene(out.receipt, batch[0].generation)


Write = Callable[[Connection, Scene], list[Any]]
# the call, and the table that it writes to: it is held there, after the row is in
WRITES: dict[str, tuple[str, Write]] = {
    "publish_many": ("topic_1", lambda conn, _: call(conn, "publish_many", "t", [b"1"] * 99 + [b'"held"'])),
    "publish with a key": ("idempotency", lambda conn, _: call(conn, "publish", "t", "1", p_idempotency_key="k")),
    "publish later": ("delayed", lambda conn, _: call(conn, "publish", "t", "1", p_delay="1 hour")),
    "tick": ("ticks", lambda conn, _: call(conn, "head", "t")),
    "claim": ("leases", lambda conn, _: call(conn, "claim", "q", 3)),
    "ack": ("settled", lambda conn, scene: call(conn, "ack", [scene.receipt])),
    "nack": ("settled", lambda conn, scene: call(conn, "nack", [scene.receipt])),
    "bury": ("dead_letters", lambda conn, scene: call(conn, "bury", [scene.receipt])),
    "redrive": ("store", lambda conn, _: call(conn, "redrive", "q")),
    "fetch": ("positions", lambda conn, _: call(conn, "fetch", "t", "another", "m")),
    "commit": ("positions", lambda conn, scene: call(conn, "commit", "t", "g", 0, scene.generation, 3)),
    "create_queue": ("queues", lambda conn, _: call(conn, "create_queue", "new")),
}


@pytest.mark.parametrize("stop", [kill_all, stop_at_once])
@pytest.mark.parametrize("name", list(WRITES))
def test_a_call_that_a_stop_cuts_short_has_changed_nothing(
    victim: EmbeddedServer, name: str, stop: Callable[[EmbeddedServer], None]
) -> None:
    table, write = WRITES[name]
    database = f"cut_{list(WRITES).index(name)}_{stop.__name__}"
    with psycopg.connect(victim.superuser_url, autocommit=True) as admin:
        admin.execute(f"create database {database} owner trunkline template tl_template strategy file_copy")
    url = make_conninfo(victim.url, dbname=database)
    with psycopg.connect(url, autocommit=True) as gate:
        scene = set_scene(gate)
        if name == "tick":
            publish(gate, "t", "next")
        before = digest(gate)
        hold_at(gate, table, "new.payload = '\"held\"'" if name == "publish_many" else "true")
        errors: list[psycopg.Error] = []
        caller = threading.Thread(target=make_the_call, args=(url, write, scene, errors))
        caller.start()
        wait(
            lambda: value(
                gate, "select exists (select from pg_locks where locktype = 'advisory' and objid = 1 and not granted)"
            )
        )
        restart(victim, stop)
        caller.join(PATIENCE)
    [error] = errors
    assert from_psycopg(error, writing=True).code == "outcome_unknown"
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("drop function public.hold() cascade")
        assert digest(conn) == before
        assert write(conn, scene)
        assert_conserved(conn, "q")
    with psycopg.connect(victim.superuser_url, autocommit=True) as admin:
        admin.execute(f"drop database {database} with (force)")


def hold_at(gate: Connection, table: str, condition: str) -> None:
    """Whoever writes such a row waits for the gate's lock, with the row written and not committed."""
    gate.execute("select pg_advisory_lock(0, 1)")
    gate.execute(
        "create function public.hold() returns trigger language plpgsql as"
        " $$ begin perform pg_advisory_xact_lock(0, 1); return null; end $$"
    )
    gate.execute(
        f"create trigger hold after insert on trunkline.{table} for each row when ({condition})"
        " execute function public.hold()"
    )


def make_the_call(url: str, write: Write, scene: Scene, errors: list[psycopg.Error]) -> None:
    try:
        with psycopg.connect(url, autocommit=True) as conn:
            write(conn, scene)
    except psycopg.Error as error:
        errors.append(error)


def test_a_stop_at_any_moment_is_all_or_nothing_and_a_repeat_makes_it_once(victim: EmbeddedServer) -> None:
    """Batches with keys, repeated when their outcome is unknown: each message is in the log once (P3)."""
    with psycopg.connect(victim.superuser_url, autocommit=True) as admin:
        admin.execute("create database at_any_moment owner trunkline template tl_template strategy file_copy")
    url = make_conninfo(victim.url, dbname="at_any_moment")
    with psycopg.connect(url, autocommit=True) as conn:
        call(conn, "create_topic", "t")
    stopping = threading.Event()
    publishers = [Publisher(url, f"p{number}", stopping) for number in range(4)]
    try:
        for turn in range(6):
            seen = [len(publisher.promised) for publisher in publishers]
            wait(lambda seen=seen: all(len(p.promised) >= n + 3 for p, n in zip(publishers, seen, strict=True)))
            restart(victim, (kill_all, stop_at_once)[turn % 2])
    finally:
        stopping.set()
        for publisher in publishers:
            publisher.thread.join(PATIENCE)
    with psycopg.connect(url, autocommit=True) as conn:
        found = read(conn, "t", 1, 100_000)
    assert offsets(found) == list(range(1, len(found) + 1))
    promised = Counter(id_ for publisher in publishers for batch in publisher.promised for id_ in batch)
    assert Counter(message.id for message in found) == promised
    codes = Counter(code for publisher in publishers for code in publisher.codes)
    assert set(codes) <= {"outcome_unknown", "database_unavailable"}
    assert codes["outcome_unknown"] > 0


class Publisher:
    """Publish batches of keyed messages, each until a response arrives."""

    def __init__(self, url: str, name: str, stopping: threading.Event) -> None:
        self.promised: list[list[UUID]] = []
        self.codes: list[str] = []
        self.thread = threading.Thread(target=self._run, args=(url, name, stopping))
        self.thread.start()

    def _run(self, url: str, name: str, stopping: threading.Event) -> None:
        open_one = False  # sent without a response yet: it must be repeated, also after the end of the test
        while open_one or not stopping.is_set():
            sent = False
            try:
                with psycopg.connect(url, autocommit=True) as conn:
                    while open_one or not stopping.is_set():
                        keys = [f"{name}.{len(self.promised)}.{n}" for n in range(20)]
                        sent = open_one = True
                        answers = call(conn, "publish_many", "t", [k.encode() for k in keys], p_idempotency_keys=keys)
                        self.promised.append([answer.id for answer in answers])
                        sent = open_one = False
            except psycopg.Error as error:
                self.codes.append(from_psycopg(error, writing=sent).code)
                time.sleep(0.02)
