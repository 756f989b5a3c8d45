"""`trunkline job`: look at jobs, bring them back, stop them, run one."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click
import msgspec

from trunkline.cli.command import Count, Duration, Noun, Session
from trunkline.cli.output import Column
from trunkline.errors import NotFound

if TYPE_CHECKING:
    from trunkline import Client

command = Noun("job", help="Jobs: look, retry, cancel, run.")

_JOBS = (
    Column("id", "id", whole=True),
    Column("queue", "queue"),
    Column("kind", "kind"),
    Column("state", "state"),
    Column("attempt", "attempt", right=True),
    Column("due", "due_at", whole=True),
    Column("error", lambda row: (row.error or "").partition("\n")[0]),
)
_KINDS = (
    Column("kind", "kind", whole=True),
    Column("queue", "queue"),
    Column("attempts", "max_attempts", right=True),
    Column("timeout", "timeout"),
    Column("runs", "runs"),
    Column("arguments", lambda row: ", ".join(row["arguments"])),
)


@command.verb("list", example="trunkline job list mail --state dead", http=False)
@click.argument("queue", required=False)
@click.option("--state", type=click.Choice(["running", "waiting", "delayed", "blocked", "dead"]), help="Only these.")
@click.option("--limit", type=Count(1, 10_000), default=100, show_default=True, help="Of each state and queue.")
def list_(session: Session, queue: str | None, state: str | None, limit: int) -> None:
    """Jobs that have not ended well: running, waiting, delayed, blocked by others, dead."""
    from trunkline.db import jobs

    async def work(mq: Client) -> list[Any]:
        async with mq.connection() as conn:
            return list(await jobs.list_jobs(conn, queue, state=state, limit=limit))

    session.out.many(session.run(work), _JOBS)


@command.verb("show", example="trunkline job show 019a8d2e-7c1b-7000-8000-000000000000", http=False)
@click.argument("id", type=click.UUID)
def show(session: Session, id: UUID) -> None:
    """One job: where it is and why, and its result if that was kept."""
    from trunkline.db import jobs

    async def work(mq: Client) -> dict[str, Any]:
        async with mq.connection() as conn:
            results = await jobs.job_results(conn, [id])
        answer: dict[str, Any] = {"id": id, **(await mq.explain(id))}
        if answer["state"] == "unknown" and not results:
            raise NotFound(f"there is no job {id}", hint="see trunkline job list")
        if results:
            answer["result_state"] = results[0].state
            answer["result"] = None if results[0].result is None else msgspec.json.decode(results[0].result)
            answer["error"] = results[0].error
        return answer

    session.out.one(session.run(work))


@command.verb("retry", example="trunkline job retry 019a8d2e-7c1b-7000-8000-000000000000", http=False)
@click.argument("ids", type=click.UUID, nargs=-1, required=True)
def retry(session: Session, ids: tuple[UUID, ...]) -> None:
    """Bring dead jobs back, with a fresh count of attempts; `trunkline dead redrive` does it for many."""
    from trunkline.db import jobs

    async def work(mq: Client) -> list[dict[str, Any]]:
        done = []
        for id in ids:
            async with mq.connection() as conn:
                done.append({"id": id, "queue": await jobs.retry_job(conn, id)})
        mq.wake()
        return done

    session.out.many(session.run(work), (Column("id", "id", whole=True), Column("queue", "queue")))


@command.verb(
    "cancel", example="trunkline job cancel 019a8d2e-7c1b-7000-8000-000000000000 --reason 'not wanted'", http=False
)
@click.argument("id", type=click.UUID)
@click.option("--reason", help="Kept with the dead letter.")
def cancel(session: Session, id: UUID, reason: str | None) -> None:
    """Keep a job from starting, or stop it; it becomes a dead letter. Says requested, cancelled or finished."""
    from trunkline.db import jobs

    async def work(mq: Client) -> dict[str, Any]:
        async with mq.connection() as conn:
            return {"id": id, "answer": await jobs.cancel_job(conn, id, reason)}

    session.out.one(session.run(work))


@command.verb("run", example="trunkline job run shop:app send_receipt --args '{\"order_id\": 42}'", http=False)
@click.argument("app")
@click.argument("kind")
@click.option("--args", "arguments", default="{}", show_default=True, help="JSON.")
@click.option("--within", type=Duration(), default="30s", show_default=True, help="How long it may take.")
def run(session: Session, app: str, kind: str, arguments: str, within: timedelta) -> None:
    """Enqueue one job of APP, written module:app, and run it in this process; says what became of it.

    What else waits in the app's queues may run here meanwhile, and a worker of the same queue may be faster.
    """
    from trunkline.jobs.loading import load
    from trunkline.jobs.testing import Jobs

    loaded = load(app)
    loaded.url = loaded.url or session.url
    job = loaded.get(kind)
    try:
        given = msgspec.json.decode(arguments)
    except ValueError as exc:
        raise click.BadParameter(f"not JSON: {exc}", param_hint="--args") from None

    async def work() -> Any:
        async with loaded:
            by_name = isinstance(given, dict) and not job.arguments.whole
            return await Jobs(loaded).run_call(job.bind(**given) if by_name else job.bind(given), timeout=within)

    session.out.one(asyncio.run(work()))


@command.verb("kinds", example="trunkline job kinds shop:app")
@click.argument("app")
def kinds(session: Session, app: str) -> None:
    """The jobs of APP, written module:app."""
    from trunkline.jobs.loading import load

    loaded = load(app)
    rows = []
    for job in loaded.kinds.values():
        definition = job.definition
        rows.append(
            {
                "kind": job.name,
                "queue": definition.queue,
                "max_attempts": definition.max_attempts or loaded.max_attempts,
                "timeout": definition.timeout,
                "runs": "loop" if job.is_async else "process" if definition.process else "thread",
                "arguments": list(job.arguments.names),
            }
        )
    session.out.many(rows, _KINDS)
