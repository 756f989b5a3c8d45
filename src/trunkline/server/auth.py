"""Access control: tokens, scopes, rate limits, and the audit log of administrative calls."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from trunkline import Client
from trunkline.db.calls import tokens
from trunkline.db.calls.tokens import Token
from trunkline.errors import DatabaseUnavailable, TrunklineError
from trunkline.server.browsers import hides_its_origin
from trunkline.server.config import Config
from trunkline.server.limits import Limits, limited
from trunkline.server.problems import Problem, busy
from trunkline.server.routing import Doc

log = logging.getLogger("trunkline.server")
_FRESH_SECONDS = 2.0
"""Age of the token list after which it is read again."""
_STALE_SECONDS = 5.0
"""Age of the token list after which a request waits for a new one."""
_CONSOLE_SECONDS = 1.5
"""Maximum wait of a console page for the token list."""
_PAUSE_SECONDS = 0.25
"""Minimum time between two reads of the token list, regardless of the number of unknown tokens."""
_FAILURES_PER_SECOND = 5.0
_FAILURES_AT_ONCE = 20.0
_AUDIT_SECONDS = 60.0
_NOTE_SECONDS = 60.0
"""Time between two writes of the last use of a token."""
_AUDIT_MOST = 30
"""Limits of rejected tokens in the audit log: one entry per address in this time, and this many in all."""
_TOKEN = re.compile(r"tl_([0-9a-f]{16})_([0-9a-f]{64})")
_NOBODY = "0" * 64
_MOST_BUCKETS = 10_000
_HIDDEN = "<queue of the receipt>"
IN_BODY = "@body"
"""The topic or queue is named in the body; the route checks it."""
SOME = "@some"
"""The scope on any name is enough; the route shows only what matches."""
_GRANTED_BY = {
    "view": ("read", "operate", "admin"),
    "operate": ("admin",),
    **dict.fromkeys(("publish", "consume", "read"), ("admin",)),
}
"""Scopes that include a scope. `view` shows names, settings and numbers; `operate` acts without creating or deleting."""


class Credential(NamedTuple):
    """The token of a request: its id (None if malformed) and the digest of its secret."""

    token_id: str | None
    digest: bytes


class Caller(msgspec.Struct, frozen=True):
    """An authenticated caller. Without tokens: a local caller with all rights."""

    name: str
    scopes: tuple[str, ...] | None

    def may(self, scope: str, name: str | None) -> bool:
        """Return whether the scope is granted on a topic or queue. None: on all. IN_BODY, SOME: on any, checked later."""
        if self.scopes is None:
            return True
        for entry in self.scopes:
            verb, _, pattern = entry.partition(":")
            if verb != scope and verb not in _GRANTED_BY.get(scope, ()):
                continue
            if name in (IN_BODY, SOME) or (pattern == "*" if name is None else _matches(pattern, name)):
                return True
        return False

    def has_portal(self, endpoint: str | None) -> bool:
        """Return whether the token is for the portal of this endpoint; SOME: of any. Such a scope has no wildcards."""
        if endpoint == SOME:
            return any(entry.startswith("portal:") for entry in self.scopes or ())
        return self.scopes is not None and f"portal:{endpoint}" in self.scopes


@lru_cache(maxsize=4096)
def _matches(pattern: str, name: str) -> bool:
    """Match a pattern in which `*` stands for any characters. Greedy from left to right, so linear per part."""
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


class Auth:
    """Admits the requests of a worker. A revoked token is rejected within seconds; a new one works immediately."""

    def __init__(self, config: Config, mq: Client, refused: Callable[[str], None] = lambda reason: None) -> None:
        self._config = config
        self._mq = mq
        self._count_refused = refused
        self._known: dict[str, Token] = {}
        self._read_at = float("-inf")
        """Start time of the last successful read of the token list."""
        self._tried_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None
        self._skew = timedelta(0)
        self._buckets: dict[str, tuple[float, float]] = {}
        self._failures: dict[str, tuple[float, float]] = {}
        self._audited: dict[str, float] = {}
        self._noted: dict[str, float] = {}
        """The time at which the use of a token was last written."""
        self._unnoted: set[str] = set()
        self._noting: asyncio.Task[None] | None = None
        self._watches: dict[asyncio.Future[Problem], Credential | None] = {}
        self._watcher: asyncio.Task[None] | None = None
        self.session_of: Callable[[Any], Awaitable[Credential | None]] | None = None
        """Returns the token of a console request's session."""

    @property
    def open(self) -> bool:
        """True if requests need no token. The first token ends that, unless the server runs with --no-require-token."""
        required = self._config.require_token
        return not self._known if required is None else not required

    async def admit(self, scope: Any, doc: Doc) -> None:
        """Admit the request of this ASGI scope, or raise 401, 403 or 429."""
        if doc.scope == "public":
            return
        if self._config.require_token is not False:
            await (self._refresh_if_possible() if doc.console else self._refresh())
        if self.open and doc.scope not in ("read", "view") and hides_its_origin(scope["headers"]):
            # forms of any page, and GETs that claim messages, for compatibility with other systems
            raise Problem(403, "cross_origin", "without tokens, browsers must send an Origin or Sec-Fetch-Site header")
        caller = _LOCAL if self.open else await self._caller(scope, doc)
        scope["trunkline_caller"] = caller
        self._check_rate(caller.name if caller.scopes is not None else _address(scope))
        name = doc.object if doc.object in (None, IN_BODY, SOME) else scope["path_params"][doc.object]
        if not caller.may(doc.scope, name):
            if not (doc.portal and caller.has_portal(name)):
                raise _denied(doc.scope, None if name in (IN_BODY, SOME) else name)
            scope["trunkline_portal"] = True
        if doc.audit is True and name != IN_BODY:
            await self._record(scope, caller, name or _object(scope))

    async def allow(
        self, scope: Any, verb: str, name: str, *, hide: bool = False, detail: Mapping[str, Any] | None = None
    ) -> None:
        """Complete `admit` for routes whose body names the topic or queue.

        `hide`: the caller did not name it, so the error must not either.
        """
        caller = self.check(scope, verb, name, hide=hide)
        if scope["route_handler"].opt["doc"].audit:
            await self._record(scope, caller, name, detail)

    async def record(self, scope: Any, name: str, detail: Mapping[str, Any] | None = None) -> None:
        """Write an audit entry for routes whose body names something other than a topic or queue."""
        await self._record(scope, scope.get("trunkline_caller", _LOCAL), name, detail)

    def caller_name(self, scope: Any) -> str:
        caller: Caller = scope.get("trunkline_caller", _LOCAL)
        return caller.name

    def allows(self, scope: Any, verb: str, name: str | None) -> bool:
        """Return whether the caller has this scope on a topic, queue or endpoint; None: on all."""
        caller: Caller = scope.get("trunkline_caller", _LOCAL)
        return caller.may(verb, name)

    def check(self, scope: Any, verb: str, name: str | None, *, hide: bool = False) -> Caller:
        """Raise 403 unless the caller has this scope on a topic, queue or endpoint; None: on all."""
        caller: Caller = scope.get("trunkline_caller", _LOCAL)
        if not caller.may(verb, name):
            raise _denied(verb, _HIDDEN if hide else name)
        return caller

    async def recheck(self, scope: Any) -> None:
        """Raise 401 if the token of a request was revoked or has expired since the request was admitted."""
        if self._config.require_token is not False:
            await self._refresh()
        problem = self._refusal(scope.get("trunkline_credential"))
        if problem is not None:
            problem.headers["connection"] = "close"
            raise problem

    @contextmanager
    def watch(self, scope: Any) -> Iterator[asyncio.Future[Problem]]:
        """Yield a future for long requests that resolves with the reason when their token is revoked or expires."""
        ended: asyncio.Future[Problem] = asyncio.get_running_loop().create_future()
        self._watches[ended] = scope.get("trunkline_credential")
        if self._watcher is None and self._config.require_token is not False:
            self._watcher = asyncio.create_task(self._keep_watch(), name="trunkline access")
        try:
            yield ended
        finally:
            del self._watches[ended]
            ended.cancel()

    def close(self) -> None:
        """Cancel the background tasks when the worker stops."""
        for task in (self._watcher, self._reading, self._noting):
            if task is not None:
                task.cancel()

    async def _keep_watch(self) -> None:
        """Check the tokens of long requests periodically while there are any."""
        try:
            while self._watches:
                await asyncio.sleep(_FRESH_SECONDS)
                # without a database nothing is delivered either
                with contextlib.suppress(TrunklineError):
                    await self._read()
                for ended, credential in list(self._watches.items()):
                    problem = self._refusal(credential)
                    if problem is not None and not ended.done():
                        ended.set_result(problem)
        finally:
            self._watcher = None

    def _refusal(self, credential: Credential | None) -> Problem | None:
        if self.open:
            return None
        try:
            self._check(credential)
        except Problem as exc:
            return exc
        return None

    async def _caller(self, scope: Any, doc: Doc) -> Caller:
        """Return the caller of the request's token or session, or raise 401."""
        credential = _shown(scope)
        if credential is None and doc.console and self.session_of is not None:
            credential = await self.session_of(scope)
        caller = await self.authenticate(scope, credential)
        scope["trunkline_credential"] = credential
        return caller

    async def authenticate(self, scope: Any, credential: Credential | None) -> Caller:
        """Return the caller with this token or raise 401. For an unknown token, read the list again."""
        arrived = time.monotonic()
        try:
            caller = self._check(credential)
        except Problem:
            self._limit_failures(scope)
            while credential is not None and self._read_at < arrived:
                await self._read()
            try:
                caller = self._check(credential)
            except Problem as exc:
                _take(self._failures, _address(scope), _FAILURES_PER_SECOND, _FAILURES_AT_ONCE)
                if credential is not None:
                    await self._report(scope, exc.error, credential)
                raise
        self._note_use(credential)
        return caller

    def _note_use(self, credential: Credential | None) -> None:
        """Write the time of use of a token, at most once a minute, beside the request."""
        token = None if credential is None else credential.token_id
        now = time.monotonic()
        if token is None or now - self._noted.get(token, float("-inf")) < _NOTE_SECONDS:
            return
        self._noted[token] = now
        if len(self._noted) > _MOST_BUCKETS:
            self._noted = {token: now}
        self._unnoted.add(token)
        if self._noting is None or self._noting.done():
            self._noting = asyncio.create_task(self._write_use(), name="trunkline token use")

    async def _write_use(self) -> None:
        with limited(Limits()), contextlib.suppress(TrunklineError):
            while self._unnoted:
                used, self._unnoted = self._unnoted, set()
                async with self._mq.connection() as conn:
                    await tokens.note_use(conn, sorted(used))

    def _check(self, credential: Credential | None) -> Caller:
        if credential is None:
            raise _unknown("unauthenticated", "authentication required: send Authorization: Bearer <token>")
        token = None if credential.token_id is None else self._known.get(credential.token_id)
        now = datetime.now(tz=None).astimezone() + self._skew
        # constant time, whether or not the token is known
        good = hmac.compare_digest(credential.digest, token.hash if token else tokens.digest(_NOBODY))
        old = hmac.compare_digest(credential.digest, (token.old_hash if token else None) or tokens.digest(_NOBODY))
        if token is None or not (good or (old and token.old_until is not None and token.old_until > now)):
            raise _unknown("unauthenticated", "unknown token")
        if token.revoked_at is not None:
            raise _unknown("token_revoked", "the token was revoked")
        if token.expires_at is not None and token.expires_at <= now:
            raise _unknown("token_expired", "the token has expired")
        return Caller(token.name, tuple(token.scopes))

    async def _refresh(self) -> None:
        """Read the token list if it is old. Wait for the read only if the list is stale or missing."""
        age = time.monotonic() - self._read_at
        if age > _STALE_SECONDS:
            await self._read()
        elif age > _FRESH_SECONDS:
            self._start_reading()

    async def _refresh_if_possible(self) -> None:
        """Refresh, or continue with the last list: without a database there is nothing to show, and nothing was revoked."""
        try:
            async with asyncio.timeout(_CONSOLE_SECONDS):
                await self._refresh()
        except (TrunklineError, TimeoutError):
            if self._read_at == float("-inf"):
                raise DatabaseUnavailable("the database does not respond") from None

    async def _read(self) -> None:
        """Read the token list, or join a read in progress. Raises if the database does not respond."""
        await asyncio.shield(self._start_reading())

    def _start_reading(self) -> asyncio.Task[None]:
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_tokens(), name="trunkline tokens")
            # retrieve the exception: a failed read is reported to the requests that wait for it
            self._reading.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._reading

    async def _read_tokens(self) -> None:
        await asyncio.sleep(self._tried_at + _PAUSE_SECONDS - time.monotonic())
        started = self._tried_at = time.monotonic()
        with limited(Limits()):
            async with self._mq.connection() as conn:
                known = {token.token_id: token for token in await tokens.list_tokens(conn)}
                self._skew = await tokens.now(conn) - datetime.now(tz=None).astimezone()
        self._known, self._read_at = known, started

    def _limit_failures(self, scope: Any) -> None:
        """Raise 429 for an address that keeps sending wrong tokens. Valid tokens are never limited here."""
        after = _take(self._failures, _address(scope), _FAILURES_PER_SECOND, _FAILURES_AT_ONCE, 0.0)
        if after is not None:
            self._count_refused("wrong_tokens")
            raise busy("too many requests with a missing or wrong token", status=429, error="rate_limited", after=after)

    async def _report(self, scope: Any, error: str, credential: Credential) -> None:
        """Count and log a wrong token, and audit the first per address and minute."""
        self._count_refused(error)
        address, now = _address(scope), time.monotonic()
        token = self._known.get(credential.token_id or "")
        fields = {"error": error, "address": address, "token": None if token is None else token.name}
        log.warning("token refused", extra={"fields": fields})
        self._audited = {who: at for who, at in self._audited.items() if now - at < _AUDIT_SECONDS}
        if address in self._audited or len(self._audited) >= _AUDIT_MOST:
            return
        self._audited[address] = now
        with contextlib.suppress(TrunklineError):
            await self._audit_refusal(address, error, fields["token"])

    async def _audit_refusal(self, address: str, error: str, token: str | None) -> None:
        async with self._mq.connection() as conn:
            await tokens.record_audit(
                conn, actor="unknown", address=address or None, action=f"token refused: {error}", object=token
            )

    def _check_rate(self, who: str) -> None:
        """Apply a token bucket per caller that holds one second's worth of requests."""
        rate = self._config.rate
        if rate is None:
            return
        after = _take(self._buckets, who, rate, max(rate, 1.0))
        if after is not None:
            raise busy(f"rate limit of {rate:g} requests per second exceeded", status=429, error="rate_limited", after=after)

    async def _record(self, scope: Any, caller: Caller, name: str | None, detail: Mapping[str, Any] | None = None) -> None:
        address = _address(scope) or None
        action = f"{scope['method']} {scope['path_template']}"
        async with self._mq.connection() as conn:
            await tokens.record_audit(conn, actor=caller.name, address=address, action=action, object=name, detail=detail)


