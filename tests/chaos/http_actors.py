"""Publishers, consumers and readers over HTTP, and clients that behave badly."""

from __future__ import annotations

import json
import socket
import struct
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

from tests.chaos.consumers import GroupMember, GroupMemberSpec, QueueConsumerSpec, TailReaderSpec
from tests.chaos.http_session import HttpSession, content
from tests.chaos.publisher import Publisher, PublisherSpec, Target

_FORMS = {"single": 45, "raw": 10, "array": 20, "lines": 10, "stream": 1, "keyed": 15}
_SIZES = {"single": 1, "raw": 1, "stream": 1100}
_NDJSON = {"content-type": "application/x-ndjson"}


class HttpPublisherSpec(PublisherSpec, frozen=True, tag="http_publisher"):
    pass


class HttpQueueConsumerSpec(QueueConsumerSpec, frozen=True, tag="http_queue_consumer"):
    pass


class HttpGroupMemberSpec(GroupMemberSpec, frozen=True, tag="http_group_member"):
    pass


class HttpTailReaderSpec(TailReaderSpec, frozen=True, tag="http_tail_reader"):
    # reads everything once, and complains if it does not get there
    to_the_end: bool = False


class VandalSpec(msgspec.Struct, frozen=True, tag="vandal"):
    targets: tuple[Target, ...]
    queues: tuple[str, ...]
    topic: str


class HttpPublisher(Publisher):
    """Single messages, bytes as they are, arrays, streams of lines, and with idempotency keys."""

    session: HttpSession

    def run(self) -> None:
        begun = time.monotonic()
        while self.accepted < self.spec.messages and not self.session.stopped:
            form = self.random.choices(list(_FORMS), list(_FORMS.values()))[0]
            part = self._part(_SIZES.get(form))
            op = self._record(part)
            if form == "keyed":
                self._repeat(op, part)
            elif self.session.ask(op, "POST", path_of(part), **request_of(part, form)) is not None:
                self._accept(op, [part], None)
            ahead = self.accepted / self.spec.per_second - (time.monotonic() - begun)
            if ahead > 0:
                time.sleep(min(ahead, 0.5))

    def _repeat(self, op: int, part: dict[str, Any]) -> None:
        """Publish with a key, on any server, until a response arrives: the message must exist once."""
        request = request_of(part, "single" if len(part["values"]) == 1 else "array")
        request["headers"] = {"idempotency-key": f"once {part['values'][0]}"}
        while not self.session.stopped:
            try:
                answer = self.session.http.post(self.session.anywhere() + path_of(part), **request)
            except httpx.TransportError:
                time.sleep(0.05)
                continue
            if answer.is_success:
                self._accept(op, [part], None)
                return
            if answer.status_code < 500:
                self.session.recorder.done(op, "info", code=answer.json()["error"], message=answer.text)
                return
            time.sleep(0.05)


def path_of(part: dict[str, Any]) -> str:
    kind, _, name = part["target"].partition(":")
    return f"/v1/{kind}s/{name}/messages"


def envelopes(part: dict[str, Any]) -> list[dict[str, Any]]:
    fields: dict[str, Any] = {name: part[name] for name in ("routing_key", "label") if name in part}
    if part.get("delay"):
        fields["delay_seconds"] = part["delay"]
    keys = part.get("keys") or [None] * len(part["values"])
    return [
        {**text(value), **fields, **({} if key is None else {"key": key})}
        for value, key in zip(part["values"], keys, strict=True)
    ]


def text(value: str) -> dict[str, str]:
    """Return a payload that is stored as these bytes: as `payload` it would be a JSON string, in quotes."""
    return {"payload_base64": b64encode(value.encode()).decode(), "content_type": "text/plain"}


def request_of(part: dict[str, Any], form: str) -> dict[str, Any]:
    messages = envelopes(part)
    if form == "raw":
        fields = {name: value for name, value in messages[0].items() if name not in text("")}
        return {"content": part["values"][0], "params": {"raw": "true", **fields}, "headers": {"content-type": "text/plain"}}
    if form in ("lines", "stream"):
        return {"content": (json.dumps(message).encode() + b"\n" for message in messages), "headers": _NDJSON}
    return {"json": messages[0] if form == "single" else messages}


