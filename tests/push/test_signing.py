"""Signatures: the same as those of the reference package, and nothing else verifies."""

from __future__ import annotations

import base64
import random
import subprocess
import sys
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from tests.conftest import Connection
from trunkline.db.pool import connect
from trunkline.errors import InvalidArgument
from trunkline.push import Refused, Verifier
from trunkline.push.signing import new_private_key, public_key, sign, sign_all


def secret(rng: random.Random) -> str:
    return "whsec_" + base64.b64encode(rng.randbytes(rng.randint(24, 64))).decode()


def test_ten_thousand_signatures_equal_those_of_the_reference_package() -> None:
    rng = random.Random(7)
    alphabet = 'abc {}[]",:.0123456789\n\t\u00e4\u20ac\U0001f600\\'
    for number in range(10_000):
        key, id = secret(rng), f"msg_{number}"
        body = "".join(rng.choices(alphabet, k=rng.randint(0, 300)))
        at = datetime.fromtimestamp(rng.randint(1, 4_000_000_000), tz=UTC)
        assert sign(key, id, int(at.timestamp()), body.encode()) == Webhook(key).sign(id, at, body)


def test_the_reference_package_and_ours_verify_each_other() -> None:
    rng = random.Random(8)
    old, new = secret(rng), secret(rng)
    now = int(time.time())
    headers = {"webhook-id": "m", "webhook-timestamp": str(now), "webhook-signature": sign_all([new, old], "m", now, b"{}")}
    for key in (old, new):
        assert Webhook(key).verify(b"{}", headers) == {}
        assert Verifier(key).verify(headers, b"{}").json() == {}
    with pytest.raises(WebhookVerificationError):
        Webhook(secret(rng)).verify(b"{}", headers)


def test_ed25519() -> None:
    private = new_private_key()
    now = int(time.time())
    headers = {"webhook-id": "m", "webhook-timestamp": str(now), "webhook-signature": sign(private, "m", now, b"body")}
    assert headers["webhook-signature"].startswith("v1a,")
    assert Verifier(public_key(private)).verify(headers, b"body").id == "m"
    with pytest.raises(Refused):
        Verifier(public_key(private)).verify(headers, b"Body")
    with pytest.raises(Refused):
        Verifier(public_key(new_private_key())).verify(headers, b"body")


KEY = "whsec_" + base64.b64encode(b"k" * 32).decode()
AT = 1_700_000_000
GOOD = {"webhook-id": "m", "webhook-timestamp": str(AT), "webhook-signature": sign(KEY, "m", AT, b"body")}
_RAW = GOOD["webhook-signature"].removeprefix("v1,")
FORGED: list[dict[str, Any]] = [
    *({name: None} for name in GOOD),
    *({name: ""} for name in GOOD),
    {"webhook-id": "n"},
    {"webhook-id": "m "},
    {"webhook-timestamp": str(AT + 1)},
    {"webhook-timestamp": str(AT - 1)},
    {"webhook-timestamp": f"+{AT}"},
    {"webhook-timestamp": f" {AT}"},
    {"webhook-timestamp": f"{AT}.0"},
    {"webhook-timestamp": "nan"},
    {"webhook-timestamp": "1e9"},
    {"webhook-timestamp": "9" * 30},
    {"webhook-timestamp": f"-{AT}"},
    {"webhook-timestamp": "\u0661\u0667" + "\u0660" * 8},
    {"webhook-signature": _RAW},
    {"webhook-signature": f"v2,{_RAW}"},
    {"webhook-signature": f"v1a,{_RAW}"},
    {"webhook-signature": f"v1,{_RAW[:-1]}"},
    {"webhook-signature": f"v1,{_RAW}x"},
    {"webhook-signature": f"v1,{_RAW.swapcase()}"},
    {"webhook-signature": "v1,"},
    {"webhook-signature": "v1"},
    {"webhook-signature": ",,,"},
    {"webhook-signature": " ".join(["v1,AAAA"] * 1000) + " " + GOOD["webhook-signature"]},
    {"webhook-signature": sign(KEY, "m", AT, b"other")},
    {"webhook-signature": sign("whsec_" + base64.b64encode(b"K" * 32).decode(), "m", AT, b"body")},
]


