"""`trunkline job`: list, retry, cancel and run jobs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click
import msgspec

from trunkline.cli.commands.job_details import record, write_job
from trunkline.cli.framework.command import CommandGroup, Count, Duration, Invocation
from trunkline.cli.framework.output import Column, plain

if TYPE_CHECKING:
    from trunkline import Client
    from trunkline.db.calls.job_records import JobView
    from trunkline.http_client import HttpClient
    from trunkline.jobs import App
    from trunkline.jobs.job import Call
    from trunkline.jobs.testing import Ran

command = CommandGroup("job", help="Manage jobs.")


def _due(at: datetime | None) -> str | None:
    """Format the time until then as one word. `job show` and JSON have the exact time."""
    if at is None:
        return None
    seconds = (at - datetime.now(UTC)).total_seconds()
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"in {seconds / size:.0f}{unit}"
    return "now" if seconds <= 0 else f"in {seconds:.0f}s"


_JOBS = (
    Column("id", "id", whole=True),
    Column("queue", "queue"),
    Column("kind", "kind"),
    Column("state", "state"),
    Column("attempt", "attempt", right=True),
    Column("due", lambda row: _due(row.due_at), whole=True),
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
_CANCELLED = {
    "requested": "A worker will stop it if it is running, or bury it when it is claimed.",
    "cancelled": "It was blocked by other jobs and will not start.",
}
_RAN = {
    "done": "Done.",
    "retry": "Failed. The next attempt is due in {delay:g} s, on any worker.",
    "bury": "Failed permanently. The job is a dead letter.",
    "snooze": "Not done. The job snoozed for {delay:g} s.",
    "release": "Not done. The job was released to its queue.",
    "lost": "Not done here. Its lease expired before it finished.",
}


@command.subcommand("list", example="trunkline job list mail --state dead")
@click.argument("queue", required=False)
@click.option(
    "--state",
    type=click.Choice(["running", "ready", "delayed", "blocked", "dead", "done"]),
    help="Only jobs in this state.",
)
@click.option("--kind", help="Only jobs of this kind.")
@click.option("--limit", type=Count(1, 10_000), default=100, show_default=True, help="Maximum number of jobs.")
def list_(invocation: Invocation, queue: str | None, state: str | None, kind: str | None, limit: int) -> None:
    """List jobs of one or all queues by state; done jobs only with --state done.

    States: running, ready (can start now), delayed (until due), blocked (by other jobs), dead (dead letters), done.
    Messages without a label are not jobs; show them with `trunkline queue peek`.
    """
    from trunkline.db.calls import jobs

    async def work(mq: Client) -> list[Any]:
        async with mq.connection() as conn:
            return list(await jobs.list_jobs(conn, queue, state=state, kind=kind, limit=limit))

    rows = invocation.run_either(work, lambda http: http.jobs.list(queue, state=state, kind=kind, limit=limit))
    invocation.out.many(rows, _JOBS)
    if invocation.out.table and not rows:
        invocation.say("No matching jobs. Done jobs are listed with --state done.")


@command.subcommand("show", example="trunkline job show 019a8d2e-7c1b-7000-8000-000000000000")
@click.argument("id", type=click.UUID)
def show(invocation: Invocation, id: UUID) -> None:
    """Show a job: state, arguments, attempts, result, error.

    The state is one of `trunkline job list`, or done, cancelled (while blocked), failed (its dead letter was removed)
    or gone (older than the delivery history). The result is kept only with @app.job(result=True).
    """
    from trunkline.db.calls import jobs

    async def work(mq: Client) -> JobView:
        async with mq.connection() as conn:
            return await jobs.get_job(conn, id)

    _write(invocation, invocation.run_either(work, lambda http: http.jobs.get(id)))


def _write(invocation: Invocation, job: JobView) -> None:
    if invocation.out.table:
        write_job(job)
    else:
        invocation.out.one(record(job))


@command.subcommand("retry", example="trunkline job retry 019a8d2e-7c1b-7000-8000-000000000000")
@click.argument("ids", type=click.UUID, nargs=-1, required=True)
def retry(invocation: Invocation, ids: tuple[UUID, ...]) -> None:
    """Retry dead jobs. Attempts start again from 1.

    To retry all of a queue, use `trunkline dead redrive`.
    """
    from trunkline.db.calls import jobs

    async def work(mq: Client) -> list[dict[str, Any]]:
        done = []
        for id in ids:
            async with mq.connection() as conn:
                done.append({"id": id, "queue": await jobs.retry_job(conn, id)})
        mq.wake()
        return done

    async def over_http(http: HttpClient) -> list[dict[str, Any]]:
        return [{"id": id, "queue": await http.jobs.retry(id)} for id in ids]

    rows = invocation.run_either(work, over_http)
    invocation.out.many(rows, (Column("id", "id", whole=True), Column("queue", "queue")))


@command.subcommand("cancel", example="trunkline job cancel 019a8d2e-7c1b-7000-8000-000000000000 --reason 'not wanted'")
@click.argument("id", type=click.UUID)
@click.option("--reason", help="Reason to store with the dead letter.")
def cancel(invocation: Invocation, id: UUID, reason: str | None) -> None:
    """Cancel a job. It becomes a dead letter.

    Prints requested (a worker will stop it) or cancelled (it was blocked and ends at once). If there is nothing to
    cancel, prints the job's state: done, dead, cancelled, failed or gone.
    """
    from trunkline.db.calls import jobs

    async def work(mq: Client) -> dict[str, Any]:
        async with mq.connection() as conn:
            return {"id": id, "result": await jobs.cancel_job(conn, id, reason)}

    async def over_http(http: HttpClient) -> dict[str, Any]:
        return {"id": id, "result": await http.jobs.cancel(id, reason=reason)}

    done = invocation.run_either(work, over_http)
    invocation.out.one(done)
    invocation.say(_CANCELLED.get(done["result"], "Nothing to cancel: the job has ended."))


@command.subcommand("uncancel", example="trunkline job uncancel 019a8d2e-7c1b-7000-8000-000000000000")
@click.argument("id", type=click.UUID)
def uncancel(invocation: Invocation, id: UUID) -> None:
    """Withdraw the cancel request of a job.

    Prints withdrawn, or the job's state if it has no request. A worker that has already read the request stops the job.
    """
    from trunkline.db.calls import jobs

    async def work(mq: Client) -> dict[str, Any]:
        async with mq.connection() as conn:
            return {"id": id, "result": await jobs.uncancel_job(conn, id)}

    async def over_http(http: HttpClient) -> dict[str, Any]:
        return {"id": id, "result": await http.jobs.uncancel(id)}

    invocation.out.one(invocation.run_either(work, over_http))


@command.subcommand("run", example="trunkline job run shop:app send_receipt --args '{\"order_id\": 42}'")
@click.argument("app")
@click.argument("kind")
@click.option("--args", "arguments", default="{}", show_default=True, help="Arguments as a JSON object, or the payload.")
@click.option("--within", type=Duration(), default="30s", show_default=True, help="Time limit of the attempt.")
def run(invocation: Invocation, app: str, kind: str, arguments: str, within: timedelta) -> int:
    """Enqueue one job of APP and run it in this process.

    APP is written module:app, KIND is one of `trunkline job kinds`. Prints the job with its result or error. Exits with
    0 if the job is done, else with 1: it failed or snoozed. Other jobs of the app's queues may run here meanwhile, and
    another worker may run this one first.
    """
    from trunkline.jobs.app_loader import load

    loaded = load(app)
    if invocation.names_database or loaded.url is None:
        loaded.url = invocation.url
    job = loaded.get(kind)
    try:
        given = msgspec.json.decode(arguments)
    except (ValueError, RecursionError) as exc:
        raise click.BadParameter(f"not valid JSON: {exc}", param_hint="--args") from None
    by_name = isinstance(given, dict) and not job.arguments.whole
    call = job.bind(**given) if by_name else job.bind(given)
    ran, view, result = invocation.run_alone(lambda: _run(loaded, call, within))
    if invocation.out.table:
        write_job(view, result=result if ran.outcome == "done" else None)
    else:
        invocation.out.one({**plain(ran), "state": view.state, "result": record(view).get("result")})
    # after the last attempt the database buries the job
    outcome = "bury" if view.state == "dead" else ran.outcome
    invocation.say(_RAN[outcome].format(delay=ran.delay or 0))
    return 0 if ran.outcome == "done" else 1


async def _run(app: App, call: Call, within: timedelta) -> tuple[Ran, JobView, str | None]:
    """Return the attempt, the job after it, and the repr of the handler's result."""
    from trunkline.cli.framework.database import probe
    from trunkline.db.calls import jobs
    from trunkline.jobs.testing import Jobs

    results: dict[UUID, str] = {}

    async def listen(ctx: Any, call: Any) -> Any:
        result = await call()
        results[ctx.id] = repr(result)
        return result

    await probe(app.client.url or "")
    app.middlewares.append(listen)
    async with app:
        ran = await Jobs(app).run_call(call, timeout=within)
        async with app.client.connection() as conn:
            return ran, await jobs.get_job(conn, ran.id), results.get(ran.id)


@command.subcommand("kinds", example="trunkline job kinds shop:app")
@click.argument("app")
def kinds(invocation: Invocation, app: str) -> None:
    """List the job kinds of APP, written module:app."""
    from trunkline.jobs.app_loader import load

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
    invocation.out.many(rows, _KINDS)
