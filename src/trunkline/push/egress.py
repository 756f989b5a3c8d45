"""The egress guard: requests go only to allowed addresses, and the address checked is the one connected to.

The check sits where a socket is made for one address, after all resolving: a name that changes its answer, an address in an
odd spelling, and every retry pass it alike.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from contextvars import ContextVar
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any
from urllib.parse import urlsplit

from trunkline.errors import SettingsError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# Never, also when an allow-list names them: this host, link-local (cloud metadata), Alibaba's metadata, the host of Azure's
# virtual machines, multicast, broadcast.
_NEVER = tuple(map(ip_network, ("0.0.0.0/8", "100.100.100.200/32", "168.63.129.16/32", "169.254.0.0/16", "224.0.0.0/4",
                                "255.255.255.255/32", "::/128", "fe80::/10", "fec0::/10", "ff00::/8",
                                "fd00:ec2::/32")))  # fmt: skip
_DENIED_4 = tuple(map(IPv4Network, (
    "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24",
    "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24",
    "203.0.113.0/24", "240.0.0.0/4",
)))  # fmt: skip
# Of IPv6 only global unicast, and not the parts of it that carry an IPv4 address or belong to nobody.
_GLOBAL_6 = IPv6Network("2000::/3")
_DENIED_6 = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))
_NAT64 = IPv6Network("64:ff9b::/96")
# Of the rest these have a name of their own; the others are called by their first 16 bits.
_OTHER_6 = tuple(map(IPv6Network, ("::1/128", "::/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "fc00::/7")))
_LAST_LABEL_IS_NUMBER = re.compile(r"(?:^|\.)(?:\d+|0[xX][0-9a-fA-F]*)\.?$")


class Blocked(OSError):
    """Requests never go there, whatever is allowed. The words name a network at most, not the address in it."""


class NotAllowed(Blocked):
    """The allow-list does not name the address's network; that of another dispatcher may."""


class Connecting:
    """What the guard said to the addresses of one request."""

    def __init__(self) -> None:
        self.allowed = 0
        self.refused: list[Blocked] = []

    @property
    def refusal(self) -> Blocked | None:
        """Why the request could not be made; None when one of the addresses was allowed: then the receiver failed."""
        if self.allowed or not self.refused:
            return None
        return next((each for each in self.refused if isinstance(each, NotAllowed)), self.refused[0])


# A request may try several addresses, in tasks of their own: they inherit it.
_CONNECTING: ContextVar[Connecting] = ContextVar("trunkline_connecting")


def connecting() -> Connecting:
    """From now on the guard notes here what it says, for this task and those that it starts."""
    noted = Connecting()
    _CONNECTING.set(noted)
    return noted


class Guard:
    """What may be connected to: the public internet, and the networks of the allow-list."""

    def __init__(self, allow: Iterable[str] = ()) -> None:
        self.allow = tuple(_network(text) for text in allow)
        self._passed: set[str] = set()

    def check_address(self, text: str) -> None:
        """Raise `Blocked` unless requests may go to this address."""
        address = ip_address(text.partition("%")[0])
        if self.allows(address):
            return
        never = _never(address)
        if never is not None:
            raise Blocked(f"the address is in {never}, where requests never go")
        network = _denied(_plain(address))
        raise NotAllowed(
            f"the address is in {network}, which this dispatcher may not send to; "
            f"start it with --push-allow {network} or TRUNKLINE_PUSH_ALLOW={network}"
        )

    def allows(self, address: Address) -> bool:
        if _never(address) is not None:
            return False
        address = _plain(address)
        return _network_of(address, self.allow) is not None or _denied(address) is None

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
        noted = _CONNECTING.get(None)
        try:
            self.check_address(address[0])
        except Blocked as exc:
            if noted is not None:
                noted.refused.append(exc)
            raise
        if noted is not None:
            noted.allowed += 1
        return socket.socket(family, kind, protocol)


def _plain(address: Address) -> Address:
    """An IPv4 address in IPv6 clothes is judged as what it is."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _never(address: Address) -> Network | None:
    """The network that no allow-list opens, also where an IPv6 address only leads to it (NAT64, 6to4)."""
    address = _plain(address)
    if isinstance(address, IPv6Address):
        inner = address.sixtofour or (IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None)
        if inner is not None:
            return _network_of(inner, _NEVER)
    return _network_of(address, _NEVER)


def _network_of(address: Address, networks: Iterable[Network]) -> Network | None:
    return next((network for network in networks if network.version == address.version and address in network), None)


def _denied(address: Address) -> Network | None:
    """The network that is refused unless it is allowed; None: the public internet."""
    if isinstance(address, IPv4Address):
        return _network_of(address, _DENIED_4)
    if address in _GLOBAL_6:
        return _network_of(address, _DENIED_6)
    return _network_of(address, _OTHER_6) or IPv6Network((int(address), 16), strict=False)


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
