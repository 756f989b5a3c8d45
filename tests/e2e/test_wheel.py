"""The package as it would be published: its content and metadata, and the README's commands in a fresh environment."""

from __future__ import annotations

import email
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import venv
import zipfile
from email.message import Message
from pathlib import Path

import pytest

from tests.docs.shells import as_url
from tests.e2e.test_setup import Up
from trunkline import __version__
from trunkline.embedded.postmaster import find_processes

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"
pytestmark = pytest.mark.xdist_group("wheel")

WITH_THE_CORE = """
import sys
from trunkline import SyncClient
from trunkline.sql.migrate import migrate

url = sys.argv[1]
assert migrate(url).applied == [], "the wheel has other SQL files than the checkout"
with SyncClient(url) as mq:
    mq.queues.ensure("q")
    mq.enqueue("q", {"n": 1})
    [delivery] = mq.claim("q")
    print(delivery.attempt, delivery.body, delivery.ack())
"""


def build(target: str, source: Path, folder: Path) -> Path:
    """Build without isolation, with the hatchling of the development environment."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)],
        cwd=source,
        check=True,
        capture_output=True,
        timeout=60,
    )
    [built] = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def constraints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The locked versions without their hashes, which the wheel itself does not have."""
    locked = re.findall(r"^(\S+==[^\\\n]+?) *\\?$", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    path = tmp_path_factory.mktemp("constraints") / "constraints.txt"
    path.write_text("\n".join(locked) + "\n")
    return path


class Environment:
    """A fresh virtual environment with the wheel in it."""

    def __init__(self, folder: Path, requirement: str, constraints: Path) -> None:
        self.bin = folder / "bin"
        venv.create(folder, symlinks=True)
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python")]
        installed = subprocess.run(
            [*pip, "install", "--quiet", "--no-compile", "--constraint", constraints, requirement],
            capture_output=True,
            text=True,
            timeout=250,
        )
        if re.search(r"ConnectionError|NewConnectionError|ProxyError|ReadTimeout", installed.stderr):
            pytest.skip("pip cannot reach its index")
        assert installed.returncode == 0, installed.stderr

    def run(self, program: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.bin / program, *arguments],
            capture_output=True,
            text=True,
            cwd=cwd,
            timeout=100,
            env={"PATH": f"{self.bin}:{os.defpath}"},
        )


@pytest.fixture(scope="module")
def core(wheel: Path, constraints: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("core") / "venv", str(wheel), constraints)


@pytest.fixture(scope="module")
def everything(wheel: Path, constraints: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("all") / "venv", f"{wheel}[all]", constraints)


# Content


