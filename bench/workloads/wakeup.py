"""Wake-ups: latency from publish to a consumer in another process, idle cost, lost listeners, and cost of NOTIFY."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial

from bench.alone import Reports, Send, alone, beside
from bench.lab import Lab
from bench.pgbench import text
from bench.plan import Plan
from bench.rounds import interleave, say
from bench.rows import Row, at_least, at_most, compare, figure, percentile
from bench.solo.contract import repeat
from trunkline import Client
from trunkline.db.wakeup import Wakeup

_PAYLOAD = 300
_QUEUE = "wakeup"
_GROUP = ("wakeup-topic", "reader")
# Longer than all activity that a message causes, so that each message is sent to an idle system.
_PAUSE = 0.05
_CONSUMERS = 200
# Polls and pings are rare, so measuring their rate takes this long.
_IDLE_SECONDS = 60
# Idle connections flush their statistics within ten seconds; the first reading must include the start.
_STATISTICS_SECONDS = 12
_LISTENERS = "from pg_stat_activity where query ilike 'listen %' and pid <> pg_backend_pid()"


def run(lab: Lab, plan: Plan) -> list[Row]:
    lab.conn.execute("select trunkline.create_queue(%s)", (_QUEUE,))
    lab.conn.execute("select trunkline.create_topic(%s)", (_GROUP[0],))
    lab.conn.execute("select trunkline.create_group(%s, %s)", _GROUP)
    rows = [*_latency(lab, plan), *_lost_listeners(lab, plan), *_notify_cost(lab, plan), *_idle_cost(lab, plan)]
    lab.conn.execute("select trunkline.delete_topic(%s, p_force => true)", (_GROUP[0],))
    lab.conn.execute("select trunkline.delete_queue(%s)", (_QUEUE,))
    return rows


# Messages contain the time at which they were sent. All processes of a machine share the monotonic clock.


async def _read_queue(url: str, send: Send) -> None:
    async with Client(url) as mq, mq.queue(_QUEUE).claims(max_in_flight=10) as deliveries:
        send("ready")
        async for delivery in deliveries:
            send(time.monotonic() - delivery.body["sent"])
            await delivery.ack()


async def _read_group(url: str, send: Send) -> None:
    async with Client(url) as mq, mq.subscribe(_GROUP[0], group=_GROUP[1]) as batches:
        send("ready")
        async for batch in batches:
            now = time.monotonic()
            for message in batch:
                send(now - message.body["sent"])
            await batch.commit()


def _message() -> dict[str, object]:
    return {"sent": time.monotonic(), "filler": text(_PAYLOAD - 40)}


def _latency(lab: Lab, plan: Plan) -> list[Row]:
    """Measure publish-to-consumer latency, with the publisher in a second client process."""

    async def publish(to_queue: bool) -> None:
        async with Client(lab.url) as mq:
            for _ in range(plan.samples):
                await asyncio.sleep(_PAUSE)
                await (mq.enqueue(_QUEUE, _message()) if to_queue else mq.publish(_GROUP[0], _message()))

    rows: list[Row] = []
    for name, read in (("queue", _read_queue), ("group", _read_group)):
        with beside(partial(read, lab.url)) as reports:
            _settle()
            alone(partial(publish, name == "queue"))
            taken = [1000 * seconds for seconds in reports.take(plan.samples, 30)]
        p50, p99 = percentile(taken, 50), percentile(taken, 99)
        say(f"  wakeup, {name}: p50 {p50:.2f} ms, p99 {p99:.2f} ms, longest {max(taken):.1f} ms")
        note = f"publish to consumer, two processes, {plan.samples} samples"
        rows += [
            figure("wakeup, idle", f"{name}, p50", p50, "ms", payload=_PAYLOAD, goal=at_most(5), note=note),
            figure(
                "wakeup, idle",
                f"{name}, p99",
                p99,
                "ms",
                payload=_PAYLOAD,
                goal=at_most(25),
                note=f"longest {max(taken):.1f} ms",
            ),
        ]
    return rows


def _lost_listeners(lab: Lab, plan: Plan) -> list[Row]:
    """Measure the latency of a message that is published right after the listener's connection is terminated."""
    url = _named(lab, "wakeup-reader")

    async def publish(reports: Reports) -> list[float]:
        taken: list[float] = []
        async with Client(lab.url) as mq:
            for _ in range(plan.disconnects):
                await asyncio.to_thread(_cut_listener, lab)
                await mq.enqueue(_QUEUE, _message())
                taken.append(1000 * await asyncio.to_thread(reports.next, 30))
        return taken

    with beside(partial(_read_queue, url)) as reports:
        _settle()
        taken = asyncio.run(publish(reports))
    say(f"  wakeup, {plan.disconnects} lost listeners: p50 {percentile(taken, 50):.1f} ms, longest {max(taken):.1f} ms")
    return [
        figure(
            "wakeup, listener cut off",
            f"{plan.disconnects} times, longest",
            max(taken),
            "ms",
            payload=_PAYLOAD,
            rounds=taken,
            goal=at_most(1000),
            note=f"publish to consumer; p50 {percentile(taken, 50):.1f} ms, p99 {percentile(taken, 99):.1f} ms",
        )
    ]


