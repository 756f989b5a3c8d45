"""The egress guard: requests go only to allowed addresses, and the address checked is the one connected to.

The check sits where a socket is made for one address, after all resolving: a name that changes its answer, an address in an
odd spelling, and every retry pass it alike.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any
from urllib.parse import urlsplit

from trunkline.errors import SettingsError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# Never, also when an allow-list names them: this host, link-local (cloud metadata), multicast, broadcast.
_NEVER = tuple(map(ip_network, ("0.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "255.255.255.255/32", "::/128", "fe80::/10",
                                "fec0::/10", "ff00::/8", "fd00:ec2::/32")))  # fmt: skip
_DENIED_4 = tuple(map(IPv4Network, (
    "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24",
    "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24",
    "203.0.113.0/24", "240.0.0.0/4",
)))  # fmt: skip
# Of IPv6 only global unicast, and not the parts of it that carry an IPv4 address or belong to nobody.
_GLOBAL_6 = IPv6Network("2000::/3")
_DENIED_6 = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))
_LAST_LABEL_IS_NUMBER = re.compile(r"(?:^|\.)(?:\d+|0[xX][0-9a-fA-F]*)\.?$")


class Blocked(OSError):
    """The address is not one that requests may go to. The words do not say which one it is."""


class Guard:
    """What may be connected to: the public internet, and the networks of the allow-list."""

    def __init__(self, allow: Iterable[str] = ()) -> None:
        self.allow = tuple(_network(text) for text in allow)
        self._passed: set[str] = set()

    def check_address(self, text: str) -> None:
        """Raise `Blocked` unless requests may go to this address."""
        if not self.allows(ip_address(text.partition("%")[0])):
            raise Blocked("the address is not allowed")

    def allows(self, address: Address) -> bool:
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        if any(address in network for network in _NEVER if network.version == address.version):
            return False
        if any(address in network for network in self.allow if network.version == address.version):
            return True
        if isinstance(address, IPv4Address):
            return not any(address in network for network in _DENIED_4)
        return address in _GLOBAL_6 and not any(address in network for network in _DENIED_6)

    def check_url(self, url: str) -> None:
        """Raise `Blocked` for what needs no resolving to be refused: schemes, credentials, odd spellings, addresses."""
        if url not in self._passed:
            self._read_url(url)
            self._passed.add(url)

    def _read_url(self, url: str) -> None:
        if any(c <= " " or c in "\\\x7f" for c in url):
            raise Blocked("the url has characters that do not belong there")
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            raise Blocked("the url cannot be read") from None
        if parts.scheme not in ("http", "https"):
            raise Blocked("only http and https are allowed")
        if not host or "@" in parts.netloc:
            raise Blocked("the url has no host, or credentials in it")
        if not host.isascii():
            # digits and dots of other scripts become plain ones later
            raise Blocked("the host is not plain ASCII; write it in its xn-- form")
        literal = _literal(host)
        if literal is not None:
            self.check_address(literal)
        elif _LAST_LABEL_IS_NUMBER.search(host) or not re.fullmatch(r"[A-Za-z0-9._-]+", host):
            raise Blocked("the host is neither a name nor an address in its usual form")

    def open_socket(self, info: tuple[Any, ...]) -> socket.socket:
        """A socket for one resolved address, if requests may go there."""
        family, kind, protocol, _, address = info
        self.check_address(address[0])
        return socket.socket(family, kind, protocol)


def _literal(host: str) -> str | None:
    try:
        return str(ip_address(host))
    except ValueError:
        return None


def _network(text: str) -> Network:
    try:
        return ip_network(text.strip(), strict=False)
    except ValueError:
        raise SettingsError(f"{text!r} is not a network", hint="write it as 10.1.0.0/16 or fd12::/32") from None
