"""Interleaved rounds: measure all contestants in turn, then again, so that noise affects all of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping


def say(text: str) -> None:
    """Print progress to stderr."""
    print(text, file=sys.stderr, flush=True)


def interleave(
    title: str, unit: str, contestants: Mapping[str, Callable[[], float]], *, rounds: int
) -> dict[str, list[float]]:
    """Measure each contestant once per round. Every second round runs in reverse order."""
    measured: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds):
        order = list(contestants)
        for name in order if number % 2 == 0 else reversed(order):
            value = contestants[name]()
            measured[name].append(value)
            say(f"  {title}, round {number + 1}/{rounds}: {name} {value:,.1f} {unit}")
    return measured
