"""For receivers: verify a delivery, refuse old ones, and take each one once.

Needs no more than the core (public keys: `cryptography`): `verify` works on the bytes and headers of any framework.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from trunkline.db import push
from trunkline.db.pool import Connection
from trunkline.errors import InvalidArgument
from trunkline.push.signing import HMAC_PREFIX, PUBLIC_PREFIX, content, decode_key, read_public_key

TOLERANCE_SECONDS = 300
MIN_SECRET = 24
"""Bytes, as for endpoints. Anyone can sign with an empty key, such as that of a variable which is not set."""


class Refused(Exception):
    """The delivery is not genuine, or too old or too new: answer 400 or 401, and do nothing."""


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """A genuine delivery.

    The signature covers `id`, `timestamp` and `body`. The other fields come from headers that are not signed: a proxy on
    the way could have changed them, so do not decide by them what a delivery may do.
    """

    id: str
    timestamp: int
    body: bytes
    topic: str | None
    queue: str | None
    routing_key: str | None
    key: str | None
    label: str | None
    attempt: int
    headers: dict[str, Any]

    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    async def first(self, conn: Connection, receiver: str) -> bool:
        """Whether this receiver sees it for the first time. Call it in the transaction of the effects: they happen once."""
        return await push.receive(conn, receiver, self.id)


class Verifier:
    """Knows the secrets (`whsec_...`) or public keys (`whpk_...`) of an endpoint; while they are rotated, both."""

    def __init__(self, secrets: str | Sequence[str], *, tolerance: int = TOLERANCE_SECONDS) -> None:
        given = [secrets] if isinstance(secrets, str) else list(secrets)
        self._secrets = [_read_secret(text) for text in given if not text.startswith(PUBLIC_PREFIX)]
        self._keys = [read_public_key(text) for text in given if text.startswith(PUBLIC_PREFIX)]
        self._tolerance = tolerance

    def verify(self, headers: Mapping[str, str], body: bytes, *, now: float | None = None) -> Received:
        """The delivery, or `Refused`. `body` is what came over the wire, before any parsing."""
        found = {name.lower(): value for name, value in headers.items()}
        try:
            id, stamp, signatures = (found[f"webhook-{name}"] for name in ("id", "timestamp", "signature"))
        except KeyError:
            raise Refused("a webhook header is missing") from None
        if not id or "." in id:
            # a dot would let the parts of a signed text be cut elsewhere: an old body as a new timestamp
            raise Refused("webhook-id is empty or has a dot")
        if not (stamp.isascii() and stamp.isdigit() and len(stamp) < 16):
            raise Refused("webhook-timestamp is not a number")
        # not the other way round: no comparison with NaN is true
        if not abs((time.time() if now is None else now) - int(stamp)) <= self._tolerance:
            raise Refused(f"the delivery is more than {self._tolerance} s away from now")
        signed = content(id, int(stamp), body)
        if not any(self._matches(part, signed) for part in signatures.split(" ")[:20]):
            raise Refused("no signature matches")
        return _received(id, int(stamp), body, found)

    def _matches(self, part: str, signed: bytes) -> bool:
        version, _, text = part.partition(",")
        try:
            given = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            return False
        if version == "v1":
            return any(hmac.compare_digest(hmac.digest(key, signed, hashlib.sha256), given) for key in self._secrets)
        if version == "v1a":
            return any(_verifies(key, given, signed) for key in self._keys)
        return False


def _read_secret(text: str) -> bytes:
    key = decode_key(text, HMAC_PREFIX)
    if len(key) < MIN_SECRET:
        raise InvalidArgument(
            f"a webhook secret must have at least {MIN_SECRET} bytes, got {len(key)}",
            hint="Check that the variable with the secret is set, and copy all of whsec_...",
        )
    return key


def _verifies(key: Any, signature: bytes, signed: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(signature, signed)
    except InvalidSignature:
        return False
    return True


def _received(id: str, timestamp: int, body: bytes, headers: Mapping[str, str]) -> Received:
    from urllib.parse import unquote

    def given(name: str) -> str | None:
        value = headers.get(f"trunkline-{name}")
        return None if value is None else unquote(value)

    attempt = headers.get("trunkline-attempt", "1")
    try:
        more = msgspec.json.decode(headers.get("trunkline-headers", "{}"), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError):
        more = {}
    return Received(
        id=id,
        timestamp=timestamp,
        body=body,
        topic=given("topic"),
        queue=given("queue"),
        routing_key=given("routing-key"),
        key=given("key"),
        label=given("label"),
        attempt=int(attempt) if attempt.isascii() and attempt.isdigit() and len(attempt) < 10 else 1,
        headers=more,
    )
