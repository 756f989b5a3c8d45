"""Checks of listen addresses."""

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
    """Refuse any address but loopback when the server has no tokens: everyone who can connect has all rights."""
    if not tokens and not is_loopback(host):
        raise SettingsError(
            f"refusing to listen on {host} without tokens: every client could read and delete everything",
            hint="Create a token with `trunkline token create`, or listen on 127.0.0.1.",
        )
