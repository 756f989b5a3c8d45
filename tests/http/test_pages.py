"""The commands of the documentation work, and it leaves out no route."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.http.servers import serving
from trunkline.server.app import create_app
from trunkline.server.config import COMPAT_APIS, Config
from trunkline.server.openapi import routes

DOCS = Path(__file__).parents[2] / "docs"
PAGES = DOCS / "reference" / "http"


def blocks(page: Path) -> list[str]:
    return re.findall(r"```sh\n(.*?)```", page.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("page", [*sorted(PAGES.glob("*.md")), DOCS / "migrate" / "http.md"], ids=lambda page: page.stem)
def test_commands(db: str, page: Path) -> None:
    script = "\n".join(blocks(page))
    if not script:
        return
    with serving(db) as server:
        script = script.replace("localhost:8080", f"127.0.0.1:{server.port}")
        script = re.sub(r"\bcurl ", "curl --silent --show-error --fail-with-body --noproxy '*' ", script)
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_noun_has_its_page() -> None:
    text = "".join(page.read_text() for page in [*PAGES.glob("*.md"), DOCS / "migrate" / "http.md"])
    app = create_app(Config(database_url="postgresql://nowhere")).app  # type: ignore[attr-defined]
    for path, _, handler in (row for api in (None, *COMPAT_APIS) for row in routes(app, api)):
        if handler.opt["doc"].tag == "system" and path.startswith("/docs."):
            continue
        last = re.sub(r"\{\w+:\w+\}", "", path).rstrip("/").rpartition("/")[2]
        assert last in text, path
