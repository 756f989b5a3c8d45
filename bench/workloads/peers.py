"""Other queues on Postgres, through their own libraries with recommended settings, one process each."""

from __future__ import annotations

from functools import partial

from bench.lab import Lab
from bench.peers import solo
from bench.peers.solo import Solo
from bench.plan import Plan
from bench.rounds import interleave
from bench.rows import Row, at_least, compare
from bench.solo.contract import Options

_PAYLOAD = 300
_TASKS = 16
_BATCH = 1000
_BATCH_TASKS = 2


def run(lab: Lab, plan: Plan) -> list[Row]:
    lab.conn.execute("select trunkline.ensure_queue('peers')")
    contestants = [solo.ours(), *solo.peers(lab)]
    rows: list[Row] = []
    enqueue_notes = {contestant.name: contestant.enqueue_note for contestant in contestants}
    consume_notes = {contestant.name: contestant.consume_note for contestant in contestants}
    for workload, measure, notes in (
        ("peers, enqueue one by one", _single, enqueue_notes),
        ("peers, enqueue 1,000", measure_batch, enqueue_notes),
        ("peers, consume", measure_consume, consume_notes),
    ):
        measured = interleave(
            workload,
            "msg/s",
            {contestant.name: partial(measure, lab, plan, contestant) for contestant in contestants},
            rounds=plan.rounds,
        )
        rows += compare(
            workload,
            _PAYLOAD,
            "msg/s",
            measured,
            goals={contestant.name: at_least(1) for contestant in contestants[1:]},
            notes=notes,
        )
    lab.value("select trunkline.delete_queue('peers')")
    return rows


def _single(lab: Lab, plan: Plan, contestant: Solo) -> float:
    return _enqueue(lab, contestant, "single", Options(payload=_PAYLOAD, seconds=plan.seconds, tasks=_TASKS))


def measure_batch(lab: Lab, plan: Plan, contestant: Solo) -> float:
    options = Options(payload=_PAYLOAD, seconds=plan.seconds, tasks=_BATCH_TASKS, batch=_BATCH)
    return _enqueue(lab, contestant, "batch", options)


def _enqueue(lab: Lab, contestant: Solo, action: str, options: Options) -> float:
    contestant.empty(lab)
    contestant.calm(lab)
    moved = contestant.run(lab, action, options)
    # The tables also contain the warm-up, so they may have more messages, never fewer.
    stored = contestant.wait_for(lab, moved.messages)
    if stored < moved.messages:
        raise RuntimeError(f"{contestant.name} reported {moved.messages} enqueued messages, its tables have {stored}")
    contestant.empty(lab)
    return moved.messages / moved.seconds


def measure_consume(lab: Lab, plan: Plan, contestant: Solo) -> float:
    messages = int(contestant.backlog * plan.seconds)
    contestant.empty(lab)
    contestant.run(lab, "load", Options(payload=_PAYLOAD, messages=messages))
    loaded = contestant.wait_for(lab, messages)
    contestant.calm(lab)
    moved = contestant.run(lab, "consume", Options(payload=_PAYLOAD, messages=messages, seconds=plan.seconds))
    # If the time was up first, more messages may have been finished since the clock stopped, never fewer.
    left = int(lab.value(contestant.count))
    completed = messages - left if contestant.completed is None else int(lab.value(contestant.completed))
    if loaded != messages or not 0 < moved.messages <= completed == messages - left:
        raise RuntimeError(
            f"{contestant.name} reported {moved.messages} of {messages} finished; its tables had {loaded} unfinished"
            f" messages, now have {left}, and count {completed} as completed"
        )
    contestant.empty(lab)
    return moved.messages / moved.seconds
