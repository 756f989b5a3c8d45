"""The embedded server: private, durable, and unharmed by kill -9 and by a second start."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from trunkline.embedded import ownership
from trunkline.embedded.install import psql
from trunkline.embedded.postmaster import find_processes
from trunkline.embedded.server import EmbeddedServer
from trunkline.errors import EmbeddedServerError
from trunkline.sql.migrate import migrate


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped cluster, made once: initdb is most of the time of these tests."""
    directory = tmp_path_factory.mktemp("template") / "data"
    with EmbeddedServer(directory) as server, psycopg.connect(server.url) as conn:
        conn.execute("create table kept as select 42 as answer")
    return directory


@pytest.fixture
def data(template: Path, tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "data"
    subprocess.run(["cp", "-a", template, directory], check=True)
    (directory / "port").unlink()
    yield directory
    for pid in find_processes(directory / "pgdata"):
        os.kill(pid, signal.SIGKILL)


def answer(url: str) -> object:
    with psycopg.connect(url) as conn:
        row = conn.execute("select answer from kept").fetchone()
        return row and row[0]


def wait_until_dead(server: EmbeddedServer) -> None:
    end = time.monotonic() + 10
    while server.alive() and time.monotonic() < end:
        time.sleep(0.01)
    assert not server.alive()


def test_serves_over_socket_and_loopback_and_keeps_data_over_a_stop(data: Path) -> None:
    server = EmbeddedServer(data)
    url = server.start()
    port = server.port
    assert server.owned
    assert answer(url) == answer(server.tcp_url) == 42
    server.stop()
    assert not server.alive()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)
    with EmbeddedServer(data) as again:
        assert answer(again.url) == 42
        assert again.port == port


def test_the_owner_is_no_superuser(data: Path) -> None:
    with EmbeddedServer(data) as server:
        migrate(server.url)
        with psycopg.connect(server.url, autocommit=True) as conn:
            assert conn.execute(OWNERS).fetchall() == [("trunkline", False)]
            assert conn.execute("select rolsuper, rolcreaterole from pg_roles where rolname = user").fetchall() == [
                (False, False)
            ]
            assert use(conn)
        assert stat.S_IMODE(server.superuser_password_file.stat().st_mode) == 0o600
        with psycopg.connect(server.superuser_url, autocommit=True) as admin:
            assert admin.execute("select rolsuper from pg_roles where rolname = user").fetchone() == (True,)
            admin.execute("create role shop login")
        # the owner grants the group roles; the superuser is not needed for it
        with psycopg.connect(server.url, autocommit=True) as conn:
            conn.execute("grant trunkline_publisher to shop")
        assert server.superuser_password_file.read_text() != server.password_file.read_text()


OWNERS = """
    select rolname, rolsuper from pg_roles where oid in (
        select proowner from pg_proc where pronamespace = 'trunkline'::regnamespace
        union select relowner from pg_class where relnamespace in ('trunkline'::regnamespace, 'public'::regnamespace)
        union select nspowner from pg_namespace where nspname = 'trunkline'
        union select datdba from pg_database where datname = current_database())
"""


def test_compose_makes_an_owner_that_is_no_superuser(data: Path) -> None:
    """As the image of Postgres runs the file: by psql, as the superuser, with the password in the environment."""
    text = (Path(__file__).parents[2] / "compose.yaml").read_text()
    assert "POSTGRES_USER: postgres" in text and "./compose/owner.sql:/docker-entrypoint-initdb.d/" in text
    script = Path(__file__).parents[2] / "compose" / "owner.sql"
    with EmbeddedServer(data) as server:
        admin_url = make_conninfo(server.superuser_url, dbname="postgres")
        with psycopg.connect(admin_url, autocommit=True) as admin:
            admin.execute("drop database trunkline")
            admin.execute("drop owned by trunkline")
            for name in ("trunkline", *ownership.GROUPS):
                admin.execute(f"drop role {name}")
            admin.execute("create database trunkline")
            command = [str(psql()), "-v", "ON_ERROR_STOP=1", "--no-psqlrc", "-d", server.superuser_url, "-f", str(script)]
            subprocess.run(command, check=True, env={**os.environ, "POSTGRES_PASSWORD": "it's secret"})
            url = make_conninfo(server.superuser_url, user="trunkline", password="it's secret")
            migrate(url)
            with psycopg.connect(url, autocommit=True) as conn:
                assert conn.execute(OWNERS).fetchall() == [("trunkline", False)]
                assert use(conn)
            assert admin.execute("select rolpassword from pg_authid where rolname = user").fetchone() == (None,)


def use(conn: psycopg.Connection[Any]) -> bool:
    """Publish, claim and settle, with upkeep and an upgrade of the functions."""
    conn.execute("select trunkline.ensure_topic('t'), trunkline.ensure_queue('q')")
    conn.execute("select trunkline.publish('t', '1'), trunkline.enqueue('q', '1')")
    receipts = [row[0] for row in conn.execute("select receipt from trunkline.claim('q')")]
    done = conn.execute("select result from trunkline.ack(%s)", (receipts,)).fetchall()
    conn.execute("call trunkline.upkeep()")
    return done == [("done",)]


