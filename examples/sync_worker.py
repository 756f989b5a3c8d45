"""A worker without await, with the same client and methods.

TRUNKLINE_DATABASE_URL=postgresql:///app python examples/sync_worker.py
"""

from __future__ import annotations

from trunkline import SyncClient

with SyncClient() as mq:
    mq.queues.ensure("sums")
    mq.enqueue_many("sums", [{"a": n, "b": n} for n in range(3)])
    done = 0
    with mq.queue("sums").claims(max_in_flight=2) as deliveries:
        for delivery in deliveries:
            with delivery.transaction() as conn:
                # Statements on conn and the ack are one transaction.
                row = conn.execute("select %s + %s", (delivery.body["a"], delivery.body["b"])).fetchone()
            done += 1
            print(delivery.body, row)
            if done == 3:
                deliveries.stop()
