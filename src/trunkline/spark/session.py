"""A Spark session that starts fast and knows the format "trunkline"."""

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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trunkline.errors import SparkUnavailable
from trunkline.spark import warm
from trunkline.spark.connect import is_connect
from trunkline.spark.options import URL_VARIABLE, Secret

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER_VARIABLE = "TRUNKLINE_SPARK_MASTER"
_OLDEST_JAVA = 17
_OLDEST_SPARK = (4, 2)
_FEW_CORES = 4
_MASTER_SECONDS = 5.0
_QUIET = Path(__file__).with_name("quiet.properties")
# these print an error in full before it is raised
_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger", "py4j")
_CONF = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # the default (INT96) is read by others as a time without a zone
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # also the addresses of databases, which may hold passwords
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
    """The running session, or a new one on `master` (TRUNKLINE_SPARK_MASTER, else all cores of this machine).

    `url` is the database that streaming queries tell their progress to and that tables without an option `url` use.
    `quiet`: no log of Spark's on the screen; what fails is raised all the same.
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
    settings = dict(_CONF)
    if chosen.startswith("local"):
        settings |= _LOCAL_CONF | _java_options(conf or {}, quiet=quiet)
        if SparkSession.getActiveSession() is None:
            # Spark's 200 are for a cluster: here they cost a minute where there is little to do, a stream's batch seconds
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


def _check_master(master: str) -> None:
    """Refuse a master that Spark cannot use: Spark itself takes a minute for that, or prints a stack trace."""
    if not re.fullmatch(r"local(\[.+\])?|local-cluster\[.+\]|yarn|(spark|k8s|sc|mesos)://.+", master):
        raise SparkUnavailable(
            f"master {master!r} is not one that Spark knows",
            hint="use local[*], spark://host:7077, yarn, k8s://... or sc://...",
        )
    if not master.startswith("spark://"):
        return
    tried = []
    # a list of masters is for high availability: one has to be there
    for place in master.removeprefix("spark://").split(","):
        host, _, port = place.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_MASTER_SECONDS).close()
            return
        except (OSError, ValueError) as exc:
            tried.append(f"{place} ({exc})")
    raise SparkUnavailable(f"no Spark master responds at {', '.join(tried)}", hint="start it, or name another master")


@contextmanager
def _start_errors(master: str) -> Iterator[None]:
    """Errors of Spark's start in one line."""
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, OSError) as exc:
        reason = " ".join(str(exc).split("\n", 1)[0].split())
        raise SparkUnavailable(
            f"Spark did not start with master {master}: {reason}", hint="what Java has printed above says more"
        ) from exc


