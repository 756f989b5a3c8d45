"""Who may do what: tokens, their scopes, the rate they are allowed, and the audit log of what administrators do."""

from __future__ import annotations

import hmac
import re
import time
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import msgspec

from trunkline import Client
from trunkline.db import tokens
from trunkline.db.tokens import Token
from trunkline.server.config import Config
from trunkline.server.problems import Problem, busy
from trunkline.server.routing import Doc

_FRESH_SECONDS = 2.0
_TOKEN = re.compile(r"tl_([0-9a-f]{16})_([0-9a-f]{64})")
_NOBODY = "0" * 64
_MOST_BUCKETS = 10_000
IN_BODY = "@body"
"""The route finds out itself which topic or queue it is about."""


class Caller(msgspec.Struct, frozen=True):
    """Who asks. Without a token: somebody on this machine, who may do everything."""

    name: str
    scopes: tuple[str, ...] | None

    def may(self, scope: str, name: str | None) -> bool:
        """Whether this is allowed on a topic or queue; None: on all of them; IN_BODY: on one that is not known yet."""
        if self.scopes is None:
            return True
        for entry in self.scopes:
            verb, _, pattern = entry.partition(":")
            if verb not in (scope, "admin"):
                continue
            if name == IN_BODY or (pattern == "*" if name is None else _matches(pattern, name)):
                return True
        return False


@lru_cache(maxsize=4096)
def _matches(pattern: str, name: str) -> bool:
    """`*` stands for any characters. Greedy from left to right: linear in the length of the name for each part."""
    first, *rest = pattern.split("*")
    if not rest:
        return pattern == name
    if not name.startswith(first) or not name[len(first) :].endswith(rest[-1]):
        return False
    place, end = len(first), len(name) - len(rest[-1])
    for part in rest[:-1]:
        found = name.find(part, place, end)
        if found < 0:
            return False
        place = found + len(part)
    return place <= end


_LOCAL = Caller("local", None)


class Access:
    """The doorkeeper of a worker. A revoked token is refused within seconds."""

    def __init__(self, config: Config, mq: Client) -> None:
        self._config = config
        self._mq = mq
        self._known: dict[str, Token] = {}
        self._read_at = -_FRESH_SECONDS
        self._skew = timedelta(0)
        self._buckets: dict[str, tuple[float, float]] = {}

    async def admit(self, scope: Any, doc: Doc) -> None:
        """Let the request of this ASGI scope pass, or raise 401, 403 or 429."""
        if doc.scope == "public":
            return
        caller = await self._caller(scope) if self._config.require_token else _LOCAL
        scope["trunkline_caller"] = caller
        self._check_rate(caller.name if caller.scopes is not None else (scope.get("client") or ("", 0))[0])
        name = doc.object if doc.object in (None, IN_BODY) else scope["path_params"][doc.object]
        if not caller.may(doc.scope, name):
            raise _denied(doc.scope, None if name == IN_BODY else name)
        if doc.audit is True and name != IN_BODY:
            await self._record(scope, caller, name or _object(scope))

    async def allow(self, scope: Any, verb: str, name: str) -> None:
        """For routes whose body names the topic or queue: the second half of `admit`."""
        caller = self.check(scope, verb, name)
        if scope["route_handler"].opt["doc"].audit:
            await self._record(scope, caller, name)

    async def record(self, scope: Any, name: str) -> None:
        """For routes whose body names neither a topic nor a queue: write what they are about to do into the audit log."""
        await self._record(scope, scope.get("trunkline_caller", _LOCAL), name)

    def check(self, scope: Any, verb: str, name: str) -> Caller:
        """Raise 403 unless the caller may do this to a topic or queue."""
        caller: Caller = scope.get("trunkline_caller", _LOCAL)
        if not caller.may(verb, name):
            raise _denied(verb, name)
        return caller

    async def _caller(self, scope: Any) -> Caller:
        found = [value for key, value in scope["headers"] if key == b"authorization"]
        if len(found) != 1 or found[0][:7].lower() != b"bearer ":
            raise _unknown("unauthenticated", "this needs a token: Authorization: Bearer <token>")
        match = _TOKEN.fullmatch(found[0][7:].strip().decode("latin-1"))
        if time.monotonic() - self._read_at > _FRESH_SECONDS:
            await self._read()
        token = self._known.get(match[1]) if match else None
        digest = tokens.digest(match[2] if match else _NOBODY)
        now = datetime.now(tz=None).astimezone() + self._skew
        # the same work whether the token is known or not
        good = hmac.compare_digest(digest, token.hash if token else tokens.digest(_NOBODY))
        old = hmac.compare_digest(digest, (token.old_hash if token else None) or tokens.digest(_NOBODY))
        if token is None or not (good or (old and token.old_until is not None and token.old_until > now)):
            raise _unknown("unauthenticated", "this token is not known")
        if token.revoked_at is not None:
            raise _unknown("token_revoked", "this token was revoked")
        if token.expires_at is not None and token.expires_at <= now:
            raise _unknown("token_expired", "this token has expired")
        return Caller(token.name, tuple(token.scopes))

    async def _read(self) -> None:
        self._read_at = time.monotonic()
        async with self._mq.connection() as conn:
            self._known = {token.token_id: token for token in await tokens.list_tokens(conn)}
            self._skew = await tokens.now(conn) - datetime.now(tz=None).astimezone()

    def _check_rate(self, who: str) -> None:
        """A bucket per caller that holds one second's worth of requests."""
        rate = self._config.rate
        if rate is None:
            return
        now = time.monotonic()
        left, at = self._buckets.get(who, (rate, now))
        left = min(max(rate, 1.0), left + (now - at) * rate)
        if left < 1:
            self._buckets[who] = (left, now)
            raise busy(f"more than {rate:g} requests per second", status=429, error="rate_limited", after=(1 - left) / rate)
        if len(self._buckets) > _MOST_BUCKETS:
            self._buckets.clear()
        self._buckets[who] = (left - 1, now)

    async def _record(self, scope: Any, caller: Caller, name: str | None) -> None:
        address = (scope.get("client") or (None, 0))[0]
        action = f"{scope['method']} {scope['path_template']}"
        async with self._mq.connection() as conn:
            await tokens.record_audit(conn, actor=caller.name, address=address, action=action, object=name)


def _object(scope: Any) -> str | None:
    """What the path names, where it is neither a topic nor a queue."""
    return ", ".join(str(value) for value in scope["path_params"].values()) or None


def _unknown(error: str, detail: str) -> Problem:
    return Problem(401, error, detail, headers={"www-authenticate": 'Bearer realm="trunkline"'})


def _denied(scope: str, name: str | None) -> Problem:
    return Problem(403, "missing_scope", f"this needs the scope {scope}:{name or '*'}")
