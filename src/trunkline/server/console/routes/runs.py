"""Runs: bulk actions that the database executes. The list, one run, and the form that previews and starts one."""

from __future__ import annotations

from typing import Any

from trunkline.db.calls import runs as calls
from trunkline.db.pool import Connection
from trunkline.errors import Conflict, NotFound, TrunklineError
from trunkline.server.auth import SOME
from trunkline.server.console import bulk, copying
from trunkline.server.console.reads import runs as reads
from trunkline.server.console.web import Panel, Panels, Values, View, action, page
from trunkline.server.problems import Problem
from trunkline.server.response import Response
from trunkline.types import Run, RunPreview

_LIST, _DETAIL, _NEW = "runs.html", "run.html", "run_new.html"
_PAGE = 50
_MOST = 2**62
listing = Panels("/runs", _LIST)
one = Panels("/runs/{run:int}", _DETAIL)


@listing.add("runs")
async def rows(panel: Panel) -> Values:
    view = panel.view
    before, active = _before(view), view.query.get("show") == "active"
    states = reads.LIVE_STATES if active else None
    found = await panel.read("Runs", ("runs", states, before), lambda conn: reads.rows(conn, states, before, _PAGE))
    return {
        "rows": [(run, bulk.title(run), bulk.words(run)) for run in found or () if view.may("view", bulk.queue_of(run))],
        "known": found is not None,
        "active": active,
        "more": view.with_query(before=found[-1].run_id) if found and len(found) == _PAGE else None,
    }


