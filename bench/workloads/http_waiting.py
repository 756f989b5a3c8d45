"""A thousand waiting HTTP clients: their cost while idle, and the latency of deliveries to them."""

from __future__ import annotations

import asyncio
import http.client
import random
import time
from collections.abc import Callable
from functools import partial

import msgspec

from bench.alone import Reports, alone, beside
from bench.lab import Lab
from bench.plan import Plan
from bench.rounds import say
from bench.rows import Row, at_most, figure, percentile
from bench.web import crowd, services
from bench.web.load import request
from bench.web.services import Service
from trunkline import Client

_CLIENTS = 1000
_PLACES = 100
_EACH = _CLIENTS // _PLACES
# As in wakeup: each message is sent to an idle system, and the first reading of the counter includes the start.
_PAUSE = 0.05
_STATISTICS_SECONDS = 12
# Longer than the longest wait, so that each client repeats its request at least once.
_IDLE_SECONDS = 60
_WAIT_SECONDS = 30


def run(lab: Lab, plan: Plan) -> list[Row]:
    for number in range(_PLACES):
        lab.conn.execute("select trunkline.create_queue(%s)", (_place(number),))
        lab.conn.execute("select trunkline.create_topic(%s)", (_place(number),))
    polls = [_long_poll(number % _PLACES) for number in range(_CLIENTS)]
    follows = [request("GET", f"/v1/topics/{_place(number % _PLACES)}/events") for number in range(_CLIENTS)]
    # Queues and topics are not deleted, because two hundred deletes would take longer than this workload.
    return [
        *_measure(lab, plan, "long-pollers", "queues", partial(crowd.long_pollers, requests=polls), heard_by=1),
        *_measure(lab, plan, "SSE clients", "topics", partial(crowd.followers, requests=follows), heard_by=_EACH),
    ]


def _place(number: int) -> str:
    return f"waiting-{number}"


def _long_poll(number: int) -> bytes:
    # The clients do not settle messages; the long lease prevents redelivery during the run.
    asked = {"wait": _WAIT_SECONDS, "limit": 1, "lease_seconds": 3600}
    return request("POST", f"/v1/queues/{_place(number)}/claims", msgspec.json.encode(asked))


def _measure(lab: Lab, plan: Plan, who: str, noun: str, clients: Callable[..., object], *, heard_by: int) -> list[Row]:
    workload = f"http, {_CLIENTS:,} {who}"
    with services.ours(lab) as service:
        _touch(service)
        before = service.memory
        with beside(lambda send: clients(service.port, send=send)) as reports:  # type: ignore[arg-type, return-value]
            rate, cpu, seconds = _idle(lab, plan, service)
            memory = service.memory - before
            say(f"  {workload}: {memory / 2**20:.1f} MB, {rate:.2f} queries/s")
            rows = [
                figure(
                    workload,
                    "memory",
                    memory / 2**20,
                    "MB",
                    note=f"more than without them ({before / 2**20:.0f} MB); {memory / _CLIENTS / 1024:.0f} kB each",
                ),
                figure(
                    workload,
                    "queries",
                    rate,
                    "queries/s",
                    goal=at_most(2),
                    note=f"over {_PLACES} {noun}, {seconds} s, commits counted by the database;"
                    f" server {100 * cpu:.1f} % of a core",
                ),
            ]
            publishers: dict[str, Callable[[], None]] = {
                "through the same server": partial(_publish_http, service.port, noun, plan.samples),
                "by another process": lambda: alone(partial(_publish_client, lab.url, noun, plan.samples)),
            }
            for name, publish in publishers.items():
                rows.append(_wakeup(workload, name, publish, reports, plan.samples, heard_by))
    return rows


def _idle(lab: Lab, plan: Plan, service: Service) -> tuple[float, float, int]:
    """Return queries per second and share of a core while the clients are idle."""
    seconds = 35 if plan.quick else _IDLE_SECONDS
    with lab.silence():
        time.sleep(_STATISTICS_SECONDS)
        commits, cpu, start = _commits(lab), service.cpu, time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - start
        return (_commits(lab) - commits - 1) / took, (service.cpu - cpu) / took, seconds


def _wakeup(workload: str, name: str, publish: Callable[[], None], reports: Reports, samples: int, heard_by: int) -> Row:
    publish()
    taken = [1000 * seconds for seconds in reports.take(samples * heard_by, 60)]
    p50, p99 = percentile(taken, 50), percentile(taken, 99)
    say(f"  {workload}, published {name}: p50 {p50:.2f} ms, p99 {p99:.2f} ms, longest {max(taken):.1f} ms")
    return figure(
        workload,
        f"wake-up p99, published {name}",
        p99,
        "ms",
        goal=at_most(50),
        note=f"p50 {p50:.1f} ms, longest {max(taken):.1f} ms; {samples} messages, each to {heard_by}",
    )


def _message() -> dict[str, float]:
    return {"sent": time.monotonic()}


def _publish_http(port: int, noun: str, samples: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    for _ in range(samples):
        time.sleep(_PAUSE)
        place = _place(random.randrange(_PLACES))
        headers = {"content-type": "application/json"}
        body = msgspec.json.encode({"payload": _message()})
        connection.request("POST", f"/v1/{noun}/{place}/messages", body, headers)
        response = connection.getresponse()
        response.read()
        if response.status != 201:
            raise RuntimeError(f"status {response.status}")


async def _publish_client(url: str, noun: str, samples: int) -> None:
    async with Client(url) as mq:
        for _ in range(samples):
            await asyncio.sleep(_PAUSE)
            place = _place(random.randrange(_PLACES))
            await (mq.enqueue(place, _message()) if noun == "queues" else mq.publish(place, _message()))


def _touch(service: Service) -> None:
    """Send a first request, so that the memory it allocates is not attributed to the clients."""
    connection = http.client.HTTPConnection("127.0.0.1", service.port)
    connection.request("GET", "/v1/queues?limit=10")
    connection.getresponse().read()
    connection.close()


def _commits(lab: Lab) -> int:
    return int(lab.value("select xact_commit from pg_stat_database where datname = current_database()"))
