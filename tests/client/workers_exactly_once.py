"""Processes that are to be killed: they write one row per message into `ledger`, in the transaction that settles it.

`python -m tests.client.workers_exactly_once URL DIRECTORY NAME ROLE` is one of them. Each keeps a diary, a file that
outlives a kill -9. A file named `calm` in the directory tells them to stop dawdling.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import psycopg
from psycopg.conninfo import conninfo_to_dict

from trunkline import Client, LeaseLost, SyncClient
from trunkline.errors import OutcomeUnknown, Unavailable

LEASE = "2s"
LEDGER = "insert into ledger (target, value, worker) values (%s, %s, %s)"
# Errors that a consumer may encounter: its lease expired, the server went away, or it restarted without a fetch of its
# last moment (OffsetAhead). Anything else ends the process, and the test.
GONE = (LeaseLost, OutcomeUnknown, Unavailable)


class RolledBack(Exception):
    """Raised in a transaction that is not to happen."""


class Diary:
    """Record the steps of a process, one line each, passed to the operating system before the next step."""

    def __init__(self, directory: Path, name: str) -> None:
        self.name = name
        self._calm = directory / "calm"
        self._fd = os.open(directory / f"{name}.diary", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)

    def write(self, word: str, *details: str) -> None:
        os.write(self._fd, " ".join([word, *details]).encode() + b"\n")

    def dawdle(self) -> float:
        """Seconds to spend inside a transaction, so that most kills come in the middle of one."""
        return 0.0 if self._calm.exists() else random.uniform(0.02, 0.1)


class Store(Protocol):
    """An application's own database access: `conn` is what it gives to `on()`."""

    gone: tuple[type[Exception], ...]

    @property
    def conn(self) -> Any: ...

    @contextmanager
    def transaction(self) -> Iterator[None]: ...

    def record(self, table: str, target: str, value: str, process: str) -> None: ...


class PsycopgStore:
    """A plain connection of psycopg."""

    gone = (psycopg.OperationalError,)

    def __init__(self, url: str) -> None:
        self._url = url
        self.conn: Any = None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        if self.conn is None or self.conn.closed:
            self.conn = psycopg.connect(self._url)
        with self.conn.transaction():
            yield

    def record(self, table: str, target: str, value: str, process: str) -> None:
        self.conn.execute(f"insert into {table} (target, value, worker) values (%s, %s, %s)", (target, value, process))


class AlchemyStore:
    """A Session of SQLAlchemy 2 with mapped rows, which it sends when the transaction ends."""

    def __init__(self, url: str) -> None:
        import sqlalchemy
        from sqlalchemy.orm import DeclarativeBase, Session, mapped_column

        class Base(DeclarativeBase):
            pass

        class Row(Base):
            __abstract__ = True
            id = mapped_column(sqlalchemy.BigInteger, primary_key=True)
            target = mapped_column(sqlalchemy.Text)
            value = mapped_column(sqlalchemy.Text)
            worker = mapped_column(sqlalchemy.Text)

        class Ledger(Row):
            __tablename__ = "ledger"

        class Publication(Row):
            __tablename__ = "publications"

        parts = {name: str(value) for name, value in conninfo_to_dict(url).items()}
        self._engine = sqlalchemy.create_engine(
            sqlalchemy.URL.create(
                "postgresql+psycopg",
                username=parts["user"],
                password=parts.get("password"),
                database=parts["dbname"],
                query={"host": parts["host"], "port": parts["port"]},
            )
        )
        self._session = Session
        self._rows: dict[str, Any] = {"ledger": Ledger, "publications": Publication}
        self.conn: Any = None
        self.gone = (sqlalchemy.exc.OperationalError, sqlalchemy.exc.InterfaceError)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._session(self._engine) as self.conn, self.conn.begin():
            yield

    def record(self, table: str, target: str, value: str, process: str) -> None:
        self.conn.add(self._rows[table](target=target, value=value, worker=process))


