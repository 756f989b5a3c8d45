"""The HTTP service with 64 connections, compared with a no-op route and a textbook service on the same database."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from statistics import median

import msgspec

from bench.lab import Lab
from bench.peers import ours
from bench.plan import Plan
from bench.rounds import interleave
from bench.rows import Goal, Row, at_least, compare, percentile
from bench.solo.contract import body
from bench.web import nothing, services, textbook
from bench.web.load import Exchange, Load, drive, request
from bench.web.services import Service

_PAYLOAD = 300
_BATCH = 100
_TOPIC = "http"
_QUEUE = "http"
# Backlog per second of the run. A contestant that drains it earlier is measured up to its last message.
_BACKLOG = 30_000
_BACKLOG_SINGLE = 6_000
_OURS = "trunkline"
_EMPTY = "GET that does nothing"
_EMPTY_POST = "POST that does nothing"
_UVICORN = "FastAPI + SKIP LOCKED, uvicorn"
_GRANIAN = "FastAPI + SKIP LOCKED, Granian"


def run(lab: Lab, plan: Plan) -> list[Row]:
    lab.conn.execute(textbook.CREATE.encode())
    lab.conn.execute(textbook.INDEX.encode())
    with ExitStack() as stack:
        bench = _Bench(
            lab,
            plan,
            ours=stack.enter_context(services.ours(lab)),
            peers={
                _UVICORN: stack.enter_context(services.with_uvicorn(lab)),
                _GRANIAN: stack.enter_context(services.with_granian(lab)),
            },
        )
        rows = [*bench.publish(), *bench.publish_batch(), *bench.consume(_BATCH), *bench.consume(1)]
    lab.conn.execute(f"drop table {textbook.TABLE}".encode())
    return rows


class _Measured:
    """Measurements of one contestant's rounds besides its rate."""

    def __init__(self) -> None:
        self.latencies: list[float] = []
        self.generator: list[float] = []
        self.server: list[float] = []

    def note(self, connections: int) -> str:
        p50, p99 = (1000 * percentile(self.latencies, percent) for percent in (50, 99))
        return (
            f"{connections} connections; p50 {p50:.1f} ms, p99 {p99:.1f} ms; of a core: server"
            f" {100 * median(self.server):.0f} %, load generator {100 * median(self.generator):.0f} %"
        )


