"""Dead letters and the delivery history as tables."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

import pyarrow as pa

from trunkline.db.calls import spark as calls
from trunkline.errors import InvalidOption
from trunkline.spark.database import arrow, fetch
from trunkline.spark.options import ReadOptions
from trunkline.spark.source.schemas import TABLES

_PAGE = 10_000


def check(table: str, schema: pa.Schema) -> None:
    """Raise InvalidOption if the schema has a column that the table lacks."""
    columns = [part.split()[0] for part in TABLES[table].split(", ")]
    for name in schema.names:
        if name not in columns:
            near = difflib.get_close_matches(name, columns, n=1)
            raise InvalidOption(
                f"table {table} has no column {name}, which the schema names",
                hint=f"Did you mean {near[0]}?" if near else f"Choose from {', '.join(columns)}.",
            )


def probe(options: ReadOptions) -> None:
    """Raise an error on the driver if the queue does not exist."""
    with arrow(options.url.reveal()) as conn:
        if options.table == "dead_letters":
            assert options.queue is not None  # noqa: S101
            fetch(conn, calls.dead_letters_statement(options.queue, 0, 1))
        else:
            fetch(conn, calls.deliveries_statement(options.queue, "0 seconds"))


def read(options: ReadOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    pages = _dead_letters(options) if options.table == "dead_letters" else _deliveries(options)
    for page in pages:
        for batch in page.select(schema.names).to_batches():
            arrays = [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _dead_letters(options: ReadOptions) -> Iterator[pa.Table]:
    assert options.queue is not None  # noqa: S101
    after = 0
    with arrow(options.url.reveal()) as conn:
        while True:
            page = fetch(conn, calls.dead_letters_statement(options.queue, after, _PAGE))
            if page.num_rows == 0:
                return
            yield page
            after = page.column("dead_id")[-1].as_py()


def _deliveries(options: ReadOptions) -> Iterator[pa.Table]:
    with arrow(options.url.reveal()) as conn:
        yield fetch(conn, calls.deliveries_statement(options.queue, f"{options.since.total_seconds()} seconds"))
