"""Schedules: cron in words, what happened at their times, and a form with a preview."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from markupsafe import Markup

from trunkline.cron import in_words
from trunkline.db.calls import schedules as calls
from trunkline.db.calls.list_records import Fire
from trunkline.errors import TrunklineError
from trunkline.server.bodies import name_fault
from trunkline.server.console import copying, shapes
from trunkline.server.console.reads import schedules as reads
from trunkline.server.console.web import Panel, Panels, Values, View, action, page
from trunkline.server.response import Response
from trunkline.types import Schedule

_LIST, _DETAIL = "schedules.html", "schedule.html"
_PAGE = 100
_FIRES = 50
_NEXT = 10
_CATCH_UP = {
    "one": "publish once",
    "skip": "publish nothing",
    "all": "publish each",
}
"""What to do about times that were missed."""
_FATES = {
    "on_time": ("c-acked", "on time"),
    "late": ("c-delayed", "late"),
    "caught_up": ("c-delayed", "caught up"),
    "manual": ("c-leased", "by hand"),
    "skipped": ("c-faint", "skipped"),
    "failed": ("c-dead", "failed"),
}
listing = Panels("/schedules", _LIST)
one = Panels("/schedules/{schedule:str}", _DETAIL, object=None)


def target(row: Schedule) -> str:
    """Return the topic or queue that the schedule publishes to."""
    return row.topic or row.queue or ""


def strip(fires: list[Fire]) -> Markup:
    """Return the last fires as bars, the newest to the right."""
    counts = {
        word: sum(_FATES.get(each.outcome, ("", each.outcome))[1] == word for each in fires) for _, word in _FATES.values()
    }
    told = ", ".join(f"{count} {word}" for word, count in counts.items() if count) or "none yet"
    out = [
        Markup('<svg class="strip" width="{}" height="16" role="img" aria-label="The last {}: {}">').format(
            reads.STRIP * 6, shapes.plural(len(fires), "time"), told
        )
    ]
    first = reads.STRIP - len(fires)
    for place, each in enumerate(fires):
        look, _ = _FATES.get(each.outcome, ("c-ink", ""))
        height = 14 if each.outcome != "skipped" else 5
        out.append(
            Markup('<rect class="fl {}" x="{}" y="{}" width="4" height="{}" rx="1"/>').format(
                look, (first + place) * 6, 15 - height, height
            )
        )
    return Markup("").join([*out, Markup("</svg>")])


@listing.add("schedules")
async def rows(panel: Panel) -> Values:
    view = panel.view
    found = await panel.read("Schedules", reads.LIST, reads.all_schedules)
    seen = [row for row in found or () if view.may("view", target(row))]
    start = next((place + 1 for place, row in enumerate(seen) if row.name == view.query.get("after")), 0)
    shown = seen[start : start + _PAGE]
    names = tuple(row.name for row in shown)
    strips = await panel.read("History", ("fires", names), lambda conn: reads.strips(conn, names), fresh=5.0) or {}
    return {
        "rows": [
            {
                "row": row,
                "words": in_words(row.cron),
                "left": _left(row, view.now),
                "strip": strip(strips.get(row.name, [])),
                "last": next(reversed(strips.get(row.name, [])), None),
            }
            for row in shown
        ],
        "fates": _FATES,
        "catch_up": _CATCH_UP,
        "count": len(seen),
        "known": found is not None,
        "opens": view.may("view"),
        "operate": view.missing("operate"),
        "more": view.with_query(after=shown[-1].name) if len(seen) > start + _PAGE else None,
    }


def _left(row: Schedule, now: datetime) -> str | None:
    """Return the time until the next run, unless there is none."""
    if row.paused or row.next_at is None:
        return None
    return f"in {shapes.duration(row.next_at - now)}" if row.next_at > now else "now"


async def _schedule(panel: Panel) -> Schedule | None:
    name = str(panel.view.path["schedule"])
    return await panel.read("This schedule", ("schedule", name), lambda conn: reads.one(conn, name))


@one.add("schedules")
async def status(panel: Panel) -> Values:
    view, row = panel.view, await _schedule(panel)
    return {
        "row": row,
        "left": _left(row, view.now) if row else None,
        "catch_up": _CATCH_UP,
    }


@one.add("schedules")
async def coming(panel: Panel) -> Values:
    row = await _schedule(panel)
    if row is None:
        return {"times": [], "zone_there": None}
    key = ("next runs", row.cron, row.timezone)
    found = await panel.read(
        "Next times", key, lambda conn: reads.next_runs(conn, row.cron, row.timezone, _NEXT), fresh=10.0
    )
    return {"times": _times(found or [], row.timezone), "zone_there": row.timezone}


def _times(times: list[datetime], timezone: str) -> list[dict[str, Any]]:
    """Return times with the time on the clock there, and whether that clock was changed since the one before."""
    try:
        there = ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return [{"at": at, "there": "", "shift": None} for at in times]
    found: list[dict[str, Any]] = []
    before: timedelta | None = None
    for at in times:
        local = at.astimezone(there)
        offset = local.utcoffset()
        shift = None if before is None or offset == before or offset is None else shapes.duration(offset - before)
        before = offset
        found.append({"at": at, "there": f"{local:%a} {local.day} {local:%b %H:%M}", "shift": shift})
    return found


@one.add("schedules")
async def fires(panel: Panel) -> Values:
    view = panel.view
    name = str(view.path["schedule"])
    text = view.query.get("before", "")
    before = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
    outcome = view.query.get("outcome", "")
    found = await panel.read(
        "History", ("schedule fires", name, before), lambda conn: reads.fires(conn, name, before, _FIRES)
    )
    every = found or []
    return {
        "rows": [row for row in every if outcome not in _FATES or row.outcome == outcome],
        "fates": _FATES,
        "chosen": outcome,
        "known": found is not None,
        "older": view.url("schedules", name, before=every[-1].fire_no, outcome=outcome) if len(every) == _FIRES else None,
        "strip": strip(list(reversed(every[: reads.STRIP]))),
        "reads": view.may("read"),
    }


@page("/schedules")
async def schedule_list(view: View) -> Response:
    """All schedules whose topic or queue the caller may see."""
    return await view.page(
        _LIST, listing, title="Schedules", nav="schedules", admin=view.missing("admin"), copies=copying.schedules()
    )


@page("/schedules/{schedule:str}", object=None)
async def schedule_detail(view: View) -> Response:
    """One schedule: its next times, and what happened at the last ones."""
    name = str(view.path["schedule"])
    read = await view.console.reads.read(("schedule", name), lambda conn: reads.one(conn, name))
    row = read.value
    return await view.page(
        _DETAIL,
        one,
        title=name,
        nav="schedules",
        crumbs=[("Schedules", view.url("schedules")), (name, None)],
        row=row,
        words=in_words(row.cron) if row else "",
        payload=_payload(row) if row and view.may("read") else None,
        operate=view.missing("operate"),
        admin=view.missing("admin"),
        copies=copying.schedule(name),
    )


def _payload(row: Schedule) -> str:
    """Return the payload as text, without changing its numbers."""
    return row.payload.decode("utf-8", "replace")[:20_000]


def _name(view: View) -> str:
    return str(view.path["schedule"])


@action("/schedules/{schedule:str}/pause", scope="operate")
async def pause(view: View) -> Response:
    """Pause a schedule."""
    await view.change(lambda conn: calls.pause_schedule(conn, _name(view), paused=True), "schedules")
    return view.redirect(view.url("schedules", _name(view)))


@action("/schedules/{schedule:str}/resume", scope="operate")
async def resume(view: View) -> Response:
    """Resume a schedule."""
    await view.change(lambda conn: calls.pause_schedule(conn, _name(view), paused=False), "schedules")
    return view.redirect(view.url("schedules", _name(view)))


@action("/schedules/{schedule:str}/run", scope="operate")
async def run_now(view: View) -> Response:
    """Publish the message of a schedule now; its next time stays."""
    await view.change(lambda conn: calls.run_schedule(conn, _name(view)), "schedules")
    return view.redirect(view.url("schedules", _name(view)))


@page("/schedules/{schedule:str}/delete", scope="admin", object=None)
async def ask_delete(view: View) -> Response:
    """Ask whether to delete a schedule."""
    name = _name(view)
    return await view.page(
        "schedule_delete.html",
        title="Delete schedule",
        nav="schedules",
        crumbs=[("Schedules", view.url("schedules")), (name, view.url("schedules", name)), ("Delete", None)],
        name=name,
    )


@action("/schedules/{schedule:str}/delete", scope="admin")
async def delete(view: View) -> Response:
    """Delete a schedule whose name was typed."""
    name = _name(view)
    if (await view.form()).get("confirm") != name:
        return view.redirect(view.url("schedules", name, "delete"))
    await view.change(lambda conn: calls.delete_schedule(conn, name), "schedules")
    return view.redirect(view.url("schedules"))


# Create


class Draft(msgspec.Struct, frozen=True):
    """The form of a new schedule. `faults`: what is wrong, by field."""

    name: str
    cron: str
    timezone: str
    kind: str
    target: str
    payload: str
    label: str
    catch_up: str
    faults: dict[str, str]

    @property
    def ready(self) -> bool:
        return bool(self.name and self.cron and self.target) and not self.faults


def _draft(fields: dict[str, str]) -> Draft:
    values = {
        key: fields.get(key, "").strip() for key in ("name", "cron", "timezone", "kind", "target", "label", "catch_up")
    }
    payload = fields.get("payload", "").strip()
    faults = {}
    if values["name"] and (fault := name_fault(values["name"])):
        faults["name"] = f"Name: {fault}"
    if values["target"] and (fault := name_fault(values["target"])):
        faults["target"] = f"Target: {fault}"
    if len(values["cron"]) > 200:
        faults["cron"] = "The expression must have at most 200 characters."
    if payload:
        try:
            msgspec.json.decode(payload)
        except msgspec.DecodeError as exc:
            faults["payload"] = f"The payload must be JSON: {exc}."
    return Draft(
        name=values["name"],
        cron=values["cron"],
        timezone=values["timezone"][:100] or "UTC",
        kind="topic" if values["kind"] == "topic" else "queue",
        target=values["target"],
        payload=payload,
        label=values["label"],
        catch_up=values["catch_up"] if values["catch_up"] in _CATCH_UP else "one",
        faults=faults,
    )


async def _form(view: View, draft: Draft, status: int = 200) -> Response:
    faults = dict(draft.faults)
    times: list[datetime] = []
    if draft.cron and "cron" not in faults:
        try:
            times = await view.request.mq.schedules.next_runs(draft.cron, timezone=draft.timezone, limit=_NEXT)
        except TrunklineError as exc:
            if exc.status >= 500:
                raise
            faults["cron"] = f"{exc}. {exc.hint or ''}".strip()
    made = msgspec.structs.replace(draft, faults=faults)
    return await view.page(
        "schedule_new.html",
        status=status,
        title="New schedule",
        nav="schedules",
        crumbs=[("Schedules", view.url("schedules")), ("New schedule", None)],
        draft=made,
        words=in_words(draft.cron) if times else None,
        times=_times(times, draft.timezone),
        catch_up=_CATCH_UP,
        fields=msgspec.structs.asdict(made),
    )


@page("/new-schedule", scope="admin", object=None)
async def new(view: View) -> Response:
    """The form of a new schedule, with its next times."""
    return await _form(view, _draft(view.query))


@action("/new-schedule", scope="admin", audit=True)
async def create(view: View) -> Response:
    """Create the schedule of the form."""
    draft = _draft(await view.form())
    if not draft.ready:
        return await _form(view, draft, 400)
    settings: dict[str, Any] = {draft.kind: draft.target, "timezone": draft.timezone, "catch_up": draft.catch_up}
    if draft.payload:
        settings["payload"] = draft.payload
    if draft.label:
        settings["label"] = draft.label
    try:
        await view.change(lambda conn: calls.create_schedule(conn, draft.name, draft.cron, **settings), "schedules")
    except TrunklineError as exc:
        if exc.status >= 500:
            raise
        return await _form(view, msgspec.structs.replace(draft, faults={**draft.faults, "name": str(exc)}), 400)
    return view.redirect(view.url("schedules", draft.name))


ROUTES = [
    schedule_list,
    *listing.routes,
    schedule_detail,
    *one.routes,
    pause,
    resume,
    run_now,
    ask_delete,
    delete,
    new,
    create,
]
