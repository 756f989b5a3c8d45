"""Tables that pipelines write: folders of Parquet files that appear atomically."""

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
"""An empty file that marks a table written by Trunkline. Spark ignores names that start with an underscore."""


def check(folder: str, *, overwrite: bool) -> None:
    """Raise an error early if the table cannot be written, or would overwrite a folder that Trunkline did not write."""
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
            raise AlreadyExists(f"{folder} already exists", hint="Give another folder, or overwrite=True (--overwrite).")
        _check_ours(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise InvalidArgument(f"cannot create {folder}: {exc.strerror}", hint="Give another folder.") from exc
    if not os.access(path.parent, os.W_OK):
        raise InvalidArgument(f"{path.parent} cannot be written", hint="Give another folder.")


def _local(folder: str) -> Path | None:
    """Return the local path of a folder or `file:` URI; None for other URIs."""
    if folder.startswith("file:"):
        return Path(unquote(urlsplit(folder).path)).absolute()
    return None if "://" in folder else Path(folder).absolute()


def _check_ours(path: Path) -> None:
    """Raise an error unless the folder is empty or contains only a table that Trunkline wrote."""
    names = {entry.name for entry in path.iterdir()}
    if not names:
        return
    marker = path / MARKER
    strange = sorted(name for name in names if not name.startswith((".", "_", "part-")))
    if marker.is_symlink() or not marker.is_file() or strange:
        reason = f"it contains {strange[0]!r}" if strange else f"it has no file {MARKER}"
        raise InvalidArgument(
            f"cannot overwrite {path}: Trunkline did not write this folder, {reason}",
            hint="Delete it yourself, or give another folder.",
        )


def write(frame: DataFrame, folder: str, *, overwrite: bool) -> None:
    """Write a table. On a local or shared disk, a rename makes it visible once complete. Spark writes to other URIs."""
    check(folder, overwrite=overwrite)
    options = {"compression": "zstd"}
    path = _local(folder)
    if path is None:
        frame.write.options(**options).mode("errorifexists").parquet(folder)
        return
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        frame.write.options(**options).parquet(draft.as_uri())
        (draft / MARKER).touch()
        if path.exists():
            old = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
            path.rename(old)
            draft.rename(path)
            # Check again: another process may have added files while Spark was writing.
            _check_ours(old)
            shutil.rmtree(old)
        else:
            draft.rename(path)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
