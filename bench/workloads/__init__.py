"""The workloads, one file each. A workload measures its contestants in interleaved rounds and returns report rows."""

from __future__ import annotations

from collections.abc import Callable

from bench.lab import Lab
from bench.plan import Plan
from bench.rows import Row
from bench.workloads import (
    claim_ack_batch,
    claim_ack_single,
    client,
    deep_backlog,
    fanout_cost,
    five_groups,
    held_mixed,
    held_xmin,
    http,
    http_waiting,
    jobs,
    lateness,
    peers,
    publish_batch,
    publish_single,
    push,
    spark,
    waiting_cost,
    wakeup,
)

WORKLOADS: dict[str, Callable[[Lab, Plan], list[Row]]] = {
    "publish_single": publish_single.run,
    "publish_batch": publish_batch.run,
    "claim_ack_batch": claim_ack_batch.run,
    "claim_ack_single": claim_ack_single.run,
    "fanout_cost": fanout_cost.run,
    "deep_backlog": deep_backlog.run,
    "five_groups": five_groups.run,
    "held_xmin": held_xmin.run,
    "held_mixed": held_mixed.run,
    "peers": peers.run,
    "client": client.run,
    "wakeup": wakeup.run,
    "lateness": lateness.run,
    "waiting_cost": waiting_cost.run,
    "http": http.run,
    "http_waiting": http_waiting.run,
    "push": push.run,
    "jobs": jobs.run,
    "spark": spark.run,
}
