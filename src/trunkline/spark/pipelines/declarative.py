"""Spark Declarative Pipelines: files declare tables and sinks; Spark derives the order and runs the flows.

They need Spark Connect. A run starts its own session or uses a given Connect session, and switches PySpark's functions
in this process to Connect while it runs.
"""

from __future__ import annotations

import io
import logging
import os
import re
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from trunkline.errors import InvalidArgument, PipelineFailed, SparkUnavailable
from trunkline.spark.run import Progress, Run, running
from trunkline.spark.session.connect import connect_conf, connected, is_connect

if TYPE_CHECKING:
    from pyspark.pipelines.cli import PipelineSpec
    from pyspark.sql import SparkSession

SPEC_FILES = (".yml", ".yaml")
_MODE = "SPARK_CONNECT_MODE_ENABLED"
_FLOW = re.compile(r"^Flow (?:spark_catalog\.default\.)?(\S+) (?:is|has) (\w+)")
_ENDED = re.compile(r"^Run (?:is|has) (\w+)")
_log = logging.getLogger(__name__)


class DeclaredReport(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of a run."""

    name: str
    flows: list[str]
    seconds: float
    dry_run: bool = False


def run_declared(
    url: str,
    file: str,
    *,
    storage: str | None = None,
    full_refresh: bool = False,
    refresh: Sequence[str] = (),
    dry_run: bool = False,
    spark: SparkSession | None = None,
    master: str | None = None,
    on_progress: Progress | None = None,
) -> DeclaredReport:
    """Run the pipeline that a .py, .sql or spec (.yml) file declares.

    Each flow processes its new input, then the run ends.

    `storage` is the folder of the checkpoints; if the run starts its own session, also of the tables and their
    catalogue. `refresh` limits the run to these tables. `full_refresh` discards all state and reads everything again.
    `dry_run` only validates the pipeline.
    """
    if spark is not None and not is_connect(spark):
        raise InvalidArgument(
            "a declared pipeline needs a Spark Connect session",
            hint="Pass trunkline.spark.session.connect.connected(spark), or omit spark.",
        )
    spec, home, root = _spec(file, storage)
    started = time.monotonic()
    conf = None if spark is not None or (master or "").startswith("sc://") else _own_conf(home)
    with running(url, f"run:{spec.name}", "run", spark=spark, master=master, on_progress=on_progress, conf=conf) as run:
        _quiet_catalogue(run)
        with _attached(run) as session, _speaking_connect():
            graph = _declare(session, spec, root)
            flows = _follow(run, _start(session, graph, home, full_refresh, refresh, dry_run))
    return DeclaredReport(name=spec.name, flows=sorted(flows), seconds=round(time.monotonic() - started, 3), dry_run=dry_run)


def _spec(file: str, storage: str | None) -> tuple[PipelineSpec, str, Path]:
    """Return the spec, the storage URI, and the folder that relative paths start from."""
    try:
        from pyspark.pipelines.cli import LibrariesGlob, PipelineSpec, load_pipeline_spec
    except ImportError as exc:
        raise SparkUnavailable(
            f"declared pipelines need {exc.name or exc}, which is not installed",
            hint="Run: pip install 'trunkline[spark,connect]'",
        ) from exc
    path = Path(file).absolute()
    if not path.is_file():
        raise InvalidArgument(f"there is no file {file}", hint="Give a .py, .sql or spec (.yml) file.")
    if path.suffix in SPEC_FILES:
        try:
            spec = load_pipeline_spec(path)
        except Exception as exc:
            raise InvalidArgument(f"{file} is not a pipeline spec: {exc}") from exc
        return spec, _uri(spec.storage, path.parent), path.parent
    if path.suffix not in (".py", ".sql"):
        raise InvalidArgument(f"{file} is not a .py, .sql or .yml file", hint="Give a .py, .sql or spec (.yml) file.")
    if storage is None:
        raise InvalidArgument("a declared pipeline needs storage for its checkpoints", hint="Set `storage` to a folder.")
    spec = PipelineSpec(
        name=path.stem,
        storage=_uri(storage, Path.cwd()),
        catalog=None,
        database=None,
        configuration={},
        libraries=[LibrariesGlob(include=path.name)],
    )
    return spec, spec.storage, path.parent


def _uri(storage: str, root: Path) -> str:
    return storage if re.match(r"[a-z0-9]+:/", storage) else (root / storage).absolute().as_uri()


def _own_conf(storage: str) -> dict[str, str]:
    """Return settings that keep tables and their catalogue (Derby) in the storage, where the next run finds them."""
    if not storage.startswith("file:"):
        raise InvalidArgument(
            f"storage must be a local folder, got {storage}",
            hint="Run the pipeline on a Spark Connect server that has a catalogue: --master sc://host:15002",
        )
    home = Path(unquote(re.sub("^file:/+", "/", storage)))
    home.mkdir(parents=True, exist_ok=True)
    return connect_conf() | {
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={home}/catalogue;create=true",
        "spark.sql.warehouse.dir": f"{home}/tables",
    }


def _quiet_catalogue(run: Run) -> None:
    """Keep Derby from writing a log file to the current folder."""
    if not is_connect(run.spark):
        jvm: Any = run.spark.sparkContext._jvm
        jvm.java.lang.System.setProperty("derby.stream.error.file", os.devnull)


@contextmanager
def _attached(run: Run) -> Iterator[SparkSession]:
    from trunkline.spark.session.session import register

    session = connected(run.spark)
    # PySpark's Connect threads warn when the session ends.
    warnings.filterwarnings("ignore", module=r"pyspark\.sql\.connect\.streaming")
    try:
        if session is not run.spark:
            register(session, run.url)
        yield session
    finally:
        if session is not run.spark:
            session.stop()


@contextmanager
def _speaking_connect() -> Iterator[None]:
    """Make `functions` and `SparkSession.active()` in the user's file use Connect, as `spark-pipelines` does."""
    before = os.environ.get(_MODE)
    os.environ[_MODE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_MODE]
        else:
            os.environ[_MODE] = before


def _declare(session: SparkSession, spec: PipelineSpec, root: Path) -> str:
    """Load the files and return the id of their dataflow graph."""
    from pyspark.pipelines.cli import register_definitions
    from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
    from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph

    graph = create_dataflow_graph(
        session, default_catalog=spec.catalog, default_database=spec.database, sql_conf=spec.configuration
    )
    output = io.StringIO()
    try:
        with redirect_stdout(output):
            registry = SparkConnectGraphElementRegistry(session, graph)
            register_definitions(root / "spec", registry, spec, session, graph)
    except Exception as exc:
        if type(exc).__module__.partition(".")[0] in ("pyspark", "trunkline"):
            raise
        raise InvalidArgument(f"cannot load the definitions of {spec.name}: {type(exc).__name__}: {exc}") from exc
    finally:
        _log.debug("%s", output.getvalue())
    return graph


def _start(
    session: SparkSession, graph: str, storage: str, full_refresh: bool, refresh: Sequence[str], dry_run: bool
) -> Iterator[dict[str, Any]]:
    from pyspark.pipelines.spark_connect_pipeline import start_run

    return start_run(
        session,
        graph,
        full_refresh=[],
        full_refresh_all=full_refresh,
        refresh=list(refresh),
        dry=dry_run,
        storage=storage,
    )


def _follow(run: Run, events: Iterator[dict[str, Any]]) -> set[str]:
    """Follow the flows' events until the run ends. Return the flows that completed."""
    states: dict[str, str] = {}
    ended = None
    try:
        for result in events:
            if "pipeline_event_result" not in result:
                continue
            message = str(result["pipeline_event_result"].event.message)
            _log.info("%s", message)
            if match := _FLOW.match(message):
                states[match[1]] = match[2].lower()
                done = sum(state == "completed" for state in states.values())
                run.advance(done, len(states), flows=dict(states))
            elif match := _ENDED.match(message):
                ended = match[1].lower()
    except Exception as exc:
        # PySpark 4.3 fails on the metrics of Python tasks that arrive after the end of the run. The run has completed.
        if ended != "completed" or "UNKNOWN_RESPONSE" not in str(exc):
            raise
    if ended not in ("completed", None):
        raise PipelineFailed(f"the run ended with state {ended}: {states}")
    return {name for name, state in states.items() if state == "completed"}
