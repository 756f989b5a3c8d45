"""The container files, as far as they can be read without a container engine."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner

from trunkline.cli.main import app

ROOT = Path(__file__).parents[2]
INSTRUCTIONS = {"FROM", "RUN", "COPY", "ENV", "USER", "WORKDIR", "EXPOSE", "HEALTHCHECK", "CMD"}


def instructions() -> list[tuple[str, str]]:
    text = (ROOT / "Containerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in lines]


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return loaded


def command_exists(words: list[str]) -> None:
    assert words[0] == "trunkline"
    shown = CliRunner().invoke(app, [words[1], "--help"])
    assert shown.exit_code == 0
    for option in [word for word in words if word.startswith("--")]:
        assert option in shown.output


def test_the_image_is_pinned_small_and_not_root() -> None:
    found = instructions()
    assert {name for name, _ in found} <= INSTRUCTIONS
    images = [value.split(" ")[0] for name, value in found if name == "FROM"]
    assert all(re.fullmatch(r"[\w./]+:\d[\w.-]+", image) for image in images), images
    last = found[max(place for place, (name, _) in enumerate(found) if name == "FROM") :]
    assert [value for name, value in last if name == "USER"] == ["trunkline"]
    assert not any("pip install" in value for name, value in last if name == "RUN")
    check = next(value for name, value in last if name == "HEALTHCHECK")
    assert "/healthz" in check
    compile(json.loads(check[check.index("[") :])[2], "healthcheck", "exec")
    command_exists(json.loads(next(value for name, value in last if name == "CMD")))


def test_what_is_copied_is_there_and_enough_to_build() -> None:
    copied = [value.split()[:-1] for name, value in instructions() if name == "COPY" and "--from" not in value]
    names = {name for group in copied for name in group}
    assert all((ROOT / name).exists() for name in names)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {*project["license-files"], "src", "pyproject.toml", "requirements.lock"} <= names
    assert not re.search(r"^git\+|^-e ", (ROOT / "requirements.lock").read_text(), flags=re.MULTILINE)


def test_compose_has_postgres_the_schema_and_the_service() -> None:
    services = compose()["services"]
    assert set(services) == {"postgres", "migrate", "http"}
    assert re.fullmatch(r"docker\.io/library/postgres:18\.\d+", services["postgres"]["image"])
    for service in services.values():
        assert ":latest" not in service.get("image", "")
        assert set(service.get("depends_on", {})) <= set(services)
    assert services["postgres"]["healthcheck"]["test"][0] == "CMD"
    assert services["http"]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}
    assert services["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert all(port.startswith("127.0.0.1:") for port in services["http"]["ports"])
    for name in ("migrate", "http"):
        assert (ROOT / services[name]["build"]["dockerfile"]).exists()
        assert "${POSTGRES_PASSWORD:?" in services[name]["environment"]["TRUNKLINE_DATABASE_URL"]
    command_exists(services["migrate"]["command"])
    assert set(compose()["volumes"]) == {"data"}