def _take(buckets: dict[str, tuple[float, float]], who: str, rate: float, most: float, n: float = 1.0) -> float | None:
    """Take n from a bucket that refills at `rate` up to `most`. Return the seconds to wait if it is empty."""
    now = time.monotonic()
    left, at = buckets.get(who, (most, now))
    left = min(most, left + (now - at) * rate)
    if left < 1:
        buckets[who] = (left, now)
        return (1 - left) / rate
    if len(buckets) > _MOST_BUCKETS:
        buckets.clear()
    buckets[who] = (left - n, now)
    return None


def _shown(scope: Any) -> Credential | None:
    """Return the token of a request, or None if it has none."""
    found = [value for key, value in scope["headers"] if key == b"authorization"]
    if len(found) != 1 or found[0][:7].lower() != b"bearer ":
        return None
    return credential_of(found[0][7:].strip().decode("latin-1"))


def credential_of(text: str) -> Credential:
    """Return the id and digest of a token in its secret form."""
    match = _TOKEN.fullmatch(text)
    return Credential(match[1] if match else None, tokens.digest(match[2] if match else _NOBODY))


def _address(scope: Any) -> str:
    address: str = (scope.get("client") or ("", 0))[0]
    return address


def _object(scope: Any) -> str | None:
    """Return the path parameters, for paths that name neither a topic nor a queue."""
    return ", ".join(str(value) for value in scope["path_params"].values()) or None


def _unknown(error: str, detail: str) -> Problem:
    return Problem(401, error, detail, headers={"www-authenticate": 'Bearer realm="trunkline"'})


def _denied(scope: str, name: str | None) -> Problem:
    return Problem(403, "missing_scope", f"missing scope {scope}:{name or '*'}")
