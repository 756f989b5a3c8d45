"""Standard Webhooks signatures: HMAC-SHA256 (`whsec_` secrets, `v1`) and Ed25519 (`whsk_` keys, `v1a`)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING

from trunkline.errors import InvalidArgument, NotInstalled

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

HMAC_PREFIX = "whsec_"
PRIVATE_PREFIX = "whsk_"
PUBLIC_PREFIX = "whpk_"


def content(id: str, timestamp: int, body: bytes) -> bytes:
    """Return the bytes to sign."""
    return f"{id}.{timestamp}.".encode() + body


def sign(secret: str, id: str, timestamp: int, body: bytes) -> str:
    """Sign one delivery with one secret. The result starts with the signature version."""
    key = _signing_key(secret)
    signed = content(id, timestamp, body)
    if isinstance(key, bytes):
        return "v1," + binascii.b2a_base64(hmac.digest(key, signed, hashlib.sha256), newline=False).decode()
    return "v1a," + binascii.b2a_base64(key.sign(signed), newline=False).decode()


def sign_all(secrets: Sequence[str], id: str, timestamp: int, body: bytes) -> str:
    """Return the `webhook-signature` header: one signature per secret, so that either verifies during rotation."""
    return " ".join(sign(secret, id, timestamp, body) for secret in secrets)


def new_private_key() -> str:
    """Generate an Ed25519 key for use as an endpoint's secret."""
    return PRIVATE_PREFIX + base64.b64encode(_ed25519().Ed25519PrivateKey.generate().private_bytes_raw()).decode()


def public_key(private: str) -> str:
    """Return the public key with which receivers verify signatures of a `whsk_` key."""
    return PUBLIC_PREFIX + base64.b64encode(_private_key(private).public_key().public_bytes_raw()).decode()


def read_public_key(text: str) -> Ed25519PublicKey:
    raw = decode_key(text, PUBLIC_PREFIX)
    if len(raw) != 32:
        raise InvalidArgument(f"the public key must have 32 bytes, got {len(raw)}", hint="Copy the whole whpk_... value.")
    key: Ed25519PublicKey = _ed25519().Ed25519PublicKey.from_public_bytes(raw)
    return key


def decode_key(text: str, prefix: str) -> bytes:
    """Decode a key, with or without its prefix."""
    try:
        return base64.b64decode(text.removeprefix(prefix), validate=True)
    except (binascii.Error, ValueError):
        # never echo the secret
        raise InvalidArgument("a webhook secret is not base64", hint=f"Copy the whole {prefix}... value.") from None


@lru_cache(maxsize=256)
def _signing_key(secret: str) -> bytes | Ed25519PrivateKey:
    return _private_key(secret) if secret.startswith(PRIVATE_PREFIX) else decode_key(secret, HMAC_PREFIX)


def _private_key(secret: str) -> Ed25519PrivateKey:
    raw = decode_key(secret, PRIVATE_PREFIX)
    if len(raw) not in (32, 64):
        raise InvalidArgument(
            f"the Ed25519 key must have 32 or 64 bytes, got {len(raw)}", hint="Copy the whole whsk_... value."
        )
    key: Ed25519PrivateKey = _ed25519().Ed25519PrivateKey.from_private_bytes(raw[:32])
    return key


def _ed25519() -> ModuleType:
    """Import lazily: receivers with HMAC secrets need only the core package."""
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ModuleNotFoundError as exc:
        raise NotInstalled("cryptography is not installed", hint="pip install 'trunkline[push]'") from exc
    return ed25519
