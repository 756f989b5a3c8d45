"""A transaction that stays open keeps vacuum away; nothing here may depend on vacuum. `bench` has the ten minutes."""

from __future__ import annotations

import threading
import time

import psycopg
import pytest

_SECONDS = 60
_STEP = 0.1
_BATCH = 200
# of a batch: published with a delay; of a claim: nacked with a delay, once
_DELAYED = 20
_NACKED = 10


def _feed(db: str, failed: list[BaseException]) -> None:
    try:
        with psycopg.connect(db, autocommit=True) as conn:
            start = time.monotonic()
            for step in range(int(_SECONDS / _STEP)):
                conn.execute(
                    "select count(*) from trunkline.enqueue_many('q', %s, p_delays => %s::interval[])",
                    ([b"x" * 300] * _BATCH, ["1 second"] * _DELAYED + [None] * (_BATCH - _DELAYED)),
                )
                time.sleep(max(0.0, start + (step + 1) * _STEP - time.monotonic()))
    except BaseException as exc:
        failed.append(exc)


def _upkeep(db: str, stop: threading.Event, failed: list[BaseException]) -> None:
    try:
        with psycopg.connect(db, autocommit=True) as conn:
            while not stop.wait(0.5):
                conn.execute("call trunkline.upkeep()")
    except BaseException as exc:
        failed.append(exc)


@pytest.mark.timeout(600)
def test_a_minute_of_traffic_behind_an_open_transaction_leaves_no_dead_rows(
    db: str, conn: psycopg.Connection[tuple[int]]
) -> None:
    conn.execute("select trunkline.create_queue('q')")
    conn.execute("update trunkline.settings set value = '15 seconds' where name = 'rotate_every'")
    failed: list[BaseException] = []
    stop = threading.Event()
    with psycopg.connect(db) as holder:
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select pg_current_xact_id()")
        feeder = threading.Thread(target=_feed, args=(db, failed))
        keeper = threading.Thread(target=_upkeep, args=(db, stop, failed))
        feeder.start()
        keeper.start()
        wanted, done = int(_SECONDS / _STEP) * _BATCH, 0
        deadline = time.monotonic() + 3 * _SECONDS
        while done < wanted and time.monotonic() < deadline and not failed:
            claimed = conn.execute("select receipt, attempt from trunkline.claim('q', 100)").fetchall()
            if claimed:
                back = [receipt for receipt, attempt in claimed if attempt == 1][:_NACKED]
                conn.execute("select trunkline.nack(%s, '1 second')", (back,))
                receipts = [receipt for receipt, _ in claimed if receipt not in back]
                done += len(conn.execute("select from trunkline.ack(%s)", (receipts,)).fetchall())
            else:
                time.sleep(0.01)
        feeder.join()
        stop.set()
        keeper.join()
        assert not failed, failed
        assert done == wanted
        conn.execute("select pg_stat_force_next_flush()")
        dead = conn.execute(
            "select relname, n_dead_tup from pg_stat_user_tables where schemaname = 'trunkline' and n_dead_tup > 0"
        ).fetchall()
    assert sum(row[1] for row in dead) < 1000, dead  # type: ignore[misc]
