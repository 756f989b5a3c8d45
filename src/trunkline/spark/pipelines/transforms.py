"""User transformations: a Python file with a function `transform`, or a SQL file with one SELECT on `messages`."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trunkline.errors import InvalidArgument
from trunkline.spark.pipelines.frames import readable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Transform = Callable[["SparkSession", "DataFrame"], "DataFrame"]
VIEW = "messages"
_NO_SESSION = ("SESSION_OR_CONTEXT_NOT_EXISTS", "NO_ACTIVE_OR_DEFAULT_SESSION", "NO_ACTIVE_SESSION")


def load(path: str) -> Transform:
    """Load a transformation from a file. Raises `InvalidArgument` if the file is invalid."""
    file = Path(path)
    if not file.is_file():
        raise InvalidArgument(f"there is no file {path}", hint="Give a .py or .sql file.")
    if file.suffix == ".sql":
        return from_sql(file.read_text(encoding="utf-8"))
    if file.suffix == ".py":
        return _from_python(file)
    raise InvalidArgument(f"{path} is not a .py or .sql file", hint="Give a .py or .sql file.")


def from_sql(text: str) -> Transform:
    """Return a transformation that runs one SELECT on the view `messages`."""
    statement = text.strip().rstrip(";")
    if not statement:
        raise InvalidArgument("the SQL file is empty", hint=f"Write one query on the view {VIEW}.")

    def transform(spark: SparkSession, frame: DataFrame) -> DataFrame:
        readable(frame).createOrReplaceTempView(VIEW)
        return spark.sql(statement)

    return transform


def _from_python(file: Path) -> Transform:
    early = _function(file, now=False)

    def transform(spark: SparkSession, frame: DataFrame) -> DataFrame:
        function = early or _function(file, now=True)
        both = len(inspect.signature(function).parameters) > 1
        result = function(readable(frame), spark) if both else function(readable(frame))
        if not hasattr(result, "toDF"):
            raise InvalidArgument(f"`transform` in {file} must return a DataFrame, got {type(result).__name__}")
        frame_out: DataFrame = result
        return frame_out

    return transform


def _function(file: Path, *, now: bool) -> Any:
    """Load the function `transform` of a file.

    Pipelines call this before Spark starts, to report mistakes early, with `now` false: then the result is None if
    loading the file needs a session, as with `@udf("string")`. With `now`, a session exists.
    """
    from pyspark import cloudpickle
    from pyspark.errors import PySparkException

    spec = importlib.util.spec_from_file_location(f"trunkline_pipeline_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise InvalidArgument(f"{file} cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as exc:
        if not now and isinstance(exc, PySparkException) and exc.getCondition() in _NO_SESSION:
            return None
        raise InvalidArgument(
            f"cannot load {file}: {type(exc).__name__}: {exc}", hint="Run it with python to see the traceback."
        ) from exc
    function: Any = getattr(module, "transform", None)
    if not callable(function):
        raise InvalidArgument(
            f"{file} has no function `transform`", hint="Define transform(messages) and return a DataFrame from it."
        )
    # Pickle the file's functions by value: executors do not have the file.
    sys.modules[module.__name__] = module
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return function
