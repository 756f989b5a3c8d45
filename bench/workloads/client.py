"""The Python client in one process: large batches, coalesced publishes, and consuming with one ack per message."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from statistics import median
from typing import Any

from bench.alone import alone
from bench.lab import Lab
from bench.peers import ours
from bench.pgbench import text
from bench.plan import Plan
from bench.rounds import interleave
from bench.rows import Goal, Row, at_least, compare, figure
from bench.solo.contract import body, repeat
from trunkline import Client
from trunkline.client.deliveries import Delivery

_PAYLOAD = 300
_CALL = 10_000
_TASKS = 500
_BATCH = 1000
# Backlog per second of the run. A client that drains it earlier is measured up to its last message.
_BACKLOG = 100_000


def run(lab: Lab, plan: Plan) -> list[Row]:
    return [*_publish_many(lab, plan), *_coalesced(lab, plan), *_consume(lab, plan)]


def _publish_many(lab: Lab, plan: Plan) -> list[Row]:
    async def publish(content: Any) -> tuple[int, float]:
        async with Client(lab.url) as mq:
            calls, seconds = await repeat(
                lambda: mq.publish_many(_topic("many"), [content] * _CALL), tasks=2, seconds=plan.seconds
            )
            return calls * _CALL, seconds

    measured = interleave(
        "client, publish_many",
        "msg/s",
        {
            "bytes": lambda: _published(lab, "many", partial(publish, text(_PAYLOAD).encode())),
            "JSON objects": lambda: _published(lab, "many", partial(publish, body(_PAYLOAD))),
        },
        rounds=plan.rounds,
    )
    goal = at_least(80_000)
    note = f"calls of {_CALL:,} messages, two at a time"
    return _figures("client, publish_many", measured, goals={"bytes": goal, "JSON objects": goal}, note=note)


def _coalesced(lab: Lab, plan: Plan) -> list[Row]:
    async def publish(tasks: int) -> tuple[int, float]:
        content = text(_PAYLOAD).encode()
        async with Client(lab.url) as mq:
            return await repeat(lambda: mq.publish(_topic("single"), content), tasks=tasks, seconds=plan.seconds)

    together, alone_ = f"{_TASKS} tasks, coalesced", "one by one"
    measured = interleave(
        "client, publish",
        "msg/s",
        {
            together: lambda: _published(lab, "single", partial(publish, _TASKS)),
            alone_: lambda: _published(lab, "single", partial(publish, 1)),
        },
        rounds=plan.rounds,
    )
    return compare(
        "client, publish",
        _PAYLOAD,
        "msg/s",
        measured,
        goals={alone_: at_least(15)},
        notes={together: "every task waits for its own publish", alone_: "one task"},
    )


def _published(lab: Lab, name: str, publish: Callable[[], Awaitable[tuple[int, float]]]) -> float:
    """Return the rate of one process on a fresh topic, after checking its count against the log."""
    topic = _topic(name)
    number = ours.make_topic(lab, topic)
    ours.calm(lab, number)
    messages, seconds = alone(publish)
    stored = int(lab.value(f"select count(*) from trunkline.topic_{number}"))
    # The log also contains the warm-up.
    if stored < messages:
        raise RuntimeError(f"the client reported {messages} published messages, the log has {stored}")
    lab.value("select trunkline.delete_topic(%s)", topic)
    return messages / seconds


def _topic(name: str) -> str:
    return f"client-{name}"


def _consume(lab: Lab, plan: Plan) -> list[Row]:
    messages = int(_BACKLOG * plan.seconds)

    def drained(consume: Callable[[Client, str, int, float], Awaitable[tuple[int, float]]]) -> float:
        queue = "client-consume"
        number = ours.make_queue(lab, queue)
        ours.load(lab, number, messages=messages, payload=_PAYLOAD)
        ours.calm(lab, number)

        async def program() -> tuple[int, float]:
            async with Client(lab.url) as mq:
                return await consume(mq, queue, messages, plan.seconds)

        done, seconds = alone(program)
        acked = int(lab.value("select acked from trunkline.queue_stats(%s)", queue))
        if acked < done:
            raise RuntimeError(f"the client reported {done} acked messages, the queue has {acked}")
        lab.value("select trunkline.delete_queue(%s)", queue)
        return done / seconds

    batches, loop = f"claim {_BATCH:,}, ack all of it", "claims(), one ack per message"
    measured = interleave(
        "client, consume",
        "msg/s",
        {batches: lambda: drained(_in_batches), loop: lambda: drained(_in_a_loop)},
        rounds=plan.rounds,
    )
    goal = at_least(40_000)
    return _figures("client, consume", measured, goals={batches: goal, loop: goal}, note="a result for each ack")


async def _in_batches(mq: Client, queue: str, messages: int, seconds: float) -> tuple[int, float]:
    """Run two claimers, so that the next batch arrives while the previous one is acked."""
    start, done = time.perf_counter(), 0

    async def claimer() -> None:
        nonlocal done
        while time.perf_counter() < start + seconds:
            deliveries = await mq.claim(queue, limit=_BATCH)
            if not deliveries:
                return
            answers = await deliveries.ack()
            done += sum(answer == "done" for answer in answers)

    await asyncio.gather(claimer(), claimer())
    return done, time.perf_counter() - start


async def _in_a_loop(mq: Client, queue: str, messages: int, seconds: float) -> tuple[int, float]:
    """Start a task per message, which awaits its own ack."""
    start, done, running = time.perf_counter(), 0, set[asyncio.Task[None]]()

    async def handle(delivery: Delivery[Any]) -> None:
        nonlocal done
        answer = await delivery.ack()
        done += answer == "done"

    async with mq.queue(queue).claims(max_in_flight=2 * _BATCH, lease="5m") as deliveries:
        seen = 0
        async for delivery in deliveries:
            task = asyncio.create_task(handle(delivery))
            running.add(task)
            task.add_done_callback(running.discard)
            seen += 1
            if seen == messages or time.perf_counter() > start + seconds:
                break
        await asyncio.gather(*running)
        end = time.perf_counter()
    return done, end - start


def _figures(workload: str, measured: dict[str, list[float]], *, goals: dict[str, Goal], note: str) -> list[Row]:
    return [
        figure(workload, name, median(values), "msg/s", payload=_PAYLOAD, rounds=values, goal=goals[name], note=note)
        for name, values in measured.items()
    ]
