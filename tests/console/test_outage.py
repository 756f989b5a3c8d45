"""The console while Postgres is away, and afterwards."""

from __future__ import annotations

from pathlib import Path

import httpx

from tests.http.servers import serving
from tests.support.waiting import wait_until
from trunkline.embedded.server import EmbeddedServer
from trunkline.sql.migrate import migrate

PAGE = {"accept": "text/html", "sec-fetch-site": "same-origin"}


def test_the_frame_answers_without_postgres_and_recovers(tmp_path: Path) -> None:
    postgres = EmbeddedServer(tmp_path / "data", None)
    url = postgres.start()
    try:
        migrate(url)
        with serving(url) as running, httpx.Client(base_url=running.url, headers=PAGE, timeout=30) as web:
            assert "no response" not in web.get("/console").text
            port = postgres.port
            postgres.stop()
            wait_until(lambda: "no response" in web.get("/console").text)
            page = web.get("/console")
            assert page.status_code == 200
            assert "<h1>Overview</h1>" in page.text
            assert "; showing" in page.text
            again = EmbeddedServer(tmp_path / "data", port)
            again.start()
            try:
                wait_until(lambda: "no response" not in web.get("/console").text)
                wait_until(lambda: "; showing" not in web.get("/console").text)
            finally:
                again.stop()
    finally:
        postgres.stop()
