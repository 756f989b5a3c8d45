"""For receivers: verify deliveries, reject old ones, and process each one once.

Needs only the core package; public keys also need `cryptography`. `verify` works with any web framework.
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

from trunkline.db.calls import push
from trunkline.db.pool import Connection
from trunkline.errors import InvalidArgument
from trunkline.push.signing import HMAC_PREFIX, PUBLIC_PREFIX, content, decode_key, read_public_key

TOLERANCE_SECONDS = 300
MIN_SECRET = 24
"""In bytes, as for endpoints. An empty key, such as from an unset variable, would let anyone sign."""


class Refused(Exception):
    """The delivery is not genuine, too old or too new. Reply with 400 or 401 and do nothing."""


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """A genuine delivery.

    The signature covers `id`, `timestamp` and `body`. The other fields come from unsigned headers, which a proxy can
    change: do not base security decisions on them.
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
        """Return True on the first delivery to this receiver. Call it in the transaction of your effects."""
        return await push.receive(conn, receiver, self.id)


class Verifier:
    """Verifies with the secrets (`whsec_...`) or public keys (`whpk_...`) of an endpoint. Takes both during rotation."""

    def __init__(self, secrets: str | Sequence[str], *, tolerance: int = TOLERANCE_SECONDS) -> None:
        given = [secrets] if isinstance(secrets, str) else list(secrets)
        self._secrets = [_read_secret(text) for text in given if not text.startswith(PUBLIC_PREFIX)]
        self._keys = [read_public_key(text) for text in given if text.startswith(PUBLIC_PREFIX)]
        self._tolerance = tolerance

    def verify(self, headers: Mapping[str, str], body: bytes, *, now: float | None = None) -> Received:
        """Return the verified delivery or raise `Refused`. `body` is the raw request body, before any parsing."""
        found = {name.lower(): value for name, value in headers.items()}
        try:
            id, stamp, signatures = (found[f"webhook-{name}"] for name in ("id", "timestamp", "signature"))
        except KeyError:
            raise Refused("webhook-id, webhook-timestamp or webhook-signature is missing") from None
        if not id or "." in id:
            # a dot would allow the signed text to be split elsewhere, turning an old body into a new timestamp
            raise Refused("webhook-id is empty or contains a dot")
        if not (stamp.isascii() and stamp.isdigit() and len(stamp) < 16):
            raise Refused("webhook-timestamp is not a number")
        # not inverted: every comparison with NaN is false
        if not abs((time.time() if now is None else now) - int(stamp)) <= self._tolerance:
            raise Refused(f"the webhook timestamp differs from now by more than {self._tolerance} s")
        try:
            signed = content(id, int(stamp), body)
        except UnicodeEncodeError:
            raise Refused("webhook-id is not text") from None
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
            hint="Check that the secret's variable is set, and copy the whole whsec_... value.",
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
    except (msgspec.DecodeError, UnicodeError, RecursionError):
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
