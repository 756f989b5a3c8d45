"""Protects servers without tokens from web pages in a local browser (CSRF, DNS rebinding)."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from trunkline.server.listen import is_loopback
from trunkline.server.problems import Problem


def foreign(headers: Any, host: str) -> Problem | None:
    """Return the error for a request with a foreign Host or Origin, or None if it is local."""
    hosts = [value.decode("latin-1").lower() for name, value in headers if name == b"host"]
    if len(hosts) > 1:
        return Problem(400, "bad_host", "header host must occur only once")
    asked = hosts[0] if hosts else host
    if not _is_here(asked, host):
        return Problem(421, "wrong_host", "without tokens, the Host header must name this machine")
    for name, value in headers:
        if name == b"origin" and value.partition(b"://")[2].decode("latin-1").lower() != asked:
            return Problem(403, "cross_origin", "without tokens, cross-origin requests are refused")
        if name == b"sec-fetch-site" and value in (b"cross-site", b"same-site"):
            return Problem(403, "cross_origin", "without tokens, cross-site requests are refused")
    return None


@lru_cache(maxsize=64)
def _is_here(asked: str, host: str) -> bool:
    bare = asked.rpartition(":")[0] if re.search(r":\d+$", asked) else asked
    return bare == host or is_loopback(bare.strip("[]"))


def hides_its_origin(headers: Any) -> bool:
    """Detect browsers too old to send Origin or Sec-Fetch-Site: their GETs and forms may come from any page."""
    names = {name for name, _ in headers}
    agents = [value for name, value in headers if name == b"user-agent"]
    # PowerShell calls itself Mozilla too
    browser = any(agent.startswith(b"Mozilla/") and b"PowerShell/" not in agent for agent in agents)
    return browser and not names & {b"origin", b"sec-fetch-site"}
