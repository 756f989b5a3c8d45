"""Steady traffic over HTTP, first alone and then beside fuzzing: `python -m bench.fuzz --schemathesis PATH`.

Schemathesis follows the OpenAPI document of the service, hostile clients send bodies and heads that no document allows. Both
run at the lowest priority: they share the cores with the service, and their own work is not what is measured.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from bench.alone import Send, beside
from bench.lab import open_lab
from bench.rounds import say
from bench.rows import percentile
from bench.web import services
from bench.web.services import Service

_STEADY = 4
"""Connections of the steady traffic; each publishes, claims and acks `_PER_SECOND` times per second."""
_PER_SECOND = 5
_WORKERS = 16
"""Connections of Schemathesis."""
_ALONE_SECONDS = 30
_SETTLE_SECONDS = 20
_QUEUE = {"name": "steady", "lease_seconds": 30, "ttl_seconds": 3600}
_SERVER_ERROR = re.compile(r'http_request_duration_seconds_count\{code="(5\d\d)",handler="([^"]*)",method="(\w+)".*\} (\d+)')

_BODIES = [
    b"", b"{", b"null", b"[]", b"\xff\xfe{}", b"\x00" * 1000, b" " * 1_000_000, b"-" * 100_000, b"9" * 100_000,
    b"[" * 100_000, b'{"a":' * 100_000, b'"\\' * 40_000 + b"[" * 65, b"[" + (b"[" * 62 + b"]" * 62 + b",") * 4_000 + b"1]",
    b"{" + b",".join(b'"k%d":1' % number for number in range(20_000)) + b',"k0":2}',
    b'{"payload":"' + b"\\ud800" * 50_000 + b'"}', b'{"payload":1e999}', b'{"payload":NaN}', b'{"payload":1,"payload":2}',
    b'{"receipts":["' + b"1." * 50_000 + b'"]}', b'{"receipts":[' + b",".join([b'"1.1.1.1.x"'] * 20_000) + b"]}",
    b'{"limit":1000000000000}', b'{"limit":-1,"wait":1e308}', b'{"labels":["' + b"l" * 10_000 + b'"]}',
    b'{"payload":1}\n' * 20_000, b'{"payload":1}\n' * 100 + b"{", b"x" * 900_000, b"x" * 9_000_000,
]  # fmt: skip
_KINDS = [
    "application/json",
    "application/x-ndjson",
    "application/octet-stream",
    "text/plain",
    "x",
    "application/json; x=\xff",
]
_HEADS = [
    "BREW / HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
    "M%s / HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" % ("A" * 7000),
    "GET /v1/stats HTTP/1.1\r\nhost: evil.example\r\n\r\n",
    "GET /%s HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" % ("a" * 9000),
    "GET /v1/queues/%00%ff%2f HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
    "GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n" + "a: b\r\n" * 90 + "\r\n",
    "GET /v1/stats HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer tl_%s\r\n\r\n" % ("\xff" * 100),
    "POST /v1/queues HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    "POST /v1/queues HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n{}",
    "POST /v1/queues HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 99999999999999999999\r\n\r\n{}",
    "POST /v1/queues HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100\r\n\r\n{",
    "GET /v1/topics?limit=99999999999999999999&offset=-1&offset=x HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
    "\r\n\r\n\x00\x01\x02",
]


@click.command("fuzz")
@click.option(
    "--schemathesis", type=click.Path(exists=True, dir_okay=False, path_type=Path, resolve_path=True), required=True
)
@click.option("--minutes", type=click.FloatRange(0.1), default=5, show_default=True, help="Of the fuzzing.")
@click.option("--connections", type=click.IntRange(_STEADY + _WORKERS + 1), default=64, show_default=True, help="In all.")
@click.option(
    "--rate", type=click.IntRange(2), help="Fuzzing requests per second; without it, as many as the service takes."
)
def main(schemathesis: Path, minutes: float, connections: int, rate: int | None) -> None:
    """Measure steady traffic without and with fuzzing; fails after a 5xx."""
    with open_lab() as lab, services.ours(lab) as service:
        _measure("alone", service, _ALONE_SECONDS)
        hostile = connections - _STEADY - _WORKERS
        with (
            _schemathesis(schemathesis, service.port, minutes, rate, lab.directory / "schemathesis.log"),
            beside(lambda send: _attack(service.port, hostile, rate, send)),
        ):
            _measure("fuzzed", service, minutes * 60)
        time.sleep(_SETTLE_SECONDS)
        _measure("afterwards", service, _ALONE_SECONDS)
        say((lab.directory / "schemathesis.log").read_text(errors="replace")[-1500:])
        errors = _server_errors(service.port)
        print("5xx:", dict(errors) or "none")
        sys.exit(bool(errors))


def _measure(phase: str, service: Service, seconds: float) -> None:
    cpu = service.cpu
    taken = _steady(service.port, seconds)
    cpu, memory = (service.cpu - cpu) / seconds, service.memory / 1024**2
    p50, p99 = (1000 * percentile(taken, percent) for percent in (50, 99))
    print(
        f"{phase:10} {len(taken):6} requests, p50 {p50:6.1f} ms, p99 {p99:6.1f} ms; service: {100 * cpu:3.0f} % of a core,"
        f" {memory:.0f} MB",
        flush=True,
    )


# The steady traffic


def _steady(port: int, seconds: float) -> list[float]:
    """Latencies of publish, claim and ack."""
    end = time.monotonic() + seconds
    with ThreadPoolExecutor(_STEADY) as pool:
        return [taken for found in pool.map(lambda _: _cycles(port, end), range(_STEADY)) for taken in found]


def _cycles(port: int, end: float) -> list[float]:
    taken: list[float] = []
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def timed(verb: str, body: object) -> Any:
        start = time.perf_counter()
        found = _ask(connection, f"/v1/queues/steady/{verb}", body)
        taken.append(time.perf_counter() - start)
        return found

    due = time.monotonic() + random.random() / _PER_SECOND
    while time.monotonic() < end:
        time.sleep(max(0.0, due - time.monotonic()))
        due += 1 / _PER_SECOND
        try:
            timed("messages", {"payload": "x" * 300})
            if deliveries := timed("claims", {"limit": 10})["deliveries"]:
                timed("ack", {"receipts": [delivery["receipt"] for delivery in deliveries]})
        except LookupError:
            # first, and each time the fuzzing has deleted it
            _ask(connection, "/v1/queues?ensure=true", _QUEUE)
    return taken


def _ask(connection: http.client.HTTPConnection, path: str, body: object) -> Any:
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    data = response.read()
    if response.status == 404:
        raise LookupError(path)
    if response.status >= 300:
        raise RuntimeError(f"{path}: {response.status} {data[:500]!r}")
    return json.loads(data)


def _get(port: int, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    return connection.getresponse().read().decode()


# The fuzzing


@contextmanager
def _schemathesis(program: Path, port: int, minutes: float, rate: int | None, log: Path) -> Iterator[None]:
    url = f"http://127.0.0.1:{port}"
    command = [
        "nice", "-n", "19", str(program), "run", f"{url}/openapi.json", "--workers", str(_WORKERS),
        "--max-time", f"{minutes * 60:.0f}", "--checks", "not_a_server_error", "--suppress-health-check", "all",
        "--no-shrink", "--continue-on-failure", "--request-timeout", "60", "--exclude-path-regex", "/events$",
    ]  # fmt: skip
    if rate is not None:
        command += ["--rate-limit", f"{rate // 2}/s"]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=log.parent)
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)


async def _attack(port: int, connections: int, rate: int | None, send: Send) -> None:
    os.nice(19)
    paths: dict[str, dict[str, object]] = json.loads(_get(port, "/openapi.json"))["paths"]
    targets = [(method.upper(), re.sub(r"\{\w+\}", "h", path)) for path, methods in paths.items() for method in methods]
    pause = 0.0 if rate is None else 2 * connections / rate
    for number in range(connections):
        threading.Thread(target=_hostile, args=(port, targets, pause, random.Random(number)), daemon=True).start()
    send("ready")
    threading.Event().wait()


def _hostile(port: int, targets: list[tuple[str, str]], pause: float, choice: random.Random) -> None:
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=15) as client:
            for _ in range(choice.randrange(1, 20)):
                time.sleep(pause * 2 * choice.random())
                client.sendall(_request(targets, choice))
                if choice.random() < 0.05 or not client.recv(1 << 16):
                    break


def _request(targets: list[tuple[str, str]], choice: random.Random) -> bytes:
    if choice.random() < 0.2:
        return choice.choice(_HEADS).encode("latin-1")
    (method, path), body, kind = choice.choice(targets), choice.choice(_BODIES), choice.choice(_KINDS)
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode("latin-1") + body


def _server_errors(port: int) -> Counter[str]:
    text = _get(port, "/metrics")
    return Counter({f"{code} {method} {path}": int(count) for code, path, method, count in _SERVER_ERROR.findall(text)})


if __name__ == "__main__":
    main()
