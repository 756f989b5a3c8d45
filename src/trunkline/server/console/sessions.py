"""Sessions: a cookie stands for the token that was typed at login, and is valid as long as that token is."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from datetime import timedelta
from http.cookies import CookieError, SimpleCookie
from typing import Any

from trunkline import Client
from trunkline.db.calls import sessions as calls
from trunkline.db.calls.sessions import Session
from trunkline.errors import DatabaseUnavailable, TrunklineError
from trunkline.server.auth import Credential
from trunkline.server.limits import Limits, limited
from trunkline.server.problems import busy

LASTS = timedelta(hours=12)
_FRESH_SECONDS = 5.0
"""Age of a session after which it is read again, so that signing out elsewhere takes effect."""
_PATIENCE_SECONDS = 1.5
_MOST = 10_000
_TRIES = 10
_TRIES_SECONDS = 60.0


def cookie_name(secure: bool) -> str:
    """Return the name of the session's cookie. Browsers accept __Host- only from the host itself, and over TLS."""
    return "__Host-tl" if secure else "tl"


def cookies(scope: Any) -> dict[str, str]:
    """Return the cookies of a request."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        if name == b"cookie":
            try:
                found.update({key: morsel.value for key, morsel in SimpleCookie(value.decode("latin-1")).items()})
            except CookieError:
                continue
    return found


def csrf_of(secret: str) -> str:
    """Return the value that forms of this session must carry. Only who has the cookie can compute it."""
    return hmac.new(secret.encode(), b"trunkline csrf", hashlib.sha256).hexdigest()


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


class Sessions:
    """The sessions of a worker, cached for seconds."""

    def __init__(self, mq: Client, name: str) -> None:
        self._mq = mq
        self.cookie = name
        self._known: dict[bytes, tuple[Session | None, float]] = {}
        self._tries: dict[str, list[float]] = {}

    def secret(self, scope: Any) -> str | None:
        """Return the secret in the session cookie of a request."""
        return cookies(scope).get(self.cookie) or None

    async def credential(self, scope: Any) -> Credential | None:
        """Return the token of the request's session, if it has one."""
        secret = self.secret(scope)
        if secret is None:
            return None
        session = await self._find(_hash(secret))
        if session is None:
            return None
        scope["trunkline_session"] = secret
        return Credential(session.token_id, session.secret_hash)

    async def open(self, credential: Credential, *, address: str | None, agent: str | None) -> str:
        """Open a session for a token that was checked. Return its secret."""
        assert credential.token_id is not None  # noqa: S101
        secret = secrets.token_urlsafe(32)
        with limited(Limits()):
            async with self._mq.connection() as conn:
                session = await calls.open_session(
                    conn,
                    _hash(secret),
                    token_id=credential.token_id,
                    secret_hash=credential.digest,
                    lasts=LASTS,
                    address=address,
                    agent=agent,
                )
        self._keep(session.hash, session)
        return secret

    async def end(self, secret: str, *, everywhere: bool) -> None:
        """End a session, or all sessions of its token."""
        session = await self._find(_hash(secret))
        with limited(Limits()):
            async with self._mq.connection() as conn:
                if everywhere and session is not None:
                    await calls.end_sessions(conn, session.token_id)
                else:
                    await calls.end_session(conn, _hash(secret))
        self._known.clear()

    def limit_tries(self, address: str) -> None:
        """Count a login. Raise 429 after 10 in a minute from one address."""
        now = time.monotonic()
        if len(self._tries) > _MOST:
            self._tries.clear()
        tries = [at for at in self._tries.get(address, []) if now - at < _TRIES_SECONDS]
        if len(tries) >= _TRIES:
            after = _TRIES_SECONDS - (now - tries[0])
            raise busy("more than 10 sign-ins in a minute from this address", status=429, error="rate_limited", after=after)
        self._tries[address] = [*tries, now]

    async def _find(self, hash: bytes) -> Session | None:
        session, at = self._known.get(hash, (None, float("-inf")))
        if time.monotonic() - at < _FRESH_SECONDS:
            return session
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                with limited(Limits()):
                    async with self._mq.connection() as conn:
                        session = await calls.use_session(conn, hash)
        except (TrunklineError, TimeoutError):
            if session is None:
                raise DatabaseUnavailable("the database does not respond") from None
            # shows the frame while the database is away; there is nothing else to show
            return session
        self._keep(hash, session)
        return session

    def _keep(self, hash: bytes, session: Session | None) -> None:
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[hash] = (session, time.monotonic())
