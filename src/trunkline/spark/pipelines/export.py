"""Export: the files of an archive as a Delta or an Iceberg table. No data is copied, and no file is added twice."""

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

from trunkline.db import archive
from trunkline.db.archive import ArchiveFile
from trunkline.errors import Busy, Conflict, InvalidArgument, NotInstalled
from trunkline.spark.pipelines import files
from trunkline.spark.pipelines.running import clear_errors

FORMATS = ("delta", "iceberg")
_TRIES = 5
_TOPIC_ID = "trunkline.topic_id"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class ExportReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a run added."""

    topic: str
    format: str
    table: str
    files: int
    rows: int
    seconds: float


def export(url: str, topic: str, format: str, *, table: str | None = None) -> ExportReport:
    """Add the files that were archived since the last export. Several at once, and repeats, add each file once.

    Delta: the table is the archive's own folder of the topic. Iceberg: a table in a catalogue kept in the same Postgres, by
    default `trunkline.<topic>`.
    """
    started = time.monotonic()
    with clear_errors(), psycopg.connect(url, autocommit=True) as conn:
        listed = archive.list_archive_files(conn, topic)
    if not listed:
        raise InvalidArgument(f"topic {topic!r} has no archive yet", hint="run trunkline pipeline archive first")
    location = listed[0].location
    if "://" in location and "?" in location:
        raise InvalidArgument(
            f"the archive's location {location} has settings after '?', which other programs do not understand",
            hint="put them into the environment, then move_archive to the location without them",
        )
    if format == "delta":
        with _store_errors(location, format):
            name, added = _delta(listed)
    elif format == "iceberg":
        with _store_errors(location, format):
            name, added = _iceberg(url, listed, table or f"trunkline.{topic.replace('.', '_').replace('-', '_')}")
    else:
        raise InvalidArgument(f"the format is {format!r}", hint=f"use {' or '.join(FORMATS)}")
    rows = sum(file.rows for file in added)
    return ExportReport(
        topic=topic, format=format, table=name, files=len(added), rows=rows, seconds=round(time.monotonic() - started, 3)
    )


def _need(module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as exc:
        raise NotInstalled(f"{module} is not installed", hint="pip install 'trunkline[lake]'") from exc


class _StoreSettings(NamedTuple):
    """What the libraries need to know about an object store that is not Amazon's, each in its own words."""

    delta: dict[str, str]
    iceberg: dict[str, str]


def store_settings(location: str) -> _StoreSettings:
    """Return settings from the environment, where Arrow finds them too."""
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
    """Errors of the object store in one line, without the colours of a terminal."""
    try:
        yield
    except OSError as exc:
        reason = " ".join(_COLOURS.sub("", str(exc)).split())
        raise InvalidArgument(
            f"the {format} table in {location} cannot be written: {reason}",
            hint="the archive itself is complete; give this machine access to the store, then export again",
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
        # files are only ever added, in the order of the list: how many it had at the last export says which are new
        done = table.transaction_version(application)
        if done is None and table.file_uris():
            raise Conflict(
                f"the Delta table {base} holds the files of another topic, than today's {listed[0].topic!r}",
                hint="move_archive to another folder, or delete the table's folder _delta_log",
            )
        new = sorted(listed, key=lambda file: (file.archived_at, file.path))[done or 0 :]
        if not new:
            break
        # two exports at once ask for the same version of the table: one gets it, the other looks again
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
        raise Busy(f"the Delta table {base} is being changed by others", hint="try again")
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
    """What lets readers leave files out: offsets, partition and times."""
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
                f"the Iceberg table {name} holds the files of another topic than today's {listed[0].topic!r}",
                hint="give another table, or drop this one",
            )
        there = {task.file.file_path for task in table.scan().plan_files()}
        new = [file for file in listed if _address(file) not in there]
        try:
            if new:
                table.add_files([_address(file) for file in new], check_duplicate_files=True)
        except CommitFailedException:
            continue  # somebody changed the table meanwhile
        return name, new
    raise Busy(f"the Iceberg table {name} is being changed by others", hint="try again")


def _address(file: ArchiveFile) -> str:
    whole = files.join(file.location, file.path)
    return whole if "://" in whole else f"file://{whole}"


def _catalog(url: str, location: str) -> Any:
    """A catalogue in the same Postgres; pyiceberg makes its two tables in the schema `public`."""
    from psycopg.conninfo import conninfo_to_dict
    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy.engine import URL

    parts = {name: str(value) for name, value in conninfo_to_dict(url).items() if value is not None}
    known = {"user": "username", "password": "password", "dbname": "database"}  # nosec B105
    fields: dict[str, Any] = {there: parts.pop(ours) for ours, there in known.items() if ours in parts}
    address = URL.create("postgresql+psycopg", query=parts, **fields).render_as_string(hide_password=False)
    warehouse = location if "://" in location else f"file://{location}"
    return SqlCatalog("trunkline", uri=address, warehouse=warehouse, **store_settings(location).iceberg)