class HttpGroupMember(GroupMember):
    """Fetches, sometimes waiting for messages, and commits."""

    session: HttpSession

    def _fetch(self) -> dict[str, Any] | None:
        spec = self.spec
        op = self.session.recorder.invoke("fetch", topic=spec.topic, group=spec.group, member=self.member)
        body: dict[str, Any] = {
            "member": self.member,
            "limit": self.random.choice((1, 20, 100, 300)),
            "lease_seconds": spec.lease,
            "wait": self.random.choice((0, 0.5, 2)),
        }
        if self.generation is not None and (spec.calm or self.random.random() < 0.8):
            body["generation"] = self.generation
        answer = self.session.ask(op, "POST", f"{self._path}/fetch", json=body, vague=True)
        if answer is None:
            return None
        batch = answer.json()
        result: dict[str, Any] = {"rows": [[row["offset"], content(row)] for row in batch["messages"]]}
        if result["rows"]:
            result |= {"partition": batch["partition"], "generation": batch["generation"]}
        self.session.recorder.done(op, "ok", **result)
        return result

    def _commit(self, batch: dict[str, Any], first: int, upto: int) -> None:
        spec, place = self.spec, {"partition": batch["partition"], "generation": batch["generation"], "offset": upto}
        op = self.session.recorder.invoke("commit", topic=spec.topic, group=spec.group, **place)
        if self.session.ask(op, "POST", f"{self._path}/commit", json=place) is not None:
            self.session.recorder.done(op, "ok", answer="done")

    def _leave(self) -> None:
        with suppress(httpx.TransportError):
            self.session.http.post(f"{self.session.anywhere()}{self._path}/leave", json={"member": self.member})

    @property
    def _path(self) -> str:
        return f"/v1/topics/{self.spec.topic}/groups/{self.spec.group}"


class HttpTailReader:
    """Follow a topic by server-sent events, resuming after each disconnect at the last position."""

    def __init__(self, session: HttpSession, spec: HttpTailReaderSpec) -> None:
        self.session = session
        self.spec = spec
        self.next = [1] * spec.partitions

    def run(self) -> None:
        limit = time.monotonic() + 40
        while not self.session.stopped:
            try:
                self.follow(self.session.random.choice((3, 40, 400)))
            except httpx.TransportError:
                time.sleep(0.02)
            if self.spec.to_the_end and (self._at_the_end() or time.monotonic() > limit):
                break
        if self.spec.to_the_end and not self._at_the_end():
            op = self.session.recorder.invoke("read", target=f"topic:{self.spec.topic}", partition=0, first=1, limit=1)
            self.session.recorder.done(op, "fail", code="behind", message=f"stopped before {self.next}")

    def follow(self, leave_after: int) -> None:
        """One connection; it is left after some events, so that resuming is the rule and not the exception."""
        last = ",".join(f"{partition}:{place - 1}" for partition, place in enumerate(self.next))
        url = f"{self.session.anywhere()}/v1/topics/{self.spec.topic}/events"
        timeout = httpx.Timeout(5, read=1)
        with self.session.http.stream("GET", url, headers={"last-event-id": last}, timeout=timeout) as answer:
            if not answer.is_success:
                time.sleep(0.05)
                return
            for kind, data in events(answer.iter_lines()):
                if kind == "problem":
                    return
                self._take(data)
                leave_after -= 1
                if not leave_after or self.session.stopped:
                    return

    def _take(self, data: str) -> None:
        row = json.loads(data)
        partition, offset = row["partition"], row["offset"]
        args = {"target": f"topic:{self.spec.topic}", "partition": partition, "first": self.next[partition], "limit": 1}
        op = self.session.recorder.invoke("read", **args)
        self.session.recorder.done(op, "ok", rows=[[offset, content(row)]])
        self.next[partition] = offset + 1

    def _at_the_end(self) -> bool:
        try:
            for partition, place in enumerate(self.next):
                url = f"{self.session.anywhere()}/v1/topics/{self.spec.topic}/offset"
                if place < self.session.http.get(url, params={"partition": partition}).raise_for_status().json()["offset"]:
                    return False
        except httpx.HTTPError:
            return False
        return True