class DjangoStore:
    """Django's default connection with models."""

    def __init__(self, url: str) -> None:
        from django.conf import settings

        parts = conninfo_to_dict(url)
        default = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": parts["dbname"],
            "USER": parts["user"],
            "PASSWORD": parts.get("password", ""),
            "HOST": parts["host"],
            "PORT": parts["port"],
            "CONN_MAX_AGE": None,
        }
        settings.configure(USE_TZ=True, DATABASES={"default": default})
        import django
        from django import db
        from django.db import models

        django.setup()

        class Row(models.Model):
            id = models.BigAutoField(primary_key=True)
            target = models.TextField()
            value = models.TextField()
            worker = models.TextField()

            class Meta:
                abstract = True

        class Ledger(Row):
            class Meta:
                app_label = "exactly_once"
                db_table = "ledger"

        class Publication(Row):
            class Meta:
                app_label = "exactly_once"
                db_table = "publications"

        self._db = db
        self._models: dict[str, Any] = {"ledger": Ledger, "publications": Publication}
        self.conn = db.connection
        self.gone = (db.OperationalError, db.InterfaceError)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        # what Django does between requests; it drops a connection that had errors
        self._db.close_old_connections()
        with self._db.transaction.atomic():
            yield

    def record(self, table: str, target: str, value: str, process: str) -> None:
        self._models[table].objects.create(target=target, value=value, worker=process)


STORES: dict[str, Callable[[str], Store]] = {"psycopg": PsycopgStore, "sqlalchemy": AlchemyStore, "django": DjangoStore}  # type: ignore[dict-item]


async def consume_batches(url: str, diary: Diary) -> None:
    """A group, with `batch.transaction()`."""
    async with Client(url) as mq:
        while True:
            try:
                async with mq.subscribe("batch", group="g", batch=3, lease=LEASE) as batches:
                    async for batch in batches:
                        values = [message.body for message in batch]
                        diary.write("take", "topic:batch", *values)
                        try:
                            async with batch.transaction() as conn:
                                for value in values:
                                    await conn.execute(LEDGER, ("topic:batch", value, diary.name))
                                await asyncio.sleep(diary.dawdle())
                            diary.write("done")
                        except GONE as error:
                            diary.write("failed", repr(error))
            except GONE as error:
                diary.write("failed", repr(error))
                await asyncio.sleep(0.2)


async def consume_single_deliveries(url: str, diary: Diary) -> None:
    """A queue, one by one, with `delivery.transaction()`."""
    async with Client(url) as mq:
        while True:
            try:
                async with mq.queue("queue").claims(max_in_flight=3, lease=LEASE) as deliveries:
                    async for delivery in deliveries:
                        diary.write("take", "queue:queue", delivery.body)
                        async with delivery.transaction() as conn:
                            await conn.execute(LEDGER, ("queue:queue", delivery.body, diary.name))
                            await asyncio.sleep(diary.dawdle())
                        diary.write("done")
            except GONE as error:
                # The loop is left and entered again: its messages are redelivered when their lease expires.
                diary.write("failed", repr(error))
                await asyncio.sleep(0.2)


async def consume_many_deliveries(url: str, diary: Diary) -> None:
    """The same queue, several at once, with `deliveries.transaction()`."""
    async with Client(url) as mq:
        while True:
            try:
                taken = await mq.claim("queue", limit=3, lease=LEASE)
                if not taken:
                    await asyncio.sleep(0.05)
                    continue
                diary.write("take", "queue:queue", *[delivery.body for delivery in taken])
                async with taken.transaction() as conn:
                    for delivery in taken:
                        await conn.execute(LEDGER, ("queue:queue", delivery.body, diary.name))
                    await asyncio.sleep(diary.dawdle())
                diary.write("done")
            except GONE as error:
                diary.write("failed", repr(error))
                await asyncio.sleep(0.2)


def commit(bound: Any, batch: Any) -> Sequence[str]:
    return [bound.commit(batch)]


def ack(bound: Any, taken: Any) -> Sequence[str]:
    return list(bound.ack(taken.receipts))


