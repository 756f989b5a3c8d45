"""Pipelines as jobs: a queue triggers them, a worker runs them on one Spark session, their summary is the job's result.

`trunkline worker run trunkline.pipeline_jobs:app` is a worker for them; `add_pipelines(app)` adds the job to your own app.
All jobs of a worker share a session, each in a pool and under a tag of its own. A job that is cancelled, or whose lease is
lost, has its Spark jobs cancelled by that tag and its query stopped. Every pipeline may be started again, so may a job.
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

from trunkline.db.codec import duration
from trunkline.errors import InvalidArgument, NotFound, SettingsError, SparkUnavailable
from trunkline.jobs import App, Context, Job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KIND = "pipeline"
QUEUE = "pipelines"
FILES_VARIABLE = "TRUNKLINE_PIPELINE_FILES"
OUTPUT_VARIABLE = "TRUNKLINE_PIPELINE_OUTPUT"
PIPELINES = {
    "archive": ("trunkline.spark.pipelines.archive", "archive"),
    "clean": ("trunkline.spark.pipelines.cleaning", "clean"),
    "compact": ("trunkline.spark.pipelines.compact", "compact"),
    "dedupe": ("trunkline.spark.pipelines.streams", "dedupe"),
    "replay": ("trunkline.spark.pipelines.replay", "replay"),
    "report": ("trunkline.spark.pipelines.report", "report"),
    "run": ("trunkline.spark.pipelines.streams", "run_file"),
    "validate": ("trunkline.spark.pipelines.validate", "validate"),
}
# What the worker gives, not the job.
_GIVEN = ("url", "spark", "master", "told")
# Settings that name files of the worker's machine which are run.
_FILES = ("file", "transform")
# Settings that name what is written.
_OUTPUTS = ("checkpoint", "folder", "location", "table")
_DURATIONS = ("age", "since", "step", "tombstones")
_PLACES = ("start", "end")
_AGAIN = 0.5
_LEAVE = 20.0
_ATTEMPTS = 3
_MOST = 1000


class Stopped(BaseException):
    """Ends a pipeline at its next step; not an error of it."""


class Running:
    """One session for all pipelines of this process, started with the first."""

    def __init__(
        self, app: App, master: str | None, files: str | None, output: str | None, spark: SparkSession | None
    ) -> None:
        self._app = app
        self._master = master
        self._files = files
        self._output = output
        self._spark = spark
        self._lock = threading.Lock()
        # the worker bounds how many run at once. No daemons: these would be killed in the middle of a commit
        self._threads = ThreadPoolExecutor(_MOST, thread_name_prefix="trunkline pipeline")

    async def run(self, ctx: Context, name: str, settings: dict[str, Any]) -> Any:
        call = self._checked(name, settings)
        tag = f"trunkline-{ctx.id}-{ctx.attempt}"
        stop = threading.Event()
        done = asyncio.get_running_loop().run_in_executor(self._threads, self._run, call, tag, stop)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            stop.set()
            ctx.log.info("stops: %s", ctx.stopping)
            await self._cancel(done, tag)
            raise

    def _checked(self, name: str, settings: dict[str, Any]) -> Callable[..., Any]:
        """The function with the job's settings. Refused before Spark starts: what it does not know."""
        if name not in PIPELINES:
            raise NotFound(f"there is no pipeline {name!r}", hint=_did_you_mean(name, list(PIPELINES)))
        module, function = PIPELINES[name]
        found = getattr(importlib.import_module(module), function)
        known = inspect.signature(found).parameters
        for setting in settings:
            if setting not in known or setting in _GIVEN:
                names = [each for each in known if each not in _GIVEN]
                raise InvalidArgument(f"pipeline {name!r} has no setting {setting!r}", hint=_did_you_mean(setting, names))
        missing = [
            each.name
            for each in known.values()
            if each.default is inspect.Parameter.empty and each.name not in settings and each.name not in _GIVEN
        ]
        if missing:
            raise InvalidArgument(f"pipeline {name!r} needs {', '.join(missing)}")
        if settings.get("mode") == "stream":
            raise InvalidArgument("a job ends; a stream does not", hint="leave out `mode`: it takes what is new")
        given = {key: self._value(key, value) for key, value in settings.items()}

        def call(spark: SparkSession, told: Callable[..., None]) -> Any:
            own = {key: value for key, value in (("spark", spark), ("told", told)) if key in known}
            return found(self._url, **given, **own)

        return call

    def _value(self, setting: str, value: Any) -> Any:
        """What JSON cannot say: durations, times, and files, which are looked for in their folder."""
        if not isinstance(value, str):
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
        """A message may name a file to run only inside the folder that the worker was given for that."""
        folder = self._files or os.environ.get(FILES_VARIABLE)
        if folder is None:
            raise SettingsError(
                f"this worker runs no files, and {setting!r} names one",
                hint=f"set {FILES_VARIABLE} to the folder of files to run",
            )
        root = Path(folder).resolve()
        whole = (root / path).resolve()
        if not whole.is_relative_to(root):
            raise InvalidArgument(f"{path} is outside {folder}", hint="name a file inside that folder")
        return str(whole)

    def _target(self, setting: str, path: str) -> str:
        """A message may name a place to write to only below the worker's output root."""
        root = self._output or os.environ.get(OUTPUT_VARIABLE)
        if root is None:
            raise SettingsError(
                f"this worker has no output root, and {setting!r} names a place to write to",
                hint=f"Set {OUTPUT_VARIABLE} to the folder or URI below which jobs may write.",
            )
        whole = _below_uri(root, path) if "://" in root else _below(Path(root), path)
        if whole is None:
            raise InvalidArgument(f"{setting}: {path} is outside {root}", hint="Name a place below the output root.")
        return whole

    @property
    def _url(self) -> str:
        return str(self._app.client._url)

    def _session(self) -> SparkSession:
        with self._lock:
            if self._spark is None:
                from trunkline.spark.session import open_session

                conf = {"spark.scheduler.mode": "FAIR"}
                self._spark = open_session("trunkline pipelines", master=self._master, url=self._url, conf=conf)
                self._spark.sparkContext.setLogLevel("ERROR")
            elif not _alive(self._spark):
                raise SparkUnavailable("the Spark session of this worker has ended", hint="start the worker again")
            return self._spark

    def _run(self, call: Callable[..., Any], tag: str, stop: threading.Event) -> Any:
        def told(*_: object) -> None:
            if stop.is_set():
                raise Stopped

        context = self._session().sparkContext
        told()
        context.setLocalProperty("spark.scheduler.pool", tag)
        context.addJobTag(tag)
        try:
            return msgspec.to_builtins(call(self._spark, told))
        finally:
            with suppress(Exception):
                context.removeJobTag(tag)
                context.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]

    async def _cancel(self, done: asyncio.Future[Any], tag: str) -> None:
        """Until it has ended: a pipeline may be between two Spark jobs."""
        for _ in range(int(_LEAVE / _AGAIN)):
            with suppress(Exception):
                if self._spark is not None:
                    await asyncio.to_thread(self._spark.sparkContext.cancelJobsWithTag, tag)
            await asyncio.wait([done], timeout=_AGAIN)
            if done.done():
                break
        done.add_done_callback(lambda ended: None if ended.cancelled() else ended.exception())


