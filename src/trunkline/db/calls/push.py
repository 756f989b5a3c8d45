"""Typed calls of `sql/functions/push.sql`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import msgspec

from trunkline.codec import decoder, error_text, headers_json
from trunkline.db.calls.list_records import EndpointEvent
from trunkline.db.calls.statements import message_fields
from trunkline.db.pool import Connection
from trunkline.db.query import fetch_records, fetch_rows, fetch_value
from trunkline.types import Attempt, Delivery, Endpoint, NewEndpoint, Result

S = TypeVar("S")
_SETTINGS = {
    "url": "text",
    "rate": "float8",
    "burst": "int",
    "max_in_flight": "int",
    "timeout": "interval",
    "headers": "jsonb",
    "mode": "text",
    "batch_size": "int",
    "secret": "text",  # nosec B105
}


def _named(settings: Mapping[str, Any]) -> tuple[str, list[Any]]:
    values = {name: value for name, value in settings.items() if value is not None}
    if "headers" in values:
        values["headers"] = headers_json(values["headers"])
    return "".join(f", p_{name} => %b::{_SETTINGS[name]}" for name in values), list(values.values())


# Endpoints


async def create_endpoint(conn: Connection, name: str, **settings: Any) -> NewEndpoint:
    named, values = _named(settings)
    query = f"select name, secret, trunkline.needed_network(%b) from trunkline.create_endpoint(p_name => %b{named})"  # noqa: S608
    return NewEndpoint(*(await fetch_rows(conn, query, (settings["url"], name, *values)))[0])


async def alter_endpoint(conn: Connection, name: str, **settings: Any) -> None:
    named, values = _named(settings)
    await fetch_rows(conn, f"select trunkline.alter_endpoint(p_name => %b{named})", (name, *values))


_ENDPOINTS = "select e.*, trunkline.needed_network(e.url) as needs_allow from trunkline.list_endpoints() e"


async def list_endpoints(conn: Connection) -> list[Endpoint]:
    return await fetch_records(conn, Endpoint, _ENDPOINTS)


async def any_endpoint(conn: Connection) -> bool:
    return bool(await fetch_value(conn, "select exists (select from trunkline.endpoints)"))


async def get_endpoint(conn: Connection, name: str) -> Endpoint:
    # the first statement raises if the endpoint does not exist
    await fetch_rows(conn, "select from trunkline._endpoint(%b)", (name,))
    return (await fetch_records(conn, Endpoint, f"{_ENDPOINTS} where e.name = %b", (name,)))[0]


async def delete_endpoint(conn: Connection, name: str, *, force: bool = False) -> None:
    await fetch_rows(conn, "select trunkline.delete_endpoint(%b, %b)", (name, force))


async def pause_endpoint(conn: Connection, name: str, *, reason: str | None = None) -> None:
    await fetch_rows(conn, "select trunkline.pause_endpoint(%b, %b::text)", (name, reason))


async def resume_endpoint(conn: Connection, name: str) -> None:
    await fetch_rows(conn, "select trunkline.resume_endpoint(%b)", (name,))


async def disable_endpoint(conn: Connection, name: str, *, reason: str) -> None:
    await fetch_rows(conn, "select trunkline.disable_endpoint(%b, %b)", (name, reason))


async def bind_queue(conn: Connection, queue: str, endpoint: str) -> None:
    await fetch_rows(conn, "select trunkline.bind_queue(%b, %b)", (queue, endpoint))


async def unbind_queue(conn: Connection, queue: str) -> None:
    await fetch_rows(conn, "select trunkline.unbind_queue(%b)", (queue,))


async def rotate_secret(conn: Connection, name: str, *, secret: str | None = None, keep: bool = True) -> str:
    return str(await fetch_value(conn, "select trunkline.rotate_secret(%b, %b::text, %b)", (name, secret, keep)))


async def endpoint_secrets(conn: Connection, name: str) -> list[str]:
    return list(await fetch_value(conn, "select trunkline.endpoint_secrets(%b)", (name,)))


async def test_endpoint(conn: Connection, name: str) -> UUID:
    return UUID(str(await fetch_value(conn, "select trunkline.test_endpoint(%b)", (name,))))


async def list_attempts(
    conn: Connection,
    endpoint: str | None,
    *,
    id: UUID | None,
    since: timedelta,
    limit: int,
    outcome: str | None = None,
    status: int | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
    after: tuple[datetime, UUID] | None = None,
) -> list[Attempt]:
    """Return attempts, newest first. `after`: the start and id of the last row of the former page."""
    before, before_id = after or (None, None)
    return await fetch_records(
        conn,
        Attempt,
        "select * from trunkline.list_attempts(%b::text, %b::uuid, %b, %b::int, %b::text, %b::int, %b::timestamptz,"
        " %b::timestamptz, %b::timestamptz, %b::uuid)",
        (endpoint, id, since, limit, outcome, status, start, end, before, before_id),
    )


async def list_endpoint_events(
    conn: Connection, endpoint: str, *, before: int | None = None, limit: int = 100
) -> list[EndpointEvent]:
    query = "select * from trunkline.list_endpoint_events(%b, %b::bigint, %b::int)"
    return await fetch_records(conn, EndpointEvent, query, (endpoint, before, limit))


class EndpointStats(msgspec.Struct, frozen=True):
    """Statistics of an endpoint for the last minute, from at most its newest 1,000 requests."""

    endpoint: str
    state: str
    breaker: str
    queues: list[str]
    acked: int
    nacked: int
    buried: int
    released: int
    tested: int
    per_second: float
    seconds_p50: float | None
    seconds_p99: float | None


async def endpoint_stats(conn: Connection, *, limit: int = 500) -> list[EndpointStats]:
    return await fetch_records(conn, EndpointStats, "select * from trunkline.endpoint_stats(%b::int)", (limit,))


async def replay(
    conn: Connection,
    queue: str,
    *,
    ids: Sequence[UUID] | None,
    start: datetime | None,
    end: datetime | None,
    limit: int,
) -> int:
    return int(
        await fetch_value(
            conn,
            "select trunkline.replay(%b, %b::uuid[], %b::timestamptz, %b::timestamptz, %b::int)",
            (queue, None if ids is None else list(ids), start, end, limit),
        )
    )


# Dispatching


class EndpointPlan(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint's state and settings for one dispatcher at time `now`. Times are in seconds from `now`."""

    now: datetime
    wait: float
    """Seconds until this dispatcher may send, because the others must first reduce their shares."""
    endpoint_id: int
    name: str
    url: str
    rate: float | None
    share: int
    """This dispatcher's share of `max_in_flight`."""
    timeout: float
    mode: str
    batch_size: int
    headers: dict[str, str]
    secrets: list[str]
    enabled: bool
    openings: int
    """Consecutive openings of the circuit breaker; 0 means closed."""
    open_for: float | None
    held_for: float | None
    queue_ids: list[int] | None
    queues: list[str] | None
    ordered: list[bool] | None
    leases: list[float] | None
    tests: list[UUID] | None


