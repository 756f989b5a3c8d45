"""`trunkline job`: look at jobs, bring them back, stop them, run one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click
import msgspec

from trunkline.cli.command import Count, Duration, Noun, Session
from trunkline.cli.job_view import record, write_job
from trunkline.cli.output import Column, plain

if TYPE_CHECKING:
    from trunkline import Client
    from trunkline.db.job_records import JobView
    from trunkline.jobs import App
    from trunkline.jobs.job import Call
    from trunkline.jobs.testing import Ran

command = Noun("job", help="Jobs: look, retry, cancel, run.")


def _due(at: datetime | None) -> str | None:
    """How long until then, in one word: the exact time is in `job show` and in JSON."""
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
    "requested": "A worker will see to it: it is stopped if it runs, or becomes a dead letter when its turn comes.",
    "cancelled": "It waited for other jobs and will not start.",
}
_RAN = {
    "done": "Done.",
    "retry": "Failed; the next attempt is due in {delay:g} s, by any worker.",
    "bury": "Failed for good: it is a dead letter.",
    "snooze": "Not done: it put itself off for {delay:g} s.",
    "release": "Not done: it went back to its queue.",
    "lost": "Not done here: its lease ended before it did.",
}


@command.verb("list", example="trunkline job list mail --state dead", http=False)
@click.argument("queue", required=False)
@click.option("--state", type=click.Choice(["running", "waiting", "delayed", "blocked", "dead"]), help="Only these.")
@click.option("--limit", type=Count(1, 10_000), default=100, show_default=True, help="Of each state and queue.")
def list_(session: Session, queue: str | None, state: str | None, limit: int) -> None:
    """Jobs that are not done, of a queue or of all.

    They are running, waiting (free to start), delayed (until due), blocked (by other jobs) or dead (dead letters). A message
    without a label is no job: see `trunkline queue peek` for those.
    """
    from trunkline.db import jobs

    async def work(mq: Client) -> list[Any]:
        async with mq.connection() as conn:
            return list(await jobs.list_jobs(conn, queue, state=state, limit=limit))

    rows = session.run(work)
    session.out.many(rows, _JOBS)
    if session.out.table and not rows:
        session.say("No such jobs: what is done is not listed.")


@command.verb("show", example="trunkline job show 019a8d2e-7c1b-7000-8000-000000000000", http=False)
@click.argument("id", type=click.UUID)
def show(session: Session, id: UUID) -> None:
    """One job: state, arguments, attempts, result, error.

    The state is one of `trunkline job list`, or done, cancelled (while it was blocked), failed (its dead letter is gone
    too) or gone (longer ago than the history goes). The result is there if the job keeps it: @app.job(result=True).
    """
    from trunkline.db import jobs

    async def work(mq: Client) -> JobView:
        async with mq.connection() as conn:
            return await jobs.get_job(conn, id)

    _write(session, session.run(work))


def _write(session: Session, job: JobView) -> None:
    if session.out.table:
        write_job(job)
    else:
        session.out.one(record(job))


@command.verb("retry", example="trunkline job retry 019a8d2e-7c1b-7000-8000-000000000000", http=False)
@click.argument("ids", type=click.UUID, nargs=-1, required=True)
def retry(session: Session, ids: tuple[UUID, ...]) -> None:
    """Bring dead jobs back, with a fresh count of attempts.

    `trunkline dead redrive` does it for all of a queue.
    """
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
    """Keep a job from starting, or stop it; it becomes a dead letter.

    Answers requested (a worker will see to it) or cancelled (it waited for others and is gone at once); where there is
    nothing to end, its state: done, dead, cancelled, failed or gone.
    """
    from trunkline.db import jobs

    async def work(mq: Client) -> dict[str, Any]:
        async with mq.connection() as conn:
            return {"id": id, "answer": await jobs.cancel_job(conn, id, reason)}

    done = session.run(work)
    session.out.one(done)
    session.say(_CANCELLED.get(done["answer"], "Nothing to cancel: it has ended."))


@command.verb("run", example="trunkline job run shop:app send_receipt --args '{\"order_id\": 42}'", http=False)
@click.argument("app")
@click.argument("kind")
@click.option("--args", "arguments", default="{}", show_default=True, help="By name, as a JSON object; or the payload.")
@click.option("--within", type=Duration(), default="30s", show_default=True, help="How long it may take.")
def run(session: Session, app: str, kind: str, arguments: str, within: timedelta) -> int:
    """Enqueue one job of APP and run it in this process.

    APP is written module:app, KIND is one of `trunkline job kinds`. Shows the job with its result or error.
    Ends with 0 when the job is done and with 1 otherwise: it failed (and comes again, or is a dead letter), or put itself
    off. What else waits in the app's queues may run here meanwhile, and a worker of the same queue may be faster.
    """
    from trunkline.jobs.loading import load

    loaded = load(app)
    if session.names_database or loaded.url is None:
        loaded.url = session.url
    job = loaded.get(kind)
    try:
        given = msgspec.json.decode(arguments)
    except ValueError as exc:
        raise click.BadParameter(f"not JSON: {exc}", param_hint="--args") from None
    by_name = isinstance(given, dict) and not job.arguments.whole
    call = job.bind(**given) if by_name else job.bind(given)
    ran, view, answer = session.run_alone(lambda: _run(loaded, call, within))
    if session.out.table:
        write_job(view, answer=answer if ran.outcome == "done" else None)
    else:
        session.out.one({**plain(ran), "state": view.state, "result": record(view).get("result")})
    # at the last attempt the queue itself makes it a dead letter
    outcome = "bury" if view.state == "dead" else ran.outcome
    session.say(_RAN[outcome].format(delay=ran.delay or 0))
    return 0 if ran.outcome == "done" else 1


async def _run(app: App, call: Call, within: timedelta) -> tuple[Ran, JobView, str | None]:
    """The attempt, the job after it, and what the handler answered as text."""
    from trunkline.cli.target import probe
    from trunkline.db import jobs
    from trunkline.jobs.testing import Jobs

    answers: dict[UUID, str] = {}

    async def listen(ctx: Any, call: Any) -> Any:
        answer = await call()
        answers[ctx.id] = repr(answer)
        return answer

    await probe(app.client._url or "")
    app.middlewares.append(listen)
    async with app:
        ran = await Jobs(app).run_call(call, timeout=within)
        async with app.client.connection() as conn:
            return ran, await jobs.get_job(conn, ran.id), answers.get(ran.id)


@command.verb("kinds", example="trunkline job kinds shop:app")
@click.argument("app")
def kinds(session: Session, app: str) -> None:
    """What jobs APP has, written module:app."""
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
