"""Pipelines as jobs: a worker runs them on a Spark session, and their summary is the job's result.

Run a worker for them with `trunkline worker run trunkline.spark.pipelines.jobs:app`, or add the job to your own app with
`add_pipelines(app)`. The jobs of a worker share one session; each has a separate scheduler pool and tag. If a job is
cancelled or its lease is lost, its Spark jobs are cancelled by that tag and its query is stopped. Pipelines, and so
these jobs, are safe to repeat.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline.codec import duration
from trunkline.errors import InvalidArgument, NotFound, SettingsError, SparkUnavailable
from trunkline.jobs import App, Context, Job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KIND = "pipeline"
QUEUE = "pipelines"
FILES_VARIABLE = "TRUNKLINE_PIPELINE_FILES"
OUTPUT_VARIABLE = "TRUNKLINE_PIPELINE_OUTPUT"
PIPELINES = {
    "archive": ("trunkline.spark.archive.writer", "archive"),
    "clean": ("trunkline.spark.archive.cleanup", "clean"),
    "compact": ("trunkline.spark.pipelines.compact", "compact"),
    "dedupe": ("trunkline.spark.pipelines.query", "dedupe"),
    "replay": ("trunkline.spark.pipelines.replay", "replay"),
    "report": ("trunkline.spark.pipelines.report", "report"),
    "run": ("trunkline.spark.pipelines.query", "run_file"),
    "validate": ("trunkline.spark.pipelines.validate", "validate"),
}
# Parameters that the worker sets, not the job.
_RESERVED = ("url", "spark", "master", "on_progress")
# Settings that name files on the worker's machine to execute.
_FILES = ("file", "transform")
# Settings that name output locations.
_OUTPUTS = ("checkpoint", "folder", "location", "table")
_DURATIONS = ("age", "since", "step", "tombstones")
_PLACES = ("start", "end")
_AGAIN = 0.5
_LEAVE = 20.0
_ATTEMPTS = 3
_MOST = 1000


class PipelineStopped(BaseException):
    """Raised to end a pipeline at its next step. Not an error."""


class Running:
    """Runs all pipelines of this process on one Spark session, which starts with the first pipeline."""

    def __init__(
        self, app: App, master: str | None, files: str | None, output: str | None, spark: SparkSession | None
    ) -> None:
        self._app = app
        self._master = master
        self._files = files
        self._output = output
        self._spark = spark
        self._lock = threading.Lock()
        # the worker limits concurrency. Not daemon threads, which would be killed during a commit
        self._threads = ThreadPoolExecutor(_MOST, thread_name_prefix="trunkline pipeline")

    async def run(self, ctx: Context, name: str, settings: dict[str, Any]) -> Any:
        call = self._checked(name, settings)
        tag = f"trunkline-{ctx.id}-{ctx.attempt}"
        stop = threading.Event()
        future = asyncio.get_running_loop().run_in_executor(self._threads, self._run, call, tag, stop)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            stop.set()
            ctx.log.info("stopping: %s", ctx.stopping)
            await self._cancel(future, tag)
            raise

    def _checked(self, name: str, settings: dict[str, Any]) -> Callable[..., Any]:
        """Return the pipeline function with its settings. Rejects invalid settings before Spark starts."""
        if name not in PIPELINES:
            raise NotFound(f"pipeline {name!r} does not exist", hint=_did_you_mean(name, list(PIPELINES)))
        module, attribute = PIPELINES[name]
        function = getattr(importlib.import_module(module), attribute)
        known = inspect.signature(function).parameters
        for setting in settings:
            if setting not in known or setting in _RESERVED:
                names = [each for each in known if each not in _RESERVED]
                raise InvalidArgument(f"pipeline {name!r} has no setting {setting!r}", hint=_did_you_mean(setting, names))
        missing = [
            each.name
            for each in known.values()
            if each.default is inspect.Parameter.empty and each.name not in settings and each.name not in _RESERVED
        ]
        if missing:
            raise InvalidArgument(f"pipeline {name!r} requires {', '.join(missing)}")
        if settings.get("mode") == "stream":
            raise InvalidArgument(
                "a pipeline job cannot run in stream mode", hint="Omit `mode`; the job then processes the new messages."
            )
        values = {key: self._value(key, value) for key, value in settings.items()}

        def call(spark: SparkSession, on_progress: Callable[..., None]) -> Any:
            own = {key: value for key, value in (("spark", spark), ("on_progress", on_progress)) if key in known}
            return function(self._url, **values, **own)

        return call

    def _value(self, setting: str, value: Any) -> Any:
        """Convert settings that JSON cannot represent: durations, times, and paths within their folders."""
        if not isinstance(value, str):
            if value is not None and setting in (*_FILES, *_OUTPUTS, *_DURATIONS):
                raise InvalidArgument(f"{setting} must be a text, got {value!r}")
            return value
        if setting in _FILES:
            return self._file(setting, value)
        if setting in _OUTPUTS:
            return self._target(setting, value)
        if setting in _DURATIONS:
            return duration(value)
        if setting in _PLACES and value not in ("earliest", "latest"):
            return _time(value)
        return value

    def _file(self, setting: str, path: str) -> str:
        """Resolve a file to execute, which must be inside the worker's pipeline folder."""
        folder = self._files or os.environ.get(FILES_VARIABLE)
        if folder is None:
            raise SettingsError(
                f"{setting!r} names a file, but this worker has no folder of files to run",
                hint=f"Set {FILES_VARIABLE} to the folder of files that jobs may run.",
            )
        root = Path(folder).resolve()
        whole = (root / path).resolve()
        if not whole.is_relative_to(root):
            raise InvalidArgument(f"{path} is outside {folder}", hint="Use a file inside that folder.")
        return str(whole)

    def _target(self, setting: str, path: str) -> str:
        """Resolve an output location, which must be below the worker's output root."""
        root = self._output or os.environ.get(OUTPUT_VARIABLE)
        if root is None:
            raise SettingsError(
                f"{setting!r} names an output location, but this worker has no output root",
                hint=f"Set {OUTPUT_VARIABLE} to the folder or URI below which jobs may write.",
            )
        whole = _below_uri(root, path) if "://" in root else _below(Path(root), path)
        if whole is None:
            raise InvalidArgument(f"{setting}: {path} is outside {root}", hint="Use a location below the output root.")
        return whole

    @property
    def _url(self) -> str:
        return self._app.client.url

    def _session(self) -> SparkSession:
        with self._lock:
            if self._spark is None:
                from trunkline.spark.session.session import open_session

                conf = {"spark.scheduler.mode": "FAIR"}
                self._spark = open_session("trunkline pipelines", master=self._master, url=self._url, conf=conf)
                self._spark.sparkContext.setLogLevel("ERROR")
            elif not _alive(self._spark):
                raise SparkUnavailable("the Spark session of this worker has ended", hint="Restart the worker.")
            return self._spark

    def _run(self, call: Callable[..., Any], tag: str, stop: threading.Event) -> Any:
        def on_progress(*_: object) -> None:
            if stop.is_set():
                raise PipelineStopped

        context = self._session().sparkContext
        on_progress()
        context.setLocalProperty("spark.scheduler.pool", tag)
        context.addJobTag(tag)
        try:
            return msgspec.to_builtins(call(self._spark, on_progress))
        finally:
            with suppress(Exception):
                context.removeJobTag(tag)
                context.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]

    async def _cancel(self, future: asyncio.Future[Any], tag: str) -> None:
        """Cancel repeatedly until the pipeline has ended, because it may be between two Spark jobs."""
        for _ in range(int(_LEAVE / _AGAIN)):
            with suppress(Exception):
                if self._spark is not None:
                    await asyncio.to_thread(self._spark.sparkContext.cancelJobsWithTag, tag)
            await asyncio.wait([future], timeout=_AGAIN)
            if future.done():
                break
        future.add_done_callback(lambda ended: None if ended.cancelled() else ended.exception())