def files_of(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_has_the_sources_and_nothing_else(wheel: Path) -> None:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "src"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    files = files_of(wheel)
    assert {name.removeprefix("src/") for name in listed if (ROOT / name).exists()} == files
    assert {name.partition("/")[0] for name in files} == {"trunkline", "pyspark_trunkline"}
    assert "trunkline/py.typed" in files
    sql = {str(path.relative_to(SOURCES)) for path in (SOURCES / "trunkline" / "sql").rglob("*.sql")}
    assert len(sql) > 30 and sql <= files
    assert not [name for name in files if re.search(r"/tests?/|/test_|/conftest|__pycache__|\.pyc$", name)]


def test_a_wheel_built_from_the_source_archive_is_the_same(wheel: Path, tmp_path: Path) -> None:
    archive = build("sdist", ROOT, tmp_path / "sdist")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    again = build("wheel", tmp_path / archive.name.removesuffix(".tar.gz"), tmp_path / "wheel")
    assert again.name == wheel.name
    assert files_of(again) == files_of(wheel)
    assert metadata_of(again).as_string() == metadata_of(wheel).as_string()


def test_the_metadata_is_complete(wheel: Path) -> None:
    metadata = metadata_of(wheel)
    assert (metadata["Name"], metadata["Version"]) == ("trunkline", __version__)
    assert (metadata["License-Expression"], metadata["License-File"]) == ("Apache-2.0", "LICENSE")
    assert metadata["Author"] and len(metadata["Keywords"].split(",")) > 5
    urls = {url.partition(", ")[0] for url in metadata.get_all("Project-URL", [])}
    assert urls >= {
        "Source",
        "Documentation",
        "Changelog",
    }
    assert {"Typing :: Typed", "Programming Language :: Python :: 3.11"} <= set(metadata.get_all("Classifier", []))
    assert metadata["Description-Content-Type"] == "text/markdown"
    core = {text for text in metadata.get_all("Requires-Dist", []) if "extra ==" not in text}
    assert {re.split(r"[^\w-]", text)[0] for text in core} == {"msgspec", "psycopg"}


def test_every_link_of_the_description_is_absolute(wheel: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    payload = metadata_of(wheel).get_payload(decode=True)
    assert isinstance(payload, bytes)
    description = payload.decode()
    described = re.findall(r'\]\(([^)\s]+)\)|(?:src|srcset)="([^"]+)"', description)
    links = [link or picture for link, picture in described]
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    for kind, folder in (("blob", "docs/index.md"), ("raw", "docs/assets/overview-light.svg")):
        assert any(link.endswith(f"/{kind}/v{__version__}/{folder}") for link in links), folder
    # nothing but the links differs
    url = re.compile(rf"https://[^\s)\"]+/(?:blob|raw)/v{re.escape(__version__)}/")
    assert url.sub("", description).strip() == readme.strip()


# In a fresh environment


def test_the_core_works_alone(core: Environment, db: str, tmp_path: Path) -> None:
    done = core.run("python", "-c", WITH_THE_CORE, as_url(db), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1 {'n': 1} done\n"
    installed = (core.bin.parent / "lib").glob("python3*/site-packages/*.dist-info")
    names = {path.name.partition("-")[0] for path in installed}
    # Python 3.13 needs no typing_extensions
    assert names - {"typing_extensions"} == {"trunkline", "msgspec", "psycopg", "psycopg_binary", "psycopg_pool"}


def test_the_core_names_what_the_command_line_needs(core: Environment, tmp_path: Path) -> None:
    for _ in range(2):
        failed = core.run("trunkline", "demo", cwd=tmp_path)
        assert failed.returncode == 1
        assert failed.stderr == "trunkline: the command line is not installed (pip install 'trunkline[cli]')\n"


def test_the_version(everything: Environment, tmp_path: Path) -> None:
    assert everything.run("trunkline", "--version", cwd=tmp_path).stdout == f"trunkline {__version__}\n"
    assert everything.run("python", "-m", "trunkline", "--version", cwd=tmp_path).stdout == f"trunkline {__version__}\n"


def test_the_demo_of_the_readme_leaves_nothing(everything: Environment, tmp_path: Path) -> None:
    assert "pip install 'trunkline[all]' && trunkline demo" in (ROOT / "README.md").read_text()
    done = everything.run("trunkline", "demo", "--once", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "trunkline queue list" in done.stdout and "One round is done." in done.stderr
    [folder] = re.findall(r"Starting Postgres in (\S+)", done.stderr)
    assert not Path(folder).exists()
    assert list(tmp_path.iterdir()) == []


def test_a_mistyped_command_is_corrected(everything: Environment, tmp_path: Path) -> None:
    for arguments, hint in ((("dmeo",), "demo"), (("demo", "--onec"), "--once"), (("queue", "lst"), "list")):
        failed = everything.run("trunkline", *arguments, cwd=tmp_path)
        assert failed.returncode == 2
        assert f"did you mean '{hint}'?" in failed.stderr.lower(), failed.stderr


def test_everything_starts(everything: Environment, tmp_path: Path) -> None:
    data = tmp_path / "data"
    try:
        up = Up(data, command=[str(everything.bin / "trunkline")])
        assert up.url
        assert up.stop() == 0
    finally:
        for pid in find_processes(data / "pgdata"):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(data, ignore_errors=True)
