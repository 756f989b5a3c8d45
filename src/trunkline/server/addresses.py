"""Addresses to listen on."""

from __future__ import annotations

import ipaddress

from trunkline.errors import SettingsError


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_address(host: str, *, tokens: bool) -> None:
    """Without tokens whoever reaches the port may do everything: so only this machine may reach it."""
    if not tokens and not is_loopback(host):
        raise SettingsError(
            f"refusing to listen on {host} without tokens: whoever reaches it could read and delete everything",
            hint="make one with `trunkline token create`, or listen on 127.0.0.1",
        )
