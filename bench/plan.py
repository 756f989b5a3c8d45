"""What a run was asked to do."""

from __future__ import annotations

import msgspec


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one run; workloads read their sizes from here and nowhere else."""

    quick: bool
    rounds: int
    seconds: float
    minutes: float
    deep: int
    payloads: tuple[int, ...] = (300, 1024)
    publishers: int = 64
    consumers: int = 16
    copiers: int = 4
    # Samples of each latency, and forced disconnects.
    samples: int = 300
    disconnects: int = 200
