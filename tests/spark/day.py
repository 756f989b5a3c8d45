"""A day of traffic, made in a minute by moving the database's clock, and the report on it.

python -m tests.spark.day FOLDER
"""

from __future__ import annotations

import math
import random
import sys
from datetime import timedelta

import psycopg

from tests.conftest import Clock, Connection
from trunkline import SyncClient
from trunkline.types import NewMessage

STEPS = 144
ERRORS = (
    "card of customer {n} was refused by 10.1.{n}.7: code 0x{n:x}",
    "timeout after {n} ms: https://mail.example.com/send/{n}",
    "no stock for item {n}",
)


def make(url: str, conn: Connection, *, steps: int = STEPS, scale: float = 1.0) -> None:
    """Two topics, a group and two queues: calm at night, busy by day, and an hour in which the mail does not work."""
    dice = random.Random(7)
    clock = Clock(conn)
    clock.advance(timedelta(days=-1))
    with SyncClient(url) as mq:
        mq.topics.create("orders", partitions=4)
        mq.topics.create("payments")
        mq.groups.create("orders", "warehouse")
        mq.queues.create("shipping", max_attempts=3)
        mq.queues.create("mail", max_attempts=3)
        mq.subscriptions.add("shipping", "orders")
        for step in range(steps):
            busy = scale * (12 + 60 * max(0.0, math.sin(math.pi * (step / steps * 24 - 6) / 14)) ** 2)
            broken = 0.60 < step / steps < 0.65
            _publish(mq, dice, int(busy * dice.uniform(0.8, 1.2)))
            clock.advance(dice.expovariate(1 / (2.0 if busy < 40 * scale else 6.0)))
            for queue in ("shipping", "mail"):
                _work(mq, clock, dice, queue, broken=broken and queue == "mail")
            if step % 3 == 0 and not 0.3 < step / steps < 0.45:
                mq.groups.seek("orders", "warehouse", "latest")
            clock.advance(timedelta(days=1) / steps - timedelta(seconds=12))
            conn.execute("select trunkline.run_upkeep('pass'), trunkline.run_upkeep('rollups')")
    clock.advance(timedelta(seconds=12) * steps)


def _publish(mq: SyncClient, dice: random.Random, count: int) -> None:
    keys = [f"customer-{int(dice.paretovariate(1.1))}" for _ in range(count)]
    mq.publish_many(
        "orders",
        [NewMessage(body={"order": n, "note": "x" * dice.randrange(20, 400)}, key=key) for n, key in enumerate(keys)],
    )
    mq.publish_many(
        "payments", [NewMessage(body={"pdf": "y" * dice.randrange(500, 30_000)}, key=key) for key in keys[: count // 6]]
    )
    mq.enqueue_many("mail", [{"to": key} for key in keys[: count // 3]])


def _work(mq: SyncClient, clock: Clock, dice: random.Random, queue: str, *, broken: bool) -> None:
    while deliveries := list(mq.claim(queue, limit=30)):
        clock.advance(dice.uniform(0.02, 0.6))
        for delivery in deliveries:
            said = dice.choice(ERRORS).format(n=dice.randrange(1, 9999))
            if broken or dice.random() < 0.02:
                delivery.nack(error=said, delay="8m")
            elif dice.random() < 0.004:
                delivery.bury(said)
            else:
                delivery.ack()


def main(folder: str) -> None:
    from tests.support.postgres import make_server
    from trunkline.spark import open_session
    from trunkline.spark.pipelines.report import report
    from trunkline.sql.migrate import migrate

    server = make_server(18)
    url = server.start()
    try:
        migrate(url)
        with psycopg.connect(url, autocommit=True) as conn:
            make(url, conn)
        spark = open_session("day", master="local[2]", url=url)
        spark.sparkContext.setLogLevel("ERROR")
        print(report(url, folder, spark=spark))
        spark.stop()
    finally:
        server.stop()


if __name__ == "__main__":
    main(sys.argv[1])