def add_pipelines(
    app: App,
    *,
    queue: str = QUEUE,
    master: str | None = None,
    files: str | None = None,
    output: str | None = None,
    spark: SparkSession | None = None,
) -> Job[[str, dict[str, Any]], Any]:
    """Add the job `pipeline` to an app: `await job.enqueue("archive", {"topic": "orders", "location": "/srv/archive"})`.

    `files` is the folder of .py and .sql files that jobs may run (TRUNKLINE_PIPELINE_FILES); without it they may run none.
    `output` is the folder or URI below which they may write tables, archives, reports and checkpoints
    (TRUNKLINE_PIPELINE_OUTPUT); without it they may name no place to write to.
    """
    running = Running(app, master, files, output, spark)
    refused: dict[type[BaseException], None] = {InvalidArgument: None, NotFound: None, SettingsError: None}

    @app.job(name=KIND, queue=queue, result=True, max_attempts=_ATTEMPTS, errors=refused)
    async def pipeline(ctx: Context, name: str, settings: dict[str, Any]) -> Any:
        return await running.run(ctx, name, settings)

    return pipeline


def _below(root: Path, path: str) -> str | None:
    """A path below a folder, links followed; None if it is outside, or the folder itself."""
    if "://" in path or path.startswith("file:"):
        return None
    base = root.resolve()
    whole = (base / path).resolve()
    return str(whole) if whole != base and whole.is_relative_to(base) else None


def _below_uri(root: str, path: str) -> str | None:
    """A URI below another; None if it is outside. Other spellings of the same place are refused."""
    base = root.rstrip("/") + "/"
    whole = path if "://" in path else base + path.lstrip("/")
    rest = whole.removeprefix(base)
    fine = whole.startswith(base) and rest and not {"", ".", ".."} & set(rest.rstrip("/").split("/"))
    return whole if fine and "%" not in rest and "\\" not in rest else None


def _did_you_mean(word: str, known: list[str]) -> str:
    near = get_close_matches(word, known, 1)
    return f"did you mean {near[0]!r}?" if near else f"one of {', '.join(sorted(known))}"


def _time(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(
            f"{text!r} is not a place in a log",
            hint="use earliest, latest, an offset, or a time such as 2026-01-31T12:00:00Z",
        ) from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _alive(spark: SparkSession) -> bool:
    try:
        context: Any = spark.sparkContext._jsc
        return context is not None and not context.sc().isStopped()
    except Exception:
        return False


app = App(queue=QUEUE)
"""For `trunkline worker run trunkline.pipeline_jobs:app`."""
pipeline = add_pipelines(app)
"""The job: `await pipeline.enqueue("archive", {"topic": "orders"})`."""