@pytest.mark.parametrize("text", ["", "whsec_", "whsec_AA==", "whsec_" + base64.b64encode(b"k" * 23).decode()])
def test_short_keys_are_refused(text: str) -> None:
    """The key of a variable that is not set is empty, and anyone can sign with that."""
    for secrets in (text, [KEY, text]):
        with pytest.raises(InvalidArgument, match="at least 24 bytes"):
            Verifier(secrets)


def test_an_old_delivery_is_not_read_as_another_one() -> None:
    """The signed text is `id.timestamp.body`: with dots in ids it could be cut in another place."""
    body = f"{AT}.EVIL".encode()
    old = sign(KEY, "m", AT - 86_400, body)
    headers = {"webhook-id": f"m.{AT - 86_400}", "webhook-timestamp": str(AT), "webhook-signature": old}
    with pytest.raises(Refused):
        Verifier(KEY).verify(headers, b"EVIL", now=AT)


def test_no_time_is_not_now() -> None:
    with pytest.raises(Refused):
        Verifier(KEY).verify(GOOD, b"body", now=float("nan"))


@pytest.mark.parametrize("change", FORGED, ids=str)
def test_forgeries_are_refused(change: dict[str, Any]) -> None:
    Verifier(KEY).verify(GOOD, b"body", now=AT)
    headers = {name: value for name, value in (GOOD | change).items() if value is not None}
    with pytest.raises(Refused):
        Verifier(KEY).verify(headers, b"body", now=AT)


def test_headers_that_cannot_be_read_are_no_other_error() -> None:
    """A receiver turns `Refused` into 400; any other exception would be a 500, and the sender would retry."""
    with pytest.raises(Refused, match="webhook-id is not text"):
        Verifier(KEY).verify(GOOD | {"webhook-id": "msg_\udcff"}, b"body", now=AT)
    for unsigned in ('{"a": ' + "[" * 100_000, "[]", '{"a": "\udcff"}', "{"):
        assert Verifier(KEY).verify(GOOD | {"trunkline-headers": unsigned}, b"body", now=AT).headers == {}


@pytest.mark.parametrize(("apart", "fine"), [(-301, False), (-300, True), (300, True), (301, False)])
def test_old_and_future_deliveries_are_refused(apart: int, fine: bool) -> None:
    if fine:
        Verifier(KEY).verify(GOOD, b"body", now=AT + apart)
    else:
        with pytest.raises(Refused):
            Verifier(KEY).verify(GOOD, b"body", now=AT + apart)


async def test_an_inbox_takes_each_delivery_once_with_its_effect(db: str, conn: Connection) -> None:
    conn.execute("create table effects (id text)")
    received = Verifier(KEY).verify(GOOD, b"body", now=AT)
    receiving = await connect(db)
    for crash in (True, False, False):
        try:
            async with receiving.transaction():
                if await received.first(receiving, "billing"):
                    await receiving.execute("insert into effects values (%s)", (received.id,))
                if crash:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            pass
    assert conn.execute("select count(*) from effects").fetchone() == (1,)
    # Another receiver has a separate inbox.
    assert await received.first(receiving, "audit")
    await receiving.close()


def test_inbox_windows_overlap_and_are_emptied(conn: Connection, clock: Any) -> None:
    first = "select trunkline.receive('r', 'a')"
    assert conn.execute(first).fetchone() == (True,)
    clock.advance(7 * 86400 - 1)
    assert conn.execute(first).fetchone() == (False,)
    clock.advance(21 * 86400)
    conn.execute("select trunkline.run_upkeep('attempts')")
    assert conn.execute(first).fetchone() == (True,)


def test_a_receiver_with_hmac_needs_only_the_core() -> None:
    program = """
import sys

sys.modules["cryptography"] = sys.modules["aiohttp"] = None
from trunkline.errors import NotInstalled
from trunkline.push import Refused, Verifier

try:
    headers = {"webhook-id": "a", "webhook-timestamp": "1", "webhook-signature": "v1,YQ== v1a,YQ=="}
    Verifier("whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=").verify(headers, b"", now=1)
except Refused as exc:
    print(exc)
try:
    Verifier("whpk_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=")
except NotInstalled as exc:
    print(exc)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["no signature matches", "cryptography is not installed (pip install 'trunkline[push]')"]
