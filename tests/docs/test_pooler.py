"""docs/operations/pooler.md with a real PgBouncer in transaction mode, where one is installed."""

from __future__ import annotations

import asyncio
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.docs.pages import blocks
from tests.docs.shells import Shells, environment
from tests.http.servers import free_port
from trunkline import SyncClient, upkeep
from trunkline.sql import catalog
from trunkline.sql.migrate import migrate

PROGRAM = os.environ.get("TRUNKLINE_PGBOUNCER") or shutil.which("pgbouncer")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="PgBouncer is not installed (or name it in TRUNKLINE_PGBOUNCER)")


def _version() -> tuple[int, int]:
    said = subprocess.run([str(PROGRAM), "--version"], capture_output=True, text=True, check=True).stdout
    major, minor = re.findall(r"PgBouncer (\d+)\.(\d+)", said)[0]
    return int(major), int(minor)


@pytest.fixture
def pooler(db: str) -> Iterator[str]:
    """The test's database behind PgBouncer, with two server connections for all clients."""
    parts = conninfo_to_dict(db)
    port = free_port()
    folder = Path(tempfile.mkdtemp(prefix="tl-pgbouncer-", dir="/tmp"))
    config = folder / "pgbouncer.ini"
    follows = "max_prepared_statements = 200" if _version() >= (1, 21) else ""
    config.write_text(
        f"[databases]\n{parts['dbname']} = host=127.0.0.1 port={parts['port']} dbname={parts['dbname']}"
        f" user={parts['user']} password={parts['password']}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\npidfile =\n"
        f"pool_mode = transaction\ndefault_pool_size = 2\n{follows}\n"
    )
    # it refuses to run as root
    account = {}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        os.chown(config, nobody.pw_uid, nobody.pw_gid)
        account = {"user": "nobody"}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([str(PROGRAM), str(config)], stderr=log, **account)  # type: ignore[call-overload]
    url = make_conninfo(f"postgresql://{parts['user']}@127.0.0.1:{port}/{parts['dbname']}")
    for _ in range(100):
        try:
            psycopg.connect(url, connect_timeout=2).close()
            break
        except psycopg.OperationalError:
            process.poll()
    yield url
    process.terminate()
    process.wait()
    shutil.rmtree(folder)


def test_the_page_behind_a_pooler(pooler: str, tmp_path: Path) -> None:
    if _version() < (1, 21):
        pytest.skip("this PgBouncer does not follow prepared statements")
    shells = Shells(environment(pooler), tmp_path)
    try:
        for block in blocks("docs/operations/pooler.md"):
            if block.language == "python":
                shells.run(block)
    finally:
        shells.close()


def test_migrate_and_upkeep_through_the_pooler(pooler: str, db: str) -> None:
    if _version() < (1, 21):
        pytest.skip("this PgBouncer does not follow prepared statements")
    with psycopg.connect(db, autocommit=True) as conn:
        conn.execute("delete from trunkline.function_files")
        assert len(migrate(pooler).applied) == len(catalog.functions())
        conn.execute("select trunkline.create_queue('late')")
        conn.execute("select trunkline.enqueue('late', '1', p_delay => '1 millisecond')")
    with psycopg.connect(pooler, autocommit=True) as conn:
        for _ in range(20):
            conn.execute("call trunkline.upkeep()")
        assert conn.execute("select ready, delayed from trunkline.queue_stats('late')").fetchone() == (1, 0)


def test_no_setting_of_ours_stays_in_a_shared_session(pooler: str, db: str) -> None:
    """An application behind the same pooler keeps its own isolation level and time limits."""
    with psycopg.connect(db, autocommit=True) as conn:
        conn.execute("select trunkline.create_queue('mail')")
        conn.execute(f"alter database {conn.info.dbname} set default_transaction_isolation = serializable")
        conn.execute(f"alter database {conn.info.dbname} set statement_timeout = '50s'")
        # the pooler's sessions are older than these defaults
        conn.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
    with SyncClient(pooler, max_connections=2, prepare=False) as mq:
        mq.enqueue("mail", 1)
    stop = asyncio.Event()

    async def keep_up() -> None:
        await upkeep.run(pooler, timedelta(milliseconds=10), stop)

    async def run() -> None:
        task = asyncio.create_task(keep_up())
        async with await psycopg.AsyncConnection.connect(db, autocommit=True) as conn:
            while (await (await conn.execute("select last_value from trunkline.upkeep_jobs")).fetchone()) == (0,):
                await asyncio.sleep(0.02)
        stop.set()
        await task

    asyncio.run(run())
    with psycopg.connect(pooler, autocommit=True, prepare_threshold=None) as conn:
        assert conn.info.backend_pid != conn.execute("select pg_backend_pid()").fetchone()[0]  # type: ignore[index]
        assert conn.execute("show default_transaction_isolation").fetchone() == ("serializable",)
        assert conn.execute("show statement_timeout").fetchone() == ("50s",)


def test_borrowed_connection_without_prepared_statements(pooler: str, db: str) -> None:
    with SyncClient(db) as mq:
        mq.topics.ensure("orders")
        with psycopg.connect(pooler, prepare_threshold=None) as conn:
            for n in range(20):
                mq.on(conn).publish("orders", {"n": n})
                conn.commit()
        assert mq.topics.head("orders") == 20


def test_an_old_pooler_refuses_prepared_statements(pooler: str) -> None:
    """The page's statement about PgBouncer before 1.21 still holds; if this fails, the page is too strict."""
    if _version() >= (1, 21):
        pytest.skip("this PgBouncer follows prepared statements")
    with SyncClient(pooler, max_connections=4) as mq, pytest.raises(Exception, match="prepared statement"):
        mq.queues.ensure("mail")
        for n in range(200):
            mq.enqueue("mail", n)
            mq.claim("mail").ack()


def test_a_client_that_does_not_prepare_works_behind_every_pooler(pooler: str) -> None:
    with SyncClient(pooler, max_connections=4, prepare=False) as mq:
        mq.queues.ensure("mail")
        for n in range(100):
            mq.enqueue("mail", n)
            [delivery] = mq.claim("mail")
            assert (delivery.body, delivery.ack()) == (n, "done")
        mq.topics.ensure("orders")
        mq.publish_many("orders", range(2500))
        seen = 0
        with mq.subscribe("orders", group="g", batch=500) as batches:
            for batch in batches:
                with batch.transaction() as conn:
                    conn.execute("select 1")
                seen += len(batch)
                if seen == 2500:
                    batches.stop()
