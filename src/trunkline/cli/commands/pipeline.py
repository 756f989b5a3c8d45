"""`trunkline pipeline`: run and list Spark pipelines."""

from __future__ import annotations

import asyncio
import difflib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trunkline.cli.framework.command import CommandGroup, Count, Duration, Invocation, stacked
from trunkline.cli.framework.output import Column, progress, shorten
from trunkline.cli.framework.positions import Position
from trunkline.errors import InvalidArgument, NotFound, NotInstalled

if TYPE_CHECKING:
    from trunkline import Client

command = CommandGroup("pipeline", help="Run and list Spark pipelines.")

_PIPELINES = (
    Column("pipeline", "name", whole=True),
    Column("kind", "kind"),
    Column("state", "state"),
    Column("rows", "rows", right=True),
    Column("per second", "rows_per_second", right=True),
    Column("lag", "lag", right=True),
    Column("updated", "updated_at"),
    Column("error", lambda row: shorten(row.error)),
)

_spark = stacked(
    click.option("--master", metavar="URL", help="Spark master.  [default: $TRUNKLINE_SPARK_MASTER, else local[*]]"),
)
_period = stacked(
    click.option(
        "--start",
        type=Position(),
        default="earliest",
        show_default=True,
        help="First position: earliest, an offset, a time, or an age.",
    ),
    click.option("--end", type=Position(), default="latest", show_default=True, help="Position to stop before."),
)
_checkpoint = click.option(
    "--checkpoint", metavar="DIR", required=True, help="Folder in which the query stores its position."
)
_mode = click.option("--stream", is_flag=True, help="Run until Ctrl-C instead of stopping at the head.")


@contextmanager
def needs_spark() -> Iterator[None]:
    """Raise one clear error if the Spark packages are not installed."""
    try:
        yield
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] not in (
            "pyspark",
            "pyarrow",
            "adbc_driver_postgresql",
            "adbc_driver_manager",
            "numpy",
            "pandas",
            "jsonschema",
        ):
            raise
        raise NotInstalled(f"{exc.name} is not installed", hint="pip install 'trunkline[spark]'") from exc


def _run(invocation: Invocation, text: str, call: Callable[[Any], Any]) -> Any:
    """Run a pipeline with a progress bar. Print and return its summary."""
    # Spark takes 5 to 15 seconds to start, and nothing is reported before.
    with invocation.limited(), needs_spark(), progress(f"{text}: starting Spark", quiet=invocation.quiet) as bar:
        summary = call(lambda done, total: bar(done, total, text))
    invocation.out.one(summary)
    return summary


@command.subcommand("list", example="trunkline pipeline list --state failed")
@click.option("--state", type=click.Choice(["running", "done", "failed", "stopped"]), help="Only pipelines in this state.")
def list_(invocation: Invocation, state: str | None) -> None:
    """List pipelines and streaming queries with their progress.

    A query without a name is listed by its id; set `queryName` to name it.
    """
    from trunkline.db.calls.pipelines import merge_queries

    rows = _all(invocation)
    invocation.out.many([each for each in merge_queries(rows) if state in (None, each.state)], _PIPELINES)


def _all(invocation: Invocation, name: str | None = None) -> list[Any]:
    """Return all pipelines, or the one of this name. Needs no Spark."""
    from trunkline.db.calls import pipelines

    async def work(mq: Client) -> list[Any]:
        async with mq.connection() as conn:
            return [row for row in await pipelines.list_pipelines(conn) if name in (None, row.name)]

    return invocation.run_either(work, lambda http: http.pipelines.list(name=name))


@command.subcommand("show", example="trunkline pipeline show archive:orders")
@click.argument("name")
def show(invocation: Invocation, name: str) -> None:
    """Show a pipeline with everything it reported."""
    found = _all(invocation, name)
    if not found:
        raise NotFound(f"pipeline {name!r} has not run", hint="List pipelines with `trunkline pipeline list`.")
    invocation.out.one(found[0])


