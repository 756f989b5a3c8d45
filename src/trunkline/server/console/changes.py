"""Sources of the live updates: the state of each subject, compared every two seconds. Add a source to SOURCES."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from trunkline.server.console.live import Source
from trunkline.server.console.reading import Reads
from trunkline.server.console.reads import overview, pipelines, runs, schedules

_SLOW_SECONDS = 6.0
"""Age of what changes rarely, so that idle viewers cost few queries."""


async def _stats(reads: Reads) -> Mapping[str, Hashable] | None:
    """Topics, groups and queues, from the statistics that the overview shows too."""
    read = await reads.read(overview.STATS, overview.stats)
    if read.value is None or read.late:
        return None
    found: dict[str, Hashable] = {}
    for topic in read.value.topics:
        found[f"topic:{topic.topic}"] = (
            found.get(f"topic:{topic.topic}"),
            topic.head,
            topic.earliest_offset,
            topic.segments,
        )
    for group in read.value.groups:
        key = f"group:{group.topic}/{group.group}"
        found[key] = (found.get(key), group.next_offset, group.head, group.member)
    for queue in read.value.queues:
        found[f"queue:{queue.queue}"] = (queue.ready, queue.delayed, queue.leased, queue.dead, queue.acked, queue.paused)
    return found


async def _runs(reads: Reads) -> Mapping[str, Hashable] | None:
    """Runs that have not ended."""
    read = await reads.read(runs.ACTIVE, runs.active)
    if read.value is None or read.late:
        return None
    return {f"run:{run.run_id}": (run.state, run.done, run.failed) for run in read.value}


async def _endpoints(reads: Reads) -> Mapping[str, Hashable] | None:
    """States, breakers and outcomes of endpoints."""
    read = await reads.read(overview.ENDPOINTS, overview.endpoints)
    if read.value is None or read.late:
        return None
    return {
        f"endpoint:{row.endpoint}": (row.state, row.breaker, row.acked, row.nacked, row.buried, row.tested)
        for row in read.value
    }


async def _pipelines(reads: Reads) -> Mapping[str, Hashable] | None:
    """The last reports of pipelines."""
    read = await reads.read(pipelines.LIST, pipelines.all_pipelines, fresh=_SLOW_SECONDS)
    if read.value is None or read.late:
        return None
    return {f"pipeline:{row.name}": (row.state, row.updated_at) for row in read.value}


async def _schedules(reads: Reads) -> Mapping[str, Hashable] | None:
    """The last times of schedules."""
    read = await reads.read(schedules.LIST, schedules.all_schedules, fresh=_SLOW_SECONDS)
    if read.value is None or read.late:
        return None
    return {f"schedule:{row.name}": (row.paused, row.last_at, row.next_at) for row in read.value}


SOURCES: list[Source] = [_stats, _endpoints, _pipelines, _schedules, _runs]
