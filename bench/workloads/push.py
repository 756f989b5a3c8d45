"""Webhooks to a local no-op receiver: one dispatcher, compared with the same requests in plain aiohttp without a queue.

Also one endpoint with 1,000 bindings, one message to 100 subscriptions, and a healthy endpoint next to hanging ones.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import aiohttp

from bench.alone import Reports, Send, alone, beside
from bench.lab import Lab
from bench.plan import Plan
from bench.rounds import interleave, say
from bench.rows import Row, at_least, at_most, compare, figure, percentile
from trunkline.push.dispatcher import Dispatcher

_PAYLOAD = 300
_AT_ONCE = 50
_ANSWER = b"HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n"


class _NoOp(asyncio.Protocol):
    """Receiver that responds with 204, or never on /hang. Reports the time and body of each request."""

    def __init__(self, seen: list[tuple[float, bytes]]) -> None:
        self._seen = seen
        self._left = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        data = self._left + data
        while (end := data.find(b"\r\n\r\n")) >= 0:
            head = data[:end].lower()
            at = head.find(b"content-length:")
            size = int(head[at + 15 :].split(b"\r\n", 1)[0])
            if len(data) < end + 4 + size:
                break
            if not head.startswith(b"post /hang"):
                self._seen.append((time.time(), data[end + 4 : end + 4 + size]))
                self._transport.write(_ANSWER)
            data = data[end + 4 + size :]
        self._left = data


async def _receive(send: Send) -> None:
    """Run the receiver. Reports its port, then every 20 ms the number of requests and the times of the new ones."""
    seen: list[tuple[float, bytes]] = []
    server = await asyncio.get_running_loop().create_server(lambda: _NoOp(seen), "127.0.0.1", 0, backlog=1000)
    send("ready")
    send(server.sockets[0].getsockname()[1])
    reported = 0
    while True:
        await asyncio.sleep(0.02)
        if len(seen) > reported:
            part, reported = seen[reported:], len(seen)
            # The pipe may not be read at the moment; that must not block responses.
            await asyncio.to_thread(send, part)


async def _dispatch(url: str, send: Send) -> None:
    # Shut down cleanly, so that the next dispatcher need not share rate limits with this one.
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    send("ready")
    await Dispatcher(url, allow=["127.0.0.0/8"], grace=0.1).run(stop)


async def _post(url: str, count: int) -> float:
    """Send the same number of requests in plain aiohttp, with the same concurrency."""
    body = b"1" * _PAYLOAD
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        left = iter(range(count))

        async def send() -> None:
            for _ in left:
                async with session.post(url, data=body) as response:
                    await response.read()

        start = time.perf_counter()
        await asyncio.gather(*(send() for _ in range(_AT_ONCE)))
        return count / (time.perf_counter() - start)


def _collect(reports: Reports, count: int, timeout: float = 120) -> list[tuple[float, bytes]]:
    found: list[tuple[float, bytes]] = []
    end = time.monotonic() + timeout
    while len(found) < count:
        found += reports.next(max(0.0, end - time.monotonic()))
    return found


@contextmanager
def _endpoint(lab: Lab, url: str, *queues: str) -> Iterator[None]:
    lab.conn.execute("select trunkline.create_endpoint('bench', %s, p_max_in_flight => %s)", (url, _AT_ONCE))
    for queue in queues:
        lab.conn.execute("select trunkline.create_queue(%s), trunkline.bind_queue(%s, 'bench')", (queue, queue))
    yield
    lab.conn.execute("select trunkline.delete_endpoint('bench', p_force => true)")
    for queue in queues:
        lab.conn.execute("select trunkline.delete_queue(%s, p_force => true)", (queue,))


def _fill(lab: Lab, queue: str, count: int) -> None:
    for first in range(0, count, 1000):
        lab.conn.execute(
            "select count(*) from trunkline.enqueue_many(%s, array(select convert_to(repeat('1', %s), 'UTF8')"
            " from generate_series(1, %s)))",
            (queue, _PAYLOAD, min(1000, count - first)),
        )


def run(lab: Lab, plan: Plan) -> list[Row]:
    with beside(_receive) as reports:
        url = f"http://127.0.0.1:{reports.next(10)}/"
        return [
            *_throughput(lab, plan, url, reports),
            *_bindings(lab, url, reports),
            *_fan_out(lab, url, reports),
            *_beside_hanging(lab, plan, url, reports),
        ]


def _throughput(lab: Lab, plan: Plan, url: str, reports: Reports) -> list[Row]:
    count = int(plan.seconds * 1000)

    def dispatched() -> float:
        with _endpoint(lab, url, "push"):
            _fill(lab, "push", count)
            lab.calm()
            with beside(partial(_dispatch, lab.url)):
                moments = [at for at, _ in _collect(reports, count)]
                _settled(lab, "push", count)
        return (count - 1) / (moments[-1] - moments[0])

    def plain() -> float:
        rate = alone(lambda: _post(url, count))
        _collect(reports, count)
        return rate

    measured = interleave("push", "deliveries/s", {"dispatcher": dispatched, "plain aiohttp": plain}, rounds=plan.rounds)
    notes = {"plain aiohttp": f"{_AT_ONCE} requests at once, no queue, no signature"}
    return compare("push", _PAYLOAD, "deliveries/s", measured, goals={"plain aiohttp": at_least(0.5)}, notes=notes)


def _settled(lab: Lab, queue: str, count: int) -> None:
    until = time.monotonic() + 30
    while lab.value("select acked from trunkline.queue_stats(%s)", queue) < count and time.monotonic() < until:
        time.sleep(0.05)


def _bindings(lab: Lab, url: str, reports: Reports) -> list[Row]:
    """Measure one topic with 1,000 queues bound to the same endpoint; each message goes to one queue."""
    bindings, count = 1000, 2000
    names = [f"push-{number}" for number in range(bindings)]
    lab.conn.execute("select trunkline.create_topic('push')")
    with _endpoint(lab, url, *names):
        for number, name in enumerate(names):
            lab.conn.execute("select trunkline.subscribe(%s, 'push', %s)", (name, f"key.{number}"))
        with beside(partial(_dispatch, lab.url)):
            time.sleep(3)
            for _ in range(count // bindings):
                lab.conn.execute(
                    "select count(*) from trunkline.publish_many('push', array(select convert_to(repeat('1', 300), 'UTF8')"
                    " from generate_series(1, 1000)),"
                    " p_routing_keys => array(select 'key.' || n from generate_series(0, 999) n))"
                )
            moments = [at for at, _ in _collect(reports, count)]
    lab.conn.execute("select trunkline.delete_topic('push', p_force => true)")
    rate = (count - 1) / (moments[-1] - moments[0])
    say(f"  push, 1,000 bindings: {rate:,.0f} deliveries/s")
    note = f"{count} messages to 1,000 queues with a binding each, one endpoint"
    return [figure("push", "behind 1,000 bindings", rate, "deliveries/s", payload=_PAYLOAD, note=note)]


def _fan_out(lab: Lab, url: str, reports: Reports) -> list[Row]:
    """Measure ten messages to 100 subscriptions each: time until the last delivery of each message."""
    names = [f"push-{number}" for number in range(100)]
    lab.conn.execute("select trunkline.create_topic('push')")
    times = []
    with _endpoint(lab, url, *names):
        for name in names:
            lab.conn.execute("select trunkline.subscribe(%s, 'push')", (name,))
        with beside(partial(_dispatch, lab.url)):
            time.sleep(3)
            for _ in range(10):
                start = time.time()
                lab.conn.execute("select trunkline.publish('push', '1')")
                lab.conn.execute("notify trunkline")
                times.append(1000 * (_collect(reports, 100)[-1][0] - start))
    lab.conn.execute("select trunkline.delete_topic('push', p_force => true)")
    middle = percentile(times, 50)
    say(f"  push, one message to 100 subscriptions: {middle:.0f} ms, longest {max(times):.0f} ms")
    note = f"10 samples, longest {max(times):.0f} ms"
    return [figure("push", "one message to 100 subscriptions", middle, "ms", rounds=times, note=note)]


def _beside_hanging(lab: Lab, plan: Plan, url: str, reports: Reports) -> list[Row]:
    """Measure a healthy endpoint alone, and next to five that never respond: medians of alternating windows."""
    windows = 4
    found: dict[str, list[float]] = {"pause": [], "resume": []}
    for number in range(5):
        name = f"hanging-{number}"
        lab.conn.execute("select trunkline.create_endpoint(%s, %s, p_timeout => '5 seconds')", (name, f"{url}hang"))
        lab.conn.execute("select trunkline.create_queue(%s), trunkline.bind_queue(%s, %s)", (name, name, name))
        _fill(lab, name, 500)
    with _endpoint(lab, url, "push"), beside(partial(_dispatch, lab.url)):
        for _ in range(windows):
            for verb, p99s in found.items():
                # Resuming closes their circuit breakers, so they receive full load again.
                lab.conn.execute(
                    f"select trunkline.{verb}_endpoint(name) from trunkline.endpoints where name like 'hanging-%'".encode()
                )
                time.sleep(2)
                p99s.append(percentile(_latencies(lab, reports, plan.samples), 99))
    alone_p99, beside_p99 = (percentile(p99s, 50) for p99s in found.values())
    for number in range(5):
        lab.conn.execute("select trunkline.delete_endpoint(%s, true)", (f"hanging-{number}",))
        lab.conn.execute("select trunkline.delete_queue(%s, true)", (f"hanging-{number}",))
    ratio = beside_p99 / alone_p99
    say(f"  push, healthy endpoint p99: {alone_p99:.0f} ms alone, {beside_p99:.0f} ms beside five that hang")
    note = (
        f"p99 {alone_p99:.0f} ms alone, {beside_p99:.0f} ms beside five endpoints that hang;"
        f" medians of {windows} windows of each in turn, {plan.samples} samples a window"
    )
    rounds = [beside / alone for alone, beside in zip(*found.values(), strict=True)]
    return [figure("push", "healthy p99 beside hanging ones", ratio, "x alone", goal=at_most(1.2), rounds=rounds, note=note)]


def _latencies(lab: Lab, reports: Reports, samples: int) -> list[float]:
    found = []
    for _ in range(samples):
        start = time.time()
        lab.conn.execute("select trunkline.enqueue('push', '1')")
        lab.conn.execute("notify trunkline")
        found.append(1000 * (_collect(reports, 1)[-1][0] - start))
        time.sleep(0.01)
    return found
