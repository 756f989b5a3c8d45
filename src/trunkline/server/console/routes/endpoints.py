"""Endpoints: the receivers of webhooks, and one of them with its attempts."""

from __future__ import annotations

import asyncio
import re
import secrets
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from trunkline.db.calls import push, tokens
from trunkline.server.console import copying, shapes
from trunkline.server.console.reads import endpoints as reads
from trunkline.server.console.web import Panel, Panels, Values, View, action, page
from trunkline.server.query import moment
from trunkline.server.response import Response
from trunkline.types import Endpoint

_LIST, _DETAIL = "endpoints.html", "endpoint.html"
_PAGE = 100
_ATTEMPTS = 50
_EVENTS = 20
_TEST_SECONDS = 8.0
_POLL_SECONDS = 0.1
_PORTAL_DAYS = {"1": "1 day", "7": "7 days", "30": "30 days", "90": "90 days"}
_SINCE = {"15m": timedelta(minutes=15), "1h": timedelta(hours=1), "1d": timedelta(days=1), "30d": timedelta(days=30)}
OUTCOMES = ("acked", "nacked", "buried", "released", "tested")
_STATUS = re.compile(r"[1-5]xx|none|[1-5][0-9][0-9]")
listing = Panels("/endpoints", _LIST)
one = Panels("/endpoints/{endpoint:str}", _DETAIL, object="endpoint", portal=True)


def state_of(row: Endpoint, now: datetime) -> tuple[str, str, str]:
    """Return class, word and cause of what an endpoint does now: the first thing that stops it."""
    if row.state == "disabled":
        return "gone", "Disabled", row.reason or ""
    if row.state == "paused":
        return "gone", "Paused", row.reason or ""
    if row.breaker == "open":
        left = f"tries again in {shapes.duration(row.open_until - now)}" if row.open_until and row.open_until > now else ""
        return "dead", "Circuit open", left or "tries again now"
    if row.breaker == "half-open":
        return "delayed", "Backing off", "one request probes it"
    if row.held_until is not None and row.held_until > now:
        return "delayed", "Held", f"the receiver asked to wait {shapes.duration(row.held_until - now)}"
    return ("acked", "Healthy", "") if row.state == "enabled" else ("unknown", row.state, row.reason or "")


def shown_url(view: View, row: Endpoint) -> str:
    """Return the address. Its query may hold secrets: only who may read sees it."""
    if view.portal or view.may("read", row.name) or not urlsplit(row.url).query:
        return row.url
    return row.url.partition("?")[0] + "?…"


@listing.add("endpoints", "queues")
async def rows(panel: Panel) -> Values:
    view = panel.view
    found = await panel.read("Endpoints", reads.LIST, reads.all_endpoints)
    seen = [row for row in found.endpoints if view.may("view", row.name)] if found else []
    shown: list[dict[str, Any]] = []
    for row in seen:
        stats = found.stats.get(row.name) if found else None
        queues = (
            [found.queues[name] for name in row.queues if name in found.queues and view.may("view", name)] if found else []
        )
        sent = stats.acked + stats.nacked + stats.buried if stats else 0
        shown.append(
            {
                "row": row,
                "url": shown_url(view, row),
                "state": state_of(row, view.now),
                "share": shapes.share(stats.acked, sent) if stats and sent else None,
                "failing": bool(stats and sent and stats.acked < sent),
                "stats": stats,
                "queues": queues,
                "backlog": sum(queue.ready + queue.leased + queue.delayed for queue in queues),
                "oldest": max((queue.oldest_age for queue in queues), default=0.0),
            }
        )
    shown.sort(key=_urgency)
    start = next((place + 1 for place, each in enumerate(shown) if each["row"].name == view.query.get("after")), 0)
    more = len(shown) > start + _PAGE
    return {
        "rows": shown[start : start + _PAGE],
        "count": len(shown),
        "known": found is not None,
        "more": view.with_query(after=shown[start + _PAGE - 1]["row"].name) if more else None,
    }


def _urgency(row: dict[str, Any]) -> tuple[int, float, str]:
    """Sort what does not send first, then by the age of the oldest message."""
    order = ("dead", "delayed", "gone", "unknown", "acked")
    return order.index(row["state"][0]), -row["oldest"], row["row"].name


async def _endpoint(panel: Panel) -> Endpoint | None:
    name = str(panel.view.path["endpoint"])
    return await panel.read("This endpoint", ("endpoint", name), lambda conn: reads.one(conn, name))


@one.add("endpoint:{endpoint}")
async def status(panel: Panel) -> Values:
    view, row = panel.view, await _endpoint(panel)
    if row is None:
        return {"row": None}
    found = None if view.portal else await panel.read("Statistics", reads.LIST, reads.all_endpoints)
    queues = [each for name in row.queues if found and view.may("view", name) and (each := found.queues.get(name))]
    return {
        "row": row,
        "state": state_of(row, view.now),
        "stats": found.stats.get(row.name) if found else None,
        "queues": queues,
        "url": shown_url(view, row),
    }


