"""Archive the classes that a session loads, to halve the start time of later ones.

Run as `python -m trunkline.spark.session.class_cache`.

This is Java's class-data sharing. The archive is specific to a Java and a Spark build, and is stored in the user's
cache. It is optional: if it is missing or does not match, Spark starts as usual. A session without one creates it in
the background after the program ends, unless `TRUNKLINE_SPARK_KEEP_CLASSES=off` is set.
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
# Suppress warnings about a mismatched archive and about the hundreds of classes that cannot be archived.
_QUIET = "-Xlog:cds*=off -Xlog:class+path=off"
_LONGEST = 600
_AGAIN_AFTER = 86_400


def options(java: str | None = None) -> str:
    """Return the JVM options that use the class archive; empty if there is none or it is not trusted."""
    file = archive_file(java)
    if file is None or not _trusted(file):
        return ""
    return f"-XX:SharedArchiveFile={file} -Xshare:auto {_QUIET}"


def training_options(target: Path) -> str:
    """Return the JVM options that archive the classes of a run."""
    return f"-XX:ArchiveClassesAtExit={target} {_QUIET}"


def archive_file(java: str | None = None) -> Path | None:
    """Return the path of the class archive for this Java and Spark; None without Java or a usable cache."""
    import pyspark

    home = os.environ.get("JAVA_HOME")
    program = java or (shutil.which(str(Path(home) / "bin" / "java")) if home else shutil.which("java"))
    cache = cache_folder()
    # A space in the path would split the JVM option.
    if program is None or cache is None or any(letter.isspace() for letter in str(cache)):
        return None
    real = Path(program).resolve()
    known = f"{real}:{real.stat().st_mtime_ns}:{pyspark.__version__}:{pyspark.__file__}"
    return cache / f"spark-{hashlib.sha256(known.encode()).hexdigest()[:16]}.jsa"


def cache_folder() -> Path | None:
    """Return our folder in the user's cache; None without a home directory, as for a service account."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "trunkline" if os.path.isabs(cache) else None


def is_private(path: Path) -> bool:
    """Return true if this user owns the path and no other can change it. False for links: their target may change."""
    try:
        status = path.lstat()
    except OSError:
        return False
    if stat.S_ISLNK(status.st_mode):
        return False
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _trusted(file: Path) -> bool:
    """Return true if no other user can change or replace the file: Java executes its contents."""
    return is_private(file) and is_private(file.parent)


def warm() -> Path | None:
    """Create the class archive, replacing an existing one. Return its path; None without Java or a usable cache."""
    target = archive_file()
    if target is None:
        return None
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="spark-") as folder:
        draft = Path(folder) / "classes.jsa"
        # Java writes the file after Python has exited. It inherits the pipes, so run() waits until it has finished.
        subprocess.run(  # noqa: S603  # nosec B603
            [sys.executable, "-m", "trunkline.spark.session.class_cache_training", str(draft)],
            check=True,
            capture_output=True,
            text=True,
            timeout=_LONGEST,
        )
        draft.chmod(0o400)
        draft.replace(target)
    return target


_OFF = ("off", "0", "false", "no")


def warm_later() -> None:
    """Create the class archive after this program ends, unless it exists or was attempted in the last 24 hours.

    Not by default on a CI runner (variable CI), which is discarded or expects no process to outlive the program.
    """
    target, setting = archive_file(), os.environ.get(KEEP_VARIABLE, "off" if os.environ.get("CI") else "auto").lower()
    if target is None or target.exists() or setting in _OFF:
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
    """Start a detached process with the lowest priority."""
    subprocess.Popen(  # nosec B603
        [sys.executable, "-c", "import os, trunkline.spark.session.class_cache as w; os.nice(19); w.warm()"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


if __name__ == "__main__":
    try:
        warm()
    except subprocess.CalledProcessError as exc:
        sys.exit(f"cannot create the class archive: {exc.stderr.strip()[-2000:]}")
