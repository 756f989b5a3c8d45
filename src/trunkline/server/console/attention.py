"""Rows for what needs attention, from the present statistics. What is lost first comes first.

A function of the database will decide this for all programs; until then these rules do, with the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from trunkline.db.calls.health import PipelineLag, UpkeepTask
from trunkline.db.calls.push import EndpointStats
from trunkline.server.console import shapes
from trunkline.types import Stats

Kind = Literal["loss", "delay", "info"]
_LONG_WAIT = 60.0
_SILENT = 120.0
_ORDER = {"loss": 0, "delay": 1, "info": 2}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line: the subject, the cause, and since when or until when."""

    kind: Kind
    name: str
    of: str
    """The sort of thing: "queue", "group on orders"."""
    headline: str
    detail: str
    due: str
    path: tuple[str, ...]
    """Parts of the address of its page."""
    object: str | None
    """The topic, queue or endpoint whose scope shows it; None: any."""


def rows(
    stats: Stats | None, endpoints: Iterable[EndpointStats], pipelines: Iterable[PipelineLag], tasks: Iterable[UpkeepTask]
) -> list[Row]:
    found = [*(_of_stats(stats) if stats else ()), *_endpoints(endpoints), *_pipelines(pipelines), *_upkeep(list(tasks))]
    return sorted(found, key=lambda row: _ORDER[row.kind])


def _of_stats(stats: Stats) -> Iterator[Row]:
    behind: dict[tuple[str, str], list[float]] = {}
    for group in stats.groups:
        if group.lag > 0 and group.member is None and group.lag_seconds > _LONG_WAIT:
            entry = behind.setdefault((group.topic, group.group), [0, 0])
            entry[0], entry[1] = entry[0] + group.lag, max(entry[1], group.lag_seconds)
    for (topic, name), (lag, seconds) in behind.items():
        yield Row(
            kind="delay",
            name=name,
            of=f"group on {topic}",
            headline="No member reads.",
            detail=f"{shapes.plural(int(lag), 'message')} behind.",
            due=f"behind {shapes.duration(seconds)}",
            path=("groups", topic, name),
            object=topic,
        )
    for queue in stats.queues:
        if queue.dead:
            yield Row(
                kind="loss",
                name=shapes.plural(queue.dead, "dead letter"),
                of=f"in {queue.queue}",
                headline="Not delivered again",
                detail="unless they are redriven.",
                due="",
                path=("dead", queue.queue),
                object=queue.queue,
            )
        if queue.ready and queue.oldest_age > _LONG_WAIT:
            paused = queue.paused
            yield Row(
                kind="info" if paused else "delay",
                name=queue.queue,
                of="queue",
                headline="The queue is paused."
                if paused
                else "Consumers do not keep up."
                if queue.leased
                else "No consumer claims.",
                detail=f"{shapes.plural(queue.ready, 'message')} ready.",
                due=f"oldest {shapes.duration(queue.oldest_age)}",
                path=("queues", queue.queue),
                object=queue.queue,
            )


def _endpoints(endpoints: Iterable[EndpointStats]) -> Iterator[Row]:
    for endpoint in endpoints:
        if endpoint.state == "enabled" and endpoint.breaker == "closed":
            continue
        state = endpoint.breaker if endpoint.state == "enabled" else endpoint.state
        yield Row(
            kind="info" if endpoint.state == "paused" else "delay",
            name=endpoint.endpoint,
            of="endpoint",
            headline=f"{shapes.state(state)[1]}.",
            detail=f"Sends for {', '.join(endpoint.queues) or 'no queue'}.",
            due="",
            path=("endpoints", endpoint.endpoint),
            object=endpoint.endpoint,
        )


def _pipelines(pipelines: Iterable[PipelineLag]) -> Iterator[Row]:
    for pipeline in pipelines:
        if pipeline.state == "failed" or (pipeline.state == "running" and pipeline.age > _SILENT):
            failed = pipeline.state == "failed"
            yield Row(
                kind="delay",
                name=pipeline.name,
                of="pipeline",
                headline="Failed." if failed else "Does not report.",
                detail="" if pipeline.lag is None else f"{shapes.plural(pipeline.lag, 'message')} to read.",
                due=f"since {shapes.duration(pipeline.age)}",
                path=("pipelines", pipeline.name),
                object=None,
            )


def _upkeep(tasks: list[UpkeepTask]) -> Iterator[Row]:
    bad = [task for task in tasks if task.state in ("failing", "late", "ahead")]
    ages = [task.age for task in tasks if task.age is not None]
    if tasks and not ages:
        yield Row(
            kind="loss",
            name="upkeep",
            of="system",
            headline="Upkeep never ran.",
            detail="Run trunkline up, or call trunkline.upkeep().",
            due="",
            path=("system",),
            object=None,
        )
    for task in bad:
        yield Row(
            kind="delay",
            name=task.task,
            of="upkeep task",
            headline=f"{shapes.state(task.state)[1]}.",
            detail="",
            due="" if task.age is None else f"last run {shapes.duration(task.age)} ago",
            path=("system",),
            object=None,
        )
