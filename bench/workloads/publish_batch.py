"""Publishing in batches of 1,000, compared with a binary COPY of the same rows into a plain table."""

from __future__ import annotations

from bench import crew
from bench.lab import Lab
from bench.peers import ours, plain_table
from bench.plan import Plan
from bench.rounds import interleave
from bench.rows import Row, at_least, compare

_BATCH = 1000
_ARRAYS = "trunkline, publish_many"


def run(lab: Lab, plan: Plan) -> list[Row]:
    rows: list[Row] = []
    for payload in plan.payloads:

        def many(copied: bool, payload: int = payload) -> float:
            topic = f"batch-{payload}"
            number = ours.make_topic(lab, topic)
            ours.calm(lab, number)
            job = crew.Job(
                name="publish",
                make=lambda session, _: (
                    ours.PublishCopy(session, number, batch=_BATCH, payload=payload)
                    if copied
                    else ours.PublishMany(session, "publish_many", topic, batch=_BATCH, payload=payload)
                ),
                connections=plan.copiers,
                processes=plan.copiers,
            )
            rate = crew.run(lab.url, [job], plan.seconds)["publish"].rate
            lab.value("select trunkline.delete_topic(%s)", topic)
            return rate

        def copy(payload: int = payload) -> float:
            plain_table.make(lab)
            plain_table.calm(lab)
            job = crew.Job(
                name="copy",
                make=lambda session, _: plain_table.CopyRows(session, batch=_BATCH, payload=payload),
                connections=plan.copiers,
                processes=plan.copiers,
            )
            rate = crew.run(lab.url, [job], plan.seconds)["copy"].rate
            plain_table.make(lab)
            return rate

        measured = interleave(
            f"publish_batch {payload} B",
            "msg/s",
            {ours.NAME: lambda: many(True), _ARRAYS: lambda: many(False), plain_table.COPY: copy},
            rounds=plan.rounds,
        )
        rows += compare(
            "publish_batch",
            payload,
            "msg/s",
            measured,
            goals={plain_table.COPY: at_least(0.6)},
            notes={_ARRAYS: "one SQL call with an array, for any driver"},
        )
    return rows
