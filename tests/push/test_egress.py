"""The egress guard: what is refused by its spelling, and what is refused when it is connected to."""

from __future__ import annotations

import asyncio
import socket
import time
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import pytest
from aiohttp import web

from tests.push.receivers import Receiver, Seen, receiving
from trunkline.errors import SettingsError
from trunkline.push.egress import Blocked, Guard
from trunkline.push.outcomes import Reply
from trunkline.push.request import trial
from trunkline.push.sender import Sender

SECRET = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="

# Loopback and friends in every spelling that resolvers, libc and browsers are known to read.
SPELLINGS = (Path(__file__).parent / "spellings.txt").read_text(encoding="utf-8").splitlines()


class Names(aiohttp.abc.AbstractResolver):
    """A resolver under the test's control: each query gets the next result, the last one repeatedly."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def resolve(self, host: str, port: int = 0, family: int = socket.AF_INET) -> list[Any]:
        self.asked += 1
        address = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        version = socket.AF_INET6 if ":" in address else socket.AF_INET
        return [{"hostname": host, "host": address, "port": port, "family": version, "proto": 0, "flags": 0}]

    async def close(self) -> None:
        pass


async def post(sender: Sender, url: str) -> Reply:
    return await sender.send(url, trial(uuid4()), secrets=[SECRET], headers={}, timeout=5, stamp=int(time.time()))


def test_there_are_enough_spellings() -> None:
    assert len(set(SPELLINGS)) >= 90


async def test_no_spelling_reaches_a_forbidden_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the url check lets through is refused when the socket is made: no connect is ever tried."""
    tried: list[Any] = []

    async def connect(self: Any, sock: socket.socket, address: Any) -> None:
        tried.append(address)
        raise OSError("a connect was tried")

    monkeypatch.setattr(type(asyncio.get_running_loop()), "sock_connect", connect)
    sender = Sender(Guard())
    try:
        for url in SPELLINGS:
            answer = await post(sender, url)
            assert answer.status is None, url
            assert answer.error is not None
            # the words name a network of the table, not the address in it
            assert "127.0.0.1" not in answer.error and "a9fe" not in answer.error, (url, answer.error)
    finally:
        await sender.close()
    assert tried == []


@pytest.mark.parametrize("url", [url for url in SPELLINGS if "localhost" not in url.lower()])
def test_spellings_are_refused_before_anything_is_resolved(url: str) -> None:
    with pytest.raises(Blocked):
        Guard().check_url(url)


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "93.184.216.34", "172.15.255.255", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2a00:1450::1"]
)
def test_the_public_internet_is_allowed(address: str) -> None:
    assert Guard().allows(ip_address(address))


def test_an_allow_list_opens_networks_but_never_link_local_or_multicast() -> None:
    guard = Guard(["10.1.0.0/16", "fd12::/32"])
    assert guard.allows(ip_address("10.1.2.3"))
    assert guard.allows(ip_address("::ffff:10.1.2.3"))
    assert guard.allows(ip_address("fd12::1"))
    assert not guard.allows(ip_address("10.2.0.1"))
    everything = Guard(["0.0.0.0/0", "::/0"])
    for address in ("169.254.169.254", "::ffff:169.254.169.254", "fe80::1", "fd00:ec2::254", "224.0.0.1", "0.0.0.0", "::",
                    "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::", "168.63.129.16", "::ffff:168.63.129.16",
                    "64:ff9b::a83f:8110", "100.100.100.200"):  # fmt: skip
        assert not everything.allows(ip_address(address)), address
    with pytest.raises(SettingsError):
        Guard(["10.0.0.0/40"])


async def test_a_name_that_changes_its_answer_is_checked_at_each_connect() -> None:
    """DNS rebinding: allowed when it was first connected to, forbidden later. The address of the connection counts."""

    def answer(seen: Seen) -> web.Response:
        response = web.Response()
        response.force_close()
        return response

    names = Names("127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "127.0.0.1")
    sender = Sender(Guard(["127.0.0.0/8"]), resolver=names)
    connector = sender._connector
    answers = []
    with receiving(answer) as receiver:
        try:
            for _ in range(5):
                answers.append(await post(sender, f"http://rebind.example:{receiver.port}/"))
                connector.clear_dns_cache()
        finally:
            await sender.close()
        assert [each.status for each in answers] == [200, None, None, None, 200]
        networks = ["10.0.0.0/8", "169.254.0.0/16", "::1/128"]
        for each, network in zip(answers[1:4], networks, strict=True):
            assert (each.error or "").startswith(f"the address is in {network}, wh")
        assert len(receiver.seen) == 2
    assert names.asked == 5


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("127.0.0.1", "127.0.0.0/8"),
        ("10.0.0.1", "10.0.0.0/8"),
        ("::1", "::1/128"),
        ("64:ff9b::7f00:1", "64:ff9b::/96"),
        ("::ffff:127.0.0.1", "127.0.0.0/8"),
        ("fd12::7", "fc00::/7"),
        ("5f00::1", "5f00::/16"),
        # no setting opens these
        ("169.254.169.254", None),
        ("64:ff9b::a9fe:a9fe", None),
        ("2002:a9fe:a9fe::1", None),
    ],
)
async def test_a_name_that_points_inside_is_refused(receiver: Receiver, address: str, network: str | None) -> None:
    sender = Sender(Guard(), resolver=Names(address))
    try:
        answer = await post(sender, f"http://inside.example:{receiver.port}/")
    finally:
        await sender.close()
    assert (answer.status, answer.refused) == (None, network is not None)
    remedy = f"--push-allow {network} or TRUNKLINE_PUSH_ALLOW={network}" if network else "where requests never go"
    assert (answer.error or "").endswith(remedy)
    assert network is None or Guard([network]).allows(ip_address(address))
    assert receiver.seen == []


async def test_no_proxy_of_the_environment_is_used(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{receiver.port}")
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{receiver.port}")
    sender = Sender(Guard(["127.0.0.0/8"]), resolver=Names("10.0.0.1"))
    try:
        assert (await post(sender, "http://elsewhere.example/")).refused
    finally:
        await sender.close()
    assert receiver.seen == []
