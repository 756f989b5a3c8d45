"""Shared parts of all pipelines: the session, which starts on first use, progress reports, and error conversion."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from trunkline.errors import TrunklineError, from_psycopg
from trunkline.spark.errors import cause, near_topics
from trunkline.spark.session.connect import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Progress = Callable[[int, int | None], None]
"""Called with the work done and the total (None: unknown)."""

_CORES = 4


class Run:
    """A running pipeline. `spark` starts the session on first use; `advance` reports progress."""

    def __init__(
        self,
        url: str,
        name: str,
        kind: str,
        spark: SparkSession | None,
        master: str | None,
        on_progress: Progress | None,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        self.url = url
        self.name = name
        self.kind = kind
        self.rows = 0
        self._spark = spark
        self._master = master
        self._on_progress = on_progress
        self._conf = conf
        self._own = False

    @property
    def spark(self) -> SparkSession:
        if self._spark is None:
            from trunkline.spark.session.session import open_session

            quiet = os.environ.get("TRUNKLINE_DEBUG", "0") in ("", "0")
            self._spark = open_session(
                f"trunkline {self.kind}", master=self._master, url=self.url, conf=self._conf, quiet=quiet
            )
            self._own = True
        return self._spark

    def in_this_thread(self) -> None:
        """Activate the session in this thread: Spark looks up registered formats in the thread's active session."""
        if self._spark is not None and not is_connect(self._spark):
            jvm: Any = self._spark.sparkContext._jvm
            jvm.SparkSession.setActiveSession(self._spark._jsparkSession)

    @property
    def cores(self) -> int:
        """The number of tasks that run at once; a constant with Spark Connect, which does not report it."""
        try:
            return int(self.spark.sparkContext.defaultParallelism)
        except Exception:
            return _CORES

    def advance(self, rows: int, total: int | None = None, *, batch: int | None = None, **detail: Any) -> None:
        """Report progress. `rows` is the number of rows done so far."""
        self.rows = rows
        if self._on_progress is not None:
            self._on_progress(rows, total)
        self.report("running", batch=batch, detail=detail or None)

    def report(self, state: str, **values: Any) -> None:
        from trunkline.spark import progress

        progress.report(self.url, self.name, self.kind, state=state, rows=self.rows, **values)

    def close(self) -> None:
        if self._own and self._spark is not None:
            self._spark.stop()


@contextmanager
def running(
    url: str,
    name: str,
    kind: str,
    *,
    spark: SparkSession | None,
    master: str | None,
    on_progress: Progress | None,
    conf: Mapping[str, str] | None = None,
) -> Iterator[Run]:
    """Run a pipeline, record its state in `trunkline.pipelines`, and convert Spark and Postgres errors."""
    run = Run(url, name, kind, spark, master, on_progress, conf)
    run.report("running")
    try:
        with near_topics(url), clear_errors():
            run.in_this_thread()
            yield run
    except BaseException as exc:
        _report_failure(run, exc)
        raise
    else:
        run.report("done")
    finally:
        run.close()


def _report_failure(run: Run, exc: BaseException) -> None:
    try:
        if isinstance(exc, Exception):
            run.report("failed", error=str(exc) or type(exc).__name__)
        else:
            run.report("stopped")
    except TrunklineError:
        return  # Raise the first failure instead: often both have the same cause, an unreachable database.


@contextmanager
def clear_errors() -> Iterator[None]:
    """Convert Spark and Postgres errors to `TrunklineError`."""
    try:
        yield
    except TrunklineError:
        raise
    except psycopg.Error as exc:
        raise from_psycopg(exc) from exc
    except Exception as exc:
        if type(exc).__module__.partition(".")[0] not in ("pyspark", "py4j"):
            raise
        raise cause(str(exc)) from exc
