"""Measure the time from process start to the first row of a topic."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from bench.lab import Lab
from trunkline.spark.options import URL_VARIABLE
from trunkline.spark.session.class_cache import KEEP_VARIABLE

_LONGEST = 120


class Starts:
    """Fresh processes with a separate cache, so that existing class archives have no effect."""

    def __init__(self, lab: Lab, folder: Path, topic: str) -> None:
        self._topic = topic
        # Spark's default is the first python3 in the PATH, which may lack the packages.
        common = {**os.environ, URL_VARIABLE: lab.tcp_url}
        for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
            common.pop(name, None)
        self._default = common | {"PYSPARK_PYTHON": sys.executable}
        # Disable archiving: it would run in the background during the next measurement.
        self._cold = common | {"XDG_CACHE_HOME": str(folder / "empty"), KEEP_VARIABLE: "off"}
        self._warm = common | {"XDG_CACHE_HOME": str(folder / "warm")}

    def prepare(self) -> str | None:
        """Create the class archive, as the first start does at exit. Return the error output if it failed."""
        command = [sys.executable, "-m", "trunkline.spark.session.class_cache"]
        done = subprocess.run(command, env=self._warm, check=False, capture_output=True, text=True)
        return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no error output"])[-1]

    def warmed(self) -> float:
        return self._seconds("helper", self._warm)

    def cold(self) -> float:
        return self._seconds("helper", self._cold)

    def default(self) -> float:
        return self._seconds("default", self._default)

    def _seconds(self, kind: str, environment: dict[str, str]) -> float:
        command = [sys.executable, "-m", "bench.spark.first_row", kind, self._topic]
        start = time.perf_counter()
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdout is not None
            output = process.stdout.readline().strip()
            seconds = time.perf_counter() - start
            process.wait(_LONGEST)
        if output != "row":
            raise RuntimeError(f"first_row {kind} printed {output!r} and exited with status {process.returncode}")
        return seconds