@command.subcommand("archive", example="trunkline pipeline archive orders --location /srv/archive --required")
@click.argument("topic")
@click.option("--location", metavar="DIR|URI", help="Folder that all tasks can reach; later runs remember it.")
@click.option(
    "--required/--not-required", default=None, help="Keep messages until they are archived, regardless of retention."
)
@click.option("--open", "open_", is_flag=True, help="Archive up to the head, not only complete segments.")
@click.option(
    "--rows-per-file", type=Count(1, 16_777_216), default=262_144, show_default=True, help="Maximum rows per file."
)
@click.option("--delta", is_flag=True, help="Also write a Delta table.")
@click.option("--iceberg", is_flag=True, help="Also write an Iceberg table, with its catalog in the same Postgres.")
@click.option("--clean", is_flag=True, help="Afterwards remove unlisted files older than an hour, left by killed runs.")
@click.option("--dry-run", is_flag=True, help="Show what would be archived.")
@_spark
def archive(
    invocation: Invocation,
    topic: str,
    location: str | None,
    required: bool | None,
    open_: bool,
    rows_per_file: int,
    delta: bool,
    iceberg: bool,
    clean: bool,
    dry_run: bool,
    master: str | None,
) -> None:
    """Archive the complete segments of a topic as Parquet files, verifying each file."""
    with needs_spark():
        from trunkline.spark.archive.cleanup import clean as remove_unlisted
        from trunkline.spark.archive.export import export
        from trunkline.spark.archive.writer import archive as run

    if location is not None and "://" not in location:
        location = str(Path(location).absolute())
    done = _run(
        invocation,
        f"archive {topic}",
        lambda on_progress: run(
            invocation.url,
            topic,
            location,
            open=open_,
            required=required,
            rows_per_file=rows_per_file,
            dry_run=dry_run,
            master=master,
            on_progress=on_progress,
        ),
    )
    if not done.files and not open_:
        invocation.say("No new complete segments. Use --open to archive segments that are still growing.")
    for wanted, kind in ((delta, "delta"), (iceberg, "iceberg")):
        if wanted and not dry_run:
            added = export(invocation.url, topic, kind)
            invocation.say(f"added {added.files} files with {added.rows:,} messages to the {kind} table {added.table}")
    if clean:
        removed = remove_unlisted(invocation.url, topic, dry_run=dry_run)
        invocation.say(
            f"{'would remove' if dry_run else 'removed'} {removed.files} unlisted files of {removed.bytes:,} bytes"
        )


@command.subcommand(
    "replay",
    example="trunkline pipeline replay orders --to-queue mail --start 1d --end 1h --id incident-7 --dry-run",
)
@click.argument("topic")
@click.option("--to", "to_topic", metavar="TOPIC", help="Topic to publish to.")
@click.option("--to-queue", metavar="QUEUE", help="Queue to enqueue to.")
@click.option("--id", "id_", required=True, metavar="NAME", help="Name of the replay. A second run with it resumes.")
@_period
@click.option("--filter", metavar="SQL", help='SQL condition on messages, such as "body:total::int > 100".')
@click.option("--transform", metavar="FILE", help="A .py or .sql file that transforms messages row by row.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Maximum messages per second.")
@click.option("--dry-run", is_flag=True, help="Read and transform without publishing.")
@_spark
def replay(
    invocation: Invocation, topic: str, id_: str, start: str | int | datetime, end: str | int | datetime, **values: Any
) -> None:
    """Publish messages of a range again, from log or archive, exactly once."""
    with needs_spark():
        from trunkline.spark.pipelines.replay import replay as run

    if values["to_topic"] == topic and not values["dry_run"]:
        invocation.say(f"{topic} is replayed into itself: it will have these messages twice")
    _run(
        invocation,
        f"replay {topic}",
        lambda on_progress: run(invocation.url, topic, id=id_, start=start, end=end, on_progress=on_progress, **values),
    )


@command.subcommand("compact", example="trunkline pipeline compact orders --table /srv/tables/orders --null-keys skip")
@click.argument("topic")
@click.option("--table", metavar="DIR", help="Folder for a Parquet table.")
@click.option("--overwrite", is_flag=True, help="Replace the table.")
@click.option("--to", "to_topic", metavar="TOPIC", help="Topic to which the latest messages are also published.")
@click.option("--null-keys", type=click.Choice(("error", "skip")), default="error", show_default=True)
@click.option("--tombstones", type=Duration(), help="Age above which tombstones are dropped.  [default: keep all]")
@_period
@click.option("--dry-run", is_flag=True, help="Count without writing.")
@_spark
def compact(invocation: Invocation, topic: str, **values: Any) -> None:
    """Write the latest message of each key."""
    with needs_spark():
        from trunkline.spark.pipelines.compact import compact as run

    if values["table"] and "://" not in values["table"]:
        values["table"] = str(Path(values["table"]).absolute())
    _run(invocation, f"compact {topic}", lambda on_progress: run(invocation.url, topic, on_progress=on_progress, **values))