def _wanted(view: View) -> tuple[reads.Wanted, str | None]:
    """Return which attempts the query of the page asks for, and what is wrong with it."""
    query, error = view.query, None
    status, text = query.get("status", "").strip().lower(), query.get("id", "").strip()
    if status and not _STATUS.fullmatch(status):
        error, status = "The status must be a number such as 503, a class such as 5xx, or none.", ""
    id = None
    try:
        id = UUID(text) if text else None
    except ValueError:
        error = "The message id must be a UUID."
    start, end = _time(query.get("start")), _time(query.get("end"))
    if start is not None and end is not None and start > end:
        error, end = "The start must not be after the end.", None
    at, _, last = query.get("after", "").partition("/")
    place = _time(at)
    try:
        after = None if place is None else (place, UUID(last))
    except ValueError:
        after = None
    outcome = query.get("outcome")
    since = _SINCE.get(query.get("since", ""), _SINCE["1d"])
    number = None if not status else 0 if status == "none" else int(status.removesuffix("xx"))
    return (
        reads.Wanted(
            outcome=outcome if outcome in OUTCOMES else None,
            status=number,
            id=id,
            start=start,
            end=end,
            after=after,
            since=since,
        ),
        error,
    )


def _time(text: str | None) -> datetime | None:
    try:
        return moment(text) if text else None
    except (ValueError, OverflowError):
        return None


@one.add("endpoint:{endpoint}")
async def attempts(panel: Panel) -> Values:
    view = panel.view
    name = str(view.path["endpoint"])
    wanted, error = _wanted(view)
    found = await panel.read(
        "Attempts", ("attempts", name, wanted), lambda conn: reads.attempts(conn, name, wanted, _ATTEMPTS)
    )
    rows = found or []
    older = None
    if len(rows) == _ATTEMPTS:
        older = view.url("endpoints", name, **{**view.query, "after": f"{rows[-1].started_at.isoformat()}/{rows[-1].id}"})
    return {
        "rows": rows,
        "error": error,
        "known": found is not None,
        "older": older,
        "outcomes": OUTCOMES,
        "ranges": list(_SINCE),
        "chosen": {key: view.query.get(key, "") for key in ("outcome", "status", "id", "since")},
        "filtered": any(view.query.get(key) for key in ("outcome", "status", "id", "since", "after")),
        "reads": view.portal or view.may("read", name),
    }


@one.add("endpoint:{endpoint}")
async def events(panel: Panel) -> Values:
    view = panel.view
    name = str(view.path["endpoint"])
    text = view.query.get("event", "")
    before = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
    key = ("endpoint events", name, before)
    found = await panel.read("Events", key, lambda conn: reads.events(conn, name, before, _EVENTS))
    rows = found or []
    older = view.url("endpoints", name, **{**view.query, "event": rows[-1].event_no}) if len(rows) == _EVENTS else None
    return {"rows": rows, "older": older, "known": found is not None, "reads": view.portal or view.may("read", name)}


@page("/endpoints")
async def endpoint_list(view: View) -> Response:
    """All endpoints that the caller may see."""
    return await view.page(_LIST, listing, title="Webhooks", nav="webhooks", copies=copying.endpoints())


@page("/endpoints/{endpoint:str}", object="endpoint", portal=True)
async def endpoint_detail(view: View) -> Response:
    """One endpoint: what it does now, its attempts, and its events."""
    name = str(view.path["endpoint"])
    read = await view.console.reads.read(("endpoint", name), lambda conn: reads.one(conn, name))
    tested = await _tested(view, name)
    return await view.page(
        _DETAIL,
        one,
        title=name,
        nav="webhooks",
        crumbs=[(name, None)] if view.portal else [("Webhooks", view.url("endpoints")), (name, None)],
        row=read.value,
        tested=tested,
        test=view.query.get("test"),
        operate=None if view.portal else view.missing("operate", name),
        admin=None if view.portal else view.missing("admin", name),
        copies=[] if view.portal else copying.endpoint(name),
        reads=view.portal or view.may("read", name),
    )


async def _tested(view: View, name: str) -> Any:
    """Return the attempt of the test request that the address names; None if there is none yet."""
    try:
        id = UUID(view.query.get("test", ""))
    except ValueError:
        return None
    wanted = reads.Wanted(id=id)
    read = await view.console.reads.read(
        ("attempts", name, wanted), lambda conn: reads.attempts(conn, name, wanted, 1), fresh=0.0
    )
    return read.value[0] if read.value else None


@action("/endpoints/{endpoint:str}/pause", scope="operate", object="endpoint", portal=True)
async def pause(view: View) -> Response:
    """Pause an endpoint."""
    name = str(view.path["endpoint"])
    await view.change(lambda conn: push.pause_endpoint(conn, name), f"endpoint:{name}", "endpoints")
    return view.redirect(view.url("endpoints", name))


