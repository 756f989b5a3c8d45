"""The egress guard: requests reach allowed addresses only, and the address checked is the address connected to.

The check runs where the socket for a resolved address is opened. Changing DNS records, odd address spellings and
retries cannot bypass it.
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

# Always denied, even if an allow-list contains them: this host, link-local (cloud metadata), Alibaba's metadata, the
# Azure host address, multicast, broadcast.
_NEVER = tuple(map(ip_network, ("0.0.0.0/8", "100.100.100.200/32", "168.63.129.16/32", "169.254.0.0/16", "224.0.0.0/4",
                                "255.255.255.255/32", "::/128", "fe80::/10", "fec0::/10", "ff00::/8",
                                "fd00:ec2::/32")))  # fmt: skip
_DENIED_4 = tuple(map(IPv4Network, (
    "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24",
    "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24",
    "203.0.113.0/24", "240.0.0.0/4",
)))  # fmt: skip
# IPv6: only global unicast is allowed, except ranges that embed an IPv4 address or are unassigned.
_GLOBAL_6 = IPv6Network("2000::/3")
_DENIED_6 = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))
_NAT64 = IPv6Network("64:ff9b::/96")
# Known networks outside global unicast. Any other address is reported by its first 16 bits.
_OTHER_6 = tuple(map(IPv6Network, ("::1/128", "::/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "fc00::/7")))
_LAST_LABEL_IS_NUMBER = re.compile(r"(?:^|\.)(?:\d+|0[xX][0-9a-fA-F]*)\.?$")


class Blocked(OSError):
    """The address is always denied. The message names at most a network, never the address."""


class NotAllowed(Blocked):
    """The address is not in this dispatcher's allow-list; another dispatcher may permit it."""


class Connecting:
    """The guard's decisions for the addresses of one request."""

    def __init__(self) -> None:
        self.allowed = 0
        self.refused: list[Blocked] = []

    @property
    def refusal(self) -> Blocked | None:
        """The reason no address was allowed. None if one was: the failure is then the receiver's."""
        if self.allowed or not self.refused:
            return None
        return next((each for each in self.refused if isinstance(each, NotAllowed)), self.refused[0])


# A request may try several addresses in separate tasks, which inherit this variable.
_CONNECTING: ContextVar[Connecting] = ContextVar("trunkline_connecting")


def connecting() -> Connecting:
    """Record the guard's decisions for this task and its child tasks from now on."""
    noted = Connecting()
    _CONNECTING.set(noted)
    return noted


class Guard:
    """Allows the public internet and the networks of the allow-list."""

    def __init__(self, allow: Iterable[str] = ()) -> None:
        self.allow = tuple(_network(text) for text in allow)
        self._passed: set[str] = set()

    def check_address(self, text: str) -> None:
        """Raise `Blocked` unless requests to this address are allowed."""
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
        """Raise `Blocked` for what can be denied without DNS: scheme, credentials, odd spellings, literal addresses."""
        if url not in self._passed:
            self._read_url(url)
            self._passed.add(url)

    def _read_url(self, url: str) -> None:
        if any(c <= " " or c in "\\\x7f" for c in url):
            raise Blocked("the url contains spaces, control characters or backslashes")
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            raise Blocked("the url is not valid") from None
        if parts.scheme not in ("http", "https"):
            raise Blocked("the url scheme must be http or https")
        if not host or "@" in parts.netloc:
            raise Blocked("the url has no host or contains credentials")
        if not host.isascii():
            # digits and dots of other scripts are normalised to ASCII later
            raise Blocked("the host is not ASCII; use its xn-- form")
        literal = _literal(host)
        if literal is not None:
            self.check_address(literal)
        elif _LAST_LABEL_IS_NUMBER.search(host) or not re.fullmatch(r"[A-Za-z0-9._-]+", host):
            raise Blocked("the host is neither a name nor an address in its usual form")

    def open_socket(self, info: tuple[Any, ...]) -> socket.socket:
        """Open a socket for one resolved address. Raise `Blocked` if the address is denied."""
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
    """Unwrap an IPv4-mapped IPv6 address."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _never(address: Address) -> Network | None:
    """Return the always-denied network of an address, including IPv4 addresses embedded by NAT64 or 6to4."""
    address = _plain(address)
    if isinstance(address, IPv6Address):
        inner = address.sixtofour or (IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None)
        if inner is not None:
            return _network_of(inner, _NEVER)
    return _network_of(address, _NEVER)


def _network_of(address: Address, networks: Iterable[Network]) -> Network | None:
    return next((network for network in networks if network.version == address.version and address in network), None)


def _denied(address: Address) -> Network | None:
    """Return the network that is denied by default, or None for the public internet."""
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
        raise SettingsError(f"{text!r} is not a network", hint="Write networks as 10.1.0.0/16 or fd12::/32.") from None
