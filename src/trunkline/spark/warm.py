"""`python -m trunkline.spark.warm`: keep the classes that a session loads, so that later ones start in half the time.

Java calls that class-data sharing. The file belongs to one build of Java and one of Spark; it lies in the user's cache and
is never needed: without it, or with one that does not fit, Spark starts as usual. A session that finds none has it made
after the program has ended, in the background; `TRUNKLINE_SPARK_KEEP_CLASSES=off` forbids that.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import stat
import subprocess  # nosec B404
import sys
import tempfile
import time
from pathlib import Path

KEEP_VARIABLE = "TRUNKLINE_SPARK_KEEP_CLASSES"
# Neither a file that does not fit nor the hundreds of classes that cannot be kept are worth a word.
_QUIET = "-Xlog:cds*=off -Xlog:class+path=off"
_LONGEST = 600
_AGAIN_AFTER = 86_400


def options(java: str | None = None) -> str:
    """What makes Java use the kept classes; empty where there are none to be trusted."""
    found = archive_file(java)
    if found is None or not _trusted(found):
        return ""
    return f"-XX:SharedArchiveFile={found} -Xshare:auto {_QUIET}"


def training_options(target: Path) -> str:
    """What makes Java keep the classes of a run."""
    return f"-XX:ArchiveClassesAtExit={target} {_QUIET}"


def archive_file(java: str | None = None) -> Path | None:
    """Where the file for this Java and this Spark is, or would be."""
    import pyspark

    home = os.environ.get("JAVA_HOME")
    program = java or (shutil.which(str(Path(home) / "bin" / "java")) if home else shutil.which("java"))
    cache = cache_folder()
    # a blank would divide the option in two
    if program is None or cache is None or any(letter.isspace() for letter in str(cache)):
        return None
    real = Path(program).resolve()
    known = f"{real}:{real.stat().st_mtime_ns}:{pyspark.__version__}:{pyspark.__file__}"
    return cache / f"spark-{hashlib.sha256(known.encode()).hexdigest()[:16]}.jsa"


def cache_folder() -> Path | None:
    """Our folder in the user's cache; None without a home, as for a service's account."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "trunkline" if os.path.isabs(cache) else None


def is_private(path: Path) -> bool:
    """Whether a file or folder is ours, no other user can change it, and it is no link, whose target may change."""
    try:
        found = path.lstat()
    except OSError:
        return False
    if stat.S_ISLNK(found.st_mode):
        return False
    return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _trusted(file: Path) -> bool:
    """Java runs what is in it: only we may be able to change it or to put another one in its place."""
    return is_private(file) and is_private(file.parent)


def warm() -> Path | None:
    """Make the file anew; None where there is no Java or no cache."""
    target = archive_file()
    if target is None:
        return None
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="spark-") as folder:
        made = Path(folder) / "classes.jsa"
        # Java writes the file after Python has ended; the pipes it has inherited are open until then
        subprocess.run(  # noqa: S603  # nosec B603
            [sys.executable, "-m", "trunkline.spark.training", str(made)],
            check=True,
            capture_output=True,
            text=True,
            timeout=_LONGEST,
        )
        made.chmod(0o400)
        made.replace(target)
    return target


def warm_later() -> None:
    """Have the file made when this program has ended, unless it is there or was tried not long ago."""
    target = archive_file()
    if target is None or target.exists() or os.environ.get(KEEP_VARIABLE, "auto").lower() in ("off", "0", "false", "no"):
        return
    tried = target.with_suffix(".tried")
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if tried.exists() and 0 <= time.time() - tried.stat().st_mtime < _AGAIN_AFTER:
            return
        tried.touch(mode=0o600)
    except OSError:
        return
    atexit.register(_start)


def _start() -> None:
    """A process of its own that gives way to every other."""
    subprocess.Popen(  # nosec B603
        [sys.executable, "-c", "import os, trunkline.spark.warm as w; os.nice(19); w.warm()"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


if __name__ == "__main__":
    try:
        warm()
    except subprocess.CalledProcessError as exc:
        sys.exit(f"the classes could not be kept: {exc.stderr.strip()[-2000:]}")
