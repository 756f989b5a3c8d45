"""Searching the messages of topics and queues, and reading a queue's own log."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal

import msgspec
from litestar.params import FromPath
from msgspec import Meta

from trunkline.client.queues import Queues
from trunkline.client.topics import Topics
from trunkline.server.bodies import Offset
from trunkline.server.budget import fitting
from trunkline.server.limits import Limits, limited
from trunkline.server.query import PARTITION, Param
from trunkline.server.request import Request
from trunkline.server.response import Response, respond
from trunkline.server.routing import Doc, route
from trunkline.server.views import message_view
from trunkline.types import SearchRange, Selection
from trunkline.wire import MessageView

TAG = "search"
_GRACE_SECONDS = 5.0
"""Time of the statement beyond the budget of a search, which is only checked between pages of messages."""
Text = Annotated[str, Meta(max_length=10_000)]
Position = Annotated[str, Meta(min_length=1, max_length=100)]
Partitions = Annotated[list[Annotated[int, Meta(ge=0, le=63)]], Meta(min_length=1, max_length=64)]


class SelectionBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which messages to return. All given fields must match; without fields, all do."""

    key: Text | None = None
    routing: Annotated[str, Meta(min_length=1, max_length=1000)] | None = None
    """A pattern: * stands for one word, # for any number."""
    label: Text | Annotated[list[Text], Meta(max_length=1000)] | None = None
    headers: dict[str, Any] | None = None
    """Header values, as in the filter of a subscription."""
    body: Text | Annotated[list[Text], Meta(max_length=100)] | None = None
    """JSON paths of Postgres that must exist, such as `$.total ? (@ > 100)`."""
    text: Text | None = None
    """Part of the payload."""
    regex: Annotated[str, Meta(max_length=1000)] | None = None
    """A regular expression of Postgres on the payload as text."""


class SearchRangeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Where to search."""

    selection: SelectionBody = SelectionBody()
    partitions: Partitions | None = None
    """Default: all, or with a key the one that has it."""
    start: Position = "earliest"
    """earliest, latest, an offset or a time."""
    end: Position = "latest"
    """As `start`. Inclusive if it is an offset."""


class SearchBody(SearchRangeBody, kw_only=True, forbid_unknown_fields=True):
    """Where to search, and when to stop."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 50
    backwards: bool = True
    """The newest first."""
    max_rows: Annotated[int, Meta(ge=1, le=1_000_000_000)] = 1_000_000
    budget_seconds: Annotated[float, Meta(ge=0.01, le=60)] = 5.0
    after: Annotated[dict[str, Offset], Meta(max_length=64)] | None = None
    """`next` of the previous result."""


class Estimate(msgspec.Struct, frozen=True):
    partitions: list[SearchRange]


class Found(msgspec.Struct, frozen=True):
    matches: list[MessageView]
    scanned: int
    """Messages read."""
    matched: int
    stopped: Literal["end", "limit", "rows", "bytes", "time"]
    next: dict[str, int] | None
    """Pass as `after` to continue; null if nothing is left."""
    seconds: float


def _selection(body: SelectionBody) -> Selection:
    found: Selection = msgspec.to_builtins(body)
    return found


def _noun(request: Request, kind: Literal["topic", "queue"]) -> Topics | Queues:
    return request.mq.topics if kind == "topic" else request.mq.queues


async def _estimate(request: Request, kind: Literal["topic", "queue"], name: str) -> Response:
    request.query()
    body = await request.read(SearchRangeBody, optional=True)
    ranges = await _noun(request, kind).estimate_search(
        name, _selection(body.selection), partitions=body.partitions, start=body.start, end=body.end
    )
    return respond(Estimate(ranges))


async def _search(request: Request, kind: Literal["topic", "queue"], name: str) -> Response:
    request.query()
    body = await request.read(SearchBody, optional=True)
    # offsets are assigned before: the search is a transaction
    async with request.mq.session.reading(**{kind: name}):
        pass
    # the database ends a statement that one expression on one payload keeps busy
    limits = Limits(resource=("search", name), reads=True, seconds=body.budget_seconds + _GRACE_SECONDS, in_database=True)
    with limited(limits):
        found = await _noun(request, kind).search(
            name,
            _selection(body.selection),
            partitions=body.partitions,
            start=body.start,
            end=body.end,
            limit=body.limit,
            backwards=body.backwards,
            max_rows=body.max_rows,
            budget=timedelta(seconds=body.budget_seconds),
            after=body.after,
        )
    matches = [message_view(row) for row in found.matches]
    return respond(Found(matches, found.scanned, found.matched, found.stopped, found.next, found.seconds))


_ESTIMATE: dict[str, Any] = {
    "tag": TAG,
    "scope": "read",
    "body": SearchRangeBody,
    "optional_body": True,
    "responses": {200: Estimate},
    "problems": (400, 404, 408, 413),
    "reads": True,
}
_SEARCH: dict[str, Any] = {
    "tag": TAG,
    "scope": "consume",
    "body": SearchBody,
    "optional_body": True,
    "responses": {200: Found},
    "problems": (400, 404, 408, 413),
    "reads": True,
}


@route("POST", "/topics/{topic:str}/search/estimate", Doc(**_ESTIMATE, object="topic"))
async def estimate_topic(request: Request, topic: FromPath[str]) -> Response:
    """Estimate a search: which offsets it would read at most, and about how many bytes."""
    return await _estimate(request, "topic", topic)


@route("POST", "/topics/{topic:str}/search", Doc(**_SEARCH, object="topic"))
async def search_topic(request: Request, topic: FromPath[str]) -> Response:
    """Search messages of a topic, consumed or not. Has no effect on any reader."""
    return await _search(request, "topic", topic)


@route("POST", "/queues/{queue:str}/search/estimate", Doc(**_ESTIMATE, object="queue"))
async def estimate_queue(request: Request, queue: FromPath[str]) -> Response:
    """Estimate a search: which offsets it would read at most, and about how many bytes."""
    return await _estimate(request, "queue", queue)


@route("POST", "/queues/{queue:str}/search", Doc(**_SEARCH, object="queue"))
async def search_queue(request: Request, queue: FromPath[str]) -> Response:
    """Search messages that were sent to a queue directly, consumed or not."""
    return await _search(request, "queue", queue)


class LogPage(msgspec.Struct, frozen=True):
    data: list[MessageView]
    next: int
    """The `start` of the next page, also if there are no messages yet."""


@route(
    "GET",
    "/queues/{queue:str}/log",
    Doc(
        tag=TAG,
        scope="consume",
        params=(
            PARTITION,
            Param(name="start", kind=int, default=1, low=1, words="First offset to return."),
            Param(name="limit", kind=int, default=100, low=1, high=1000, words="Maximum number of messages."),
        ),
        responses={200: LogPage},
        problems=(404, 416),
        object="queue",
        reads=True,
    ),
)
async def read_queue(request: Request, queue: FromPath[str]) -> Response:
    """Read messages that were sent to a queue directly, from an offset, consumed or not. Claims nothing."""
    query = request.query()
    rows = await request.mq.queues.read(queue, query["partition"], start=query["start"], limit=query["limit"])
    rows = rows[: fitting(rows, request.service.config.max_response_bytes)]
    shown = [message_view(row) for row in rows]
    return respond(LogPage(shown, shown[-1].offset + 1 if shown else query["start"]))


ROUTES = [estimate_topic, search_topic, estimate_queue, search_queue, read_queue]