async def dispatch_plan(conn: Connection, dispatcher: str) -> list[EndpointPlan]:
    return await fetch_records(conn, EndpointPlan, "select * from trunkline.dispatch_plan(%b)", (dispatcher,))


async def leave_dispatch(conn: Connection, dispatcher: str) -> None:
    await fetch_rows(conn, "select trunkline.leave_dispatch(%b)", (dispatcher,))


async def claim_many(
    conn: Connection, queue_ids: Sequence[int], *, limit: int, consumer: str
) -> tuple[dict[int, list[Delivery[Any]]], set[int]]:
    """Claim from several queues. Return deliveries by queue id, and the ids of queues that have no more.

    Uses a relaxed commit, as a claim does.
    """
    rows = await fetch_rows(
        conn,
        "select queue_id, (delivery).* from trunkline.claim_many(%b::int[], %b::int, %b::text, true)",
        (list(queue_ids), limit, consumer),
    )
    decode = decoder(None)
    deliveries: dict[int, list[Delivery[Any]]] = {}
    empty: set[int] = set()
    for row in rows:
        if row[1] is None:
            empty.add(row[0])
            continue
        delivery: Delivery[Any] = Delivery(
            **message_fields(row[5:]), receipt=row[1], attempt=row[2], deadline=row[3], topic=row[4], _decode=decode
        )
        deliveries.setdefault(row[0], []).append(delivery)
    return deliveries, empty


