"""Open a Spark session that starts fast and has the format "trunkline" registered."""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import re
import shutil
import signal
import socket
import subprocess  # nosec B404
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trunkline.errors import SparkUnavailable
from trunkline.spark.options import URL_VARIABLE, Secret
from trunkline.spark.session import class_cache
from trunkline.spark.session.connect import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER_VARIABLE = "TRUNKLINE_SPARK_MASTER"
_OLDEST_JAVA = 17
_OLDEST_SPARK = (4, 2)
_FEW_CORES = 4
_MASTER_SECONDS = 5.0
_QUIET = Path(__file__).with_name("quiet.properties")
# These loggers print an error in full before it is raised.
_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger", "py4j")
_CONF = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Other readers take the default, INT96, for a timestamp without time zone.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Includes database urls, which may contain passwords.
    "spark.redaction.regex": "(?i)secret|password|passwd|token|access[.]?key|url",
}
_LOCAL_CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.catalogImplementation": "in-memory",
}


def open_session(
    app_name: str = "trunkline",
    *,
    master: str | None = None,
    url: str | None = None,
    conf: Mapping[str, str] | None = None,
    quiet: bool = False,
) -> SparkSession:
    """Return the running session, or start one on `master` (default: TRUNKLINE_SPARK_MASTER, else all local cores).

    `url` is the database to which streaming queries report progress, and the default of the option `url`. `quiet`
    suppresses Spark's log output; errors are still raised.
    """
    check_pyspark()
    from pyspark.sql import SparkSession

    chosen = master or os.environ.get(MASTER_VARIABLE) or "local[*]"
    if url is not None:
        os.environ.setdefault(URL_VARIABLE, url)
    _check_master(chosen)
    if not chosen.startswith("sc://"):
        check_java()
        _choose_python(local=chosen.startswith("local"))
    builder = SparkSession.builder.appName(app_name)
    settings = _defaults(chosen)
    if chosen.startswith("local"):
        settings |= _LOCAL_CONF | _java_options(conf or {}, quiet=quiet)
        if SparkSession.getActiveSession() is None:
            # Spark's default, 200, suits a cluster. Here it adds a minute to small jobs, and seconds to each batch.
            settings["spark.sql.shuffle.partitions"] = str(4 * (os.cpu_count() or 1))
    if quiet:
        _hush()
    for name, value in (settings | dict(conf or {})).items():
        builder = builder.config(name, value)
    builder = builder.remote(chosen) if chosen.startswith("sc://") else builder.master(chosen)
    with _not_interrupted(), _start_errors(chosen):
        spark = builder.getOrCreate()
    if quiet and not chosen.startswith(("local", "sc://")):
        spark.sparkContext.setLogLevel("OFF")
    register(spark, url)
    return spark


def _defaults(master: str) -> dict[str, str]:
    """Return our settings of a session. A Connect server has its own: changing them would cause warnings."""
    return {name: value for name, value in _CONF.items() if not master.startswith("sc://") or name.startswith("spark.sql.")}


def _check_master(master: str) -> None:
    """Reject a master that Spark cannot use: Spark takes a minute to fail, or prints a stack trace."""
    if not re.fullmatch(r"local(\[.+\])?|local-cluster\[.+\]|yarn|(spark|k8s|sc|mesos)://.+", master):
        raise SparkUnavailable(
            f"unknown Spark master {master!r}",
            hint="Use local[*], spark://host:7077, yarn, k8s://... or sc://...",
        )
    if not master.startswith("spark://"):
        return
    tried = []
    # With several masters (high availability), one must be reachable.
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_MASTER_SECONDS).close()
            return
        except (OSError, ValueError) as exc:
            tried.append(f"{address} ({exc})")
    raise SparkUnavailable(f"no Spark master responds at {', '.join(tried)}", hint="Start it, or use another master.")


@contextmanager
def _start_errors(master: str) -> Iterator[None]:
    """Raise errors of Spark's start with a one-line message."""
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, OSError) as exc:
        reason = " ".join(str(exc).split("\n", 1)[0].split())
        raise SparkUnavailable(
            f"Spark did not start with master {master}: {reason}", hint="See Java's output above for the cause."
        ) from exc


