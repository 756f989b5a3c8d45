"""Settings of a run."""

from __future__ import annotations

import msgspec


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and durations of one run. Workloads take all their sizes from here."""

    quick: bool
    rounds: int
    seconds: float
    minutes: float
    deep: int
    payloads: tuple[int, ...] = (300, 1024)
    publishers: int = 64
    consumers: int = 16
    copiers: int = 4
    # Samples per latency, and number of forced disconnects.
    samples: int = 300
    disconnects: int = 200
