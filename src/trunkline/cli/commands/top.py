"""`trunkline top`: a live overview of topics, groups, queues, endpoints, workers and the server's health."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click
import msgspec

from trunkline.cli.commands.attention import ATTENTION
from trunkline.cli.commands.top_view import View, keys, short
from trunkline.cli.commands.worker import WORKERS
from trunkline.cli.framework.command import Duration, Invocation, sequence
from trunkline.cli.framework.command import command as make_command
from trunkline.cli.framework.output import (
    Column,
    console,
    make_table,
    plain,
    show,
    size_text,
    stdout_is_terminal,
    to_json,
    write_line,
)
from trunkline.db.calls import jobs, push
from trunkline.db.calls.job_records import WorkerRow
from trunkline.db.calls.list_records import Finding
from trunkline.db.pool import Connection
from trunkline.doctor import examine
from trunkline.types import Attention, QueueStats, Stats

if TYPE_CHECKING:
    from rich.console import Group

    from trunkline.messaging import Messaging

_HEALTH_EVERY = 10.0
_SEEN_WITHIN = timedelta(minutes=1)
_MOST_ATTENTION = 8
_ASKED_FOR_ERRORS = 20
"""Number of failing endpoints whose last error is read: the frame is redrawn each second."""
_TOPICS = (
    Column("topic", lambda row: short(row.topic), whole=True),
    Column("partition", "partition", right=True),
    Column("head", "head", right=True),
    Column("per second", "rate_per_second", right=True),
    Column("kept", lambda row: row.head - row.earliest_offset + 1, right=True),
    Column("size", lambda row: size_text(row.bytes), right=True),
    Column("delayed", "delayed", right=True),
)
_GROUPS = (
    Column("group", lambda row: short(row.group), whole=True),
    Column("topic", lambda row: f"{short(row.topic)}/{row.partition}", whole=True),
    Column("lag", "lag", right=True),
    Column("seconds", "lag_seconds", right=True),
    Column("member", "member"),
)
_ENDPOINTS = (
    Column("endpoint", lambda row: short(row.endpoint), whole=True),
    Column("state", "state"),
    Column("ready", "ready", right=True),
    Column("in flight", "in_flight", right=True),
    Column("per second", lambda row: round(row.per_second, 1), right=True),
    Column("last error", "error"),
)


@make_command("top", example="trunkline top\ntrunkline top --once -o json")
@click.option("--once", is_flag=True, help="Print one frame and exit.")
@click.option("--every", type=Duration(), default="1s", show_default=True, help="Interval between frames.")
def command(invocation: Invocation, once: bool, every: timedelta) -> None:
    """Show what needs attention, topics, groups, queues, endpoints, workers and health, until q or Ctrl-C. Makes no changes.

    Press q to quit and ? for the other keys: scroll, sort by activity, filter by name.
    """
    if invocation.out.table and not stdout_is_terminal():
        once = True

    async def work(mq: Messaging) -> None:
        overview = Overview(None if invocation.service else invocation.url)
        if invocation.out.table and not once:
            await _live(mq, overview, every)
            return
        while True:
            await overview.look(mq)
            if invocation.out.table:
                console().print(overview.frame())
            else:
                write_line(to_json(overview.record()))
            if once:
                return
            await asyncio.sleep(every.total_seconds())

    with suppress(KeyboardInterrupt):  # the usual way to quit, not a failure
        invocation.run(work)


async def _live(mq: Messaging, overview: Overview, every: timedelta) -> None:
    """Show frames until a key, SIGTERM or SIGHUP ends it. Leaves the terminal as it was."""
    await overview.look(mq)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(None) as ending:
            for number in (signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(number, ending.reschedule, 0)
            await _show(mq, overview, every)
    except TimeoutError:
        if not ending.expired():
            raise


async def _show(mq: Messaging, overview: Overview, every: timedelta) -> None:
    from rich.live import Live

    view, screen = View(), console()
    async with keys() as pressed:
        with Live(console=screen, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
            while not view.quit:
                live.update(view.window(screen, overview.frame(view)), refresh=True)
                try:
                    view.press(await asyncio.wait_for(pressed.get(), every.total_seconds()))
                except TimeoutError:
                    await overview.look(mq)


class EndpointRow(msgspec.Struct, frozen=True):
    """Return the status of an endpoint. Request and error counts cover the last minute."""

    endpoint: str
    state: str
    ready: int
    in_flight: int
    per_second: float
    error: str | None


async def _endpoint_rows(conn: Connection, queues: Sequence[QueueStats]) -> list[EndpointRow]:
    stats = await push.endpoint_stats(conn)
    if not stats:
        return []
    held = {row.queue: row for row in queues}
    errors = {row.name: row.reason for row in await push.list_endpoints(conn)}
    failing = [row.endpoint for row in stats if row.nacked + row.buried and errors.get(row.endpoint) is None]
    for name in failing[:_ASKED_FOR_ERRORS]:
        attempts = await push.list_attempts(conn, name, id=None, since=timedelta(minutes=1), limit=100)
        errors[name] = next((each.error for each in attempts if each.error), None)
    return [
        EndpointRow(
            row.endpoint,
            row.state if row.breaker == "closed" else f"breaker {row.breaker}",
            sum(held[queue].ready for queue in row.queues if queue in held),
            sum(held[queue].leased for queue in row.queues if queue in held),
            row.per_second,
            errors.get(row.endpoint),
        )
        for row in stats
    ]


def _once_per_topic(stats: Stats) -> Stats:
    """Show delayed messages with the first partition only: they belong to the topic."""
    topics = [row if row.partition == 0 else msgspec.structs.replace(row, delayed=0) for row in stats.topics]
    return msgspec.structs.replace(stats, topics=topics)


class Overview:
    """The current and previous statistics, from which rates are derived. Health requires a database URL."""

    def __init__(self, url: str | None) -> None:
        self._url = url
        self._stats = Stats([], [], [])
        self._endpoints: list[EndpointRow] = []
        self._workers: list[WorkerRow] = []
        self._attention: list[Attention] = []
        self._at = 0.0
        self._rates: dict[str, float] = {}
        self._health: list[Finding] = []
        self._health_at = -_HEALTH_EVERY

    async def look(self, mq: Messaging) -> None:
        from trunkline import Client

        before, then = {row.queue: row.acked for row in self._stats.queues}, self._at
        await sequence(mq)
        self._stats, self._at = _once_per_topic(await mq.stats()), time.monotonic()
        self._rates = {
            row.queue: max(0, row.acked - before[row.queue]) / (self._at - then)
            for row in self._stats.queues
            if row.queue in before
        }
        self._attention = await mq.inspect.attention()
        if isinstance(mq, Client):
            async with mq.connection() as conn:
                self._endpoints = await _endpoint_rows(conn, self._stats.queues)
                self._workers = await jobs.list_workers(conn, _SEEN_WITHIN)
        if self._url is not None and self._at - self._health_at >= _HEALTH_EVERY:
            self._health_at = self._at
            findings = await asyncio.to_thread(examine, self._url)
            self._health = [finding for finding in findings if finding.level != "ok"]

    def record(self) -> dict[str, Any]:
        """Return the frame for programs."""
        return {name: [plain(row) for row in getattr(self._stats, name)] for name in ("topics", "groups", "queues")} | {
            "attention": [plain(row) for row in self._attention],
            "endpoints": [plain(endpoint) for endpoint in self._endpoints],
            "workers": [plain(worker) for worker in self._workers],
            "health": [plain(finding) for finding in self._health],
        }

    def frame(self, view: View | None = None) -> Group:
        """Render the frame."""
        from rich.console import Group
        from rich.text import Text

        return Group(
            *(part for part in self._parts(view or View())), Text(""), *(Text(line) for line in self._health_lines())
        )

    def _parts(self, view: View) -> Iterator[Any]:
        queues = (
            Column("queue", lambda row: short(row.queue), whole=True),
            Column("ready", "ready", right=True),
            Column("delayed", "delayed", right=True),
            Column("leased", "leased", right=True),
            Column("dead", "dead", right=True),
            Column("acked", "acked", right=True),
            Column("acked/s", self._rate, right=True),
            Column("oldest s", "oldest_age", right=True),
            Column("paused", "paused"),
        )
        tables: tuple[tuple[tuple[Column, ...], Sequence[Any]], ...] = (
            (ATTENTION, self._attention[:_MOST_ATTENTION]),
            (_TOPICS, view.rows(self._stats.topics, lambda row: row.topic, lambda row: row.rate_per_second or 0)),
            (_GROUPS, view.rows(self._stats.groups, lambda row: f"{row.group} {row.topic}", lambda row: row.lag or 0)),
            (queues, view.rows(self._stats.queues, lambda row: row.queue, lambda row: self._rate(row) or 0)),
            (_ENDPOINTS, view.rows(self._endpoints, lambda row: row.endpoint, lambda row: row.per_second)),
            (WORKERS, self._workers),
        )
        for columns, rows in tables:
            if rows:
                yield make_table(columns, [[column.text(row) for column in columns] for row in rows])
                yield ""

    def _rate(self, row: QueueStats) -> float | None:
        return self._rates.get(row.queue)

    def _health_lines(self) -> list[str]:
        if self._url is None:
            return ["health  not available over HTTP; use trunkline doctor"]
        if not self._health:
            return ["health  ok"]
        return [f"health  {finding.level}  {show(finding.check)}: {show(finding.message)}" for finding in self._health]
