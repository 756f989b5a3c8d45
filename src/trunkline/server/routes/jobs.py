"""Jobs, workers and limits."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

import msgspec
from litestar.params import FromPath
from msgspec import Meta

from trunkline.db.calls import jobs
from trunkline.db.calls.job_records import JobRow, JobView, LimitRow, WorkerRow
from trunkline.errors import JobNotFound
from trunkline.server.auth import IN_BODY
from trunkline.server.query import Param
from trunkline.server.request import Request
from trunkline.server.response import Response, respond
from trunkline.server.routing import Doc, route
from trunkline.server.views import render

TAG = "jobs"
_STATES = ("running", "ready", "delayed", "blocked", "dead", "done")
_FILTERS = (
    Param(name="state", choices=_STATES, words="Only jobs in this state; all but done by default."),
    Param(name="kind", words="Only jobs of this kind."),
    Param(name="after", words="`next` of the previous page."),
    Param(name="limit", kind=int, default=100, low=1, high=1000, words="Maximum number of jobs."),
)


class JobList(msgspec.Struct, frozen=True, omit_defaults=True):
    data: list[JobRow]
    next: str | None = None
    """Pass as `after` to get the next page; omitted on the last."""


@route("GET", "/jobs", Doc(tag=TAG, scope="read", params=_FILTERS, responses={200: JobList}, reads=True))
async def list_jobs(request: Request) -> Response:
    """List jobs of all queues by state, then by queue."""
    return respond(await _list(request, None))


@route(
    "GET",
    "/queues/{queue:str}/jobs",
    Doc(tag=TAG, scope="read", params=_FILTERS, responses={200: JobList}, problems=(404,), object="queue", reads=True),
)
async def list_queue_jobs(request: Request, queue: FromPath[str]) -> Response:
    """List jobs of a queue by state."""
    return respond(await _list(request, queue))


async def _list(request: Request, queue: str | None) -> JobList:
    query = request.query()
    async with request.mq.connection() as conn:
        rows = await jobs.list_jobs(
            conn, queue, state=query["state"], kind=query["kind"], after=query["after"], limit=query["limit"]
        )
    return JobList(rows, rows[-1].position if len(rows) == query["limit"] else None)


class JobDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A job. `state`: running, ready, delayed, blocked, dead, done, cancelled, failed or gone."""

    id: UUID
    queue: str | None
    kind: str | None
    state: str
    reason: str | None
    attempt: int
    due_at: datetime | None
    worker: str | None
    error: str | None
    created_at: datetime | None
    ended_at: datetime | None
    key: str | None
    headers: dict[str, Any] | None
    payload: Any
    """The arguments."""
    encoding: str | None
    """Encoding of `payload`: json, text or base64; null without a payload."""
    result: Any
    result_encoding: str | None
    history: list[dict[str, Any]]
    waits_for: list[UUID] | None
    cancel: str | None
    """Reason of a pending cancel request."""


def _view(job: JobView) -> JobDetails:
    fields = {name: getattr(job, name) for name in job.__struct_fields__ if name not in ("payload", "result")}
    payload = None if job.payload is None else render(job.payload, "application/json")
    result = None if job.result is None else render(job.result, "application/json")
    return JobDetails(
        **fields,
        payload=None if payload is None else payload.payload,
        encoding=None if payload is None else payload.encoding,
        result=None if result is None else result.payload,
        result_encoding=None if result is None else result.encoding,
    )


async def _find(request: Request, id: UUID) -> JobView:
    """Return a job, or raise 403 unless the token has the scope on its queue.

    A token for some queues cannot tell a job of another queue from one that does not exist.
    """
    access, verb = request.service.auth, request.doc.scope
    try:
        async with request.mq.connection() as conn:
            job = await jobs.get_job(conn, id)
    except JobNotFound:
        access.check(request.scope, verb, None)
        raise
    if job.queue is None or not access.allows(request.scope, verb, job.queue):
        access.check(request.scope, verb, None)
    return job