class _Bench:
    def __init__(self, lab: Lab, plan: Plan, *, ours: Service, peers: dict[str, Service]) -> None:
        self._lab = lab
        self._plan = plan
        self._ours = ours
        self._peers = peers

    def publish(self) -> list[Row]:
        """Measure publishing one message per request."""
        content = msgspec.json.encode({"payload": body(_PAYLOAD)})
        exchanges: dict[str, tuple[Service, bytes]] = {
            _OURS: (self._ours, request("POST", f"/v1/topics/{_TOPIC}/messages", content)),
            _EMPTY: (self._ours, request("GET", "/healthz")),
            _EMPTY_POST: (self._ours, request("POST", nothing.PATH, content)),
            **{name: (peer, request("POST", "/messages", content)) for name, peer in self._peers.items()},
        }
        goals = {_EMPTY: at_least(0.6), _UVICORN: at_least(1), _GRANIAN: at_least(1)}
        return self._compare(
            "http, publish one",
            {
                name: partial(self._publish, name, service, content, moves=1, connections=self._plan.publishers)
                for name, (service, content) in exchanges.items()
            },
            connections=self._plan.publishers,
            goals=goals,
        )

    def publish_batch(self) -> list[Row]:
        content = msgspec.json.encode([{"payload": body(_PAYLOAD)}] * _BATCH)
        exchanges: dict[str, tuple[Service, bytes]] = {
            _OURS: (self._ours, request("POST", f"/v1/topics/{_TOPIC}/messages", content)),
            **{name: (peer, request("POST", "/batches", content)) for name, peer in self._peers.items()},
        }
        return self._compare(
            f"http, publish {_BATCH}",
            {
                name: partial(self._publish, name, service, content, moves=_BATCH, connections=self._plan.consumers)
                for name, (service, content) in exchanges.items()
            },
            connections=self._plan.consumers,
            goals={_UVICORN: at_least(1), _GRANIAN: at_least(1)},
        )

    def consume(self, batch: int) -> list[Row]:
        """Measure claims and acks from a backlog."""
        return self._compare(
            f"http, claim and ack {batch}",
            {
                _OURS: partial(self._consume_ours, batch),
                **{name: partial(self._consume_peer, batch, peer) for name, peer in self._peers.items()},
            },
            connections=self._plan.consumers,
            goals={_UVICORN: at_least(1), _GRANIAN: at_least(1)},
        )

    def _compare(
        self,
        workload: str,
        contestants: dict[str, Callable[[_Measured], float]],
        *,
        connections: int,
        goals: dict[str, Goal],
    ) -> list[Row]:
        measured = {name: _Measured() for name in contestants}
        rates = interleave(
            workload,
            "msg/s",
            {name: partial(contestant, measured[name]) for name, contestant in contestants.items()},
            rounds=self._plan.rounds,
        )
        notes = {name: found.note(connections) for name, found in measured.items()}
        return compare(workload, _PAYLOAD, "msg/s", rates, goals=goals, notes=notes)

    def _drive(self, measured: _Measured, service: Service, make: Callable[[int], Exchange], connections: int) -> Load:
        before = service.cpu
        load = drive(service.port, make, connections=connections, seconds=self._plan.seconds)
        measured.latencies += load.latencies
        measured.generator.append(load.cpu)
        # CPU time and seconds both include the warm-up.
        measured.server.append((service.cpu - before) / (load.seconds + load.warm_up))
        return load

    def _publish(
        self, name: str, service: Service, content: bytes, measured: _Measured, *, moves: int, connections: int
    ) -> float:
        if name in self._peers:
            self._lab.conn.execute(f"truncate {textbook.TABLE}".encode())
            table = textbook.TABLE
        else:
            table = f"trunkline.topic_{ours.make_topic(self._lab, _TOPIC)}"
        self._lab.calm(table)

        def exchange(_: int) -> Exchange:
            while True:
                yield content, moves

        load = self._drive(measured, service, exchange, connections)
        stored = int(self._lab.value(f"select count(*) from {table}"))
        if stored < load.messages and name not in (_EMPTY, _EMPTY_POST):
            raise RuntimeError(f"{name} reported {load.messages} published messages, the table has {stored}")
        if name not in self._peers:
            self._lab.value("select trunkline.delete_topic(%s)", _TOPIC)
        return load.rate

    def _backlog(self, batch: int) -> int:
        return int((_BACKLOG if batch > 1 else _BACKLOG_SINGLE) * (self._plan.seconds + 0.5))

    def _consume_ours(self, batch: int, measured: _Measured) -> float:
        number = ours.make_queue(self._lab, _QUEUE)
        content = msgspec.json.encode(body(_PAYLOAD))
        ours.load_content(self._lab, number, content, messages=self._backlog(batch), content_type="application/json")
        ours.calm(self._lab, number)
        load = self._drive(measured, self._ours, partial(_claim_ours, batch), self._plan.consumers)
        acked = int(self._lab.value("select acked from trunkline.queue_stats(%s)", _QUEUE))
        if acked < load.messages:
            raise RuntimeError(f"trunkline reported {load.messages} acked messages, the queue has {acked}")
        self._lab.value("select trunkline.delete_queue(%s)", _QUEUE)
        return load.rate

    def _consume_peer(self, batch: int, service: Service, measured: _Measured) -> float:
        messages = self._backlog(batch)
        self._lab.conn.execute(f"truncate {textbook.TABLE}".encode())
        self._lab.conn.execute(
            f"insert into {textbook.TABLE} (payload) select %s::jsonb from generate_series(1, %s)".encode(),
            (msgspec.json.encode(body(_PAYLOAD)).decode(), messages),
        )
        self._lab.calm(textbook.TABLE)
        load = self._drive(measured, service, partial(_claim_peer, batch), self._plan.consumers)
        left = int(self._lab.value(f"select count(*) from {textbook.TABLE}"))
        if messages - left < load.messages:
            raise RuntimeError(
                f"the textbook service reported {load.messages} acked messages, the table lost {messages - left}"
            )
        return load.rate


class _Receipt(msgspec.Struct):
    receipt: str


class _Deliveries(msgspec.Struct):
    deliveries: list[_Receipt]


class _Id(msgspec.Struct):
    id: int


class _Messages(msgspec.Struct):
    messages: list[_Id]


_deliveries = msgspec.json.Decoder(_Deliveries)
_messages = msgspec.json.Decoder(_Messages)


def _claim_ours(batch: int, _: int) -> Exchange:
    claim = request("POST", f"/v1/queues/{_QUEUE}/claims", msgspec.json.encode({"limit": batch}))
    while found := _deliveries.decode((yield claim, 0)).deliveries:
        receipts = [delivery.receipt for delivery in found]
        response = yield request("POST", f"/v1/queues/{_QUEUE}/ack", msgspec.json.encode({"receipts": receipts})), len(found)
        if response.count(b'"done"') != len(found):
            raise RuntimeError(f"all {len(found)} messages must be acked, got {response[:500]!r}")


def _claim_peer(batch: int, _: int) -> Exchange:
    claim = request("POST", "/claims", msgspec.json.encode({"limit": batch}))
    while found := _messages.decode((yield claim, 0)).messages:
        ids = [message.id for message in found]
        yield request("POST", "/acks", msgspec.json.encode({"ids": ids})), len(found)
