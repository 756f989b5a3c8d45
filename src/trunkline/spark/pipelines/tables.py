"""Tables that pipelines write: folders of Parquet files, there as a whole or not at all."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from trunkline.errors import AlreadyExists, InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def check(folder: str, *, overwrite: bool) -> None:
    """Refuse what would fail only after the work is done."""
    if "://" in folder:
        return
    path = Path(folder).absolute()
    if path.exists() and not overwrite:
        raise AlreadyExists(f"{folder} exists", hint="give another folder, or allow it to be overwritten")
    if path.is_file():
        raise InvalidArgument(f"{folder} is a file", hint="give a folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise InvalidArgument(f"{folder} cannot be made: {exc.strerror}", hint="give another folder") from exc
    if not os.access(path.parent, os.W_OK):
        raise InvalidArgument(f"{path.parent} cannot be written", hint="give another folder")


def write(frame: DataFrame, folder: str, *, overwrite: bool) -> None:
    """Write a table. On a local or shared disk it appears at once when it is complete; a URI is left to Spark."""
    check(folder, overwrite=overwrite)
    options = {"compression": "zstd"}
    if "://" in folder:
        frame.write.options(**options).mode("overwrite" if overwrite else "errorifexists").parquet(folder)
        return
    path = Path(folder).absolute()
    made = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        frame.write.options(**options).parquet(made.as_uri())
        if path.exists():
            old = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
            path.rename(old)
            made.rename(path)
            shutil.rmtree(old)
        else:
            made.rename(path)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
