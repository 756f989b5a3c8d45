"""Urls that are rejected when an endpoint is created, and those that dispatchers must be allowed to send to."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address, ip_network

import psycopg
import pytest

from tests.conftest import Connection
from tests.push.test_dispatch import value
from tests.push.test_egress import SPELLINGS
from trunkline.push import egress
from trunkline.push.egress import Blocked, Guard

EVERYTHING = ("0.0.0.0/0", "::/0")


REFUSED = [
    ("http://example.com:99999/", "URL port must be between 1 and 65535, got 99999", "from 1 to 65535"),
    ("http://example.com:0/", "URL port must be between 1 and 65535, got 0", "from 1 to 65535"),
    ("http://[2606:4700::1]:70000/", "URL port must be between 1 and 65535, got 70000", "from 1 to 65535"),
    ("http://169.254.169.254/latest/meta-data", "network 169.254.0.0/16 is never allowed", "public address"),
    ("http://[fe80::1]/", "network fe80::/10 is never allowed", "public address"),
    ("http://[::ffff:169.254.169.254]/", "network 169.254.0.0/16 is never allowed", "public address"),
    ("http://224.0.0.1/", "network 224.0.0.0/4 is never allowed", "public address"),
    ("http://2130706433/", "is numeric, but not an IP address", "192.0.2.7"),
    ("http://127.1/", "is numeric, but not an IP address", "192.0.2.7"),
    ("http://127.0.0.01/", "is numeric, but not an IP address", "192.0.2.7"),
    ("http://1.2.3.999/", "is numeric, but not an IP address", "192.0.2.7"),
    ("http://[1::2::3]/", "is numeric, but not an IP address", "192.0.2.7"),
    ("http://[fe80::1%25eth0]/", "must be an ASCII name or an IP address", "[2001:db8::7]"),
    ("http://bücher.example/", "must be an ASCII name or an IP address", "xn--"),
    ("http://example.com:/", "must be an ASCII name or an IP address", ":port"),
]


def refusal(conn: Connection, url: str) -> psycopg.Error | None:
    try:
        conn.execute("select trunkline._check_url(%s)", (url,))
    except psycopg.Error as exc:
        return exc
    return None


def test_what_no_dispatcher_would_send_to_is_refused(conn: Connection) -> None:
    conn.execute("select trunkline.create_endpoint('there', 'https://example.com/')")
    for url, words, hint in REFUSED:
        for call in ("create_endpoint('e', %s)", "alter_endpoint('there', %s)"):
            with pytest.raises(psycopg.Error) as refused:
                conn.execute(f"select trunkline.{call}".encode(), (url,))
            assert refused.value.sqlstate == "TL001", url
            assert words in str(refused.value.diag.message_primary), url
            assert hint in str(refused.value.diag.message_hint), url
    assert conn.execute("select name, url from trunkline.list_endpoints()").fetchall() == [("there", "https://example.com/")]


def test_private_addresses_are_taken_with_a_notice(conn: Connection) -> None:
    notices: list[str] = []
    conn.add_notice_handler(lambda notice: notices.append(str(notice.message_primary)))
    cases = {
        "http://10.1.2.3:8080/x": "10.0.0.0/8",
        "http://127.0.0.1/": "127.0.0.0/8",
        "http://[fd12::7]/": "fc00::/7",
        "http://localhost:8080/process": "127.0.0.0/8",
        "https://example.com:65535/?at=10.0.0.1": None,
        "http://1.1.1.1/": None,
        "http://[2606:4700::1111]:443": None,
    }
    for number, (url, network) in enumerate(cases.items()):
        notices.clear()
        conn.execute("select trunkline.create_endpoint(%s, %s)", (f"e{number}", url))
        assert value(conn, "select trunkline.needed_network(%s)", url) == network
        assert len(notices) == (network is not None)
        if network:
            assert f"--push-allow {network} or TRUNKLINE_PUSH_ALLOW={network}" in notices[0]
    conn.execute("select trunkline.alter_endpoint('e5', 'http://192.168.1.1/')")
    assert "192.168.0.0/16" in notices[0]


def test_the_database_and_the_guard_agree(conn: Connection) -> None:
    """Of addresses: what is never sent to, what must be allowed, and what is free. Of spellings: none is taken as free."""
    tables = (*egress._NEVER, *egress._DENIED_4, *egress._DENIED_6, *egress._OTHER_6)
    edges = {edge for network in tables for edge in (network[0], network[-1])}
    edges |= {edge + 1 for edge in edges if int(edge) + 1 < 2**edge.max_prefixlen}
    # IPv6 addresses that lead to an IPv4 address (NAT64, 6to4)
    inner = {int(edge) for edge in edges if edge.version == 4}
    edges |= {IPv6Address(int(IPv6Address("64:ff9b::")) + address) for address in inner}
    edges |= {IPv6Address(0x2002 << 112 | address << 80 | 1) for address in inner}
    edges |= {ip_address("5f00::1"), ip_address("1.1.1.1"), ip_address("::ffff:10.0.0.1"), ip_address("::ffff:1.1.1.1")}
    for address in edges:
        url = f"http://[{address}]/" if address.version == 6 else f"http://{address}/"
        assert (refusal(conn, url) is None) == Guard(EVERYTHING).allows(address), address
        if refusal(conn, url) is None:
            network = value(conn, "select trunkline.needed_network(%s)", url)
            assert (network is None) == Guard().allows(address), address
            assert network is None or Guard([str(ip_network(network))]).allows(address), address
    for url in SPELLINGS:
        if refusal(conn, url) is None:
            assert value(conn, "select trunkline.needed_network(%s)", url) is not None, url
        elif "localhost" not in url.lower():
            with pytest.raises(Blocked):
                Guard(EVERYTHING).check_url(url)
