"""`trunkline token`, and a server that knows what it made."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import httpx
import psycopg

from tests.http.servers import serving

RUN = "import sys; from trunkline.cli.commands.token import command; command(sys.argv[1:])"


def token(db: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", RUN, *arguments],
        env={**os.environ, "TRUNKLINE_DATABASE_URL": db},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_life_of_a_token(db: str) -> None:
    first = token(db, "create", "shop", "--scope", "read:*", "--expires", "1h")
    assert first.startswith("tl_")
    second = token(db, "rotate", "shop")
    (row,) = json.loads(token(db, "list", "-o", "json"))
    assert (row["name"], row["scopes"], row["revoked_at"]) == ("shop", ["read:*"], None)
    assert row["expires_at"] is not None
    assert first not in str(row) and second not in str(row)
    with serving(db) as server:

        def status(text: str) -> int:
            return httpx.get(f"{server.url}/v1/stats", headers={"authorization": f"Bearer {text}"}).status_code

        assert (status(second), status(first)) == (200, 401)
    token(db, "revoke", "shop")
    with serving(db) as server:
        assert httpx.get(f"{server.url}/v1/stats", headers={"authorization": f"Bearer {second}"}).status_code == 401
    with psycopg.connect(db) as conn:
        rows = conn.execute("select actor, action, object from trunkline.audit order by audit_id").fetchall()
    assert rows == [
        ("cli", "token create", "shop"),
        ("cli", "token rotate", "shop"),
        ("unknown", "token refused: unauthenticated", "shop"),
        ("cli", "token revoke", "shop"),
        ("unknown", "token refused: token_revoked", "shop"),
    ]


def test_a_revoked_secret_stays_revoked(db: str) -> None:
    """A rotation with a grace period brings the token back with its new secret only."""
    first = token(db, "create", "shop", "--scope", "read:*")
    token(db, "revoke", "shop")
    second = token(db, "rotate", "shop", "--grace", "1h")
    with serving(db) as server:
        for text, status in ((second, 200), (first, 401)):
            headers = {"authorization": f"Bearer {text}"}
            assert httpx.get(f"{server.url}/v1/stats", headers=headers).status_code == status
