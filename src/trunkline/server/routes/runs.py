"""Runs, and the groups of dead letters that they are usually started from."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal

import msgspec
from litestar.params import FromPath
from msgspec import Meta

from trunkline.server.auth import IN_BODY, Caller
from trunkline.server.query import Param
from trunkline.server.request import Request
from trunkline.server.response import Response, nothing, respond
from trunkline.server.routing import Doc, route
from trunkline.types import DeadGroup, DeadShare, Run, RunPreview

TAG = "runs"
_LIMIT = Param(name="limit", kind=int, default=100, low=1, high=1000, words="Maximum number of rows.")


class RunRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A kind of run, and the messages of a queue that it selects."""

    kind: Literal["redrive", "retry_jobs", "purge_dead_letters", "replay", "purge_queue"]
    selector: dict[str, Any]


class NewRun(RunRequest, kw_only=True, forbid_unknown_fields=True):
    """A run to start. `expected` is the number of messages of its preview."""

    expected: Annotated[int, Meta(ge=0)]
    options: dict[str, Any] = {}


class Reason(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    reason: Annotated[str, Meta(max_length=1000)] | None = None


class RunList(msgspec.Struct, frozen=True):
    data: list[Run]


class DeadGroups(msgspec.Struct, frozen=True):
    data: list[DeadGroup]


class DeadShares(msgspec.Struct, frozen=True):
    data: list[DeadShare]


def _queue(selector: dict[str, Any]) -> str:
    """Return the queue that a selector names, or the topic of a seek. The database refuses a selector without one."""
    return str(selector.get("queue") or selector.get("topic", ""))


def _caller(request: Request) -> Caller | None:
    scope: Any = request.scope
    caller: Caller | None = scope.get("trunkline_caller")
    return caller


async def _allow(request: Request, body: RunRequest) -> None:
    await request.allow(_queue(body.selector), detail=msgspec.to_builtins(body))
    target = body.options.get("to") if isinstance(body, NewRun) else None
    if isinstance(target, str):
        request.service.auth.check(request.scope, request.doc.scope, target)


@route(
    "POST",
    "/runs/preview",
    Doc(tag=TAG, scope="read", body=RunRequest, responses={200: RunPreview}, problems=(400, 404, 408, 413), object=IN_BODY),
)
async def preview_run(request: Request) -> Response:
    """Count the messages that a run would process now, without changing anything."""
    request.query()
    body = await request.read(RunRequest)
    await _allow(request, body)
    return respond(await request.mq.runs.preview(body.kind, body.selector))


@route(
    "POST",
    "/runs",
    Doc(
        tag=TAG,
        scope="operate",
        body=NewRun,
        responses={201: Run},
        problems=(400, 404, 408, 409, 413),
        object=IN_BODY,
        audit=True,
    ),
)
async def start_run(request: Request) -> Response:
    """Start a run. The database executes it in steps of at most 1,000 messages. A purge needs the scope `admin`."""
    request.query()
    body = await request.read(NewRun)
    if body.kind.startswith("purge"):
        request.service.auth.check(request.scope, "admin", _queue(body.selector))
    await _allow(request, body)
    caller = _caller(request)
    by = None if caller is None else caller.name
    made = await request.mq.runs.start(body.kind, body.selector, expected=body.expected, options=body.options, by=by)
    return respond(made, 201)


@route(
    "GET",
    "/runs",
    Doc(
        tag=TAG,
        scope="read",
        params=(
            Param(name="state", kind=str, default=None, words="Only runs in these states, separated by commas."),
            Param(name="before", kind=int, default=None, low=1, words="`run_id` of the last run of the previous page."),
            _LIMIT,
        ),
        responses={200: RunList},
        problems=(400,),
        object=IN_BODY,
    ),
)
async def list_runs(request: Request) -> Response:
    """List runs, newest first: those of queues that the token may read. So a page can have fewer than `limit`."""
    query = request.query()
    states = None if query["state"] is None else query["state"].split(",")
    rows = await request.mq.runs.list(states, before=query["before"], limit=query["limit"])
    caller = _caller(request)
    return respond(RunList([row for row in rows if caller is None or caller.may("read", _queue(row.selector))]))


async def _run(request: Request, run: int) -> Run:
    found = await request.mq.runs.get(run)
    await request.allow(_queue(found.selector), hide=True, detail={"run": run, "kind": found.kind, "state": found.state})
    return found


@route("GET", "/runs/{run:int}", Doc(tag=TAG, scope="read", responses={200: Run}, problems=(404,), object=IN_BODY))
async def get_run(request: Request, run: FromPath[int]) -> Response:
    """Get a run with its log and up to five messages that failed again."""
    request.query()
    return respond(await _run(request, run))


_CHANGE: dict[str, Any] = {
    "tag": TAG,
    "scope": "operate",
    "responses": {204: None},
    "problems": (400, 404, 408, 409, 413),
    "object": IN_BODY,
    "audit": True,
}


@route("POST", "/runs/{run:int}/pause", Doc(**_CHANGE, body=Reason, optional_body=True))
async def pause_run(request: Request, run: FromPath[int]) -> Response:
    """Pause a run after the step that is in progress."""
    request.query()
    body = await request.read(Reason, optional=True)
    await _run(request, run)
    await request.mq.runs.pause(run, reason=body.reason)
    return nothing()


@route("POST", "/runs/{run:int}/resume", Doc(**_CHANGE))
async def resume_run(request: Request, run: FromPath[int]) -> Response:
    """Continue a run that is paused, or was stopped by its rule or an error."""
    request.query()
    await _run(request, run)
    await request.mq.runs.resume(run)
    return nothing()


@route("POST", "/runs/{run:int}/abort", Doc(**_CHANGE, body=Reason, optional_body=True))
async def abort_run(request: Request, run: FromPath[int]) -> Response:
    """End a run early. Messages that it has not processed stay as they are."""
    request.query()
    body = await request.read(Reason, optional=True)
    await _run(request, run)
    await request.mq.runs.abort(run, reason=body.reason)
    return nothing()


@route("POST", "/runs/{run:int}/undo", Doc(**_CHANGE))
async def undo_run(request: Request, run: FromPath[int]) -> Response:
    """Move a group back to the positions that it had before a seek. Other runs cannot be undone."""
    request.query()
    await _run(request, run)
    await request.mq.runs.undo(run)
    return nothing()


@route(
    "GET",
    "/dead-groups",
    Doc(
        tag="dead letters",
        scope="read",
        params=(
            Param(name="queue", kind=str, default=None, words="Only dead letters of this queue."),
            Param(name="since", kind=float, default=None, low=1, words="Only dead letters of the last seconds."),
            _LIMIT,
        ),
        responses={200: DeadGroups},
        problems=(400, 404),
        object=IN_BODY,
    ),
)
async def dead_groups(request: Request) -> Response:
    """Group dead letters by label and masked error, the largest group first. All queues: needs `read:*`."""
    query = request.query()
    await request.allow(query["queue"] or "*")
    since = None if query["since"] is None else timedelta(seconds=query["since"])
    return respond(DeadGroups(await request.mq.dead.groups(query["queue"], since=since, limit=query["limit"])))


@route(
    "GET",
    "/queues/{queue:str}/dead-groups/{fingerprint:str}",
    Doc(
        tag="dead letters",
        scope="read",
        params=(Param(name="limit", kind=int, default=10, low=1, high=100, words="Maximum number of values of each kind."),),
        responses={200: DeadShares},
        problems=(404,),
        object="queue",
    ),
)
async def dead_spread(request: Request, queue: FromPath[str], fingerprint: FromPath[str]) -> Response:
    """Get the most frequent consumers, keys, topics, hours, attempts and errors of a group of dead letters."""
    query = request.query()
    return respond(DeadShares(await request.mq.dead.spread(queue, fingerprint, limit=query["limit"])))


ROUTES = [preview_run, start_run, list_runs, get_run, pause_run, resume_run, abort_run, undo_run, dead_groups, dead_spread]