@command.subcommand("report", example="trunkline pipeline report ./report --since 1d")
@click.argument("folder")
@click.option("--topic", "topics", multiple=True, help="Only this topic; may be repeated.")
@click.option("--since", type=Duration(), default="1d", show_default=True, help="Length of the reported period.")
@click.option("--step", type=Duration(), help="Time step of the charts.  [default: by the period]")
@_spark
def report(invocation: Invocation, folder: str, topics: tuple[str, ...], since: timedelta, **values: Any) -> None:
    """Report throughput, latencies, attempts, dead letters, lag, hot keys and sizes, as Parquet tables and HTML."""
    with needs_spark():
        from trunkline.spark.pipelines.report import report as run

    _run(
        invocation,
        "report",
        lambda on_progress: run(
            invocation.url, folder, topics=topics or None, since=since, on_progress=on_progress, **values
        ),
    )


@command.subcommand(
    "dedupe", example="trunkline pipeline dedupe orders --to orders-once --by id --within 1h --checkpoint ./dedupe"
)
@click.argument("topic")
@click.option("--to", "to_topic", required=True, metavar="TOPIC", help="Topic to publish to.")
@click.option(
    "--by",
    default="key",
    show_default=True,
    metavar="SQL",
    help='SQL expression that identifies duplicates, such as "body:id::string".',
)
@click.option("--within", type=Duration(), default="1h", show_default=True, help="Maximum time between duplicates.")
@_checkpoint
@_mode
@_spark
def dedupe(invocation: Invocation, topic: str, to_topic: str, within: timedelta, stream: bool, **values: Any) -> None:
    """Copy a topic without duplicates. Each run processes new messages."""
    with needs_spark():
        from trunkline.spark.pipelines.query import dedupe as run

    values["checkpoint"] = _absolute(values["checkpoint"])
    wide = f"{within.total_seconds():.0f} seconds"
    mode = "stream" if stream else "once"
    _run(
        invocation,
        f"dedupe {topic}",
        lambda on_progress: run(invocation.url, topic, to_topic, within=wide, mode=mode, on_progress=on_progress, **values),
    )


@command.subcommand(
    "validate", example="trunkline pipeline validate orders --schema order.schema.json --rejects orders-rejected"
)
@click.argument("topic")
@click.option("--schema", "schema_file", metavar="FILE", help="JSON Schema.  [default: inferred from the messages]")
@click.option("--save-schema", metavar="FILE", help="File to which the schema is written.")
@click.option("--rejects", metavar="TOPIC", help="Topic for invalid messages, published with the reason.")
@_period
@_spark
def validate(invocation: Invocation, topic: str, schema_file: str | None, save_schema: str | None, **values: Any) -> int:
    """Validate payloads against a JSON Schema. Exits with 5 if any are invalid."""
    with needs_spark():
        from trunkline.spark.pipelines.validate import validate as run

    schema = _read_schema(schema_file) if schema_file else None
    done = _run(
        invocation,
        f"validate {topic}",
        lambda on_progress: run(invocation.url, topic, schema=schema, on_progress=on_progress, **values),
    )
    if save_schema:
        Path(save_schema).write_text(json.dumps(done.json_schema, indent=2) + "\n", encoding="utf-8")
    return 5 if done.rejected else 0


def _read_schema(path: str) -> dict[str, Any]:
    try:
        schema = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise InvalidArgument(f"cannot read schema {path}: {exc}", hint="Specify a JSON Schema file.") from exc
    if not isinstance(schema, dict):
        raise InvalidArgument(f"schema {path} must be an object", hint="Specify a JSON Schema file.")
    return schema