@contextmanager
def _not_interrupted() -> Iterator[None]:
    """Ctrl-C waits until Spark has started: before that PySpark would leave a Java machine behind that nobody ends."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: list[int] = []

    def remember(number: int, frame: Any) -> None:
        asked.append(number)

    before = signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        # PySpark sets one of its own, which cancels jobs
        if signal.getsignal(signal.SIGINT) is remember:
            signal.signal(signal.SIGINT, before)
    if asked:
        raise KeyboardInterrupt


def register(spark: SparkSession, url: str | None = None) -> None:
    """Make the format "trunkline" known to a session, and let its streaming queries tell how they fare.

    Spark finds the format by itself when the package is installed; this also works where it does not look.
    """
    check_pyspark()
    from trunkline.spark.listener import ProgressListener
    from trunkline.spark.source import TrunklineSource

    if is_connect(spark) or not _finds_it(spark):
        spark.dataSource.register(TrunklineSource)
    target = url or (f"env:{URL_VARIABLE}" if os.environ.get(URL_VARIABLE) else None)
    if target is not None and not getattr(spark, "_trunkline_listener", False):
        # Through Connect, PySpark serves listeners in a thread that keeps the program from ending, unless the thread that
        # starts it is a daemon.
        adding = threading.Thread(target=spark.streams.addListener, args=(ProgressListener(Secret(target)),), daemon=True)
        if is_connect(spark):
            adding.start()
            adding.join()
        else:
            adding.run()
        spark._trunkline_listener = True  # type: ignore[attr-defined]


def _finds_it(spark: SparkSession) -> bool:
    """Whether Spark knows the format already; it warns about a second one, with every query."""
    state: Any = spark._jsparkSession
    return bool(state.sessionState().dataSourceManager().dataSourceExists("trunkline"))


def check_pyspark() -> None:
    """A clear word where pyspark is missing or too old."""
    try:
        import pyspark
    except ImportError as exc:
        raise SparkUnavailable("pyspark is not installed", hint="pip install 'trunkline[spark]'") from exc
    found = tuple(int(part) for part in re.findall(r"\d+", pyspark.__version__)[:2])
    if not _OLDEST_SPARK <= found < (5, 0):
        raise SparkUnavailable(
            f"pyspark {pyspark.__version__} is installed, 4.2 or a later 4.x is needed",
            hint="pip install 'trunkline[spark]'",
        )


def check_java() -> None:
    """A clear word where Java is missing or too old."""
    home = os.environ.get("JAVA_HOME")
    program = shutil.which(str(Path(home) / "bin" / "java")) if home else shutil.which("java")
    hint = "install a Java runtime of version 17 or later, and set JAVA_HOME if it is not in the PATH"
    if program is None:
        where = f"in JAVA_HOME ({home})" if home else "in the PATH"
        raise SparkUnavailable(f"Spark needs Java, and there is none {where}", hint=hint)
    told = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr  # noqa: S603  # nosec B603
    found = re.search(r'version "(\d+)', told)
    if found is not None and int(found[1]) < _OLDEST_JAVA:
        raise SparkUnavailable(f"Spark needs Java {_OLDEST_JAVA} or later, {program} is {found[1]}", hint=hint)


def _choose_python(*, local: bool) -> None:
    """Spark would take `python3` of the PATH, which need not be ours."""
    if "PYSPARK_PYTHON" not in os.environ:
        os.environ["PYSPARK_PYTHON"] = str(_wrapper()) if local else sys.executable


def _wrapper() -> Path:
    """A program that starts our Python without Spark's zip of bare sources, which each worker would compile anew (0.6 s)."""
    folder = _private_folder()
    dropped = r'-e "/pyspark\.zip$" -e "/py4j-[^/]*\.zip$" -e "\.jar$"'
    text = (
        "#!/bin/sh\n"
        f'PYTHONPATH=$(printf %s "$PYTHONPATH" | tr ":" "\\n" | grep -v {dropped} | paste -s -d: -)\n'
        f'export PYTHONPATH\nexec "{sys.executable}" "$@"\n'
    )
    program = folder / f"python-{hashlib.sha256(sys.executable.encode()).hexdigest()[:12]}"
    made = folder / f"{program.name}.{os.getpid()}"
    made.write_text(text)
    made.chmod(0o700)
    made.replace(program)
    return program


def _private_folder() -> Path:
    """A folder that no other user can have prepared: the user's cache, else a new one until the program ends.

    Spark runs what is in it for as long as the session lives.
    """
    cache = warm.cache_folder()
    if cache is not None:
        with suppress(OSError):
            cache.mkdir(mode=0o700, parents=True, exist_ok=True)
            if warm.is_private(cache):
                return cache
    folder = Path(tempfile.mkdtemp(prefix="trunkline-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _java_options(conf: Mapping[str, str], *, quiet: bool) -> dict[str, str]:
    """Options for Java. Kept classes halve its start; they fit the class path that Spark has of itself and no other."""
    if "spark.driver.extraJavaOptions" in conf:
        return {}
    # other collectors are made for many cores, and take longer to start
    options = ["-XX:+UseSerialGC"] if (os.cpu_count() or 1) <= _FEW_CORES else []
    if "spark.driver.extraClassPath" not in conf:
        options.append(warm.options())
        warm.warm_later()
    if quiet:
        # setLogLevel comes after the first ten lines
        options.append(f"-Dlog4j2.configurationFile={_QUIET.as_uri()}")
    return {"spark.driver.extraJavaOptions": " ".join(filter(None, options))} if any(options) else {}


def _hush() -> None:
    from pyspark.logger import PySparkLogger

    for name in _LOGGERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