class Permits(NamedTuple):
    """Permits to start requests, each after `delays` seconds, valid for `valid` seconds. Ask again after `wait`."""

    delays: list[float]
    valid: float
    wait: float


async def acquire_permits(conn: Connection, endpoint_id: int, want: int) -> Permits:
    rows = await fetch_rows(
        conn, "select delays, valid, wait from trunkline.acquire_permits(%b::int, %b::int)", (endpoint_id, want)
    )
    return Permits(*rows[0])


class AttemptRow(NamedTuple):
    """The outcome of a delivery and its request. `seconds` is None if no request was made."""

    endpoint_id: int
    queue_id: int | None
    receipt: str | None
    id: UUID
    attempt: int
    started: float
    """Start of the request by the caller's clock."""
    seconds: float | None
    status: int | None
    outcome: str
    delay: timedelta | None
    error: str | None
    snippet: str | None


def _array(values: Iterable[Any]) -> str:
    """Format numbers or ids as a Postgres array literal. Adapting each value costs more than everything else here."""
    return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"


async def settle_attempts(conn: Connection, dispatcher: str, items: Sequence[AttemptRow], *, now: float) -> list[Result]:
    """Settle deliveries and record their attempts. `now` is by the same clock as `started`."""
    endpoints, queues, receipts, ids, attempts, started, seconds, statuses, outcomes, delays, errors, snippets = zip(
        *items, strict=True
    )
    ages = [now - at for at in started]
    columns = (
        _array(endpoints),
        _array(queues),
        list(receipts),
        _array(ids),
        *map(_array, (attempts, ages, seconds, statuses)),
    )
    return list(
        await fetch_value(
            conn,
            "select trunkline.settle_attempts(%b, %t::int[], %t::int[], %b::text[], %t::uuid[], %t::int[], %t::float8[],"
            " %t::float8[], %t::int[], %b::text[], %b::interval[], %b::text[], %b::text[])",
            (
                dispatcher,
                *columns,
                list(outcomes),
                list(delays),
                [error_text(error) for error in errors],
                [error_text(snippet) for snippet in snippets],
            ),
        )
    )


async def open_breaker(conn: Connection, endpoint_id: int, openings: int) -> float:
    value = await fetch_value(conn, "select trunkline.open_breaker(%b::int, %b::int)", (endpoint_id, openings))
    return 0.0 if value is None else float(value)


async def acquire_probe(conn: Connection, endpoint_id: int) -> bool:
    return bool(await fetch_value(conn, "select trunkline.acquire_probe(%b::int)", (endpoint_id,)))


async def close_breaker(conn: Connection, endpoint_id: int) -> None:
    await fetch_rows(conn, "select trunkline.close_breaker(%b::int)", (endpoint_id,))


async def defer_endpoint(conn: Connection, endpoint_id: int, span: timedelta) -> None:
    await fetch_rows(conn, "select trunkline.defer_endpoint(%b::int, %b)", (endpoint_id, span))


async def deny_egress(conn: Connection, dispatcher: str, endpoint_id: int, reason: str, *, probing: bool) -> float:
    query = "select trunkline.deny_egress(%b, %b::int, %b, %b)"
    return float(await fetch_value(conn, query, (dispatcher, endpoint_id, reason, probing)))


async def return_test(conn: Connection, endpoint_id: int, id: UUID) -> bool:
    return bool(await fetch_value(conn, "select trunkline.return_test(%b::int, %b::uuid)", (endpoint_id, id)))


async def allow_egress(conn: Connection, dispatcher: str, endpoint_id: int) -> None:
    await fetch_rows(conn, "select trunkline.allow_egress(%b, %b::int)", (dispatcher, endpoint_id))


# Receiving


async def receive(conn: Connection, receiver: str, id: str) -> bool:
    return bool(await fetch_value(conn, "select trunkline.receive(%b, %b)", (receiver, id)))