def _before(view: View) -> int | None:
    text = view.query.get("before", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 18 else None


async def _run(view: View, panel: Panel | None = None) -> Run | None:
    """Return the run of the path, as if there were none if the caller may not see its queue."""
    number = int(view.path["run"])
    if number >= _MOST:
        raise Problem(404, "run_not_found", f"run {number} does not exist")

    def work(conn: Connection) -> Any:
        return reads.get(conn, number)

    if panel is not None:
        found = await panel.read("This run", ("run", number), work)
    else:
        found = (await view.console.reads.read(("run", number), work)).value
    if found is not None and not view.may("view", bulk.queue_of(found)):
        raise Problem(404, "run_not_found", f"run {number} does not exist")
    return found


@one.add("runs", "queues")
async def progress(panel: Panel) -> Values:
    run = await _run(panel.view, panel)
    if run is None:
        return {"run": None}
    total = max(run.total, run.done, 1)
    queue = bulk.queue_of(run)
    return {
        "run": run,
        "queue": queue,
        "words": bulk.words(run),
        "steps": [(step.word, step.at) for step in bulk.steps(run)],
        "parts": [
            (100 * max(0, run.done - run.failed) / total, "c-dead" if bulk.purges(run.kind) else "c-acked"),
            (100 * run.failed / total, "c-dead"),
        ],
        "left": bulk.left(run),
        "purges": bulk.purges(run.kind),
        "missing": panel.view.missing("admin" if bulk.purges(run.kind) else "operate", queue),
        "reads": panel.view.may("read", queue),
    }


@one.add("runs")
async def events(panel: Panel) -> Values:
    run = await _run(panel.view, panel)
    queue = bulk.queue_of(run) if run else ""
    return {
        "log": run.log if run else [],
        "failures": run.failures if run else [],
        "reads": panel.view.may("read", queue),
        "queue": queue,
    }


@page("/runs")
async def run_list(view: View) -> Response:
    """Bulk actions, the newest first."""
    active = view.query.get("show") == "active"
    shown = [("All", view.url("runs"), not active), ("Active", view.url("runs", show="active"), active)]
    return await view.page(_LIST, listing, title="Runs", nav="dead", shown=shown, copies=copying.runs())


@page("/runs/{run:int}")
async def run_detail(view: View) -> Response:
    """One run: its progress, its log, and messages that failed again."""
    run = await _run(view)
    number = int(view.path["run"])
    return await view.page(
        _DETAIL,
        one,
        title=f"Run {number}",
        nav="dead",
        crumbs=[("Runs", view.url("runs")), (f"Run {number}", None)],
        subtitle=bulk.title(run) if run else "",
        run=run,
        queue=bulk.queue_of(run) if run else "",
        copies=copying.one_run(number),
    )


async def _change(view: View, work: Any) -> Response:
    run = await _run(view)
    if run is None:
        raise Problem(503, "database_unavailable", "the run could not be read: the database does not respond")
    scope = "admin" if bulk.purges(run.kind) else "operate"
    view.request.service.auth.check(view.request.scope, scope, bulk.queue_of(run))
    await view.change(lambda conn: work(conn, run.run_id), "runs", "queues")
    return view.redirect(view.url("runs", run.run_id))


@action("/runs/{run:int}/pause", scope="operate", object=SOME)
async def pause(view: View) -> Response:
    """Pause a run after the step that is in progress."""
    return await _change(view, lambda conn, number: calls.pause_run(conn, number, reason=f"by {view.caller.name}"))


@action("/runs/{run:int}/resume", scope="operate", object=SOME)
async def resume(view: View) -> Response:
    """Continue a run that is paused or was stopped."""
    return await _change(view, calls.resume_run)


@action("/runs/{run:int}/abort", scope="operate", object=SOME)
async def abort(view: View) -> Response:
    """End a run early."""
    return await _change(view, lambda conn, number: calls.abort_run(conn, number, reason=f"by {view.caller.name}"))


# Starting


async def _preview(
    view: View, queue: str, kind: str, fields: dict[str, str]
) -> tuple[dict[str, Any], RunPreview | None, str | None]:
    """Return the selector, what it matches now, and an error."""
    try:
        chosen = bulk.selector(queue, fields, view.now)
    except TrunklineError as exc:
        return {"queue": queue}, None, exc.message

    async def work(conn: Connection) -> tuple[RunPreview | None, str | None]:
        try:
            return await reads.preview(conn, kind, chosen), None
        except NotFound:
            raise
        except TrunklineError as exc:
            if exc.status >= 500:
                raise
            return None, exc.message

    key = ("preview", kind, tuple(sorted((name, str(value)) for name, value in chosen.items())))
    read = await view.console.reads.read(key, work, seconds=5.0)
    if read.value is None:
        return chosen, None, f"The preview {read.late}"
    return chosen, *read.value


async def _form(view: View, kind: str, fields: dict[str, str], error: str | None = None, status: int = 200) -> Response:
    queue = str(view.path["queue"])
    if kind == "replay" and not fields.get("from"):
        fields = {**fields, "from": "1h"}
    if kind == "purge_queue":
        fields = {}
    chosen, found, wrong = await _preview(view, queue, kind, fields)
    verb, noun = bulk.KINDS[kind]
    ages = [
        (age, view.url("queues", queue, "run", **{"kind": kind, "from": age}), fields.get("from") == age)
        for age in ("15m", "1h", "6h", "24h")
    ]
    try:
        told = bulk.options(kind, fields)
    except TrunklineError:
        told = {}
    return await view.page(
        _NEW,
        status=status,
        title=f"{verb} {noun}s",
        nav="queues" if kind in ("purge_queue", "replay") else "dead",
        crumbs=[("Queues", view.url("queues")), (queue, view.url("queues", queue)), (f"{verb} {noun}s", None)],
        queue=queue,
        kind=kind,
        verb=verb,
        noun=noun,
        fields=fields,
        hidden=[(name, fields[name]) for name in (*bulk.FIELDS, "ids", "all") if fields.get(name)],
        chosen=chosen,
        preview=found,
        error=error or wrong,
        purges=bulk.purges(kind),
        moves=kind in bulk.MOVES,
        ages=ages if kind == "replay" else [],
        missing=view.missing("admin" if bulk.purges(kind) else "operate", queue),
        back=view.url(
            "queues", queue, tab="completed" if kind == "replay" else "ready" if kind == "purge_queue" else "dead"
        ),
        copies=copying.run(kind, chosen, found.messages, told) if found else (),
    )


@page("/queues/{queue:str}/run", object="queue")
async def new_run(view: View) -> Response:
    """Preview a run and choose its options."""
    kind = view.query.get("kind", "redrive")
    fields = dict(view.query)
    if kind not in bulk.KINDS or kind == "seek":
        raise Problem(400, "bad_parameter", "kind must be redrive, retry_jobs, purge_dead_letters, replay or purge_queue")
    if kind not in ("replay", "purge_queue") and not any(fields.get(name) for name in (*bulk.FIELDS, "ids")):
        fields["all"] = "1"
    return await _form(view, kind, fields)


@action("/queues/{queue:str}/run", scope="operate", object="queue")
async def start_run(view: View) -> Response:
    """Start a run with the numbers of its preview. A purge needs the scope `admin` and the name of the queue, typed."""
    queue, fields = str(view.path["queue"]), await view.form()
    kind = fields.get("kind", "")
    if kind not in bulk.KINDS or kind == "seek":
        raise Problem(400, "bad_form", "the form names no kind of run")
    if bulk.purges(kind):
        view.request.service.auth.check(view.request.scope, "admin", queue)
        if fields.get("confirm", "") != queue:
            return await _form(view, kind, fields, "Type the name of the queue to purge it.", 400)
    target = fields.get("target", "").strip()
    if target:
        view.request.service.auth.check(view.request.scope, "operate", target)
    try:
        chosen, options = bulk.selector(queue, fields, view.now), bulk.options(kind, fields)
        expected = int(fields.get("expected", ""))
    except ValueError:
        raise Problem(400, "bad_form", "the form has no number of its preview") from None
    except TrunklineError as exc:
        return await _form(view, kind, fields, exc.message, 400)
    by = view.caller.name
    try:
        number = await view.change(
            lambda conn: calls.start_run(conn, kind, chosen, expected=expected, options=options, by=by), "runs", "queues"
        )
    except NotFound:
        raise
    except TrunklineError as exc:
        if exc.status >= 500:
            raise
        changed = isinstance(exc, Conflict)
        error = "The number of messages changed since the preview. Look at it again." if changed else exc.message
        return await _form(view, kind, fields, error, 409 if changed else 400)
    return view.redirect(view.url("runs", number))


ROUTES = [run_list, *listing.routes, run_detail, *one.routes, pause, resume, abort, new_run, start_run]
