"""Rows of the report, and their computation from interleaved rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median, quantiles

import msgspec


class Goal(msgspec.Struct, frozen=True):
    """A limit on a ratio or a figure."""

    sign: str
    limit: float

    def __str__(self) -> str:
        return f"{self.sign} {self.limit:g}"

    def verdict(self, value: float) -> str:
        """Return `PASS`, or the side on which the value missed the goal: `below` or `above`."""
        if self.sign == ">=":
            return "PASS" if value >= self.limit else "below"
        return "PASS" if value <= self.limit else "above"


def at_least(limit: float) -> Goal:
    return Goal(">=", limit)


def at_most(limit: float) -> Goal:
    return Goal("<=", limit)


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One measured figure. `ratio` is Trunkline's value divided by this row's, the median over rounds.

    The goal applies to the ratio, or to the value if there is no ratio.
    """

    workload: str
    payload: int
    name: str
    value: float
    unit: str
    rounds: list[float]
    ratio: float | None = None
    ratios: list[float] = []
    goal: Goal | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.goal is None:
            return ""
        return self.goal.verdict(self.value if self.ratio is None else self.ratio)


def ratio(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Divide round by round: both values of a round were measured under the same conditions."""
    return [a / b if b else float("inf") for a, b in zip(above, below, strict=True)]


def compare(
    workload: str,
    payload: int,
    unit: str,
    measured: Mapping[str, Sequence[float]],
    *,
    goals: Mapping[str, Goal],
    notes: Mapping[str, str] | None = None,
) -> list[Row]:
    """Return a row per contestant. The first one is Trunkline; the others get the ratio of Trunkline to them."""
    ours = next(iter(measured))
    rows = []
    for name, rounds in measured.items():
        ratios = [] if name == ours else ratio(measured[ours], rounds)
        rows.append(
            Row(
                workload=workload,
                payload=payload,
                name=name,
                value=median(rounds),
                unit=unit,
                rounds=list(rounds),
                ratio=median(ratios) if ratios else None,
                ratios=ratios,
                goal=goals.get(name),
                note=(notes or {}).get(name, ""),
            )
        )
    return rows


def figure(
    workload: str,
    name: str,
    value: float,
    unit: str,
    *,
    payload: int = 0,
    rounds: Sequence[float] = (),
    goal: Goal | None = None,
    note: str = "",
) -> Row:
    """Return a row without comparison; its goal applies to the value."""
    return Row(
        workload=workload,
        payload=payload,
        name=name,
        value=value,
        unit=unit,
        rounds=list(rounds) or [value],
        goal=goal,
        note=note,
    )


def percentile(values: Sequence[float], percent: int) -> float:
    return quantiles(values, n=100, method="inclusive")[percent - 1] if len(values) > 1 else values[0]
