"""Requests on the wire: what a receiver may do to a connection, and which connections are used again."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.push.test_egress import post
from trunkline.push.egress import Guard
from trunkline.push.http1 import Http1
from trunkline.push.request import READ_LIMIT, single
from trunkline.push.sender import Sender
from trunkline.types import Delivery

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Peer:
    """A server that responds with the given bytes and records heads and connections."""

    def __init__(self, *answers: bytes, close: bool = False) -> None:
        self.answers = list(answers)
        self.close = close
        self.connections = 0
        self.heads: list[str] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                size = next(int(line[15:]) for line in head.split("\r\n") if line.startswith("content-length:"))
                await reader.readexactly(size)
                self.heads.append(head)
                writer.write(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])
                if self.close:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()


@asynccontextmanager
async def listening(peer: Peer, **options: Any) -> AsyncIterator[Sender]:
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0, **options)
    scheme = "https" if options else "http"
    peer.url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}/a%20path?x=1"
    sender = Sender(Guard(["127.0.0.0/8"]))
    try:
        yield sender
    finally:
        await sender.close()
        server.close()


async def test_a_connection_is_used_again_whatever_form_the_answer_has() -> None:
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n"
    peer = Peer(
        OK, chunked, b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\nretry-after: 7\r\n\r\n"
    )
    async with listening(peer) as sender:
        answers = [await post(sender, peer.url) for _ in range(4)]
    assert [(each.status, each.body, each.error) for each in answers] == [
        (200, b"ok", None),
        (200, b"abcde", None),
        (204, b"", None),
        (503, b"", None),
    ]
    assert answers[3].headers["Retry-After"] == "7"
    assert peer.connections == 1
    host = peer.url.split("/")[2]
    assert all(head.startswith(f"POST /a%20path?x=1 HTTP/1.1\r\nhost: {host}\r\n") for head in peer.heads)


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.0 200 OK\r\n\r\nuntil the end", b"until the end"),
    ],
)
async def test_a_receiver_that_closes_gets_a_new_connection(answer: bytes, body: bytes) -> None:
    peer = Peer(answer, close=True)
    async with listening(peer) as sender:
        assert [(await post(sender, peer.url)).body for _ in range(2)] == [body, body]
    assert peer.connections == 2


async def test_what_comes_before_the_answer_is_not_taken_for_it() -> None:
    peer = Peer(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" + OK)
    async with listening(peer) as sender:
        assert (await post(sender, peer.url)).body == b"ok"


async def test_of_a_long_answer_the_start_is_read_and_its_connection_given_up() -> None:
    peer = Peer(b"HTTP/1.1 200 OK\r\ncontent-length: 9000000\r\n\r\n" + b"x" * 1_000_000)
    async with listening(peer) as sender:
        for _ in range(2):
            answer = await post(sender, peer.url)
            assert (answer.status, len(answer.body), answer.error) == (200, READ_LIMIT, None)
    assert peer.connections == 2


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "the connection was lost"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "the response is not valid HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n", "the response is not valid HTTP"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 20_000 + b"\r\n\r\n", "the response is not valid HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nx", "the response was incomplete"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nno number\r\n", "the response is "),
    ],
)
async def test_an_answer_that_cannot_be_read_is_an_error(answer: bytes, words: str) -> None:
    peer = Peer(answer, close=True)
    async with listening(peer) as sender:
        error = (await post(sender, peer.url)).error
    assert error is not None and error.startswith(words)


async def test_headers_with_line_breaks_are_not_sent() -> None:
    peer = Peer(OK)
    async with listening(peer):
        connector = aiohttp.TCPConnector()
        try:
            for value in ("a\r\nx: b", "a\nb", "a\x00b"):
                with pytest.raises(ValueError, match="control characters"):
                    await Http1(connector).post(peer.url, {"name": value}, b"")
        finally:
            await connector.close()
    assert peer.connections == 0


def test_headers_of_a_message_are_such_that_they_can_be_sent() -> None:
    told = {"ü": "a\r\n\x00\x7f\U0001f600"}
    delivery: Delivery[Any] = Delivery(
        partition=0, offset=1, id=uuid4(), key=None, routing_key=None, label=None, headers=told, payload=b"",
        content_type="x/y", occurred_at=None, created_at=datetime.now(UTC), receipt="1.1.1.x", attempt=1,
        deadline=datetime.now(UTC), topic=None, _decode=lambda payload, content_type: payload,
    )  # fmt: skip
    sent = single("q", delivery).headers["trunkline-headers"]
    assert re.fullmatch(r"[\x20-\x7e]+", sent)
    assert json.loads(sent) == told


async def test_an_answer_before_all_of_the_request_was_read() -> None:
    """The receiver refuses by the head alone; the rest of the request must not reach it as the start of the next one."""
    connections = 0

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n")
        # reads no more, but keeps the connection
        await asyncio.sleep(60)

    server = await asyncio.start_server(refuse, "127.0.0.1", 0, limit=1000)
    connector = aiohttp.TCPConnector()
    try:
        wire = Http1(connector)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        for _ in range(2):
            async with asyncio.timeout(20):
                reply = await wire.post(url, {}, b"x" * 30_000_000)
                await reply.read(100)
            assert reply.status == 413
    finally:
        await connector.close()
        server.close()
    assert connections == 2


async def test_interim_responses_have_an_end() -> None:
    """A receiver that sends 1xx without end is given up, long before the time limit."""
    interim = b"HTTP/1.1 102 Processing\r\n\r\n"
    peer = Peer(interim * 8 + OK, interim * 9 + OK, interim * 10_000)
    async with listening(peer) as sender:
        first, *others = [await post(sender, peer.url) for _ in range(3)]
    assert (first.status, first.error) == (200, None)
    assert [(each.status, each.error) for each in others] == [(None, "the response is not valid HTTP")] * 2


@pytest.mark.parametrize("seen_by_the_loop", [True, False])
async def test_a_stray_response_is_not_taken_for_the_next_one(seen_by_the_loop: bool) -> None:
    """Data that arrives on an idle connection belongs to no request: otherwise it would ack a failed delivery."""
    written = asyncio.Event()
    stray: list[asyncio.StreamWriter] = []

    class Stray(Peer):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            stray.append(writer)
            await super().serve(reader, writer)

    peer = Stray(b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n")
    async with listening(peer) as sender:
        first = await post(sender, peer.url)
        stray[0].write(OK)
        if seen_by_the_loop:
            asyncio.get_running_loop().call_later(0.1, written.set)
            await written.wait()
        second = await post(sender, peer.url)
    assert [first.status, second.status] == [500, 500]
    assert peer.connections == 2


async def test_tls_is_checked(tmp_path: Path) -> None:
    certificate = _certificate(tmp_path)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate)
    peer = Peer(OK)
    async with listening(peer, ssl=serving) as sender:
        assert (await post(sender, peer.url)).error == "the TLS handshake failed: certificate or protocol rejected"
        connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=str(certificate)))
        try:
            for _ in range(2):
                reply = await Http1(connector).post(peer.url, {}, b"body")
                assert (reply.status, await reply.read(100)) == (200, b"ok")
        finally:
            await connector.close()
    assert len(peer.heads) == 2


def _certificate(directory: Path) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = directory / "certificate.pem"
    secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(secret + made.public_bytes(serialization.Encoding.PEM))
    return path
