"""Missing requirements are reported in one line, before anything is started."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark
import pytest

from trunkline.errors import SparkUnavailable
from trunkline.spark import open_session
from trunkline.spark.session import class_cache
from trunkline.spark.session.session import _defaults, _wrapper, check_java


def program(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "java").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "java").chmod(0o755)
    return folder


def test_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkUnavailable, match="needs Java, but there is none in the PATH") as caught:
        open_session(master="local[1]")
    assert "17" in (caught.value.hint or "")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(SparkUnavailable, match="JAVA_HOME"):
        check_java()


def test_an_old_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(tmp_path / "bin", "echo 'openjdk version \"11.0.2\" 2019' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkUnavailable, match=r"Java 17 or later, .* is version 11"):
        check_java()


@pytest.mark.parametrize("version", ["3.5.1", "4.1.2", "5.0.0"])
def test_another_spark(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    with pytest.raises(SparkUnavailable, match=rf"pyspark must be version 4\.2 or a later 4\.x, got {version}"):
        open_session(master="local[1]")


def test_workers_start_our_python_without_sparks_zip() -> None:
    environment = os.environ | {"PYTHONPATH": f"/a/pyspark.zip:/a/py4j-0.10-src.zip:{os.environ.get('PYTHONPATH', '')}:/b"}
    said = subprocess.run(
        [str(_wrapper()), "-c", "import sys, os; print(sys.executable); print(os.environ['PYTHONPATH'])"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert said[0] == sys.executable
    assert "zip" not in said[1] and said[1].endswith("/b")


def test_the_program_of_the_workers_is_in_no_folder_of_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another user may prepare any name in a shared directory, also as a link to a folder of ours that he turns later."""
    ours = tmp_path / "ours"
    ours.mkdir(mode=0o700)
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / f"trunkline-spark-{os.getuid()}").symlink_to(ours)
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert _wrapper().parent == tmp_path / "cache" / "trunkline"
    assert not list(ours.iterdir())
    # a cache that others can change, a link, or none: a new folder each time
    (tmp_path / "cache" / "trunkline").chmod(0o777)
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "trunkline").symlink_to(ours)
    folders = []
    (tmp_path / "file").touch()
    for cache in ("cache", "links", "file"):
        monkeypatch.setattr(class_cache, "cache_folder", lambda name=cache: tmp_path / name / "trunkline")
        folders.append(_wrapper().parent)
    assert all(folder.parent == shared and folder.stat().st_mode & 0o077 == 0 for folder in folders)
    assert len(set(folders)) == 3 and not list(ours.iterdir())


def test_kept_classes_are_ours(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    file = folder / "classes.jsa"
    file.touch(mode=0o400)
    assert class_cache._trusted(file)
    link = folder / "link.jsa"
    link.symlink_to(file)
    assert not class_cache._trusted(link)
    folder.chmod(0o777)
    assert not class_cache._trusted(file)


_STARTS_AND_FAILS = """
import contextlib, os, signal, sys
from pyspark.sql import SparkSession
from trunkline.spark import open_session
from trunkline.spark.pipelines import transforms

change = transforms.load(sys.argv[1])

class Builder(type(SparkSession.builder)):
    def getOrCreate(self):
        os.kill(os.getpid(), signal.SIGINT)
        return super().getOrCreate()

SparkSession.builder = Builder()
try:
    open_session(master="local[1]", quiet=True)
except KeyboardInterrupt:
    spark = SparkSession.getActiveSession()
    print("started", spark.conf.get("spark.sql.shuffle.partitions") != "200")
    frame = spark.sql("select binary('k') as key, binary('v') as value")
    print(change(spark, frame).columns)
    for text in ("select nope", "select raise_error('boom')"):
        with contextlib.suppress(Exception):
            spark.sql(text).collect()
"""

_NEEDS_A_SESSION = """
from pyspark.sql import functions as f

@f.udf("string")
def loud(text):
    return text.upper()

def transform(messages):
    return messages.select("key", loud("text").alias("value"))
"""


@pytest.mark.timeout(120)
def test_a_quiet_session_that_is_interrupted_while_it_starts(tmp_path: Path) -> None:
    """Java is not left behind, because Ctrl-C waits for it; Spark's log says nothing, from the first line on. A file that
    needs a session to be loaded gets it."""
    file = tmp_path / "loud.py"
    file.write_text(_NEEDS_A_SESSION)
    done = subprocess.run([sys.executable, "-c", _STARTS_AND_FAILS, file], capture_output=True, text=True, check=True)
    assert done.stdout == "started True\n['key', 'value']\n"
    assert "spark" not in done.stderr.lower(), done.stderr


def test_a_connect_server_keeps_its_own_settings() -> None:
    assert "spark.redaction.regex" in _defaults("local[2]")
    assert {name.startswith("spark.sql.") for name in _defaults("sc://host:15002")} == {True}


@pytest.mark.parametrize(
    "master", ["foo://bar", "localhost", "spark://127.0.0.1:1", "spark://127.0.0.1:1,nowhere.invalid:2"]
)
def test_a_master_that_is_not_there_is_named_in_one_line(master: str) -> None:
    with pytest.raises(SparkUnavailable, match="master") as raised:
        open_session(master=master)
    assert master.removeprefix("spark://").partition(",")[0] in raised.value.message
    assert "\n" not in str(raised.value)
