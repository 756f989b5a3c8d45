"""Make landed_20.sql.xz: a database at version 20, as the last revision before the baseline made it, with content.

    python -m tests.migration.make_landed REVISION FILE

The kernel comes from the git revision; the content is written with its SQL functions, on Postgres 15. A row of
`public.landed` holds what the revision returned, for test_landed.py to compare.
"""

from __future__ import annotations

import lzma
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, LiteralString
from uuid import UUID, uuid4

import psycopg
from psycopg.types.json import Jsonb

from tests.support.postgres import DEBIAN, make_server

Connection = psycopg.Connection[tuple[Any, ...]]
ROOT = Path(__file__).parents[2]
QUEUES = ("plain", "ordered", "levels", "labels", "own", "fed", "jobs", "hooks")


def rows(conn: Connection, query: LiteralString, *args: Any) -> list[Any]:
    """The rows of a query; of a single column, its values."""
    found = conn.execute(query, args).fetchall()
    return [row[0] for row in found] if found and len(found[0]) == 1 else found


def install(revision: str, url: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", revision, "src"], cwd=ROOT, check=True, capture_output=True)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        code = "import sys; from trunkline.sql.migrate import migrate; assert migrate(sys.argv[1]).version == 20"
        environment = {**os.environ, "PYTHONPATH": f"{folder}/src"}
        subprocess.run([sys.executable, "-c", code, url], cwd=folder, env=environment, check=True)


def enqueue(conn: Connection, queue: str, count: int, **columns: list[Any]) -> list[UUID]:
    """Enqueue messages 0, 1 and so on; further columns by the names of the parameters of enqueue_many."""
    ids = [uuid4() for _ in range(count)]
    more = "".join(f", p_{name} => %({name})s" for name in columns)
    conn.execute(
        f"select trunkline.enqueue_many(%(queue)s, %(payloads)s, %(ids)s{more})",  # type: ignore[arg-type]
        {"queue": queue, "payloads": [b"%d" % n for n in range(count)], "ids": ids, **columns},
    )
    conn.execute("call trunkline.sequence()")
    return ids


def claim(conn: Connection, queue: str, limit: int, labels: list[str] | None = None) -> list[tuple[str, UUID]]:
    deliveries = conn.execute(
        "select receipt, id from trunkline.claim(%s, %s, '1 hour', %s, 'landed')", (queue, limit, labels)
    ).fetchall()
    assert len(deliveries) == limit, (queue, deliveries)
    return [(receipt, id) for receipt, id in deliveries]


def settle(conn: Connection, verb: str, deliveries: list[tuple[str, UUID]], more: str = "") -> None:
    statement = f"select result from trunkline.{verb}(%s{more})"
    results = rows(conn, statement, [receipt for receipt, _ in deliveries])  # type: ignore[arg-type]
    assert set(results) == {"done"}, results


def passes(conn: Connection) -> None:
    """Run passes until what was claimed and settled is accounted for."""
    for _ in range(4):
        conn.execute("call trunkline.sequence()")


def make_topics(conn: Connection) -> dict[str, Any]:
    """Topics with several partitions and segments; groups at different positions, one with an open fetch."""
    conn.execute("select trunkline.create_topic('orders', 3, p_segment_rows => 16), trunkline.create_topic('events')")
    for n in range(150):
        conn.execute(
            "select trunkline.publish('orders', %s, %s, %s, p_headers => %s, p_idempotency_key => %s)",
            (Jsonb({"n": n}), f"customer-{n % 7}", f"orders.{'eu' if n % 3 else 'us'}", Jsonb({"n": n % 2}), f"key-{n}"),
        )
        if n % 20 == 0:
            conn.execute("call trunkline.sequence()")
            conn.execute("select trunkline.run_upkeep('segments')")
    with conn.transaction(force_rollback=True):
        conn.execute("select trunkline.publish('orders', '\"rolled back\"', 'customer-1')")
    conn.execute("select trunkline.publish('events', '1') from generate_series(1, 20)")
    conn.execute("select trunkline.publish('events', '\"later\"', p_delay => '10 minutes')")
    conn.execute("call trunkline.sequence()")
    conn.execute(
        "select trunkline.create_group('orders', 'billing'), trunkline.create_group('orders', 'us', p_pattern => '*.us'),"
        " trunkline.create_group('events', 'ranges'), trunkline.create_group('events', 'latest', 'latest')"
    )
    for _ in range(3):
        for partition, generation, last in rows(
            conn,
            "select partition, generation, max(log_offset) from trunkline.fetch('orders', 'billing', 'ann', 10)"
            " group by 1, 2",
        ):
            conn.execute(
                "select trunkline.commit('orders', 'billing', %s, %s, %s)", (partition, generation, last - partition)
            )
    conn.execute("select * from trunkline.fetch('orders', 'us', 'bob', 3)")
    conn.execute("select * from trunkline.claim_range('events', 'ranges', 7)")
    held = rows(conn, "select partition, generation, log_offset from trunkline.fetch('events', 'held', 'eve', 5, '1 hour')")
    conn.execute("select trunkline.create_topic('gone')")
    conn.execute("select trunkline.delete_topic('gone', true)")
    return {"fetched": [held[-1][0], str(held[-1][1]), held[-1][2]]}


def make_queues(conn: Connection) -> dict[str, Any]:
    """Queues of each kind, with messages that are acked, leased, sent back, delayed, dead and new."""
    conn.execute(
        "select trunkline.create_queue('plain'), trunkline.create_queue('ordered', p_ordered => true, p_partitions => 2),"
        " trunkline.create_queue('levels', p_priorities => 3), trunkline.create_queue('labels'),"
        " trunkline.create_queue('own', p_segment_rows => 16), trunkline.create_queue('fed'),"
        " trunkline.subscribe('fed', 'orders', '*.us', p_start => 'earliest')"
    )
    ids: dict[str, list[UUID]] = {
        "plain": enqueue(conn, "plain", 40),
        "ordered": enqueue(conn, "ordered", 20, keys=[f"k{n % 5}" for n in range(20)]),
        "levels": enqueue(conn, "levels", 30, priorities=[n % 3 for n in range(30)]),
        "labels": enqueue(conn, "labels", 30, labels=[("a", "b", None)[n % 3] for n in range(30)]),
        "own": enqueue(conn, "own", 40),
        "fed": enqueue(conn, "fed", 5),
    }
    ids["fed"] += rows(
        conn,
        "select id from trunkline.topics, generate_series(0, 2) p, trunkline.read('orders', p, 1, 200)"
        " where name = 'orders' and routing_key like '%%.us'",
    )
    ids["plain"] += enqueue(conn, "plain", 3, delays=["10 minutes"] * 3)
    settled: list[UUID] = []
    dead: list[UUID] = []
    receipts: dict[str, list[str]] = {}
    again: dict[str, list[str]] = {}
    for queue in ("plain", "levels", "labels", "own", "fed"):
        labels = ["a"] if queue == "labels" else None
        done = claim(conn, queue, 5, labels)
        settle(conn, "ack", done)
        buried = claim(conn, queue, 2)
        settle(conn, "bury", buried, ", 'no such address'")
        waiting, ready = claim(conn, queue, 2), claim(conn, queue, 1)
        settle(conn, "nack", waiting, ", '10 minutes', 'wait'")
        settle(conn, "nack", ready, ", '0', 'at once'")
        settle(conn, "release", claim(conn, queue, 1))
        open_lease = claim(conn, queue, 3)
        conn.execute("select trunkline.extend(%s, '2 hours')", ([open_lease[0][0]],))
        with conn.transaction(force_rollback=True):
            claim(conn, queue, 1)
        passes(conn)
        settled += [id for _, id in done]
        dead += [id for _, id in buried]
        again[queue] = sorted({str(id) for _, id in [*waiting, *ready, *open_lease]})
        receipts[queue] = [receipt for receipt, _ in open_lease]
    # two partitions: one with an open lease, one with a message that waits
    first = conn.execute("select receipt, id, partition from trunkline.claim('ordered', 2, '1 hour')").fetchall()
    settle(conn, "ack", [(first[0][0], first[0][1])])
    settled.append(first[0][1])
    receipts["ordered"] = [first[1][0]]
    second = conn.execute("select receipt, id, partition from trunkline.claim('ordered', 2, '1 hour')").fetchall()
    if second:
        settle(conn, "nack", [(row[0], row[1]) for row in second], ", '10 minutes', 'wait'")
    passes(conn)
    # a redriven message is in its queue again
    back = dead.pop(0)
    assert rows(conn, "select trunkline.redrive('plain', %s)", [back]) == [1]
    conn.execute("select trunkline.pause_queue('levels')")
    passes(conn)
    return {
        "ids": {queue: [str(id) for id in each] for queue, each in ids.items()},
        "settled": [str(id) for id in settled],
        "dead": [str(id) for id in dead],
        "receipts": receipts,
        "again": again,
    }


def make_jobs(conn: Connection) -> dict[str, Any]:
    conn.execute("select trunkline.create_queue('jobs')")
    ids = enqueue(conn, "jobs", 4, labels=["mail"] * 4)
    done, failed, open_job = claim(conn, "jobs", 3)
    for verb, (receipt, id), result, error in (("ack", done, b"7", None), ("bury", failed, None, "no")):
        conn.execute(
            "select trunkline.finish_jobs(%s, %s, %s, %s, '{t}', null, %s)", (verb, [receipt], [id], [result], error)
        )
    [waits] = rows(conn, "select id from trunkline.enqueue_after('jobs', %s, '8', 'mail')", [ids[3]])
    [unique] = rows(conn, "select id from trunkline.enqueue_unique('jobs', 'one', '9', 'mail', p_hold => '1 day')")
    conn.execute("select * from trunkline.begin_once('charge', 'order-1')")
    conn.execute("select trunkline.end_once('charge', 'order-1', true, '10')")
    conn.execute("select trunkline.cancel_job(%s, 'too late')", (open_job[1],))
    conn.execute("select trunkline.ensure_limit('api', 3, 10, 5)")
    conn.execute("select trunkline.hold_slots('worker-1', '{api}', '{2}'), trunkline.take_tokens('api', 2)")
    conn.execute("select trunkline.register_worker('worker-1', '{}')")
    passes(conn)
    # the job that waits is not in the queue; the one that it waits for is
    return {"done": str(done[1]), "failed": str(failed[1]), "left": [str(ids[3]), str(unique)], "waits": str(waits)}


def make_webhooks(conn: Connection) -> None:
    conn.execute("select trunkline.create_queue('hooks')")
    conn.execute(
        "select trunkline.create_endpoint('shop', 'https://example.com/hook', 10), trunkline.bind_queue('hooks', 'shop')"
    )
    enqueue(conn, "hooks", 3)
    [(receipt, id)] = claim(conn, "hooks", 1)
    [(endpoint, queue)] = rows(conn, "select endpoint_id, queue_id from trunkline.bindings")
    conn.execute("select * from trunkline.dispatch_plan('dispatcher-1')")
    conn.execute("select * from trunkline.take_permits(%s, 1)", (endpoint,))
    conn.execute(
        "select trunkline.settle_attempts('dispatcher-1', %s, %s, %s, %s, '{1}', '{0.1}', '{0.1}', '{200}', '{acked}',"
        " '{null}', '{null}', '{ok}')",
        ([endpoint], [queue], [receipt], [id]),
    )
    conn.execute("select trunkline.bar_dispatcher('dispatcher-1', %s, 'private address')", (endpoint,))
    conn.execute("select trunkline.test_endpoint('shop'), trunkline.receive('shop', 'delivery-1')")
    passes(conn)


def make_services(conn: Connection) -> None:
    conn.execute("select trunkline.create_schedule('daily', '0 6 * * *', p_queue => 'plain', p_payload => '1')")
    conn.execute("select trunkline._create_token('t1', 'ci', '\\x01', '{publish:orders.*}')")
    conn.execute("select trunkline._record_audit('ann', '::1', 'create', 'token ci')")
    conn.execute("insert into trunkline.alerts (at, kind, detail) values (trunkline.clock(), 'example', '{}')")
    conn.execute("insert into trunkline.upkeep_failures values ('jobs', trunkline.clock(), '22012', 'example')")


def stage(conn: Connection, attempt: UUID) -> None:
    """Stage three rows for topic 'events', as a Spark task does."""
    for segment, first, count in rows(
        conn, "select segment, first_id, n from trunkline.open_stage('events', %s, '{0}', '{3}')", attempt
    ):
        conn.execute(
            f"insert into trunkline.{segment} (id, message_id, payload, content_type, created_at)"  # type: ignore[arg-type]
            " select i, gen_random_uuid(), 'staged', 'text/plain', clock_timestamp() from generate_series(%s, %s) i",
            (first, first + count - 1),
        )
    conn.execute("select trunkline.close_stage(%s)", (attempt,))


def make_spark(conn: Connection) -> dict[str, Any]:
    committed, staged = uuid4(), uuid4()
    stage(conn, committed)
    assert rows(conn, "select trunkline.commit_stage('writer', 1, %s, '{3}')", [committed]) == [3]
    stage(conn, staged)
    conn.execute("select trunkline.ensure_archive('orders', '/archive'), trunkline.require_archive('orders')")
    conn.execute(
        "select trunkline.add_archive_files('orders', '{0}', '{1}', '{10}', '{a.parquet}', '{100}', '{2026-01-01}',"
        " '{2026-01-02}', '{x}')"
    )
    conn.execute("select trunkline.report_pipeline('copy', 'archive', p_rows => 10), trunkline.keep_plan('copy', '{}')")
    return {"staged": str(staged)}


def fill(conn: Connection) -> None:
    expected = {**make_topics(conn), **make_queues(conn), "jobs": make_jobs(conn)}
    make_webhooks(conn)
    make_services(conn)
    expected |= make_spark(conn)
    conn.execute("select trunkline.run_upkeep('rollups')")
    passes(conn)
    expected["log"] = [
        [topic, partition, offset, str(id), payload.decode()]
        for topic, partition, offset, id, payload in rows(
            conn,
            "select r.topic, r.partition, r.log_offset, r.id, r.payload from trunkline.topics t,"
            " generate_series(0, t.partitions - 1) p, trunkline.read(t.name, p, 1, 1000) r where t.kind = 'topic'"
            " order by 1, 2, 3",
        )
    ]
    expected["groups"] = rows(
        conn,
        "select topic, group_name, partition, next_offset, fetched, member from trunkline.group_stats() order by 1, 2, 3",
    )
    expected["audit"] = {queue: rows(conn, "select * from trunkline.audit_queue(%s)", queue)[0] for queue in QUEUES}
    # committed, without an offset yet
    expected["new"] = [
        str(id) for id in rows(conn, "select (trunkline.publish('events', '\"new\"')).id from generate_series(1, 4)")
    ]
    conn.execute("create table public.landed (at timestamptz not null, expected jsonb not null)")
    conn.execute("insert into public.landed values (trunkline.clock(), %s)", (Jsonb(expected),))


def main(revision: str, file: str) -> None:
    server = make_server(15)
    url = server.start()
    try:
        install(revision, url)
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute("update trunkline.settings set value = '0' where name = 'sequence_alone_after'")
            fill(conn)
            empty = [
                name
                for name in rows(
                    conn,
                    "select oid::regclass::text from pg_class where relnamespace = 'trunkline'::regnamespace"
                    " and relkind in ('r', 'p') and not relispartition order by 1",
                )
                if not rows(conn, f"select from {name} limit 1")  # type: ignore[arg-type]
            ]
        print("tables without rows:", ", ".join(empty))
        command = [str(DEBIAN / "15" / "bin" / "pg_dump"), "--no-owner", "--inserts", "--rows-per-insert=200", url]
        dump = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    finally:
        server.stop()
    # commands of psql, which the driver does not know
    text = "\n".join(line for line in dump.split("\n") if not line.startswith(("\\restrict", "\\unrestrict")))
    Path(file).write_bytes(lzma.compress(text.encode(), preset=9))


if __name__ == "__main__":
    main(*sys.argv[1:])
