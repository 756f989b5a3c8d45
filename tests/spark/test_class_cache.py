"""Kept classes: used when they can be trusted, made once and in the background, never needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trunkline.spark.session import class_cache, session


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(class_cache.KEEP_VARIABLE, raising=False)
    monkeypatch.delenv("CI", raising=False)
    return tmp_path


@pytest.fixture
def at_exit(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    registered: list[object] = []
    monkeypatch.setattr(class_cache.atexit, "register", registered.append)  # type: ignore[attr-defined]
    return registered


def file() -> Path:
    found = class_cache.archive_file()
    assert found is not None
    found.parent.mkdir(exist_ok=True)
    return found


def test_only_our_own_file_is_used() -> None:
    assert class_cache.options() == ""
    file().touch(mode=0o400)
    assert f"-XX:SharedArchiveFile={file()}" in class_cache.options()
    file().chmod(0o620)
    assert class_cache.options() == ""


def test_each_java_and_each_spark_has_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = tmp_path / "java"
    other.touch()
    assert class_cache.archive_file(str(other)) != class_cache.archive_file()
    before = class_cache.archive_file()
    monkeypatch.setattr("pyspark.__version__", "4.9.9")
    assert class_cache.archive_file() != before


def test_without_a_cache_or_java_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a b"))
    assert class_cache.archive_file() is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert class_cache.archive_file() is None
    assert class_cache.options() == ""
    assert class_cache.warm() is None


def test_it_is_made_once_when_the_program_has_ended(at_exit: list[object]) -> None:
    class_cache.warm_later()
    class_cache.warm_later()
    assert len(at_exit) == 1


def test_a_ci_runner_may_ask_for_it(monkeypatch: pytest.MonkeyPatch, at_exit: list[object]) -> None:
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv(class_cache.KEEP_VARIABLE, "auto")
    class_cache.warm_later()
    assert len(at_exit) == 1


@pytest.mark.parametrize("reason", ["it is there", "it is forbidden", "the cache cannot be written", "a CI runner"])
def test_it_is_not_made(monkeypatch: pytest.MonkeyPatch, cache: Path, at_exit: list[object], reason: str) -> None:
    if reason == "it is there":
        file().touch()
    elif reason == "a CI runner":
        monkeypatch.setenv("CI", "true")
    elif reason == "it is forbidden":
        monkeypatch.setenv(class_cache.KEEP_VARIABLE, "off")
    else:
        (cache / "trunkline").touch()
    class_cache.warm_later()
    assert at_exit == []


@pytest.mark.parametrize("name", ["spark.driver.extraClassPath", "spark.driver.extraJavaOptions"])
def test_settings_of_the_user_come_first(at_exit: list[object], name: str) -> None:
    """Classes fit one class path only, and options of Java are not put together from two hands."""
    file().touch(mode=0o400)
    assert "SharedArchive" in session._java_options({}, quiet=False)["spark.driver.extraJavaOptions"]
    assert "SharedArchive" not in session._java_options({name: "x"}, quiet=False).get("spark.driver.extraJavaOptions", "")
    file().unlink()
    session._java_options({name: "x"}, quiet=False)
    assert at_exit == []


_USES_IT = """
import sys
from pathlib import Path
from trunkline.spark import open_session
spark = open_session(master="local[1]")
assert spark.range(3).count() == 3
java = spark.sparkContext._gateway.proc.pid
print("used" if sys.argv[1] in Path(f"/proc/{java}/maps").read_text() else "not used")
spark.stop()
"""


@pytest.mark.timeout(600)  # one run of Java to keep the classes, one to use them
def test_java_takes_the_classes_that_were_kept() -> None:
    made = class_cache.warm()
    assert made is not None and made == class_cache.archive_file()
    assert [each.name for each in made.parent.iterdir()] == [made.name]
    done = subprocess.run([sys.executable, "-c", _USES_IT, str(made)], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "used"
    assert "cds" not in done.stderr
