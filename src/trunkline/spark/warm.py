"""`python -m trunkline.spark.warm`: keep the classes that a session loads, so that later ones start in half the time.

The file belongs to one build of Java and one of Spark. It is never needed: without it Spark starts as usual.
"""

from __future__ import annotations

import hashlib
import os
import subprocess  # nosec B404
import sys
import tempfile
from pathlib import Path

_RUN = """
from trunkline.spark.session import open_session
options = "-XX:+UseSerialGC -XX:ArchiveClassesAtExit=%s"
spark = open_session("warm", master="local[1]", conf={"spark.driver.extraJavaOptions": options})
spark.range(100).selectExpr("id %% 3 as k").groupBy("k").count().collect()
spark.stop()
"""


def archive_file() -> Path | None:
    """Where the file for this Java and this Spark is, or would be."""
    import shutil

    import pyspark

    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home) / "bin" / "java")) if home else shutil.which("java")
    if java is None:
        return None
    real = Path(java).resolve()
    known = f"{real}:{real.stat().st_mtime_ns}:{pyspark.__version__}:{pyspark.__file__}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trunkline"
    return cache / f"spark-{hashlib.sha256(known.encode()).hexdigest()[:16]}.jsa"


def warm() -> Path | None:
    """Make the file anew; None where there is no Java."""
    target = archive_file()
    if target is None:
        return None
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / "classes.jsa"
        # the dump prints hundreds of warnings about classes that cannot be kept
        subprocess.run([sys.executable, "-c", _RUN % made], check=True, capture_output=True)  # noqa: S603  # nosec B603
        made.replace(target)
    return target


if __name__ == "__main__":
    warm()
