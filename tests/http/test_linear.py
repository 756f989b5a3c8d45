"""Every parser of ours takes time that grows with the size of its input, not with the square of it.

Most of the work happens inside `re`, `json` and Postgres, where steps cannot be counted. So each input is measured at two
sizes side by side: eight times the input may take at most `_MOST` times as long, where a quadratic parser takes 64 times.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.conftest import Connection
from trunkline.push.receiver import Refused, Verifier
from trunkline.server.auth import Caller
from trunkline.server.bodies import check_depth, check_json, decode
from trunkline.server.claiming import cursor_of
from trunkline.server.line_stream import Splitter
from trunkline.server.messages import message_of
from trunkline.server.problems import Problem
from trunkline.server.query import Param, read_query
from trunkline.server.routes.events import last_seen

_LARGER = 8
_MOST = 24
_TRIES = 5


def _feed(text: bytes) -> None:
    splitter = Splitter()
    for number in range(len(text)):
        splitter.feed(text[number : number + 1])


def _verify(text: bytes) -> None:
    headers = {"webhook-id": "m", "webhook-timestamp": "1", "webhook-signature": text.decode()}
    Verifier("whsec_" + "A" * 32).verify(headers, text, now=1)


def _keys(n: int) -> bytes:
    return b"{" + b",".join(b'"k%d":1' % number for number in range(n)) + b',"k%d":2}' % (n - 1)


def _depth(body: bytes) -> None:
    check_depth(body, 64)


def _message(body: bytes) -> None:
    message_of(body, 64, None, None)


def _query(text: bytes) -> None:
    read_query(text, (Param(name="a", many=True),), strict=False)


# name: parser, input of size n, n
PARSERS: dict[str, tuple[Callable[[Any], object], Callable[[int], Any], int]] = {
    "depth, unclosed strings": (_depth, lambda n: b'"\\' * n + b"[" * 65, 5_000),
    "depth, escaped quotes": (_depth, lambda n: b'"\\"' * n + b"[" * 65, 5_000),
    "depth, many strings": (_depth, lambda n: b'"",' * n + b"[" * 65, 5_000),
    "depth, wide": (_depth, lambda n: b"[" + b"[]," * n + b"[]]", 20_000),
    "depth, legal nesting": (_depth, lambda n: (b"[" * 63 + b"]" * 63 + b",") * n, 400),
    "depth, brackets that close nothing": (_depth, lambda n: b"]" * n + b"[" * n, 20_000),
    "duplicate keys": (check_json, _keys, 500),
    "duplicate keys, nested": (check_json, lambda n: b'{"a":' * 60 + _keys(n) + b"}" * 60, 500),
    "digits": (check_json, lambda n: b"9" * n, 100_000),
    "decimals": (check_json, lambda n: b"[0." + b"9" * n + b"]", 100_000),
    "exponents": (check_json, lambda n: b"[1e" + b"9" * n + b"]", 100_000),
    "line breaks before an error": (check_json, lambda n: b"\n" * n + b"x", 100_000),
    "decode": (lambda body: decode(body, dict, max_depth=64), _keys, 500),
    "message, payloads in payloads": (_message, lambda n: b'{"x":[' + b'{"payload":"a"},' * n + b'1],"payload":"a"}', 500),
    "message, blanks": (_message, lambda n: b'{"payload"' + b" " * n + b":" + b" " * n + b"1}", 50_000),
    "message, unknown fields": (_message, lambda n: _keys(n)[:-2] + b'1,"payload":1}', 500),
    "lines, byte by byte": (_feed, lambda n: b"x" * n, 20_000),
    "lines, many in a part": (lambda text: Splitter().feed(text), lambda n: b"{}\n" * n, 5_000),
    "query": (_query, lambda n: b"a=" + b"%41" * n, 5_000),
    "query, fields": (_query, lambda n: b"&".join([b"a=1"] * n), 5_000),
    "receipt": (cursor_of, lambda n: "1." * n, 20_000),
    "Last-Event-ID": (last_seen, lambda n: ",".join(["1:1"] * n), 2_000),
    "signatures": (_verify, lambda n: b"v1,AAAA " * n, 5_000),
    "scope": (lambda text: Caller("c", (f"read:{text}b",)).may("read", text), lambda n: "a*" * n, 1_000),
}


def _seconds(parse: Callable[[Any], object], text: Any) -> float:
    start = time.thread_time()
    with contextlib.suppress(Problem, Refused):
        parse(text)
    return time.thread_time() - start


@pytest.mark.parametrize("name", PARSERS)
def test_parsers_are_linear(name: str) -> None:
    parse, make, n = PARSERS[name]
    small, large = make(n), make(n * _LARGER)
    # side by side, and the best of each: what else runs on this machine cannot make it faster
    taken = [(_seconds(parse, small), _seconds(parse, large)) for _ in range(_TRIES)]
    least = min(first for first, _ in taken), min(second for _, second in taken)
    assert least[1] < _MOST * max(least[0], 0.0002), (name, least)


@pytest.mark.parametrize("body", [b"[[]" + b",[]" * 50_000 + b"]", (b"[" * 62 + b"]" * 62 + b",") * 1_000])
def test_the_depth_costs_no_more_than_reading(body: bytes) -> None:
    """Legal bodies too: before, each level of nesting was a pass over the whole body."""
    whole = b"[" + body.rstrip(b",") + b"]"
    taken = [(_seconds(json.loads, whole), _seconds(_depth, whole)) for _ in range(_TRIES)]
    assert min(second for _, second in taken) < 4 * min(first for first, _ in taken), taken


# Parsers in SQL: a statement with one parameter, its input of size n, n
STATEMENTS: dict[str, tuple[str, Callable[[int], Any], int]] = {
    "cron, one field": ("select trunkline._parse_cron(%s)", lambda n: ",".join(["1-5"] * n) + " * * * *", 200),
    "cron, blanks": ("select trunkline._parse_cron(%s)", lambda n: " " * n + "* * * * x", 5_000),
    "cron, no fields": ("select trunkline._parse_cron(%s)", lambda n: "*" * n, 5_000),
    "header filter, names": (
        "select trunkline._check_filter(%s::jsonb)",
        lambda n: "{" + ",".join(f'"k{number}": ["v"]' for number in range(n)) + "}",
        500,
    ),
    "header filter, values": (
        "select trunkline._check_filter(%s::jsonb)",
        lambda n: '{"k": [' + ",".join(f'"{number}"' for number in range(n)) + "]}",
        1_000,
    ),
    "receipts": ("select * from trunkline.ack(%s::text[])", lambda n: ["1.1.1.1.x"] * n, 200),
    "receipt with many parts": ("select * from trunkline.ack(array[%s])", lambda n: "1." * n, 2_000),
}


def _statement_seconds(conn: Connection, statement: str, value: Any) -> float:
    start = time.perf_counter()
    with contextlib.suppress(psycopg.Error):
        conn.execute(statement.encode(), (value,))
    return time.perf_counter() - start


@pytest.mark.parametrize("name", STATEMENTS)
def test_parsers_in_sql_are_linear(module_db: str, name: str) -> None:
    statement, make, n = STATEMENTS[name]
    small, large = make(n), make(n * _LARGER)
    with psycopg.connect(module_db, autocommit=True) as conn:
        _statement_seconds(conn, statement, small)
        taken = [
            (_statement_seconds(conn, statement, small), _statement_seconds(conn, statement, large)) for _ in range(_TRIES)
        ]
    least = min(first for first, _ in taken), min(second for _, second in taken)
    assert least[1] < _MOST * max(least[0], 0.001), (name, least)


@pytest.mark.parametrize("pattern", ["#.a." * 10 + "b", ".".join(["*"] * 20), "a." * 99 + "b"])
def test_the_largest_patterns_compile_in_little_work(module_db: str, pattern: str) -> None:
    """Patterns are bounded (20 wildcards, 100 words), so their work is too; larger ones are refused."""
    with psycopg.connect(module_db, autocommit=True) as conn:
        regex = conn.execute("select trunkline._pattern_regex(%s)", (pattern,)).fetchone()
        assert regex is not None and len(regex[0]) < 30 * len(pattern)
        with pytest.raises(psycopg.Error):
            conn.execute("select trunkline._pattern_regex(%s)", (pattern + ".#" * 21 + ".c" * 100,))
