"""pgmb's own document, from psql alone, against a real HTTP server and `trunkline dispatch`."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator

import psycopg
import pytest

from tests.conftest import Connection
from tests.docs.shells import as_url
from tests.push.receivers import Seen, receiving
from tests.support.postgres import VERSIONS
from tests.support.waiting import wait_until
from trunkline.embedded.install import psql
from trunkline.sql.migrate import migrate


@pytest.fixture
def pgmb(db: str) -> str:
    assert migrate(db, extra=["pgmb"]).applied == ["pgmb.sql"]
    assert migrate(db).applied == []
    return db


@contextlib.contextmanager
def command(db: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A `trunkline` command that runs beside the test."""
    environment = {**os.environ, "TRUNKLINE_DATABASE_URL": as_url(db)}
    process = subprocess.Popen(
        [sys.executable, "-c", "from trunkline.cli.main import main; main()", *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


class Psql:
    """Input as typed by a user."""

    def __init__(self, db: str) -> None:
        self._db = db

    def __call__(self, text: str) -> str:
        done = subprocess.run(
            [str(psql()), "-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", self._db],
            input=text, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def until(self, query: str, wanted: str, seconds: float = 60) -> None:
        wait_until(lambda: self(query) == wanted, seconds=seconds, message=query)


def test_the_documents_session(pgmb: str) -> None:
    """Worker, queues in both argument orders, every form of send, routing, dispatch, retries, dead letters, the tables."""
    failing = True

    def answer(seen: Seen) -> int:
        return 500 if b"poison" in seen.body and failing else 200

    ask = Psql(pgmb)
    with receiving(answer) as receiver, command(pgmb, "dispatch", "--push-allow", "127.0.0.0/8"):
        worker = ask(f"select pgmb.worker('order_processor', '{receiver.url}', 100);")
        uuid.UUID(worker)
        queue = ask(f"select pgmb.create('order_queue', 'order.*', '{worker}', 1);")
        uuid.UUID(queue)
        ask(f"select pgmb.create('audit', '*', 5, '{worker}');")
        for number, more in enumerate(
            (
                "",
                """, '{"source": "web", "priority": "high"}'::jsonb""",
                """, '{"source": "web"}'::jsonb, now() + interval '2 seconds'""",
                """, '{"source": "web"}'::jsonb, 2""",
                ", now() + interval '2 seconds'",
                ", 2",
                ", '{}'::jsonb, now() + interval '10 minutes'",
                ", 600",
            ),
            start=1,
        ):
            ask(f"""select pgmb.send(gen_random_uuid(), 'order.created', '{{"order_id": {number}}}'::jsonb{more})""")
        seen = receiver.wait(lambda seen: len(seen) == 12)
        by_queue: dict[str, list[int]] = {}
        for each in seen:
            by_queue.setdefault(each.headers["trunkline-queue"], []).append(json.loads(each.body)["order_id"])
        assert sorted(by_queue["order_queue"]) == sorted(by_queue["audit"]) == [1, 2, 3, 4, 5, 6]
        headers = next(each.headers for each in seen if json.loads(each.body)["order_id"] == 2)
        assert json.loads(headers["trunkline-headers"]) == {"source": "web", "priority": "high"}

        # Every retry with backoff, then the dead letters of that queue; the others continue.
        ask("select pgmb.send('550e8400-e29b-41d4-a716-446655440000', 'order.created', '\"poison\"'::jsonb);")
        ask.until("select count(*) from pgmb.order_dead_letter_queue", "1")
        assert ask("select message_id, retries, error from pgmb.order_dead_letter_queue") == (
            "550e8400-e29b-41d4-a716-446655440000|1|HTTP 500"
        )
        failing = False
        ask.until("select count(*) from pgmb.audit_queue where acknoledge", "7")

        # monitoring, as the document has it
        assert ask("select name, rps, endpoint = 'x' from pgmb.workers") == "order_processor|100|f"
        assert ask("select name, binding_key, max_retries from pgmb.queues order by 1") == "audit|*|5\norder_queue|order.*|1"
        assert ask("select count(*) from pgmb.order_queue where acknoledge = false") == "0"
        assert ask("select count(*) from pgmb.order_queue where acknoledge") == "6"
        assert ask("select count(*) from pgmb.messages") == "9"


def test_both_argument_orders_and_all_forms_of_send_resolve(pgmb: str, conn: Connection) -> None:
    forms = conn.execute("select count(*) from pg_proc where pronamespace = 'pgmb'::regnamespace and proname = 'send'")
    assert forms.fetchone() == (6,)
    worker = conn.execute("select pgmb.worker('w', 'http://localhost:8080/process', 1)").fetchone()
    assert worker is not None
    conn.execute(f"select pgmb.create('a', 'x.*', 5, '{worker[0]}')".encode())
    conn.execute(f"select pgmb.create('b', 'x.*', '{worker[0]}', 5)".encode())


def test_t17_awkward_queue_names_work_or_are_refused_cleanly(pgmb: str, conn: Connection) -> None:
    worker = conn.execute("select pgmb.worker('w', 'http://localhost/', 1)").fetchone()
    assert worker is not None
    for name in ("order", "My-Queue", "select", "a" * 63, "b" * 64, "x_dead_letter", "x"):
        conn.execute("select pgmb.create(%s::varchar, 'k', 1, %s)", (name, worker[0]))
    assert conn.execute('select count(*) from pgmb."My-Queue_queue"').fetchone() == (0,)
    assert conn.execute("select count(*) from pgmb.order_queue").fetchone() == (0,)
    for name in ("", "a b", 'a"b', "ä", "a" * 201, None):  # type: ignore[assignment]
        with pytest.raises(psycopg.Error) as refused:
            conn.execute("select pgmb.create(%s::varchar, 'k', 1, %s)", (name, worker[0]))
        assert refused.value.sqlstate == "TL002"


@pytest.mark.parametrize(
    ("binding", "key", "hit"),
    [
        ("user_created", "userXcreated", False),
        ("user_created", "user_created", True),
        ("a%", "abc", False),
        ("order.*", "order.created", True),
        ("order.*", "order.a.b", True),
        ("order.*", "order.", True),
        ("order.*", "order", False),
        ("order.*", "orderx", False),
        ("*", "anything.at.all", True),
        ("*.created", "order.created", True),
        ("order.*", "Order.created", False),
        ("a.b", "aXb", False),
        ("a+(b)", "a+(b)", True),
    ],
)
def test_t18_bindings_take_only_the_star_for_a_wildcard(
    pgmb: str, conn: Connection, binding: str, key: str, hit: bool
) -> None:
    worker = conn.execute("select pgmb.worker('w', 'http://localhost/', 1)").fetchone()
    assert worker is not None
    conn.execute("select pgmb.create('q', %s::varchar, 1, %s)", (binding, worker[0]))
    conn.execute("select pgmb.send(gen_random_uuid(), %s::varchar, '1'::jsonb)", (key,))
    conn.execute("call trunkline.sequence()")
    assert conn.execute("select count(*) from pgmb.q_queue").fetchone() == (int(hit),)
    assert conn.execute("select matches from trunkline.test_routing('pgmb', %s)", (key,)).fetchone() == (hit,)


@pytest.mark.parametrize("pg_version", VERSIONS)
def test_a_view_that_shows_another_queue_is_said(pgmb: str, conn: Connection) -> None:
    notices: list[str] = []
    conn.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
    worker = conn.execute("select pgmb.worker('w', 'https://example.com/hook', 5)").fetchall()[0][0]
    conn.execute("select pgmb.create('order_queue', 'a.*', 5, %s)", (str(worker),))
    assert not [text for text in notices if "shows another queue" in text]
    conn.execute("select pgmb.create('order', 'b.*', 5, %s)", (str(worker),))
    assert len([text for text in notices if "shows another queue" in text]) == 2
    # a repeat of the installation says nothing about views that are right
    notices.clear()
    conn.execute("select pgmb._make_views('order_queue')")
    assert notices == []


def test_the_heartbeat_is_not_in_the_future(pgmb: str, conn: Connection) -> None:
    conn.execute("select pgmb.worker('w', 'https://example.com/hook', 5)")
    with command(pgmb, "dispatch"):
        for _ in range(600):
            found = conn.execute("select last_heartbeat <= now() from pgmb.workers").fetchall()
            if found != [(None,)]:
                break
            conn.execute("select pg_sleep(0.1)")
    assert found == [(True,)]


def test_the_views_of_a_queue_go_with_it(pgmb: str, conn: Connection) -> None:
    worker = conn.execute("select pgmb.worker('w', 'http://localhost/', 1)").fetchone()
    assert worker is not None
    for name in ("order_queue", "other", "order"):
        conn.execute("select pgmb.create(%s::varchar, 'order.*', 1, %s)", (name, worker[0]))

    def views() -> set[str]:
        query = "select relname from pg_class where relnamespace = 'pgmb'::regnamespace and relkind = 'v'"
        return {row[0] for row in conn.execute(query)} - {"workers", "queues", "messages"}

    # order_queue has the short names too, so order gets none
    of_first = {"order_queue_queue", "order_queue_dead_letter_queue", "order_queue", "order_dead_letter_queue"}
    of_other = {"other_queue", "other_dead_letter_queue"}
    assert views() == of_first | of_other
    conn.execute("select trunkline.delete_queue('order', p_force => true)")
    assert views() == of_first | of_other
    conn.execute("select trunkline.delete_queue('order_queue', p_force => true)")
    assert views() == of_other


def test_bad_calls_are_refused_with_a_code(pgmb: str, conn: Connection) -> None:
    for call, code in (
        ("pgmb.worker('w', 'http://localhost/', 0)", "TL001"),
        ("pgmb.worker('w', 'http://localhost/', -5)", "TL001"),
        ("pgmb.worker('w', 'localhost:80', 1)", "TL001"),
        ("pgmb.worker('w', 'ftp://localhost/', 1)", "TL001"),
        ("pgmb.create('q', 'k', 1, gen_random_uuid())", "TL017"),
        ("pgmb.send(null, 'k', '1'::jsonb)", "TL001"),
        ("pgmb.send(gen_random_uuid(), null, '1'::jsonb)", "TL001"),
    ):
        with pytest.raises(psycopg.Error) as refused:
            conn.execute(f"select {call}".encode())
        assert refused.value.sqlstate == code, call
    id = uuid.uuid4()
    conn.execute("select pgmb.send(%s, 'k', '1'::jsonb)", (id,))
    conn.execute("select pgmb.send(%s, 'k', '1'::jsonb)", (id,))
    with pytest.raises(psycopg.Error) as refused:
        conn.execute("select pgmb.send(%s, 'k', '2'::jsonb)", (id,))
    assert refused.value.sqlstate == "TL022"
    assert conn.execute("select count(*) from pgmb.messages").fetchone() == (1,)