@route(
    "GET",
    "/jobs/{job:uuid}",
    Doc(tag=TAG, scope="read", responses={200: JobDetails}, problems=(404,), object=IN_BODY, reads=True),
)
async def get_job(request: Request, job: FromPath[UUID]) -> Response:
    """Get one job with its arguments, attempts, result and error."""
    request.query()
    return respond(_view(await _find(request, job)))


class Retried(msgspec.Struct, frozen=True):
    id: UUID
    queue: str


_CHANGE: dict[str, Any] = {"tag": TAG, "scope": "admin", "problems": (404, 409), "object": IN_BODY, "audit": "body"}


@route("POST", "/jobs/{job:uuid}/retry", Doc(**_CHANGE, responses={200: Retried}))
async def retry_job(request: Request, job: FromPath[UUID]) -> Response:
    """Retry a dead job. Its attempts start again from 1."""
    request.query()
    await _find(request, job)
    await request.audit(str(job))
    async with request.writing() as conn:
        queue = await jobs.retry_job(conn, job)
    request.mq.session.wakeup.published("inbox", queue)
    return respond(Retried(job, queue))


class Cancel(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`reason` is stored with the dead letter."""

    reason: Annotated[str, Meta(max_length=1000)] | None = None


class Cancelled(msgspec.Struct, frozen=True):
    id: UUID
    result: str
    """`requested`, `cancelled`, `withdrawn`, or the state of a job for which nothing was done."""


@route(
    "POST",
    "/jobs/{job:uuid}/cancel",
    Doc(
        **{**_CHANGE, "problems": (400, 404, 408, 413)},
        body=Cancel,
        optional_body=True,
        responses={200: Cancelled},
    ),
)
async def cancel_job(request: Request, job: FromPath[UUID]) -> Response:
    """Cancel a job: a worker stops it, or it ends at once if it is blocked."""
    request.query()
    body = await request.read(Cancel, optional=True)
    await _find(request, job)
    await request.audit(str(job))
    async with request.writing() as conn:
        return respond(Cancelled(job, await jobs.cancel_job(conn, job, body.reason)))


@route("DELETE", "/jobs/{job:uuid}/cancel", Doc(**_CHANGE, responses={200: Cancelled}))
async def uncancel_job(request: Request, job: FromPath[UUID]) -> Response:
    """Withdraw a cancel request that no worker has carried out yet."""
    request.query()
    await _find(request, job)
    await request.audit(str(job))
    async with request.writing() as conn:
        return respond(Cancelled(job, await jobs.uncancel_job(conn, job)))


class Workers(msgspec.Struct, frozen=True):
    data: list[WorkerRow]


@route(
    "GET",
    "/workers",
    Doc(
        tag=TAG,
        scope="read",
        params=(Param(name="within", kind=float, default=60, low=1, high=3600, words="Maximum seconds since it reported."),),
        responses={200: Workers},
    ),
)
async def list_workers(request: Request) -> Response:
    """List job workers with their queues, concurrency, kinds, versions and argument schemas."""
    within = timedelta(seconds=request.query()["within"])
    async with request.mq.connection() as conn:
        return respond(Workers(await jobs.list_workers(conn, within)))


class LimitList(msgspec.Struct, frozen=True):
    data: list[LimitRow]


@route("GET", "/limits", Doc(tag=TAG, scope="read", responses={200: LimitList}))
async def list_limits(request: Request) -> Response:
    """List limits over all processes: the workers with a share, and those that wait for one."""
    request.query()
    async with request.mq.connection() as conn:
        return respond(LimitList(await jobs.list_limits(conn)))


ROUTES = [
    list_jobs,
    list_queue_jobs,
    get_job,
    retry_job,
    cancel_job,
    uncancel_job,
    list_workers,
    list_limits,
]
