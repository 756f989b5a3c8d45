"""Export an archive as a Delta or Iceberg table. Adds references to its files without copying data, each file once."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import msgspec
import psycopg
import pyarrow as pa

from trunkline.db.calls import archive
from trunkline.db.calls.archive import ArchiveFile
from trunkline.errors import Busy, Conflict, InvalidArgument, NotInstalled
from trunkline.spark.archive import files
from trunkline.spark.run import clear_errors

FORMATS = ("delta", "iceberg")
_TRIES = 5
_TOPIC_ID = "trunkline.topic_id"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class ExportReport(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of the added files."""

    topic: str
    format: str
    table: str
    files: int
    rows: int
    seconds: float


def export(url: str, topic: str, format: str, *, table: str | None = None) -> ExportReport:
    """Add the files archived since the last export. Safe to repeat and to run concurrently: each file is added once.

    Delta: the table is the topic's folder in the archive. Iceberg: the table, by default `trunkline.<topic>`, belongs
    to a catalogue in the same Postgres database.
    """
    started = time.monotonic()
    with clear_errors(), psycopg.connect(url, autocommit=True) as conn:
        listed = archive.list_archive_files(conn, topic)
    if not listed:
        raise InvalidArgument(f"topic {topic!r} has no archive yet", hint="Run `trunkline pipeline archive` first.")
    location = listed[0].location
    if "://" in location and "?" in location:
        raise InvalidArgument(
            f"the archive's location {location} has settings after '?', which other programs do not understand",
            hint="Set them in the environment, then call move_archive with the location without them.",
        )
    if format == "delta":
        with _store_errors(location, format):
            name, added = _delta(listed)
    elif format == "iceberg":
        with _store_errors(location, format):
            name, added = _iceberg(url, listed, table or f"trunkline.{topic.replace('.', '_').replace('-', '_')}")
    else:
        raise InvalidArgument(f"format must be {' or '.join(FORMATS)}, got {format!r}")
    rows = sum(file.rows for file in added)
    return ExportReport(
        topic=topic, format=format, table=name, files=len(added), rows=rows, seconds=round(time.monotonic() - started, 3)
    )


