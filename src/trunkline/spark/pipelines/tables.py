"""Tables that pipelines write: folders of Parquet files, there as a whole or not at all."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from trunkline.errors import AlreadyExists, InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


MARKER = "_trunkline_table"
"""An empty file in each table that we wrote. Spark ignores names that start with an underscore."""


def check(folder: str, *, overwrite: bool) -> None:
    """Refuse what would fail only after the work is done, and to overwrite what is not provably a table of ours."""
    path = _local(folder)
    if path is None:
        if overwrite:
            raise InvalidArgument(
                f"cannot overwrite {folder}: only tables on a local or shared disk can be replaced",
                hint="Delete it yourself, or give another URI.",
            )
        return
    if path.is_symlink() or path.is_file():
        raise InvalidArgument(
            f"{folder} is a {'link' if path.is_symlink() else 'file'}, not a folder", hint="Give a folder."
        )
    if path.exists():
        if not overwrite:
            raise AlreadyExists(f"{folder} exists", hint="give another folder, or overwrite=True (--overwrite)")
        _check_ours(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise InvalidArgument(f"{folder} cannot be made: {exc.strerror}", hint="give another folder") from exc
    if not os.access(path.parent, os.W_OK):
        raise InvalidArgument(f"{path.parent} cannot be written", hint="give another folder")


def _local(folder: str) -> Path | None:
    """The path of a folder, also of a `file:` URI; None for other URIs."""
    if folder.startswith("file:"):
        return Path(unquote(urlsplit(folder).path)).absolute()
    return None if "://" in folder else Path(folder).absolute()


def _check_ours(path: Path) -> None:
    """Raise unless the folder holds a table that we wrote and nothing else, or nothing at all."""
    names = {entry.name for entry in path.iterdir()}
    if not names:
        return
    marker = path / MARKER
    strange = sorted(name for name in names if not name.startswith((".", "_", "part-")))
    if marker.is_symlink() or not marker.is_file() or strange:
        found = f"it holds {strange[0]!r}" if strange else f"it has no file {MARKER}"
        raise InvalidArgument(
            f"cannot overwrite {path}: it is not a table that Trunkline wrote, {found}",
            hint="Delete it yourself, or give another folder.",
        )


def write(frame: DataFrame, folder: str, *, overwrite: bool) -> None:
    """Write a table. On a local or shared disk it appears at once when it is complete; other URIs are left to Spark."""
    check(folder, overwrite=overwrite)
    options = {"compression": "zstd"}
    path = _local(folder)
    if path is None:
        frame.write.options(**options).mode("errorifexists").parquet(folder)
        return
    made = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        frame.write.options(**options).parquet(made.as_uri())
        (made / MARKER).touch()
        if path.exists():
            old = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
            path.rename(old)
            made.rename(path)
            # nothing else may have come into it while Spark worked
            _check_ours(old)
            shutil.rmtree(old)
        else:
            made.rename(path)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
