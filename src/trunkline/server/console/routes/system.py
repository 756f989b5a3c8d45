"""The system: checks, sessions that hold back vacuum, upkeep tasks, alerts, sizes, segments and settings."""

from __future__ import annotations

from typing import Any

import msgspec

from trunkline.db.calls import system as calls
from trunkline.server.console import charts, copying, shapes
from trunkline.server.console.reads import system as reads
from trunkline.server.console.web import Panel, Panels, Values, View, action, page
from trunkline.server.problems import invalid
from trunkline.server.response import Response

_PAGE, _SEGMENTS = "system.html", "segments.html"
_ALERTS = 50
_ROWS = 100
_LEVELS = {"fail": 0, "warn": 1, "ok": 2}
_TASKS = {"failing": 0, "late": 1, "ahead": 2, "never": 3, "ok": 4}
_SECRET = ("database_url", "password", "secret", "key")
panels = Panels("/system", _PAGE, object=None)
pieces = Panels("/system/segments", _SEGMENTS, object=None)


@panels.add("alerts")
async def alerts(panel: Panel) -> Values:
    view = panel.view
    every = view.query.get("alerts") == "all"
    before = _number(view.query.get("before", ""))
    key = ("alerts", every, before)
    found = await panel.read("Alerts", key, lambda conn: reads.alerts(conn, every, before, _ALERTS))
    rows = found or []
    shown = view.query.get("alerts", "")
    return {
        "rows": [{"row": row, "detail": _detail(row.detail)} for row in rows],
        "known": found is not None,
        "every": every,
        "admin": view.missing("admin"),
        "reads": view.may("read"),
        "older": view.url("system", alerts=shown, before=rows[-1].alert_id) if len(rows) == _ALERTS else None,
    }


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def _detail(detail: dict[str, Any]) -> str:
    """Return what an alert says, in one line."""
    return ", ".join(
        f"{name.replace('_', ' ')}: {value if isinstance(value, str) else msgspec.json.encode(value).decode()}"
        for name, value in detail.items()
        if value is not None
    )


@panels.add()
async def doctor(panel: Panel) -> Values:
    view = panel.view
    missing = view.missing("admin")
    if missing:
        return {"rows": [], "known": False, "missing": missing, "good": 0, "every": False}
    engine = view.request.service
    work = reads.doctor(engine.config.database_url, engine.examining)
    found = await panel.read("The checks", reads.DOCTOR, work, seconds=5.0, fresh=30.0)
    rows = sorted(found or [], key=lambda row: (_LEVELS.get(row.level, 1), row.check))
    every = view.query.get("checks") == "all"
    return {
        "rows": [row for row in rows if every or row.level != "ok"],
        "good": sum(row.level == "ok" for row in rows),
        "known": found is not None,
        "missing": None,
        "every": every,
    }


@panels.add()
async def sessions(panel: Panel) -> Values:
    view = panel.view
    missing = view.missing("admin")
    if missing:
        return {"rows": [], "known": False, "missing": missing}
    found = await panel.read("Sessions", reads.SESSIONS, reads.sessions)
    return {"rows": found or [], "known": found is not None, "missing": None}


@panels.add()
async def upkeep(panel: Panel) -> Values:
    found = await panel.read("Upkeep tasks", reads.UPKEEP, reads.upkeep)
    rows = sorted(found or [], key=lambda row: (_TASKS.get(row.state, 0), row.task))
    return {"rows": rows, "known": found is not None, "reads": panel.view.may("read")}


@panels.add()
async def sizes(panel: Panel) -> Values:
    found = await panel.read("Sizes", reads.SIZES, reads.sizes, fresh=30.0)
    rows = sorted(found or [], key=lambda row: -row.bytes)
    whole = sum(row.bytes for row in rows)
    return {
        "rows": [
            {
                "row": row,
                "share": shapes.share(row.bytes, whole),
                "bar": charts.meter(
                    [(100 * row.bytes / whole if whole else 0, "c-ink")], f"{row.part}: {row.bytes} B", cell=True
                ),
            }
            for row in rows
        ],
        "known": found is not None,
        "whole": whole,
    }


@pieces.add("topics", "queues")
async def segments(panel: Panel) -> Values:
    view = panel.view
    topic, queue = view.query.get("topic", "").strip() or None, view.query.get("queue", "").strip() or None
    if topic is not None:
        queue = None
    log, _, segment = view.query.get("after", "").partition(".")
    place = (_number(log), _number(segment))
    after = None if place[0] is None or place[1] is None or place[0] >= 2**31 else (place[0], place[1])
    key = ("segments", topic, queue, after)
    found = await panel.read("Segments", key, lambda conn: reads.segments(conn, topic, queue, after, _ROWS))
    rows = found or []
    last = rows[-1] if len(rows) == _ROWS else None
    return {
        "rows": [row for row in rows if view.may("view", row.name)],
        "known": found is not None,
        "topic": topic or "",
        "queue": queue or "",
        "more": view.url("system", "segments", topic=topic, queue=queue, after=f"{last.log}.{last.segment}")
        if last
        else None,
    }


def _settings(view: View) -> list[tuple[str, str]]:
    """Return the settings of this server, without those that hold secrets."""
    config = view.request.service.config
    found = []
    for name in sorted(config.__struct_fields__):
        value = getattr(config, name)
        if any(part in name for part in _SECRET):
            value = "set" if value else "not set"
        if isinstance(value, bool):
            value = "yes" if value else "no"
        elif isinstance(value, tuple | list | frozenset):
            value = ", ".join(str(each) for each in value)
        found.append((name.replace("_", " "), "not set" if value in (None, "") else str(value)[:200]))
    return found


@page("/system", object=None)
async def system(view: View) -> Response:
    """Checks, alerts, sessions, upkeep, sizes and settings."""
    return await view.page(
        _PAGE,
        panels,
        title="System",
        nav="system",
        copies=copying.system(),
        settings=_settings(view) if view.may("admin") else None,
    )


@page("/system/segments", object=None)
async def segment_list(view: View) -> Response:
    """The segments of the logs of topics and queues."""
    crumbs = [("System", view.url("system")), ("Segments", None)]
    return await view.page(_SEGMENTS, pieces, title="Segments", nav="system", crumbs=crumbs)


@action("/system/alerts/{alert:str}/close", scope="admin")
async def close(view: View) -> Response:
    """Close an alert: an operator has dealt with it."""
    alert = _number(str(view.path["alert"]))
    if not alert:
        raise invalid("alert: must be a number from 1.")
    await view.change(lambda conn: calls.close_alert(conn, alert, by=view.request.caller), "alerts", "overview")
    return view.redirect(view.url("system"))


ROUTES = [system, *panels.routes, segment_list, *pieces.routes, close]
