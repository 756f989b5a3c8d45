"""Single durable publishes from 64 connections: Trunkline, a plain INSERT, a SKIP LOCKED table, and a counter row."""

from __future__ import annotations

from functools import partial

from bench import pgbench
from bench.lab import Lab
from bench.peers import counter_log, ours, pgmq, plain_table, skip_locked
from bench.plan import Plan
from bench.rounds import interleave
from bench.rows import Row, at_least, compare

_GENERIC = "trunkline, publish_bytes"


def run(lab: Lab, plan: Plan) -> list[Row]:
    rows: list[Row] = []
    for payload in plan.payloads:
        topic = f"single-{payload}"
        number = ours.make_topic(lab, topic)
        for peer in (plain_table, pgmq, skip_locked, counter_log):
            peer.make(lab)

        def rate(script: str, payload: int = payload) -> float:
            lab.calm()
            return pgbench.rate(lab.tcp_url, script, clients=plan.publishers, seconds=plan.seconds, payload=payload)

        scripts = {
            ours.NAME: ours.publish_script(number),
            _GENERIC: ours.publish_generic_script(topic),
            plain_table.INSERT: plain_table.insert_script(),
            pgmq.NAME: pgmq.publish_script(),
            skip_locked.NAME: skip_locked.publish_script(),
            counter_log.NAME: counter_log.publish_script(),
        }
        measured = interleave(
            f"publish_single {payload} B",
            "msg/s",
            {name: partial(rate, script) for name, script in scripts.items()},
            rounds=plan.rounds,
        )
        rows += compare(
            "publish_single",
            payload,
            "msg/s",
            measured,
            goals={plain_table.INSERT: at_least(0.9), counter_log.NAME: at_least(10), pgmq.NAME: at_least(1)},
            notes={_GENERIC: "by topic name instead of the topic's own function"},
        )
        lab.value("select trunkline.delete_topic(%s)", topic)
    return rows
