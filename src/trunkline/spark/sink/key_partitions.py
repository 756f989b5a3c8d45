"""The partition of a key: Postgres's `hashtextextended`, vectorised with NumPy.

Calling the database for each key would cost more than all other work on a row. `PROBE` is hashed on both sides to
verify that they agree.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

PROBE = "trunkline"
_START = np.uint32(0x9E3779B9 + 3923095)
_AT_ONCE = 1 << 24


def hashes(keys: pa.Array) -> Any:
    """Return a signed 64-bit hash for each key. The hash of a null is undefined."""
    texts = pa.array(keys, pa.string()) if not isinstance(keys, pa.Array) else keys.cast(pa.string())
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(texts.buffers()[2] or b"", np.uint8)
    widest = int(np.diff(offsets).max(initial=0)) + 12
    step = max(1, _AT_ONCE // widest)
    parts = [_hash(offsets[start : start + step + 1], data) for start in range(0, len(texts), step)]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def partitions(keys: pa.Array, count: int) -> Any:
    """Return the partition of each key, from 0 to `count` - 1."""
    return ((hashes(keys) & 0x7FFFFFFFFFFFFFFF) % count).astype(np.int32)


def _hash(offsets: Any, data: Any) -> Any:
    """Bob Jenkins's lookup3 as Postgres implements it: 12 bytes at a time, the remainder padded with zeros."""
    lengths = np.diff(offsets)
    blocks = lengths // 12
    width = (int(blocks.max()) + 1) * 12
    padded = np.zeros((len(lengths), width), np.uint8)
    padded[np.arange(width) < lengths[:, None]] = data[offsets[0] : offsets[-1]]
    values = padded.view("<u4")
    a = _START + lengths.astype(np.uint32)
    b, c = a.copy(), a.copy()
    for block in range(int(blocks.max())):
        rows = np.flatnonzero(blocks > block)
        at = 3 * block
        mixed = _mix(a[rows] + values[rows, at], b[rows] + values[rows, at + 1], c[rows] + values[rows, at + 2])
        a[rows], b[rows], c[rows] = mixed
    rows, at = np.arange(len(lengths)), 3 * blocks
    a += values[rows, at]
    b += values[rows, at + 1]
    # The lowest byte of c is reserved for the length.
    c += values[rows, at + 2] << np.uint32(8)
    b, c = _final(a, b, c)
    return ((b.astype(np.uint64) << np.uint64(32)) | c).view(np.int64)


def _turned(word: Any, bits: int) -> Any:
    return (word << np.uint32(bits)) | (word >> np.uint32(32 - bits))


def _mix(a: Any, b: Any, c: Any) -> tuple[Any, Any, Any]:
    for first, second, third in ((4, 6, 8), (16, 19, 4)):
        a = (a - c) ^ _turned(c, first)
        c = c + b
        b = (b - a) ^ _turned(a, second)
        a = a + c
        c = (c - b) ^ _turned(b, third)
        b = b + a
    return a, b, c


def _final(a: Any, b: Any, c: Any) -> tuple[Any, Any]:
    c = (c ^ b) - _turned(b, 14)
    a = (a ^ c) - _turned(c, 11)
    b = (b ^ a) - _turned(a, 25)
    c = (c ^ b) - _turned(b, 16)
    a = (a ^ c) - _turned(c, 4)
    b = (b ^ a) - _turned(a, 14)
    c = (c ^ b) - _turned(b, 24)
    return b, c
