"""CPU seconds of the JVM, Spark's Python processes, and Postgres."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

import msgspec
import psutil

from bench.lab import Lab


class Cpu(msgspec.Struct, frozen=True):
    jvm: float
    python: float
    postgres: float

    def __sub__(self, other: Cpu) -> Cpu:
        return Cpu(self.jvm - other.jvm, self.python - other.python, self.postgres - other.postgres)

    def __str__(self) -> str:
        return f"CPU {self.jvm:.1f} JVM, {self.python:.1f} Python, {self.postgres:.1f} Postgres s"


def middle(seen: Sequence[Cpu]) -> Cpu:
    """Return the median of each part."""
    return Cpu(*(median(getattr(one, part) for one in seen) for part in ("jvm", "python", "postgres")))


class Meter:
    """Read the CPU time of both process trees so far. Excludes the driver's Python process, which only waits."""

    def __init__(self, lab: Lab, jvm_pid: int) -> None:
        self._jvm = psutil.Process(jvm_pid)
        backend = psutil.Process(lab.conn.info.backend_pid)
        parent = backend.parent()
        if parent is None:
            raise RuntimeError("the lab's server has no postmaster")
        self._postmaster = parent

    def now(self) -> Cpu:
        jvm = _own(self._jvm)
        return Cpu(jvm, _tree(self._jvm) - jvm, _tree(self._postmaster))


def _tree(root: psutil.Process) -> float:
    """Return the CPU time of live and ended processes. A parent's time includes the children it has waited for."""
    return sum(_own(process) + _waited_for(process) for process in _living(root))


def _living(root: psutil.Process) -> Iterable[psutil.Process]:
    return (root, *root.children(recursive=True))


def _own(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def _waited_for(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.children_user + times.children_system)