def add_pipelines(
    app: App,
    *,
    queue: str = QUEUE,
    master: str | None = None,
    files: str | None = None,
    output: str | None = None,
    spark: SparkSession | None = None,
) -> Job[[str, dict[str, Any]], Any]:
    """Add the job `pipeline` to an app: `await job.enqueue("archive", {"topic": "orders", "location":
    "/srv/archive"})`.

    `files` is the folder of .py and .sql files that jobs may run (default: TRUNKLINE_PIPELINE_FILES). Without it, jobs
    cannot run files. `output` is the folder or URI below which jobs may write tables, archives, reports and checkpoints
    (default: TRUNKLINE_PIPELINE_OUTPUT). Without it, jobs cannot name output locations.
    """
    running = Running(app, master, files, output, spark)
    final: dict[type[BaseException], None] = {InvalidArgument: None, NotFound: None, SettingsError: None}

    @app.job(name=KIND, queue=queue, result=True, max_attempts=_ATTEMPTS, errors=final)
    async def pipeline(ctx: Context, name: str, settings: dict[str, Any]) -> Any:
        return await running.run(ctx, name, settings)

    return pipeline


def _below(root: Path, path: str) -> str | None:
    """Resolve a path below a folder, following links. Return None if it is outside or the folder itself."""
    if "://" in path or path.startswith("file:"):
        return None
    base = root.resolve()
    whole = (base / path).resolve()
    return str(whole) if whole != base and whole.is_relative_to(base) else None


def _below_uri(root: str, path: str) -> str | None:
    """Resolve a URI below another. Return None if it is outside or not in normal form."""
    base = root.rstrip("/") + "/"
    whole = path if "://" in path else base + path.lstrip("/")
    rest = whole.removeprefix(base)
    fine = whole.startswith(base) and rest and not {"", ".", ".."} & set(rest.rstrip("/").split("/"))
    return whole if fine and "%" not in rest and "\\" not in rest else None


def _did_you_mean(word: str, known: list[str]) -> str:
    near = get_close_matches(word, known, 1)
    return f"Did you mean {near[0]!r}?" if near else f"Use one of: {', '.join(sorted(known))}."


def _time(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(
            f"{text!r} is not a log position",
            hint="Use earliest, latest, an offset, or a time such as 2026-01-31T12:00:00Z.",
        ) from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _alive(spark: SparkSession) -> bool:
    try:
        context: Any = spark.sparkContext._jsc
        return context is not None and not context.sc().isStopped()
    except Exception:
        return False


app = App(queue=QUEUE)
"""For `trunkline worker run trunkline.spark.pipelines.jobs:app`."""
pipeline = add_pipelines(app)
"""The job: `await pipeline.enqueue("archive", {"topic": "orders"})`."""
