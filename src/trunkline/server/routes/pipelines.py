"""Spark pipelines and archives."""

from __future__ import annotations

import msgspec
from litestar.params import FromPath

from trunkline.db.calls import pipelines
from trunkline.db.calls.archive import ArchiveStats
from trunkline.db.calls.list_records import Progress, SinkVersion
from trunkline.db.calls.spark import Pipeline
from trunkline.server.query import LIMIT, OFFSET, Param
from trunkline.server.request import Request
from trunkline.server.response import Response, respond
from trunkline.server.routing import Doc, route
from trunkline.server.views import Page, page

TAG = "pipelines"
_BEFORE = Param(name="after", kind=int, low=0, words="`next` of the previous page.")
_MOST = Param(name="limit", kind=int, default=100, low=1, high=1000, words="Maximum number of rows.")


class Pipelines(msgspec.Struct, frozen=True):
    data: list[Pipeline]


@route(
    "GET",
    "/pipelines",
    Doc(
        tag=TAG,
        scope="read",
        params=(
            Param(name="state", choices=("running", "done", "failed", "stopped"), words="Only pipelines in this state."),
            Param(name="name", words="Only the pipeline of this name."),
        ),
        responses={200: Pipelines},
    ),
)
async def list_pipelines(request: Request) -> Response:
    """List Spark pipelines and streaming queries with their last report, the newest first."""
    query = request.query()
    async with request.mq.connection() as conn:
        rows = await pipelines.list_pipelines(conn)
    return respond(
        Pipelines([row for row in rows if query["state"] in (None, row.state) and query["name"] in (None, row.name)])
    )


class ProgressList(msgspec.Struct, frozen=True, omit_defaults=True):
    data: list[Progress]
    next: int | None = None
    """Pass as `after` to get the next page; omitted on the last."""


@route(
    "GET",
    "/pipeline-progress",
    Doc(
        tag=TAG,
        scope="read",
        params=(Param(name="name", required=True, words="Name of the pipeline."), _BEFORE, _MOST),
        responses={200: ProgressList},
    ),
)
async def list_progress(request: Request) -> Response:
    """List the reports of a pipeline, newest first: rows, rate, lag, and details such as durations."""
    query = request.query()
    async with request.mq.connection() as conn:
        rows = await pipelines.list_progress(conn, query["name"], before=query["after"], limit=query["limit"])
    return respond(ProgressList(rows, rows[-1].report_no if len(rows) == query["limit"] else None))


class Commits(msgspec.Struct, frozen=True, omit_defaults=True):
    data: list[SinkVersion]
    next: int | None = None
    """Pass as `after` to get the next page; omitted on the last."""


@route(
    "GET",
    "/pipeline-commits",
    Doc(
        tag=TAG,
        scope="read",
        params=(Param(name="writer", required=True, words="Name of the Spark writer."), _BEFORE, _MOST),
        responses={200: Commits},
    ),
)
async def list_commits(request: Request) -> Response:
    """List the versions that a Spark writer has published, newest first."""
    query = request.query()
    async with request.mq.connection() as conn:
        rows = await pipelines.list_commits(conn, query["writer"], before=query["after"], limit=query["limit"])
    return respond(Commits(rows, rows[-1].version if len(rows) == query["limit"] else None))


class Archives(msgspec.Struct, frozen=True):
    data: list[ArchiveStats]


@route("GET", "/archives", Doc(tag=TAG, scope="read", responses={200: Archives}))
async def list_archives(request: Request) -> Response:
    """List the archives of topics, one row per partition: offsets in the archive and in the log, files, bytes."""
    request.query()
    async with request.mq.connection() as conn:
        return respond(Archives(await pipelines.archive_stats(conn)))


@route(
    "GET",
    "/topics/{topic:str}/archive",
    Doc(tag=TAG, scope="read", responses={200: Archives}, problems=(404,), object="topic"),
)
async def get_archive(request: Request, topic: FromPath[str]) -> Response:
    """Get the archive of a topic, one row per partition; none without an archive."""
    request.query()
    async with request.mq.connection() as conn:
        return respond(Archives(await pipelines.archive_stats(conn, topic)))


@route(
    "GET",
    "/topics/{topic:str}/archive/files",
    Doc(tag=TAG, scope="read", params=(OFFSET, LIMIT), responses={200: Page}, problems=(404,), object="topic"),
)
async def list_archive_files(request: Request, topic: FromPath[str]) -> Response:
    """List the files of a topic's archive by partition and offset, 100 per page by default."""
    query = request.query()
    async with request.mq.connection() as conn:
        return respond(page(await pipelines.list_archive_files(conn, topic), query))


ROUTES = [list_pipelines, list_progress, list_commits, list_archives, get_archive, list_archive_files]