@action("/endpoints/{endpoint:str}/resume", scope="operate", object="endpoint", portal=True)
async def resume(view: View) -> Response:
    """Resume an endpoint after a pause, a 410 response or an open circuit breaker."""
    name = str(view.path["endpoint"])
    await view.change(lambda conn: push.resume_endpoint(conn, name), f"endpoint:{name}", "endpoints")
    return view.redirect(view.url("endpoints", name))


@action("/endpoints/{endpoint:str}/test", scope="operate", object="endpoint", portal=True)
async def test(view: View) -> Response:
    """Send a test request, and wait a few seconds for its outcome."""
    name = str(view.path["endpoint"])
    id = await view.change(lambda conn: push.test_endpoint(conn, name))
    loop = asyncio.get_running_loop()
    end = loop.time() + _TEST_SECONDS
    while loop.time() < end and not view.request.service.stopping.is_set():
        async with view.request.mq.connection() as conn:
            if await reads.attempts(conn, name, reads.Wanted(id=id), 1):
                break
        await asyncio.sleep(_POLL_SECONDS)
    view.changed(f"endpoint:{name}", "endpoints")
    return view.redirect(view.url("endpoints", name, test=id))


def _crumbs(view: View, name: str, last: str) -> list[tuple[str, str | None]]:
    here: list[tuple[str, str | None]] = [(name, view.url("endpoints", name)), (last, None)]
    return here if view.portal else [("Webhooks", view.url("endpoints")), *here]


@page("/endpoints/{endpoint:str}/rotate", scope="admin", object="endpoint", portal=True)
async def ask_rotate(view: View) -> Response:
    """Say what rotating the secret does."""
    name = str(view.path["endpoint"])
    return await view.page(
        "endpoint_rotate.html",
        title="Rotate secret",
        nav="webhooks",
        crumbs=_crumbs(view, name, "Rotate secret"),
        name=name,
        copies=[] if view.portal else copying.rotate_secret(name),
    )


@action("/endpoints/{endpoint:str}/rotate", scope="admin", object="endpoint", portal=True)
async def rotate(view: View) -> Response:
    """Rotate the secret, and show the new one once."""
    name = str(view.path["endpoint"])
    secret = await view.change(lambda conn: push.rotate_secret(conn, name), f"endpoint:{name}")
    return await view.page(
        "secret.html",
        title="New secret",
        nav="webhooks",
        crumbs=_crumbs(view, name, "New secret"),
        what=f"Signing secret of {name}",
        secret=secret,
        notes=[
            "Add it at the receiver now. The former secret also signs until the next rotation, so nothing is refused.",
            "Verify deliveries with it: each has the headers webhook-id, webhook-timestamp and webhook-signature.",
        ],
        back=("Back to the endpoint", view.url("endpoints", name)),
    )


@page("/endpoints/{endpoint:str}/portal", scope="admin", object="endpoint")
async def ask_portal(view: View) -> Response:
    """Offer a link to this endpoint alone, for the people who run the receiver."""
    name = str(view.path["endpoint"])
    return await view.page(
        "endpoint_portal.html",
        title="Portal link",
        nav="webhooks",
        crumbs=_crumbs(view, name, "Portal link"),
        name=name,
        days=_PORTAL_DAYS,
        missing=view.missing("admin"),
    )


@action("/endpoints/{endpoint:str}/portal", scope="admin")
async def make_portal(view: View) -> Response:
    """Create a token for the portal of this endpoint, and show it once."""
    name = str(view.path["endpoint"])
    days = (await view.form()).get("days", "")
    days = days if days in _PORTAL_DAYS else "7"
    label = f"portal.{name[:100]}.{secrets.token_hex(4)}"

    async def make(conn: Any) -> str:
        await push.get_endpoint(conn, name)
        expires = await tokens.now(conn) + timedelta(days=int(days))
        scopes = [f"portal:{name}"]
        text, _ = await tokens.create_token(conn, label, scopes, expires_at=expires, made_by=view.request.caller)
        return text

    text = await view.change(make, "tokens")
    return await view.page(
        "secret.html",
        title="Portal link",
        nav="webhooks",
        crumbs=_crumbs(view, name, "Portal link"),
        what=f"Token {label}, valid for {_PORTAL_DAYS[days]}",
        secret=text,
        notes=[
            f"Its holder signs in at {view.url('login')} and sees the endpoint {name} and nothing else:"
            " attempts, test, rotate, pause and resume.",
            f"Revoke the token {label} to end it sooner.",
        ],
        back=("Back to the endpoint", view.url("endpoints", name)),
    )


ROUTES = [
    endpoint_list,
    *listing.routes,
    endpoint_detail,
    *one.routes,
    pause,
    resume,
    test,
    ask_rotate,
    rotate,
    ask_portal,
    make_portal,
]
