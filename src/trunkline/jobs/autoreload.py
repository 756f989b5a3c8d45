"""Development server: runs a command and restarts it whenever a source file changes."""

from __future__ import annotations

import signal
import subprocess  # nosec B404
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_SKIP = frozenset((".venv", "venv", "node_modules", "__pycache__", ".git"))
_POLL_SECONDS = 0.5


def sources(folder: Path) -> dict[Path, float]:
    """Return the Python files below a directory and their modification times."""
    files: dict[Path, float] = {}
    for path in folder.iterdir():
        if path.name in _SKIP or path.name.startswith("."):
            continue
        try:
            if path.is_dir() and not path.is_symlink():
                files |= sources(path)
            elif path.suffix == ".py":
                files[path] = path.stat().st_mtime
        except OSError:
            continue  # removed during the scan
    return files


def run_and_reload(command: Sequence[str], folder: Path, say: Callable[[str], None]) -> int:
    """Run the command until Ctrl-C or SIGTERM. Returns the exit code of the last run."""
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: stopped.append(number))
    while True:
        seen = sources(folder)
        process = subprocess.Popen(list(command))  # noqa: S603  our own command line  # nosec B603
        while not stopped and sources(folder) == seen:
            time.sleep(_POLL_SECONDS)
        process.terminate()
        code = process.wait()
        if stopped:
            return code
        say("a file changed; restarting")
