"""`trunkline worker`: run and list job workers."""

from __future__ import annotations

import re
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trunkline.cli.framework.command import CommandGroup, Count, Duration, Invocation
from trunkline.cli.framework.output import Column

if TYPE_CHECKING:
    from trunkline import Client


class _Worker(CommandGroup):
    """Treats `trunkline worker module:app` as `trunkline worker run module:app`."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            return "run", self.get_command(ctx, "run"), args
        return super().resolve_command(ctx, args)


command = _Worker("worker", help="Run and list job workers.")

WORKERS = (
    Column("worker", "worker", whole=True),
    Column("seen", "seen_at", whole=True),
    Column("queues", lambda row: ", ".join(f"{name}:{count}" for name, count in row.info.get("queues", {}).items())),
    Column("version", lambda row: row.info.get("version", "")),
    Column("kinds", lambda row: ", ".join(row.info.get("kinds", []))),
    Column("running", lambda row: row.info.get("running"), right=True),
    Column("done", lambda row: row.info.get("done"), right=True),
    Column("failed", lambda row: row.info.get("failed"), right=True),
)


_PART = re.compile(r"[A-Za-z0-9._-]{1,200}(:[1-9][0-9]{0,5})?")


class QueueConcurrency(click.ParamType):  # type: ignore[type-arg]  # not generic in click 8.1
    """`mail:10,thumbs:4`: queue names with the number of concurrent jobs."""

    name = "name:n,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, int]:
        if isinstance(value, dict):
            return value
        queues: dict[str, int] = {}
        for part in value.split(","):
            name, _, count = part.strip().partition(":")
            if not _PART.fullmatch(part.strip()):
                self.fail(f"must be a queue, or a queue and a number as in mail:10, got {part!r}", param, ctx)
            if name in queues:
                self.fail(f"queue {name!r} must be given only once", param, ctx)
            queues[name] = int(count or 10)
        return queues


@command.subcommand("run", example="trunkline worker run shop:app --queues mail:10,thumbs:4")
@click.argument("app")
@click.option("--queues", type=QueueConcurrency(), help="Queues and their concurrency.  [default: all of the app, 10 each]")
@click.option("--prefetch", type=Count(0, 1000), help="Maximum jobs to claim ahead.  [default: adaptive]")
@click.option(
    "--lease", type=Duration(), help="Time after which a dead worker's jobs are redelivered.  [default: the queue's]"
)
@click.option(
    "--grace", type=Duration(), default="30s", show_default=True, help="Time for running handlers to finish after Ctrl-C."
)
@click.option("--stall", type=Duration(), default="30s", show_default=True, help="Time a handler may block the event loop.")
@click.option("--reload", is_flag=True, help="Restart when a Python file below this directory changes.")
@click.option("--drain", is_flag=True, help="Stop when no job is ready.")
def run(
    invocation: Invocation,
    app: str,
    queues: dict[str, int] | None,
    prefetch: int | None,
    lease: timedelta | None,
    grace: timedelta,
    stall: timedelta,
    reload: bool,
    drain: bool,
) -> int | None:
    """Run jobs of APP until Ctrl-C or SIGTERM.

    APP is written module:app; this directory is searched first. The first signal stops claiming and lets running
    handlers finish (see --grace); a second one stops at once. Missing queues, limits and schedules of the app are
    created.
    """
    if reload:
        from trunkline.jobs.autoreload import run_and_reload

        words = [word for word in sys.argv[1:] if word != "--reload"]
        return run_and_reload([sys.executable, "-m", "trunkline.cli.main", *words], Path.cwd(), invocation.say)
    from trunkline.jobs import Worker
    from trunkline.jobs.app_loader import load

    loaded = load(app)
    source = None
    if invocation.names_database or loaded.url is None:
        loaded.url, source = invocation.url, invocation.source
    settings: dict[str, Any] = {"queues": queues, "prefetch": prefetch, "lease": lease, "grace": grace, "stall": stall}

    async def work() -> None:
        from trunkline.cli.framework.database import probe

        await probe(loaded.client.url or invocation.url, source)
        async with loaded:
            if drain:
                from trunkline.jobs.testing import Jobs

                done = await Jobs(loaded).drain("1h", **settings)
                failed = sum(ran.outcome in ("retry", "bury", "lost") for ran in done)
                invocation.say(f"ran {len(done)} {'attempt' if len(done) == 1 else 'attempts'}, {failed or 'none'} failed")
                return
            async with Worker(loaded, **settings) as worker:
                invocation.say(
                    f"worker {worker.name} is running {', '.join(f'{name}:{n}' for name, n in worker.queues.items())}"
                )
                await worker.work()

    _logs()
    invocation.run_alone(work)
    return None


def _logs() -> None:
    import logging

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    # logs every failed connection attempt; the worker reports the outage once
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)


@command.subcommand("list", example="trunkline worker list")
@click.option(
    "--within", type=Duration(), default="1m", show_default=True, help="Maximum time since a worker was last seen."
)
def list_(invocation: Invocation, within: timedelta) -> None:
    """List running workers with their queues, kinds and counts."""
    from trunkline.db.calls import jobs

    async def work(mq: Client) -> list[Any]:
        async with mq.connection() as conn:
            return list(await jobs.list_workers(conn, within))

    rows = invocation.run_either(work, lambda http: http.jobs.workers(within=within))
    invocation.out.many(rows, WORKERS)
    if invocation.out.table and not rows:
        invocation.say("No workers running. Start one with `trunkline worker run module:app`.")


_LIMITS = (
    Column("limit", "name", whole=True),
    Column("running", "running", right=True),
    Column("most", lambda row: row.max_running, right=True),
    Column("rate", lambda row: row.rate, right=True),
    Column("tokens", lambda row: None if row.tokens is None else round(row.tokens, 1), right=True),
    Column("held by", lambda row: ", ".join(f"{each.worker}:{each.running}" for each in row.holders if each.running)),
    Column("ready", lambda row: ", ".join(each.worker for each in row.holders if each.waits)),
)


@command.subcommand("limits", example="trunkline worker limits")
def limits(invocation: Invocation) -> None:
    """List limits across all workers: the workers that have a share, and those that wait for more."""
    from trunkline.db.calls import jobs

    async def work(mq: Client) -> list[Any]:
        async with mq.connection() as conn:
            return list(await jobs.list_limits(conn))

    rows = invocation.run_either(work, lambda http: http.jobs.limits())
    invocation.out.many(rows, _LIMITS)
    if invocation.out.table and not rows:
        invocation.say("No limits. A job declares one with @app.job(limits=[...]).")