def _cut_listener(lab: Lab) -> None:
    """Terminate the listening connection. If there is none, wait for it: the previous one was just terminated."""
    named = f"{_LISTENERS} and application_name = 'wakeup-reader'"
    end = time.monotonic() + 30
    while time.monotonic() < end:
        cut = lab.conn.execute(f"select pg_terminate_backend(pid) {named}".encode()).fetchall()
        if cut:
            return
        time.sleep(0.01)
    raise RuntimeError("no listener reconnected within 30 s")


def _notify_cost(lab: Lab, plan: Plan) -> list[Row]:
    """Measure a saturated publisher with a listener, without one, and without NOTIFY.

    The listening process waits for another queue: it wakes and polls, but does not consume the published messages.
    """
    topic = "wakeup-saturated"
    lab.conn.execute("select trunkline.create_topic(%s)", (topic,))

    async def publish(*, hints: bool) -> float:
        if not hints:
            # Patched in this process only: the client deliberately has no setting for this.
            Wakeup.notify = lambda self: None  # type: ignore[method-assign]
        content = text(_PAYLOAD).encode()
        async with Client(lab.url) as mq:
            calls, seconds = await repeat(lambda: mq.publish(topic, content), tasks=500, seconds=plan.seconds)
        return calls / seconds

    def heard() -> float:
        with beside(partial(_read_queue, lab.url)):
            _settle()
            return alone(partial(publish, hints=True))

    contestants: dict[str, Callable[[], float]] = {
        "NOTIFY, a process listens": heard,
        "NOTIFY, no listener": lambda: alone(partial(publish, hints=True)),
        "no NOTIFY": lambda: alone(partial(publish, hints=False)),
    }

    def measured(contestant: Callable[[], float]) -> float:
        lab.calm()
        return contestant()

    # Twice the rounds, because the limit of 3 % is below the noise of a single round.
    results = interleave(
        "wakeup, saturated publisher",
        "msg/s",
        {name: partial(measured, contestant) for name, contestant in contestants.items()},
        rounds=2 * plan.rounds,
    )
    lab.conn.execute("select trunkline.delete_topic(%s)", (topic,))
    goals = {name: at_least(0.97) for name in list(contestants)[1:]}
    return compare("wakeup, saturated publisher", _PAYLOAD, "msg/s", results, goals=goals)


def _idle_cost(lab: Lab, plan: Plan) -> list[Row]:
    """Measure the server's transactions while one process with many waiting consumers is the only client."""
    queues = [f"idle-{number}" for number in range(_CONSUMERS)]
    for queue in queues:
        lab.conn.execute("select trunkline.create_queue(%s)", (queue,))

    async def consume(queue: str, mq: Client, ready: Callable[[], None]) -> None:
        async with mq.queue(queue).claims(max_in_flight=10) as deliveries:
            ready()
            async for delivery in deliveries:
                await delivery.ack()

    async def program(send: Send) -> None:
        started = 0

        def ready() -> None:
            nonlocal started
            started += 1
            if started == len(queues):
                send("ready")

        async with Client(lab.url) as mq:
            waiting: list[Awaitable[None]] = [consume(queue, mq, ready) for queue in queues]
            await asyncio.gather(*waiting)

    seconds = 20 if plan.quick else _IDLE_SECONDS
    with lab.silence(), beside(program):
        _settle(_STATISTICS_SECONDS)
        before, start = _commits(lab), time.monotonic()
        time.sleep(seconds)
        # Subtract the first reading itself, which is a transaction. The second reading does not count itself.
        rate = (_commits(lab) - before - 1) / (time.monotonic() - start)
    say(f"  wakeup, {_CONSUMERS} idle consumers: {rate:.2f} queries/s")
    for queue in queues:
        lab.conn.execute("select trunkline.delete_queue(%s)", (queue,))
    note = f"one process, a queue each, {seconds} s; commits counted by the server"
    return [figure("wakeup, waiting", f"{_CONSUMERS} consumers", rate, "queries/s", goal=at_most(1), note=note)]


def _commits(lab: Lab) -> int:
    return int(lab.value("select xact_commit from pg_stat_database where datname = current_database()"))


def _settle(seconds: float = 1.0) -> None:
    """Wait until the listener is connected and the initial polls are done."""
    time.sleep(seconds)


def _named(lab: Lab, name: str) -> str:
    return f"{lab.url}&application_name={name}"