def _need(module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as exc:
        raise NotInstalled(f"{module} is not installed", hint="Run: pip install 'trunkline[lake]'") from exc


class _StoreSettings(NamedTuple):
    """Settings of an object store that is not Amazon S3, in each library's format."""

    delta: dict[str, str]
    iceberg: dict[str, str]


def store_settings(location: str) -> _StoreSettings:
    """Return the settings from the environment variables that Arrow also reads."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint is None or not location.startswith("s3://"):
        return _StoreSettings({}, {})
    delta = {"AWS_ENDPOINT_URL": endpoint}
    if endpoint.startswith("http://"):
        delta["AWS_ALLOW_HTTP"] = "true"
    iceberg = {"s3.endpoint": endpoint}
    if region := os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"):
        iceberg["s3.region"] = region
    return _StoreSettings(delta, iceberg)


@contextmanager
def _store_errors(location: str, format: str) -> Iterator[None]:
    """Raise errors of the object store with a one-line message, without terminal colour codes."""
    try:
        yield
    except OSError as exc:
        reason = " ".join(_COLOURS.sub("", str(exc)).split())
        raise InvalidArgument(
            f"cannot write the {format} table in {location}: {reason}",
            hint="Give this machine access to the store, then export again. The archive itself is complete.",
        ) from exc


# Delta


def _delta(listed: list[ArchiveFile]) -> tuple[str, list[ArchiveFile]]:
    deltalake = _need("deltalake")
    from deltalake.transaction import create_table_with_add_actions

    base = files.join(listed[0].location, listed[0].topic)
    schema = deltalake.Schema.from_arrow(files.FILE_SCHEMA)
    store = store_settings(base).delta
    if not deltalake.DeltaTable.is_deltatable(base, store):
        try:
            create_table_with_add_actions(
                base, schema, [], mode="error", partition_by=[], name=listed[0].topic, storage_options=store
            )
        except Exception:
            if not deltalake.DeltaTable.is_deltatable(base, store):
                raise
    application = f"trunkline:{listed[0].topic_id}"
    for _ in range(_TRIES):
        table = deltalake.DeltaTable(base, storage_options=store)
        # Files are only added, in the order of the list, so its length at the last export tells which are new.
        done = table.transaction_version(application)
        if done is None and table.file_uris():
            raise Conflict(
                f"the Delta table {base} has the files of another topic than the present {listed[0].topic!r}",
                hint="Use move_archive with another folder, or delete the table's folder _delta_log.",
            )
        new = sorted(listed, key=lambda file: (file.archived_at, file.path))[done or 0 :]
        if not new:
            break
        # Of two concurrent exports one gets the next table version; the other retries.
        properties = deltalake.CommitProperties(
            app_transactions=[deltalake.Transaction(application, len(listed))], max_commit_retries=0
        )
        try:
            table.create_write_transaction(
                [_action(file) for file in new], "append", schema, [], commit_properties=properties
            )
        except deltalake.exceptions.CommitFailedError:
            continue
        return base, new
    else:
        raise Busy(f"another process is changing the Delta table {base}", hint="Retry.")
    return base, []


def _action(file: ArchiveFile) -> Any:
    from deltalake.transaction import AddAction

    return AddAction(
        path=file.path.removeprefix(f"{file.topic}/"),
        size=file.bytes,
        partition_values={},
        modification_time=int(file.archived_at.timestamp() * 1000),
        data_change=True,
        stats=_statistics(file),
    )


def _statistics(file: ArchiveFile) -> str:
    """Return statistics that let readers skip files: partition, offsets and times."""
    low = {"partition": file.partition, "offset": file.first_offset, "created_at": file.min_created_at}
    high = {"partition": file.partition, "offset": file.last_offset, "created_at": file.max_created_at}
    return msgspec.json.encode({"numRecords": file.rows, "minValues": low, "maxValues": high, "nullCount": {}}).decode()


# Iceberg


def _iceberg(url: str, listed: list[ArchiveFile], name: str) -> tuple[str, list[ArchiveFile]]:
    _need("pyiceberg")
    from pyiceberg.exceptions import CommitFailedException, NamespaceAlreadyExistsError, TableAlreadyExistsError

    location = files.join(listed[0].location, "_iceberg")
    catalog = _catalog(url, location)
    with suppress(NamespaceAlreadyExistsError):
        catalog.create_namespace(name.rpartition(".")[0])
    if not catalog.table_exists(name):
        with suppress(TableAlreadyExistsError):
            catalog.create_table(name, pa.schema(list(files.FILE_SCHEMA)), properties={_TOPIC_ID: str(listed[0].topic_id)})
    for _ in range(_TRIES):
        table = catalog.load_table(name)
        if table.properties.get(_TOPIC_ID, str(listed[0].topic_id)) != str(listed[0].topic_id):
            raise Conflict(
                f"the Iceberg table {name} has the files of another topic than the present {listed[0].topic!r}",
                hint="Give another table, or drop this one.",
            )
        existing = {task.file.file_path for task in table.scan().plan_files()}
        new = [file for file in listed if _address(file) not in existing]
        try:
            if new:
                table.add_files([_address(file) for file in new], check_duplicate_files=True)
        except CommitFailedException:
            continue  # Another process changed the table meanwhile.
        return name, new
    raise Busy(f"another process is changing the Iceberg table {name}", hint="Retry.")


def _address(file: ArchiveFile) -> str:
    whole = files.join(file.location, file.path)
    return whole if "://" in whole else f"file://{whole}"


def _catalog(url: str, location: str) -> Any:
    """Open the catalogue in the same database. pyiceberg creates its two tables in the schema `public`."""
    from psycopg.conninfo import conninfo_to_dict
    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy.engine import URL

    parts = {name: str(value) for name, value in conninfo_to_dict(url).items() if value is not None}
    names = {"user": "username", "password": "password", "dbname": "database"}  # nosec B105
    fields: dict[str, Any] = {theirs: parts.pop(ours) for ours, theirs in names.items() if ours in parts}
    address = URL.create("postgresql+psycopg", query=parts, **fields).render_as_string(hide_password=False)
    warehouse = location if "://" in location else f"file://{location}"
    return SqlCatalog("trunkline", uri=address, warehouse=warehouse, **store_settings(location).iceberg)
