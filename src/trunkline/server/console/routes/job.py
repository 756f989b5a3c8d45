"""One job: why it is where it is, its attempts and arguments, and running it again."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from trunkline.db import calls
from trunkline.db.calls import jobs
from trunkline.db.calls.job_records import JobView
from trunkline.errors import NotFound, TrunklineError
from trunkline.server.auth import SOME
from trunkline.server.console import copying, payloads, shapes
from trunkline.server.console.reads import jobs as reads
from trunkline.server.console.routes.dead import editable, typed
from trunkline.server.console.routes.jobs import knows
from trunkline.server.console.web import Panel, Panels, Values, View, action, page
from trunkline.server.problems import Problem
from trunkline.server.response import Response

_ONE, _AGAIN = "job.html", "dead_edit.html"
_JSON = "application/json"
_ENDED = ("done", "cancelled", "failed", "gone")
_DONE = {"retried": "It is in its queue again.", "cancelled": "Asked to cancel.", "uncancelled": "The request is withdrawn."}
one = Panels("/jobs/{job:uuid}", _ONE)


def _missing(id: UUID) -> Problem:
    return Problem(404, "job_not_found", f"job {id} does not exist")


async def _job(view: View, panel: Panel | None = None, scope: str = "view") -> JobView | None:
    """Return the job of the path, as if there were none if the caller may not see its queue. None: it could not be read."""
    id = UUID(str(view.path["job"]))
    try:
        if panel is not None:
            found = await panel.read("This job", ("job", id), lambda conn: reads.get(conn, id))
        else:
            found = (await view.console.reads.read(("job", id), lambda conn: reads.get(conn, id))).value
    except NotFound:
        raise _missing(id) from None
    if found is not None and not view.may("view", found.queue):
        raise _missing(id)
    if found is not None and scope != "view":
        view.request.service.auth.check(view.request.scope, scope, found.queue)
    return found


def _moment(value: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(str(value))
    except ValueError:
        return None


def _attempts(job: JobView, *, readable: bool) -> list[dict[str, Any]]:
    """Return the attempts, the newest first."""
    found = []
    for entry in reversed(job.history):
        began, ended = _moment(entry.get("claimed_at")), _moment(entry.get("settled_at"))
        found.append(
            {
                "attempt": entry.get("attempt"),
                "worker": entry.get("consumer"),
                "began": began,
                "ended": ended,
                "took": shapes.duration(ended - began) if began and ended else "",
                "outcome": entry.get("outcome") or ("running" if ended is None else ""),
                "error": entry.get("error") if readable else None,
            }
        )
    return found


def _says(job: JobView, workers: int | None) -> tuple[str, str]:
    """Return the class and the headline of the verdict."""
    kind = job.kind or "this kind"
    words = {
        "running": ("wait", f"Running on {job.worker or 'a worker'}."),
        "ready": ("wait", "Ready: it starts when a worker is free."),
        "delayed": ("wait", "Waits until it is due."),
        "blocked": ("wait", f"Waits for {shapes.plural(len(job.waits_for or ()), 'other job')}."),
        "dead": ("stop", "Not tried again: it used all its attempts or was buried."),
        "done": ("done", "Done."),
        "cancelled": ("stop", "Cancelled before it started."),
        "failed": ("stop", "Failed, and its dead letter was removed."),
        "gone": ("done", "Settled, expired or purged longer ago than the delivery history reaches."),
    }
    if job.state in ("ready", "delayed") and workers == 0:
        return "stop", f"No live worker knows {kind}."
    return words.get(job.state, ("wait", job.state))


@one.add("queues")
async def about(panel: Panel) -> Values:
    view = panel.view
    job = await _job(view, panel)
    if job is None:
        return {"job": None}
    found = await panel.read("Workers", reads.WORKERS, reads.workers)
    known = None if found is None or job.kind is None else knows(found, job.kind, view)
    look, headline = _says(job, known)
    readable = view.may("read", job.queue)
    return {
        "job": job,
        "look": look,
        "headline": headline,
        "workers": known,
        "reads": readable,
        "operate": view.missing("operate", job.queue),
        "ended": job.state in _ENDED,
        "address": view.url("jobs", str(job.id)),
    }


@one.add("queues")
async def attempts(panel: Panel) -> Values:
    job = await _job(panel.view, panel)
    if job is None:
        return {"rows": [], "job": None}
    readable = panel.view.may("read", job.queue)
    return {"rows": _attempts(job, readable=readable), "job": job, "reads": readable}


@one.add("queues")
async def content(panel: Panel) -> Values:
    """Arguments and result."""
    job = await _job(panel.view, panel)
    readable = job is not None and panel.view.may("read", job.queue)
    return {
        "job": job,
        "reads": readable,
        "payload": payloads.look_at(job.payload, _JSON) if job and job.payload is not None and readable else None,
        "result": payloads.look_at(job.result, _JSON) if job and job.result is not None and readable else None,
        "waits_for": job.waits_for or [] if job else [],
    }


@page("/jobs/{job:uuid}")
async def job_detail(view: View) -> Response:
    """One job."""
    job = await _job(view)
    id, did = str(view.path["job"]), view.query.get("did", "")
    return await view.page(
        _ONE,
        one,
        title=(job.kind or id) if job else id,
        nav="jobs",
        crumbs=[("Jobs", view.url("jobs")), (shapes.short(id), None)],
        job=job,
        id=id,
        did=_DONE.get(did, ""),
        copies=copying.job(id),
    )


async def _for_change(view: View) -> JobView:
    job = await _job(view, scope="operate")
    if job is None:
        raise Problem(503, "database_unavailable", "the job could not be read: the database does not respond")
    return job


async def _changed(view: View, job: JobView, did: str) -> Response:
    if job.queue is not None:
        view.changed(f"queue:{job.queue}", "queues")
        view.request.mq.session.wakeup.published("inbox", job.queue)
    return view.redirect(view.url("jobs", str(job.id), did=did))


@action("/jobs/{job:uuid}/retry", scope="operate", object=SOME)
async def retry(view: View) -> Response:
    """Retry a dead job. Its attempts start again from 1."""
    job = await _for_change(view)
    await view.change(lambda conn: jobs.retry_job(conn, job.id))
    return await _changed(view, job, "retried")


@action("/jobs/{job:uuid}/cancel", scope="operate", object=SOME)
async def cancel(view: View) -> Response:
    """Cancel a job: a worker stops it, or it ends at once if it is blocked."""
    job = await _for_change(view)
    reason = (await view.form()).get("reason", "").strip()[:1000] or f"by {view.caller.name}"
    await view.change(lambda conn: jobs.cancel_job(conn, job.id, reason))
    return await _changed(view, job, "cancelled")


@action("/jobs/{job:uuid}/uncancel", scope="operate", object=SOME)
async def uncancel(view: View) -> Response:
    """Withdraw a cancel request that no worker has carried out yet."""
    job = await _for_change(view)
    await view.change(lambda conn: jobs.uncancel_job(conn, job.id))
    return await _changed(view, job, "uncancelled")


# Again, with other arguments


async def _again_form(view: View, job: JobView, text: str | None, error: str | None, status: int = 200) -> Response:
    dead = job.state == "dead"
    read = await view.console.reads.read(reads.WORKERS, reads.workers)
    schemas = [worker.schemas[job.kind] for worker in read.value or () if worker.schemas and job.kind in worker.schemas]
    note = (
        f"Moves this job back to {job.queue} with other arguments. Its attempts start again from 1."
        if dead
        else f"Enqueues a new job of the same kind in {job.queue}. This one stays as it is."
    )
    return await view.page(
        _AGAIN,
        status=status,
        title=f"{'Retry' if dead else 'Run again'}: {job.kind}",
        nav="jobs",
        crumbs=[("Jobs", view.url("jobs")), (shapes.short(job.id), view.url("jobs", str(job.id))), ("Again", None)],
        name=str(job.id),
        text=text,
        content_type=_JSON,
        error=error,
        note=note,
        action=view.url("jobs", str(job.id), "again"),
        word="Retry edited" if dead else "Enqueue",
        missing=view.missing("operate" if dead else "publish", job.queue),
        back=view.url("jobs", str(job.id)),
        schema=msgspec.json.format(msgspec.json.encode(schemas[0])).decode() if schemas else "",
    )


@page("/jobs/{job:uuid}/again", scope="read")
async def again_form(view: View) -> Response:
    """The form to change the arguments of a job."""
    job = await _job(view, scope="read")
    if job is None or job.payload is None:
        raise Problem(404, "no_arguments", "the arguments of this job are not kept any more")
    return await _again_form(view, job, editable(job.payload), None)


@action("/jobs/{job:uuid}/again", scope="view", object=SOME)
async def again(view: View) -> Response:
    """Retry a dead job with other arguments, or enqueue another job of the kind of one that is not dead."""
    job = await _job(view)
    if job is None or job.queue is None or job.payload is None:
        raise Problem(404, "no_arguments", "the arguments of this job are not kept any more")
    check, queue = view.request.service.auth.check, job.queue
    check(view.request.scope, "read", queue)
    check(view.request.scope, "operate" if job.state == "dead" else "publish", queue)
    payload, error = typed(await view.form(), _JSON)
    new = job.id
    if error is None:
        try:
            if job.state == "dead":
                await view.change(lambda conn: calls.redrive_edited(conn, queue, job.id, payload))
            else:
                new = (
                    await view.request.mq.enqueue(
                        queue, payload, content_type=_JSON, label=job.kind, key=job.key, headers=_kept(job.headers)
                    )
                ).id
        except TrunklineError as exc:
            if exc.status != 400:
                raise
            error = exc.message
    if error is not None:
        return await _again_form(view, job, payload.decode(), error, 400)
    return await _changed(view, msgspec.structs.replace(job, id=new), "retried")


def _kept(headers: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the headers that a new job of the same kind has too: it is not unique as the first one was."""
    return {name: value for name, value in (headers or {}).items() if name != "trunkline-unique"} or None


ROUTES = [job_detail, *one.routes, retry, cancel, uncancel, again_form, again]
