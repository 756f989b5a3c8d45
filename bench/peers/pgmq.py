"""pgmq through its public functions: the SQL of release 1.13, from the PyPI package `pgmq`."""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path

from bench.lab import Lab
from bench.pgbench import text
from bench.session import Session, column, int4, int8_array

NAME = "pgmq 1.13"
_QUEUE = "bench"


def make(lab: Lab) -> None:
    if lab.value("select to_regnamespace('pgmq') is null"):
        lab.conn.execute("create schema pgmq")
        package = find_spec("pgmq")
        assert package is not None and package.origin is not None
        lab.conn.execute((Path(package.origin).parent / "sql" / "pgmq.sql").read_bytes())
    else:
        lab.value(f"select pgmq.drop_queue('{_QUEUE}')")
    lab.value(f"select pgmq.create('{_QUEUE}')")


def load(lab: Lab, *, messages: int, payload: int) -> None:
    for start in range(0, messages, 10_000):
        lab.value(
            f"select count(*) from pgmq.send_batch('{_QUEUE}', array_fill(to_jsonb(%s::text), array[%s]))",
            text(payload),
            min(10_000, messages - start),
        )


def calm(lab: Lab) -> None:
    lab.calm(f"pgmq.q_{_QUEUE}")


def publish_script() -> str:
    return f"select * from pgmq.send('{_QUEUE}', to_jsonb(:payload::text));\n"


def claim_ack_script() -> str:
    return f"select msg_id from pgmq.read('{_QUEUE}', 30, 1) \\gset\nselect pgmq.delete('{_QUEUE}', :msg_id::bigint);\n"


class ClaimAck:
    """Read up to `batch` messages, then delete them by id, returning the deleted ids."""

    def __init__(self, session: Session, *, batch: int) -> None:
        self.latencies: list[float] = []
        self._session = session
        self._batch = int4(batch)
        session.prepare("claim", f"select * from pgmq.read('{_QUEUE}', 30, $1::int)")
        session.prepare("ack", f"select pgmq.delete('{_QUEUE}', $1::bigint[])")

    def __call__(self) -> int:
        start = time.perf_counter()
        claimed = self._session.call("claim", self._batch)
        if claimed.ntuples == 0:
            return 0
        self.latencies.append(time.perf_counter() - start)
        deleted = self._session.call("ack", int8_array(column(claimed, 0)))
        if deleted.ntuples != claimed.ntuples:
            raise RuntimeError(f"{claimed.ntuples} read, {deleted.ntuples} deleted")
        return claimed.ntuples