def events(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Kind and data of each event of a stream."""
    kind, data = "message", ""
    for line in lines:
        if line.startswith("event: "):
            kind = line[7:]
        elif line.startswith("data: "):
            data = line[6:]
        elif not line:
            if data:
                yield kind, data
            kind, data = "message", ""


class Vandal:
    """Clients that stop midway: in a head, a body, a response, or a wait. Some stay connected for a while."""

    def __init__(self, session: HttpSession, spec: VandalSpec) -> None:
        self.session = session
        self.random = session.random
        self.spec = spec
        self.publisher = HttpPublisher(session, HttpPublisherSpec(spec.targets, 0, 1.0, poison=0.0))
        self._held: list[tuple[float, socket.socket]] = []

    def run(self) -> None:
        acts = (
            self._half_a_head, self._half_a_body, self._half_a_stream, self._publish_and_go, self._wait_and_go,
            self._claim_ack_and_go, self._never_read,
        )  # fmt: skip
        while not self.session.stopped:
            with suppress(OSError):
                self.random.choice(acts)()
            self._let_go()
            time.sleep(self.random.uniform(0, 0.2))
        self._let_go(everything=True)

    def _connect(self, data: bytes, *, deaf: bool = False) -> socket.socket:
        where = urlsplit(self.session.anywhere())
        conn = socket.socket()
        if deaf:
            conn.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        conn.settimeout(5)
        conn.connect((where.hostname, where.port))
        conn.sendall(data)
        return conn

    def _hold(self, conn: socket.socket, seconds: float) -> None:
        self._held.append((time.monotonic() + seconds, conn))

    def _let_go(self, *, everything: bool = False) -> None:
        for until, conn in list(self._held):
            if everything or time.monotonic() > until:
                self._held.remove((until, conn))
                _leave(conn, rudely=self.random.random() < 0.5)

    def _half_a_head(self) -> None:
        self._hold(self._connect(b"POST /v1/topics HTTP/1.1\r\nhost: loc"), self.random.uniform(0, 8))

    def _half_a_body(self) -> None:
        """Never a whole request, so it never happened."""
        part = self.publisher._part(3)
        op = self.publisher._record(part)
        body = json.dumps(envelopes(part)).encode()
        conn = self._connect(_head("POST", path_of(part), **{"content-length": str(len(body))}) + body[: len(body) - 2])
        self.session.recorder.done(op, "fail")
        self._hold(conn, self.random.uniform(0, 12))

    def _half_a_stream(self) -> None:
        """Whole lines, but the stream has no end: nothing of it happened."""
        part = self.publisher._part(self.random.choice((20, 20, 20, 1100)))
        op = self.publisher._record(part)
        lines = [json.dumps(message).encode() + b"\n" for message in envelopes(part)]
        data = b"".join(b"%x\r\n%s\r\n" % (len(line), line) for line in lines)
        conn = self._connect(_head("POST", path_of(part), **{"transfer-encoding": "chunked"}, **_NDJSON) + data)
        self.session.recorder.done(op, "fail")
        self._hold(conn, self.random.choice((0.0, 0.1, 3.0)))

    def _publish_and_go(self) -> None:
        part = self.publisher._part(5)
        op = self.publisher._record(part)
        body = json.dumps(envelopes(part)).encode()
        conn = self._connect(_head("POST", path_of(part), **{"content-length": str(len(body))}) + body)
        self.session.recorder.done(op, "info")
        self._hold(conn, self.random.choice((0.0, 0.01, 1.0)))

    def _wait_and_go(self) -> None:
        queue = self.random.choice(self.spec.queues)
        op = self.session.recorder.invoke("claim", queue=queue, lease=1.0, relaxed=True)
        body = b'{"limit": 5, "lease_seconds": 1, "wait": 5}'
        conn = self._connect(_head("POST", f"/v1/queues/{queue}/claims", **{"content-length": str(len(body))}) + body)
        self.session.recorder.done(op, "info")
        self._hold(conn, self.random.uniform(0, 2))

    def _claim_ack_and_go(self) -> None:
        queue = self.random.choice(self.spec.queues)
        rows = self.session.claim(queue, 5, 1.0)
        if not rows:
            return
        receipts = [row[0] for row in rows]
        op = self.session.recorder.invoke("settle", verb="ack", receipts=receipts, seconds=None)
        body = json.dumps({"receipts": receipts}).encode()
        conn = self._connect(_head("POST", f"/v1/queues/{queue}/ack", **{"content-length": str(len(body))}) + body)
        self.session.recorder.done(op, "info")
        self._hold(conn, self.random.choice((0.0, 0.01)))

    def _never_read(self) -> None:
        path = f"/v1/topics/{self.spec.topic}/{self.random.choice(('events?start=earliest', 'messages?limit=1000'))}"
        self._hold(self._connect(_head("GET", path), deaf=True), self.random.uniform(1, 10))


def _head(method: str, path: str, **headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def _leave(conn: socket.socket, *, rudely: bool) -> None:
    if rudely:
        # a reset instead of a farewell
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    conn.close()