def as_an_earlier_release_made_it(data: Path) -> None:
    """One role, the bootstrap superuser, owns everything: the schema, messages, and tables of an application."""
    with EmbeddedServer(data) as server, psycopg.connect(server.superuser_url, autocommit=True) as admin:
        secret = server.password_file.read_text().strip()
        admin.execute("alter database trunkline owner to trunkline_superuser")
        admin.execute("reassign owned by trunkline to trunkline_superuser")
        admin.execute("drop owned by trunkline")
        admin.execute("drop role trunkline")
        for group in ownership.GROUPS:
            admin.execute(f"drop role {group}")
        admin.execute("create role helper superuser login password 'x'")
        with psycopg.connect(server.superuser_url, user="helper", password="x", autocommit=True) as helper:
            helper.execute("alter role trunkline_superuser rename to trunkline")
            helper.execute(f"alter role trunkline password '{secret}'")
        admin.execute("drop role helper")
        migrate(server.url)
        with psycopg.connect(server.url, autocommit=True) as conn:
            assert use(conn)
            conn.execute("create table public.orders (id serial primary key, state text)")
            conn.execute("create type public.state as enum ('new')")
            conn.execute("create view public.open_orders as select * from public.orders")
            conn.execute("create database second")
    server.superuser_password_file.unlink()


