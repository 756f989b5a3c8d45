"""The container files, as far as they can be read without a container engine."""

from __future__ import annotations

import json
import re
import tomllib
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from trunkline.cli.main import app

ROOT = Path(__file__).parents[2]
LOCKS = ("requirements-runtime.lock", "requirements-build.lock")
INSTRUCTIONS = {"ARG", "FROM", "RUN", "COPY", "ENV", "USER", "WORKDIR", "EXPOSE", "HEALTHCHECK", "CMD"}


IMAGE = re.compile(r"docker\.io/[\w./-]+:\d[\w.-]+@sha256:[0-9a-f]{64}")
"""A full name with a version and a digest."""


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
    assert found[0][0] == "ARG" and [name for name, _ in found].count("ARG") == 1
    argument, _, image = found[0][1].partition("=")
    assert IMAGE.fullmatch(image), image
    assert {value.split(" ")[0] for name, value in found if name == "FROM"} == {f"${{{argument}}}"}, (
        "one base for all stages"
    )
    last = found[max(place for place, (name, _) in enumerate(found) if name == "FROM") :]
    assert [value for name, value in last if name == "USER"] == ["trunkline"]
    assert not any("pip install" in value for name, value in last if name == "RUN")
    check = next(value for name, value in last if name == "HEALTHCHECK")
    assert "/healthz" in check
    compile(json.loads(check[check.index("[") :])[2], "healthcheck", "exec")
    command_exists(json.loads(next(value for name, value in last if name == "CMD")))


def test_other_images_can_be_chosen() -> None:
    text = " ".join((ROOT / "docs" / "operations" / "security.md").read_text().split())
    for name in ("PYTHON_IMAGE", "POSTGRES_IMAGE"):
        assert name in text


def test_what_is_copied_is_there_and_enough_to_build() -> None:
    copied = [value.split()[:-1] for name, value in instructions() if name == "COPY" and "--from" not in value]
    names = {name for group in copied for name in group}
    assert all((ROOT / name).exists() for name in names)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {*project["license-files"], "src", "pyproject.toml", *LOCKS} <= names
    for lock in LOCKS:
        assert not re.search(r"^git\+|^-e ", (ROOT / lock).read_text(), flags=re.MULTILINE)


def entries(lock: str) -> dict[str, str]:
    """The entries of a lock by name: version and hashes. Markers differ: a tool may need a package everywhere."""
    text = re.sub(r"^(\S+) ; .* \\$", r"\1 \\", (ROOT / lock).read_text().rstrip("\n"), flags=re.MULTILINE)
    blocks = re.split(r"\n(?=[A-Za-z0-9])", text)
    return {canonicalize_name(re.split(r"[=\[]", block)[0]): block for block in blocks}


def needed(requirements: list[str], locked: dict[str, str]) -> set[str]:
    """The names of all packages that these need, of those that are locked."""
    names: set[str] = set()
    todo = [Requirement(text) for text in requirements]
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        each = todo.pop()
        name, extras = canonicalize_name(each.name), frozenset(each.extras)
        if (name, extras) in seen or name not in locked:
            continue
        seen.add((name, extras))
        names.add(name)
        with suppress(metadata.PackageNotFoundError):
            for other in map(Requirement, metadata.requires(name) or []):
                wanted = "extra" not in str(other.marker) or any(other.marker.evaluate({"extra": e}) for e in extras)  # type: ignore[union-attr]
                todo += [other] if wanted else []
    return names


def test_the_image_has_what_runs_and_nothing_else() -> None:
    """Neither tests nor tools: each package of an image is one that may have a hole."""
    found = instructions()
    assert not any("requirements.lock" in value for _, value in found)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    runtime = [text for name in ("cli", "http", "otel", "push", "server") for text in extras[name]]
    everything = entries("requirements.lock")
    for lock, roots in (
        ("requirements-runtime.lock", [*project["project"]["dependencies"], *runtime]),
        ("requirements-build.lock", project["build-system"]["requires"]),
    ):
        locked = entries(lock)
        assert set(locked) == needed(roots, everything), lock
        # the same versions and hashes as those that were tested
        assert {name: everything[name] for name in locked} == locked
    for name in ("pytest", "django", "celery", "redis", "hatchling", "bandit", "fastapi", "mkdocs-material"):
        assert name not in entries("requirements-runtime.lock")


def test_compose_has_postgres_the_schema_and_the_service() -> None:
    services = compose()["services"]
    assert set(services) == {"postgres", "migrate", "http"}
    variable, _, image = services["postgres"]["image"].removeprefix("${").removesuffix("}").partition(":-")
    assert variable == "POSTGRES_IMAGE" and image.startswith("docker.io/library/postgres:18.") and IMAGE.fullmatch(image)
    for service in services.values():
        assert ":latest" not in service.get("image", "")
        assert set(service.get("depends_on", {})) <= set(services)
    assert services["postgres"]["healthcheck"]["test"][0] == "CMD"
    assert services["http"]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}
    assert services["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert all(port.startswith("127.0.0.1:") for port in services["http"]["ports"])
    for name in ("migrate", "http"):
        assert (ROOT / services[name]["build"]["dockerfile"]).exists()
        assert services[name]["build"]["args"] == [instructions()[0][1].partition("=")[0]]
        assert "${POSTGRES_PASSWORD:?" in services[name]["environment"]["TRUNKLINE_DATABASE_URL"]
    command_exists(services["migrate"]["command"])
    assert set(compose()["volumes"]) == {"data"}
