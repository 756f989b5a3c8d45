"""A low-level connection without row and type conversion, so that the load generator is not the bottleneck.

Parameters are encoded once and sent in binary format; a step reads only the result fields that it needs.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from psycopg import pq

_TEXT, _BYTEA, _INT8 = 25, 17, 20


class Session:
    """One connection with prepared statements. Each call is a separate transaction."""

    def __init__(self, url: str) -> None:
        self._conn = pq.PGconn.connect(url.encode())
        if self._conn.status != pq.ConnStatus.OK:
            raise RuntimeError(f"cannot connect: {self._conn.get_error_message()}")

    def prepare(self, name: str, sql: str) -> None:
        self._check(self._conn.prepare(name.encode(), sql.encode()))

    def call(self, name: str, *params: bytes) -> pq.abc.PGresult:
        """Run a prepared statement; all parameters and results are in binary format."""
        result = self._conn.exec_prepared(name.encode(), params, [pq.Format.BINARY] * len(params), pq.Format.BINARY)
        return self._check(result)

    def run(self, sql: str) -> None:
        """Run a statement without a result, such as begin or commit."""
        self._check(self._conn.exec_(sql.encode()))

    def copy(self, sql: str, data: bytes) -> None:
        """Send one prepared buffer through COPY."""
        self._check(self._conn.exec_(sql.encode()))
        self._conn.put_copy_data(data)
        self._conn.put_copy_end()
        while (result := self._conn.get_result()) is not None:
            self._check(result)

    def close(self) -> None:
        self._conn.finish()

    def _check(self, result: pq.abc.PGresult) -> pq.abc.PGresult:
        if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK, pq.ExecStatus.COPY_IN):
            raise RuntimeError(result.get_error_message())
        return result


def column(result: pq.abc.PGresult, index: int) -> list[bytes]:
    return [result.get_value(row, index) or b"" for row in range(result.ntuples)]


def int4(value: int) -> bytes:
    return struct.pack("!i", value)


def int8(value: int) -> bytes:
    return struct.pack("!q", value)


def bytea_array(values: Sequence[bytes]) -> bytes:
    return _array(_BYTEA, values)


def text_array(values: Sequence[bytes]) -> bytes:
    return _array(_TEXT, values)


def int8_array(values: Sequence[bytes]) -> bytes:
    return _array(_INT8, values)


def _array(oid: int, values: Sequence[bytes]) -> bytes:
    parts = [struct.pack("!iiiii", 1, 0, oid, len(values), 1)]
    for value in values:
        parts.append(struct.pack("!i", len(value)))
        parts.append(value)
    return b"".join(parts)


def copy_buffer(rows: Sequence[Sequence[bytes]]) -> bytes:
    """Encode rows as a complete binary COPY stream."""
    parts = [b"PGCOPY\n\xff\r\n\0", struct.pack("!ii", 0, 0)]
    for row in rows:
        parts.append(struct.pack("!h", len(row)))
        for value in row:
            parts.append(struct.pack("!i", len(value)))
            parts.append(value)
    parts.append(struct.pack("!h", -1))
    return b"".join(parts)
