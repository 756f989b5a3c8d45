"""The checker of H3: request starts of all dispatchers, as they wrote them down, against rate x w + burst."""

from __future__ import annotations

from pathlib import Path


def read(path: Path) -> dict[str, list[float]]:
    """Seconds of the starts of each endpoint, in order."""
    found: dict[str, list[float]] = {}
    for line in path.read_text().splitlines():
        name, _, at = line.partition(" ")
        found.setdefault(name, []).append(int(at) / 1e9)
    return {name: sorted(times) for name, times in found.items()}


def worst_excess(times: list[float], rate: float, burst: int) -> float:
    """The most starts above rate x w + burst in any window; at most 0 when the limit was kept.

    Windows that begin and end at a start are the worst ones: n starts from i to j need n <= rate x (t[j] - t[i]) + burst.
    With f(k) = k - rate x t[k] this is f(j) - f(i) + 1 - burst, so one pass with the least f so far finds the worst.
    """
    least = float("inf")
    worst = float("-inf")
    for number, at in enumerate(times):
        score = number - rate * at
        least = min(least, score)
        worst = max(worst, score - least + 1 - burst)
    return worst
