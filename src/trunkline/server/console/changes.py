"""Sources of the live updates: the state of each subject, compared every two seconds. Add a source to SOURCES."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from trunkline.server.console.live import Source
from trunkline.server.console.reading import Reads
from trunkline.server.console.reads import overview, runs


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


SOURCES: list[Source] = [_stats, _runs]
