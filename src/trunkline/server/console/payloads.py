"""Payloads as they are: recognised by type and content, shown from their bytes. Numbers are never parsed."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

MOST_BYTES = 256 * 1024
"""Bytes of a payload that are rendered; the rest is only downloaded."""
_MOST_NODES = 200
_MOST_DEPTH = 64
_MOST_TEXT = 500
_ROW = 16
Format = Literal["json", "text", "binary"]


class _NotJson(ValueError):
    """A value that Python accepts as JSON but JSON does not have."""


class Number(str):
    """A number as it was written, such as 1e400 or 9007199254740993."""

    __slots__ = ()


class Node(msgspec.Struct, kw_only=True):
    """A node of the tree. Scalars have no children; `text` is shown of them, `look` their class."""

    name: str = ""
    text: str = ""
    look: str = ""
    children: list[Node] | None = None
    more: int = 0
    open: bool = False


class Payload(msgspec.Struct, frozen=True, kw_only=True):
    """A payload to show. `text` is its text unchanged, None for binary data; `packed` names a compression."""

    size: int
    content_type: str
    format: Format
    text: str | None
    tree: Node | None
    hex: str
    packed: str | None = None
    cut: bool = False
    """Only the first part is shown."""


def look_at(payload: bytes, content_type: str) -> Payload:
    """Recognise a payload, by its content type and then by its content. Nothing in it is executed."""
    shown, packed = payload[:MOST_BYTES], None
    cut = len(payload) > MOST_BYTES
    if payload[:2] == b"\x1f\x8b":
        unpacked, whole = _gunzip(payload)
        if unpacked is not None:
            shown, packed, cut = unpacked, "gzip", not whole
    text = _text(shown, cut=cut)
    tree = _tree(text) if text is not None and not cut and _may_be_json(text, content_type) else None
    return Payload(
        size=len(payload),
        content_type=content_type,
        format="binary" if text is None else "text" if tree is None else "json",
        text=text,
        tree=tree,
        hex="\n".join(_hex(payload[: MOST_BYTES // 16])),
        packed=packed,
        cut=cut,
    )


def _gunzip(payload: bytes) -> tuple[bytes | None, bool]:
    """Return the first part of what is packed, and whether that is all; None if it is not gzip."""
    stream = zlib.decompressobj(wbits=31)
    try:
        data = stream.decompress(payload, MOST_BYTES)
    except zlib.error:
        return None, False
    return data, stream.eof


def _text(data: bytes, *, cut: bool) -> str | None:
    """Return data as text; None if it is not text. A character that was cut in half at the end is left out."""
    for drop in range(4 if cut else 1):
        try:
            text = data[: len(data) - drop].decode()
        except UnicodeDecodeError:
            continue
        return None if any(ord(char) < 32 and char not in "\t\n\r\f\x1b" for char in text) else text
    return None


def _may_be_json(text: str, content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind in ("application/json", "text/json") or kind.endswith("+json") or text.lstrip()[:1] in ("{", "[")


def _tree(text: str) -> Node | None:
    """Return JSON as a tree; None if it is not JSON or is nested too deeply."""
    try:
        value = json.loads(text, parse_int=Number, parse_float=Number, parse_constant=_no_constant, object_pairs_hook=_Pairs)
        return _node("", value, _Budget(), 0)
    except (ValueError, RecursionError):
        return None


def _no_constant(name: str) -> Any:
    raise _NotJson(f"{name} is not JSON")


class _Pairs(list[tuple[str, Any]]):
    """The members of an object in their order, repeated ones too."""


class _Budget:
    """The number of nodes that may still be shown."""

    def __init__(self) -> None:
        self.left = _MOST_NODES


def _node(name: str, value: Any, budget: _Budget, depth: int) -> Node:
    if depth > _MOST_DEPTH:
        raise RecursionError
    budget.left -= 1
    name = name.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list):
        pairs = isinstance(value, _Pairs)
        members = value if pairs else [(str(place), member) for place, member in enumerate(value)]
        children: list[Node] = []
        for key, member in members:
            if budget.left <= 0:
                break
            children.append(_node(key, member, budget, depth + 1))
        kind = f"{{{len(members)}}}" if pairs else f"[{len(members)}]"
        return Node(name=name, text=kind, children=children, more=len(members) - len(children), open=depth < 2)
    return Node(name=name, text=_scalar(value), look=_LOOKS.get(type(value), "tc"))


_LOOKS = {str: "ts", Number: "tn"}


def _scalar(value: Any) -> str:
    if isinstance(value, Number):
        return str(value)
    # half of a surrogate pair is valid in JSON but not in a page
    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 1]}…"


def _hex(data: bytes) -> Iterator[str]:
    """Lines of address, 16 bytes, and the same as characters."""
    for start in range(0, len(data), _ROW):
        row = data[start : start + _ROW]
        plain = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"{start:08x}  {row.hex(' '):<{_ROW * 3 - 1}}  {plain}"


def preview(payload: bytes, most: int = 200) -> str:
    """Return a payload on one line, cut at a length, for lists."""
    text = _text(payload[: most * 4], cut=len(payload) > most * 4)
    line = " ".join((text if text is not None else payload[:most].hex(" ")).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