def consume_on(url: str, diary: Diary, form: str) -> None:
    """A group and a queue in turn, settled with `on(conn)` in the application's own transaction."""
    store = STORES[form](url)

    def work(target: str, messages: Any, settle: Callable[[Any, Any], Sequence[str]]) -> None:
        values = [message.body for message in messages]
        diary.write("take", target, *values)
        with store.transaction():
            for value in values:
                store.record("ledger", target, value, diary.name)
            time.sleep(diary.dawdle())
            answers = settle(mq.on(store.conn), messages)
            diary.write("answered", *answers)
            if any(answer != "done" for answer in answers):
                raise LeaseLost(f"the answers were {answers}")
            time.sleep(diary.dawdle() / 2)
        diary.write("done")

    with SyncClient(url) as mq:
        while True:
            try:
                batch = mq.fetch(form, "g", member=diary.name, limit=3, lease=LEASE)
                if batch is not None:
                    work(f"topic:{form}", batch, commit)
                taken = mq.claim(form, limit=3, lease=LEASE)
                if taken:
                    work(f"queue:{form}", taken, ack)
                if batch is None and not taken:
                    time.sleep(0.05)
            except (*GONE, *store.gone) as error:
                diary.write("failed", repr(error))
                time.sleep(0.2)


def consume_wrongly(url: str, diary: Diary, first: str) -> None:
    """The planted bug: the row and the ack in two transactions. `first` says which of them comes first."""
    with SyncClient(url) as mq, psycopg.connect(url, autocommit=True) as conn:

        def write() -> None:
            conn.execute(LEDGER, ("queue:queue", delivery.body, diary.name))

        while True:
            for delivery in mq.claim("queue", lease=LEASE):
                diary.write("take", "queue:queue", delivery.body)
                steps: list[Callable[[], object]] = [write, delivery.ack] if first == "effect" else [delivery.ack, write]
                steps[0]()
                diary.write("half")
                time.sleep(3 * diary.dawdle())
                steps[1]()
                diary.write("done")


def publish_on(url: str, diary: Diary, form: str, targets: Sequence[str]) -> None:
    """Publishes with `on(conn)`, and notes in `publications`, in the same transaction, what it published.

    Every fourth transaction or so is rolled back. SIGTERM ends it between two transactions.
    """
    stopped = False

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True

    signal.signal(signal.SIGTERM, stop)
    store = STORES[form](url)
    mq = SyncClient(url)
    number = 0
    while not stopped:
        doomed = random.random() < 0.25
        sent: list[str] = []
        try:
            with store.transaction():
                bound = mq.on(store.conn)
                for target in random.sample(targets, min(len(targets), 3)):
                    kind, name = target.split(":")
                    values = [f"{diary.name}.{number + n}" for n in range(random.randint(1, 4))]
                    number += len(values)
                    sent += [f"{target}/{value}" for value in values]
                    many = bound.publish_many if kind == "topic" else bound.enqueue_many
                    one = bound.publish if kind == "topic" else bound.enqueue
                    if len(values) == 1:
                        one(name, values[0], key=values[0])
                    else:
                        many(name, values, key=lambda value: value)
                    for value in values:
                        store.record("publications", target, value, diary.name)
                if doomed:
                    raise RolledBack
            diary.write("committed", *sent)
        except RolledBack:
            diary.write("undone", *sent)
        except (*GONE, *store.gone) as error:
            diary.write("failed", repr(error))
        time.sleep(random.uniform(0.02, 0.15))


def run_upkeep(url: str, diary: Diary) -> None:
    while True:
        try:
            with psycopg.connect(url, autocommit=True) as conn:
                while True:
                    conn.execute("call trunkline.upkeep()")
                    time.sleep(0.2)
        except psycopg.OperationalError as error:
            diary.write("failed", repr(error))
            time.sleep(0.2)


def main() -> None:
    url, directory, name, role, *details = sys.argv[1:]
    diary = Diary(Path(directory), name)
    match role:
        case "batch":
            asyncio.run(consume_batches(url, diary))
        case "delivery":
            asyncio.run(consume_single_deliveries(url, diary))
        case "deliveries":
            asyncio.run(consume_many_deliveries(url, diary))
        case "on":
            consume_on(url, diary, details[0])
        case "wrong":
            consume_wrongly(url, diary, details[0])
        case "publish":
            publish_on(url, diary, details[0], details[1:])
        case "upkeep":
            run_upkeep(url, diary)
        case _:
            raise SystemExit(f"there is no role {role}")


if __name__ == "__main__":
    main()