@contextmanager
def _not_interrupted() -> Iterator[None]:
    """Delay Ctrl-C until Spark has started: earlier, PySpark would leave an orphaned JVM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals: list[int] = []

    def remember(number: int, frame: Any) -> None:
        signals.append(number)

    before = signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        # PySpark installs a handler that cancels jobs: keep it.
        if signal.getsignal(signal.SIGINT) is remember:
            signal.signal(signal.SIGINT, before)
    if signals:
        raise KeyboardInterrupt


def register(spark: SparkSession, url: str | None = None) -> None:
    """Register the format "trunkline" with a session, and report the progress of its streaming queries.

    Spark finds the format itself if the package is installed; this also works where Spark does not search for it.
    """
    check_pyspark()
    from trunkline.spark.data_source import TrunklineSource
    from trunkline.spark.session.listener import ProgressListener

    if is_connect(spark) or not _finds_it(spark):
        spark.dataSource.register(TrunklineSource)
    target = url or (f"env:{URL_VARIABLE}" if os.environ.get(URL_VARIABLE) else None)
    if target is not None and not getattr(spark, "_trunkline_listener", False):
        # With Connect, PySpark's listener thread keeps the program alive, unless a daemon thread starts it.
        adding = threading.Thread(target=spark.streams.addListener, args=(ProgressListener(Secret(target)),), daemon=True)
        if is_connect(spark):
            adding.start()
            adding.join()
        else:
            adding.run()
        spark._trunkline_listener = True  # type: ignore[attr-defined]


def _finds_it(spark: SparkSession) -> bool:
    """Return true if Spark already knows the format: a second registration causes a warning with each query."""
    state: Any = spark._jsparkSession
    return bool(state.sessionState().dataSourceManager().dataSourceExists("trunkline"))


def check_pyspark() -> None:
    """Raise SparkUnavailable if pyspark is missing or its version is not supported."""
    try:
        import pyspark
    except ImportError as exc:
        raise SparkUnavailable("pyspark is not installed", hint="Run: pip install 'trunkline[spark]'") from exc
    version = tuple(int(part) for part in re.findall(r"\d+", pyspark.__version__)[:2])
    if not _OLDEST_SPARK <= version < (5, 0):
        raise SparkUnavailable(
            f"pyspark must be version 4.2 or a later 4.x, got {pyspark.__version__}",
            hint="Run: pip install 'trunkline[spark]'",
        )


def check_java() -> None:
    """Raise SparkUnavailable if Java is missing or too old."""
    home = os.environ.get("JAVA_HOME")
    program = shutil.which(str(Path(home) / "bin" / "java")) if home else shutil.which("java")
    hint = "Install a Java runtime of version 17 or later, and set JAVA_HOME if it is not in the PATH."
    if program is None:
        where = f"in JAVA_HOME ({home})" if home else "in the PATH"
        raise SparkUnavailable(f"Spark needs Java, but there is none {where}", hint=hint)
    output = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr  # noqa: S603  # nosec B603
    version = re.search(r'version "(\d+)', output)
    if version is not None and int(version[1]) < _OLDEST_JAVA:
        raise SparkUnavailable(f"Spark needs Java {_OLDEST_JAVA} or later, {program} is version {version[1]}", hint=hint)


def _choose_python(*, local: bool) -> None:
    """Make Spark run this Python: its default is the first `python3` in the PATH."""
    if "PYSPARK_PYTHON" not in os.environ:
        os.environ["PYSPARK_PYTHON"] = str(_wrapper()) if local else sys.executable


def _wrapper() -> Path:
    """Write a script that starts our Python without Spark's zip of sources, which each worker would compile (0.6 s)."""
    folder = _private_folder()
    dropped = r'-e "/pyspark\.zip$" -e "/py4j-[^/]*\.zip$" -e "\.jar$"'
    text = (
        "#!/bin/sh\n"
        f'PYTHONPATH=$(printf %s "$PYTHONPATH" | tr ":" "\\n" | grep -v {dropped} | paste -s -d: -)\n'
        f'export PYTHONPATH\nexec "{sys.executable}" "$@"\n'
    )
    program = folder / f"python-{hashlib.sha256(sys.executable.encode()).hexdigest()[:12]}"
    draft = folder / f"{program.name}.{os.getpid()}"
    draft.write_text(text)
    draft.chmod(0o700)
    draft.replace(program)
    return program


def _private_folder() -> Path:
    """Return a folder that no other user can write to: the user's cache, else one that is removed at exit.

    Spark executes files in it while the session lives.
    """
    cache = class_cache.cache_folder()
    if cache is not None:
        with suppress(OSError):
            cache.mkdir(mode=0o700, parents=True, exist_ok=True)
            if class_cache.is_private(cache):
                return cache
    folder = Path(tempfile.mkdtemp(prefix="trunkline-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _java_options(conf: Mapping[str, str], *, quiet: bool) -> dict[str, str]:
    """Return the JVM options.

    A class archive halves the start time; it is valid only for Spark's default class path.
    """
    if "spark.driver.extraJavaOptions" in conf:
        return {}
    # Other collectors are designed for many cores and start more slowly.
    options = ["-XX:+UseSerialGC"] if (os.cpu_count() or 1) <= _FEW_CORES else []
    if "spark.driver.extraClassPath" not in conf:
        options.append(class_cache.options())
        class_cache.warm_later()
    if quiet:
        # setLogLevel would take effect only after Spark's first ten lines.
        options.append(f"-Dlog4j2.configurationFile={_QUIET.as_uri()}")
    return {"spark.driver.extraJavaOptions": " ".join(filter(None, options))} if any(options) else {}


def _hush() -> None:
    from pyspark.logger import PySparkLogger

    for name in _LOGGERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    # PySpark's Connect client warns whenever a session with a listener ends.
    warnings.filterwarnings("ignore", message="StreamingQueryListenerBus Handler thread received exception")