@pytest.mark.parametrize("killed", ["never", "before the hand-over", "during it"])
def test_data_of_an_earlier_release_loses_its_superuser(data: Path, monkeypatch: pytest.MonkeyPatch, killed: str) -> None:
    as_an_earlier_release_made_it(data)
    if killed != "never":
        name = "hand_over" if killed == "before the hand-over" else "_hand_over_objects"
        with monkeypatch.context() as crash:
            crash.setattr(ownership, name, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                EmbeddedServer(data).start()
        assert not find_processes(data / "pgdata")
    for start in range(2):
        with EmbeddedServer(data) as server:
            assert migrate(server.url).applied == []
            with psycopg.connect(server.url, autocommit=True) as conn:
                assert conn.execute(OWNERS).fetchall() == [("trunkline", False)]
                assert use(conn)
                conn.execute("insert into public.orders (state) values ('new')")
                conn.execute(f"alter table public.orders add column more{start} int")
                conn.execute(f"alter type public.state add value 'more{start}'")
                assert conn.execute("select datdba::regrole::text from pg_database where datname = 'second'").fetchone() == (
                    "trunkline",
                )
            with psycopg.connect(server.superuser_url) as admin:
                assert admin.execute("select rolsuper from pg_roles where rolname = user").fetchone() == (True,)


def test_durable_private_and_utf8(data: Path) -> None:
    with EmbeddedServer(data) as server, psycopg.connect(server.url) as conn:
        expected = {
            "fsync": "on",
            "full_page_writes": "on",
            "synchronous_commit": "on",
            "data_checksums": "on",
            "listen_addresses": "127.0.0.1",
            "server_encoding": "UTF8",
            "max_connections": "200",
            "max_prepared_transactions": "20",
        }
        for name, value in expected.items():
            assert conn.execute("select current_setting(%s)", [name]).fetchone() == (value,)
        assert stat.S_IMODE(server.socket_dir.stat().st_mode) == 0o700
        assert stat.S_IMODE(server.password_file.stat().st_mode) == 0o600
        assert len(str(server.socket_dir / ".s.PGSQL.65535")) < 107


def test_wrong_or_missing_password_is_refused(data: Path) -> None:
    with EmbeddedServer(data) as server:
        for host in ("127.0.0.1", str(server.socket_dir)):
            where = f"host={host} port={server.port} user=trunkline dbname=trunkline"
            with pytest.raises(psycopg.OperationalError, match="authentication failed"):
                psycopg.connect(f"{where} password=wrong")
            with pytest.raises(psycopg.OperationalError, match="no password"):
                psycopg.connect(f"{where} passfile=/nonexistent")


def test_listens_on_loopback_only(data: Path) -> None:
    with EmbeddedServer(data) as server:
        listening = f":{server.port:04X}"
        tables = [Path("/proc/net/tcp").read_text(), Path("/proc/net/tcp6").read_text()]
        rows = [line.split() for table in tables for line in table.splitlines()[1:]]
        locals_ = {row[1] for row in rows if row[1].endswith(listening) and row[3] == "0A"}
        assert locals_ == {f"0100007F{listening}"}


def test_second_start_attaches_and_does_not_stop_it(data: Path) -> None:
    with EmbeddedServer(data) as first:
        second = EmbeddedServer(data)
        assert second.start() == first.url
        assert not second.owned
        assert second.postmaster_pid == first.postmaster_pid
        second.stop()
        assert first.alive()
        assert answer(first.url) == 42


def test_two_first_starts_at_once_make_one_cluster(tmp_path: Path) -> None:
    code = (
        "import sys; from trunkline.embedded.server import EmbeddedServer;"
        "s = EmbeddedServer(sys.argv[1]); print(s.start(), s.owned, flush=True); sys.stdin.read(); s.stop()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "data")]
    both = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = sorted((process.stdout.readline().split() for process in both), key=lambda words: words[1])  # type: ignore[union-attr]
    for process in both:
        process.communicate(timeout=60)
    assert answers[0][0] == answers[1][0]
    assert [words[1] for words in answers] == ["False", "True"]
    assert not find_processes(tmp_path / "data" / "pgdata")


def test_kill_9_of_the_postmaster_keeps_data(data: Path) -> None:
    server = EmbeddedServer(data)
    url = server.start()
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("insert into kept values (43)")
    os.kill(server.postmaster_pid, signal.SIGKILL)
    wait_until_dead(server)
    assert server.start() == url
    with psycopg.connect(url) as conn:
        assert conn.execute("select count(*) from kept").fetchone() == (2,)
    server.stop()


def test_a_stopped_orphan_backend_does_not_block_the_next_start(data: Path) -> None:
    server = EmbeddedServer(data)
    conn = psycopg.connect(server.start())
    os.kill(conn.info.backend_pid, signal.SIGSTOP)
    os.kill(server.postmaster_pid, signal.SIGKILL)
    wait_until_dead(server)
    assert answer(server.start()) == 42
    conn.close()
    server.stop()


def test_kill_9_of_the_owner_leaves_a_server_to_adopt(data: Path) -> None:
    code = (
        "import sys, time; from trunkline.embedded.server import EmbeddedServer;"
        "s = EmbeddedServer(sys.argv[1]); s.start(); print(s.postmaster_pid, flush=True); time.sleep(600)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code, str(data)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout
    pid = int(owner.stdout.readline())
    owner.kill()
    owner.wait()
    with EmbeddedServer(data) as server:
        assert (server.postmaster_pid, server.owned) == (pid, True)
        assert answer(server.url) == 42
    assert not find_processes(data / "pgdata")


def test_only_the_owner_can_open_the_lock(tmp_path: Path) -> None:
    """Any user that can open the file could hold the lock, and keep the server from starting."""
    data = tmp_path / "data"
    data.mkdir(mode=0o711)
    (data / "lock").touch(mode=0o644)
    server = EmbeddedServer(data)
    try:
        assert server._take_lock()
        assert (data / "lock").stat().st_mode & 0o777 == 0o600
        assert not EmbeddedServer(data)._take_lock()
    finally:
        server._release()
    (data / "lock").unlink()
    (data / "lock").symlink_to(data / "elsewhere")
    with pytest.raises(EmbeddedServerError):
        EmbeddedServer(data)._take_lock()


def test_a_stale_pid_file_naming_a_foreign_process_does_not_block(data: Path) -> None:
    lines = [str(os.getppid()), str(data / "pgdata"), "1", "5432", "/tmp", "127.0.0.1", "1 1", "ready"]
    (data / "pgdata" / "postmaster.pid").write_text("\n".join(lines) + "\n")
    with EmbeddedServer(data) as server:
        assert answer(server.url) == 42


def test_a_killed_first_start_is_done_again(tmp_path: Path) -> None:
    unfinished = tmp_path / "data" / "init-abc"
    unfinished.mkdir(parents=True)
    (unfinished / "PG_VERSION").write_text("18\n")
    with EmbeddedServer(tmp_path / "data") as server, psycopg.connect(server.url) as conn:
        assert conn.execute("select 1").fetchone() == (1,)
    assert not unfinished.exists()


def test_taken_port_is_named(data: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(EmbeddedServerError, match="is already in use"):
            EmbeddedServer(data, taken.getsockname()[1]).start()


def test_a_remembered_port_that_is_taken_is_replaced(data: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        (data / "port").write_text(f"{taken.getsockname()[1]}\n")
        with EmbeddedServer(data) as server:
            assert server.port != taken.getsockname()[1]


def test_data_of_another_major_version_is_refused(data: Path) -> None:
    with pytest.raises(EmbeddedServerError, match="created by Postgres 18, this is Postgres 16"):
        EmbeddedServer(data, version=16).start()


def test_failure_shows_the_log(data: Path) -> None:
    with (data / "pgdata" / "postgresql.conf").open("a") as conf:
        conf.write("no_such_setting = 1\n")
    server = EmbeddedServer(data)
    with pytest.raises(EmbeddedServerError) as caught:
        server.start()
    assert "no_such_setting" in (caught.value.detail or "")
    assert not server.owned


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes accounts")
def test_root_serves_from_a_directory_closed_to_others(data: Path, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    shutil.move(data, closed / "data")
    with EmbeddedServer(closed / "data") as server:
        assert answer(server.url) == 42
        owner = Path(f"/proc/{server.postmaster_pid}").stat().st_uid
        assert owner != 0
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


def test_postgres_16_of_the_same_wheel(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "data", version=16) as server, psycopg.connect(server.url) as conn:
        assert conn.info.server_version // 10000 == 16