@command.subcommand("run", example="trunkline pipeline run totals.sql --from orders --to order-totals --checkpoint ./totals")
@click.argument("file")
@click.option("--from", "topic", metavar="TOPIC", help="Topic to read.")
@click.option("--to", "to_topic", metavar="TOPIC", help="Topic to publish results to.")
@click.option("--to-queue", metavar="QUEUE", help="Queue to enqueue results to.")
@click.option("--table", metavar="DIR", help="Parquet table to append results to.")
@click.option(
    "--start",
    type=click.Choice(("earliest", "latest")),
    default="earliest",
    show_default=True,
    help="Position for a new checkpoint.",
)
@click.option("--group", help="Group whose position to start from (including the archive) and to advance.")
@click.option(
    "--checkpoint", metavar="DIR", help="Folder in which the pipeline stores its position; required except for a spec."
)
@_mode
@click.option("--declared", is_flag=True, help="Treat FILE as a Spark Declarative Pipeline, as a spec (.yml) always is.")
@click.option("--full-refresh", is_flag=True, help="Declared only: reset all tables and read from the start.")
@click.option("--dry-run", is_flag=True, help="Declared only: validate without running.")
@_spark
def run_(
    invocation: Invocation, file: str, topic: str | None, checkpoint: str | None, stream: bool, declared: bool, **values: Any
) -> None:
    """Run your own pipeline: a .py file with `transform(messages)`, a .sql file with a SELECT from `messages`, or a
    Spark Declarative Pipeline, which names its own topics."""
    checkpoint = _absolute(checkpoint) if checkpoint else None
    whole = {name: values.pop(name) for name in ("full_refresh", "dry_run")}
    if declared or file.endswith((".yml", ".yaml")):
        named = {"--from": topic, "--stream": stream, "--start": values["start"] != "earliest"}
        named |= {f"--{name.replace('_', '-')}": values[name] for name in ("to_topic", "to_queue", "table", "group")}
        if wrong := [name for name, value in named.items() if value]:
            raise InvalidArgument(
                f"a declared pipeline does not accept {wrong[0].replace('-topic', '')}",
                hint="Declare inputs and outputs in its file.",
            )
        _run_declared(invocation, file, storage=checkpoint, master=values["master"], **whole)
        return
    if wrong := [name for name, value in whole.items() if value]:
        raise InvalidArgument(f"--{wrong[0].replace('_', '-')} requires a declared pipeline", hint="Add --declared.")
    if topic is None or checkpoint is None:
        raise InvalidArgument(
            f"--{'from' if topic is None else 'checkpoint'} is missing", hint="See `trunkline pipeline run --help`."
        )
    with needs_spark():
        from trunkline.spark.pipelines.query import run_file

    values["table"] = _absolute(values["table"]) if values["table"] else None
    mode = "stream" if stream else "once"
    _run(
        invocation,
        f"run {file}",
        lambda on_progress: run_file(
            invocation.url, file, topic, checkpoint=checkpoint, mode=mode, on_progress=on_progress, **values
        ),
    )


def _run_declared(invocation: Invocation, file: str, **values: Any) -> None:
    with needs_spark():
        from trunkline.spark.pipelines.declarative import run_declared

    _run(
        invocation, f"run {file}", lambda on_progress: run_declared(invocation.url, file, on_progress=on_progress, **values)
    )


@command.subcommand("enqueue", example='trunkline pipeline enqueue archive \'{"topic": "orders"}\'')
@click.argument("name")
@click.argument("settings", default="{}")
@click.option("--queue", default="pipelines", show_default=True, help="Queue of pipeline workers.")
@click.option("--key", "idempotency_key", help="Idempotency key: a repeat with the same key enqueues nothing.")
@click.option("--wait", type=Duration(), help="Time to wait for the summary.")
def enqueue(
    invocation: Invocation, name: str, settings: str, queue: str, idempotency_key: str | None, wait: timedelta | None
) -> None:
    """Enqueue a pipeline for a worker (trunkline worker run trunkline.spark.pipelines.jobs:app).

    SETTINGS is a JSON object of the function's parameters.
    """
    from trunkline.jobs import App
    from trunkline.spark.pipelines.jobs import PIPELINES, add_pipelines

    if name not in PIPELINES:
        near = difflib.get_close_matches(name, PIPELINES, n=1)
        raise NotFound(
            f"there is no pipeline {name!r}",
            hint=f"Did you mean {near[0]}?" if near else f"Use one of: {', '.join(sorted(PIPELINES))}.",
        )
    try:
        parameters = json.loads(settings)
    except ValueError as exc:
        raise click.BadParameter(f"not valid JSON: {exc}", param_hint="SETTINGS") from None
    if not isinstance(parameters, dict):
        raise click.BadParameter("must be a JSON object", param_hint="SETTINGS")

    async def work() -> Any:
        async with App(invocation.url, queue=queue) as app:
            job = add_pipelines(app, queue=queue)
            handle = await job.options(idempotency_key=idempotency_key).enqueue(name, parameters)
            if wait is not None:
                return {"id": handle.id, "result": await handle.result(wait)}
            return {"id": handle.id, "duplicate": handle.duplicate}

    invocation.out.one(asyncio.run(work()))


def _absolute(folder: str) -> str:
    return folder if "://" in folder else str(Path(folder).absolute())
