"""Workflows, hooks and templates: they can be read, and the targets, files and versions that they name exist."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from trunkline import __version__

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import release_notes

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def load(path: Path) -> dict[str, Any]:
    # YAML 1.1 reads the key `on` as true
    loaded: dict[str, Any] = {"on" if key is True else key: value for key, value in yaml.safe_load(path.read_text()).items()}
    return loaded


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)) | set(
        re.findall(r"\bcheck-[a-z]+", (ROOT / "Makefile").read_text())
    )


def commands(text: str) -> set[str]:
    return set(re.findall(r"\bmake ([a-z][a-z-]*)", text))


@pytest.mark.parametrize(
    "name",
    [
        "CHANGELOG.md",
        "CODE_OF_CONDUCT.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "SECURITY.md",
        ".github/ISSUE_TEMPLATE/bug.yml",
        ".github/ISSUE_TEMPLATE/feature.yml",
        ".github/dependabot.yml",
        ".github/pull_request_template.md",
        ".github/workflows/check.yml",
        ".github/workflows/docs.yml",
        ".github/workflows/release.yml",
        ".github/workflows/test.yml",
        ".pre-commit-config.yaml",
    ],
)
def test_file_exists(name: str) -> None:
    assert (ROOT / name).read_text().strip()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow(path: Path) -> None:
    workflow = load(path)
    assert workflow["name"] == path.stem
    assert workflow["permissions"] == {"contents": "read"}, "jobs ask for more one by one"
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 90
    for step in steps(workflow):
        assert ("uses" in step) != ("run" in step)
        assert commands(step.get("run", "")) <= make_targets()
        for tool in re.findall(r"\btools/\w+\.\w+", step.get("run", "")):
            assert (ROOT / tool).exists(), tool


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_commit(path: Path) -> None:
    used = re.findall(r"uses: (.*)", path.read_text())
    assert used
    for each in used:
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each), each


def test_tests_run_on_every_supported_version() -> None:
    jobs = load(ROOT / ".github" / "workflows" / "test.yml")["jobs"]
    supported = [name.rpartition(" ")[2] for name in PROJECT["project"]["classifiers"] if re.search(r":: 3\.\d+$", name)]
    assert jobs["python"]["strategy"]["matrix"]["python"] == supported == ["3.11", "3.12", "3.13", "3.14"]
    assert jobs["postgres"]["strategy"]["matrix"]["postgres"] == ["15", "16", "17", "18"]
    assert PROJECT["project"]["requires-python"] == f">={supported[0]}"


def test_hooks_before_a_commit_are_targets_of_make() -> None:
    [repository] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"
    for hook in repository["hooks"]:
        assert commands(hook["entry"]) and commands(hook["entry"]) <= make_targets()


def test_targets_named_by_documents_exist() -> None:
    for name in ("README.md", "CONTRIBUTING.md", ".github/pull_request_template.md", "bench/README.md"):
        text = " ".join(re.findall(r"`(make [^`]*)`", (ROOT / name).read_text()))
        assert commands(text) <= make_targets(), name


def test_a_target_that_does_not_exist_is_noticed() -> None:
    assert commands("make check && make made-up") - make_targets() == {"made-up"}


def test_templates_can_be_read() -> None:
    for name in ("bug", "feature"):
        form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text())
        ids = [field["id"] for field in form["body"]]
        assert len(ids) == len(set(ids)) > 1


def test_every_test_is_checked() -> None:
    assert not [each for each in PROJECT["tool"]["mypy"]["overrides"] if each.get("ignore_errors")]
    assert set(PROJECT["tool"]["mypy"]["files"]) == {"src", "tests"}


def test_the_version_is_written_once() -> None:
    assert "version" not in PROJECT["project"]
    assert PROJECT["project"]["dynamic"] and PROJECT["tool"]["hatch"]["version"] == {"path": "src/trunkline/__init__.py"}
    assert release_notes.version() == __version__
    listed = subprocess.run(
        ["git", "grep", "-lF", f'"{__version__}"', "--", "src", "pyproject.toml"], capture_output=True, text=True, cwd=ROOT
    )
    assert listed.stdout.split() == ["src/trunkline/__init__.py"]


def test_the_changelog_has_the_version() -> None:
    assert re.search(rf"^## {re.escape(__version__)} - ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


CHANGELOG = "# Changelog\n\n## 0.2.0 - unreleased\n\n- new\n\n## 0.1.0 - 2026-01-31\n\n### Kernel\n\n- first\n"


def test_notes_of_a_release() -> None:
    assert release_notes.notes("v0.1.0", CHANGELOG, "0.1.0") == "### Kernel\n\n- first\n"


@pytest.mark.parametrize(
    ("tag", "version", "message"),
    [
        ("v0.1.1", "0.1.0", "tag v0.1.1 does not match version 0.1.0"),
        ("v0.3.0", "0.3.0", "has no section for 0.3.0"),
        ("v0.2.0", "0.2.0", "has no date: got 'unreleased'"),
    ],
)
def test_a_release_that_is_not_ready_is_refused(tag: str, version: str, message: str) -> None:
    with pytest.raises(SystemExit, match=re.escape(message)):
        release_notes.notes(tag, CHANGELOG, version)
