"""A process's connection and notebook: every call goes through here, so that none goes unrecorded."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg

from tests.chaos.history import Recorder

Row = tuple[Any, ...]
_RETRY_SECONDS = 0.05


class Session:
    """Calls of one process. A call without a response is `info`, a refused one is `fail`; both return None."""

    def __init__(self, url: str, directory: Path, proc: str, seed: int = 0) -> None:
        self.recorder = Recorder(directory, proc)
        self.proc = proc
        self.random = random.Random(f"{seed} {proc}")
        self.stopped = False
        self._url = url
        self._conn: psycopg.Connection[Row] | None = None
        self._prepared = 0

    def stop_on_sigterm(self) -> None:
        def stop(*_: object) -> None:
            self.stopped = True

        signal.signal(signal.SIGTERM, stop)

    def connect(self) -> psycopg.Connection[Row]:
        """An open connection in autocommit mode; waits while the server is down."""
        while self._conn is None or self._conn.closed:
            try:
                self._conn = psycopg.connect(self._url, autocommit=True, connect_timeout=10)
            except psycopg.OperationalError:
                time.sleep(_RETRY_SECONDS)
        return self._conn

    def rows(self, query: str, args: Sequence[Any] = ()) -> list[Row]:
        return self.connect().execute(query.encode(), args).fetchall()

    def settle_outcome(self, op: int, error: psycopg.Error, *, sent: bool = True) -> str:
        """Record a call that raised. Without a response it may have taken effect, if the last step was sent."""
        assert self._conn is not None
        if self._conn.closed or error.sqlstate is None:
            outcome = "info" if sent else "fail"
            self.recorder.done(op, outcome)
            self.drop()
            return outcome
        self.recorder.done(op, "fail", code=error.sqlstate, message=str(error).splitlines()[0])
        if error.sqlstate.startswith("57P"):
            self.drop()
        return "fail"

    def drop(self) -> None:
        """Leave the connection, and with it whatever is open in it."""
        if self._conn is not None:
            self._conn.close()
        self._conn = None

    def close(self) -> None:
        self.drop()
        self.recorder.close()

    def sequence(self, topic: str) -> None:
        """Give offsets to what was committed to a topic: reads show what has one."""
        # false: another session was at it, and it may have begun before our message was committed
        while not self.rows("select trunkline.run_pass(null, %s)", ([topic],))[0][0]:
            pass

    def read(self, topic: str, partition: int, first: int, limit: int, expect: Sequence[str] = ()) -> list[list[Any]] | None:
        args: dict[str, Any] = {"target": f"topic:{topic}", "partition": partition, "first": first, "limit": limit}
        if expect:
            args["expect"] = expect
        op = self.recorder.invoke("read", **args)
        try:
            self.sequence(topic)
            found = self.rows(
                "select log_offset, convert_from(payload, 'UTF8')"
                " from trunkline.read(%s, %s, %s, %s::int) order by log_offset",
                (topic, partition, first, limit),
            )
        except psycopg.Error as error:
            self.settle_outcome(op, error)
            return None
        rows = [list(row) for row in found]
        self.recorder.done(op, "ok", rows=rows)
        return rows

    def head(self, topic: str, partition: int) -> int | None:
        op = self.recorder.invoke("head", target=f"topic:{topic}", partition=partition)
        try:
            self.sequence(topic)
            head: int = self.rows("select trunkline.head(%s, %s)", (topic, partition))[0][0]
        except psycopg.Error as error:
            self.settle_outcome(op, error)
            return None
        self.recorder.done(op, "ok", head=head)
        return head

    def claim(
        self,
        queue: str,
        limit: int,
        lease: float,
        *,
        relaxed: bool = False,
        labels: Sequence[str] | None = None,
        how: str = "alone",
        hold: float = 0.0,
    ) -> list[list[Any]] | None:
        """Rows of receipt, attempt, deadline (seconds by the database's clock), content, partition and offset.

        `how`: as a statement of its own ("alone"), or how the transaction ends that is open for `hold` seconds. What is
        rolled back did not happen, whatever it drew.
        """
        asked = {"labels": list(labels)} if labels else {}
        op = self.recorder.invoke("claim", queue=queue, lease=lease, relaxed=relaxed, **asked)
        sent = how == "alone"
        try:
            begin = self.connect()
            if how != "alone":
                begin.execute("begin")
                begin.execute("savepoint one")
            found = self.rows(
                "select receipt, attempt, extract(epoch from deadline)::float8, convert_from(payload, 'UTF8'),"
                " coalesce(topic, '') || '/' || partition, log_offset"
                " from trunkline.claim(%s, %s::int, make_interval(secs => %s), p_consumer => %s, p_relaxed => %s,"
                " p_labels => %s::text[])",
                (queue, limit, lease, self.proc, relaxed, asked.get("labels")),
            )
            if how != "alone":
                time.sleep(hold)
                sent = how in ("commit", "commit prepared")
                self._end(how)
        except psycopg.Error as error:
            self.settle_outcome(op, error, sent=sent)
            if how != "alone":
                self.drop()
            return None
        if how not in ("alone", "commit", "commit prepared"):
            self.recorder.done(op, "fail")
            return None
        rows = [list(row) for row in found]
        self.recorder.done(op, "ok", rows=rows)
        return rows

    def _end(self, how: str) -> None:
        """End a transaction that has one savepoint."""
        conn = self.connect()
        if how == "close":
            self.drop()
        elif how == "rollback to one":
            conn.execute("rollback to one")
            conn.execute("commit")
        elif how.endswith("prepared"):
            name = f"{self.proc} {self._prepared}"
            self._prepared += 1
            conn.execute(f"prepare transaction '{name}'".encode())
            time.sleep(self.random.uniform(0, 0.5))
            conn.execute(f"{how} '{name}'".encode())
        else:
            conn.execute(how.encode())

    def settle(
        self,
        verb: str,
        receipts: Sequence[str],
        *,
        seconds: float | None = None,
        delay: float | None = None,
        hold: float | None = None,
        keep: bool = True,
    ) -> list[str] | None:
        """One verb on many receipts. `seconds` is what the checker holds the server to: the least delay of a nack, or the
        length of an extension. `delay` is what the call says, if it says one.
        `hold` keeps it in an open transaction that long; it then commits, or rolls back unless `keep`."""
        op = self.recorder.invoke("settle", verb=verb, receipts=list(receipts), seconds=seconds)
        extra = ", make_interval(secs => %s)" if delay is not None else ""
        args: list[Any] = [list(receipts), *([delay] if delay is not None else [])]
        query = (
            "select extract(epoch from trunkline.clock())::float8,"
            f" array(select result from trunkline.{verb}(%s{extra}) order by ord),"
            " extract(epoch from trunkline.clock())::float8"
        )
        sent = hold is None
        try:
            conn = self.connect()
            if hold is not None:
                conn.execute("begin")
            before, answers, after = self.rows(query, args)[0]
            if hold is not None:
                time.sleep(hold)
                sent = keep
                conn.execute("commit" if keep else "rollback")
        except psycopg.Error as error:
            self.settle_outcome(op, error, sent=sent)
            self.drop()
            return None
        if hold is not None and not keep:
            self.recorder.done(op, "fail")
            return None
        self.recorder.done(op, "ok", before=before, answers=answers, after=after)
        return list(answers)
