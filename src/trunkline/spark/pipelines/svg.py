"""Charts as inline SVG, without scripts or external resources.

CSS variables set the colours, so they follow the theme.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from html import escape

Points = Sequence[tuple[datetime, float]]
SERIES = 6
"""Palette size. Charts with more series show only the largest."""

_WIDTH, _HEIGHT = 760, 240
# Round time steps in seconds.
_SPANS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400)
_WIDEST_BAR = 56
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 12, 28


def number(value: float) -> str:
    """Format a number: 1,234 or 1.2M or 0.034."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.3g}{unit}"
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def seconds(value: float) -> str:
    """Format a duration: 350 µs, 12 ms, 3.4 s, 5 min, 2 h."""
    if value <= 0:
        return "0"
    for limit, size, unit in ((1e-3, 1e-6, "µs"), (1, 1e-3, "ms"), (120, 1, "s"), (3600, 60, "min"), (172_800, 3600, "h")):
        if value < limit:
            return f"{value / size:.3g} {unit}"
    return f"{value / 86_400:.3g} d"


def size(value: float) -> str:
    """Format a size in bytes: 312 B, 4.1 kB, 2.3 MB."""
    for limit, unit in ((1e3, "B"), (1e6, "kB"), (1e9, "MB"), (1e12, "GB")):
        if value < limit:
            return f"{value / (limit / 1e3):.3g} {unit}"
    return f"{value / 1e12:.3g} TB"


def lines(series: Mapping[str, Points], *, show: Callable[[float], str] = number, text: str = "") -> str:
    """Draw a line chart over time, one line per name, with a legend if there are several."""
    nonempty = {name: points for name, points in series.items() if points}
    if not nonempty:
        return empty()
    times = [at for points in nonempty.values() for at, _ in points]
    start, end = min(times), max(times)
    span = max((end - start).total_seconds(), 1.0)
    most = max(value for points in nonempty.values() for _, value in points)
    ticks = _span_ticks(most) if show is seconds else _ticks(most)
    top = ticks[-1]

    def x(at: datetime) -> float:
        return _LEFT + (at - start).total_seconds() / span * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - value / top * (_HEIGHT - _TOP - _BOTTOM)

    parts = [_grid(ticks, y, show), _time_axis(start, span, x)]
    for order, (name, points) in enumerate(nonempty.items()):
        path = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in points)
        parts.append(f'<polyline class="line s{order % SERIES}" points="{path}"/>')
        for at, value in points:
            tooltip = escape(f"{name}: {show(value)} at {at:%Y-%m-%d %H:%M}")
            visible = " only" if len(points) == 1 else ""
            parts.append(
                f'<circle class="dot s{order % SERIES}{visible}" cx="{x(at):.1f}" cy="{y(value):.1f}" r="5">'
                f"<title>{tooltip}</title></circle>"
            )
    legend = _legend(list(nonempty)) if len(nonempty) > 1 else ""
    return f"{legend}{_svg(parts, _HEIGHT, text or ', '.join(nonempty))}"


def columns(bins: Sequence[tuple[str, float]], *, text: str = "") -> str:
    """Draw vertical bars in the given order, for histograms."""
    if not any(value for _, value in bins):
        return empty()
    ticks = _ticks(max(value for _, value in bins))
    wide = (_WIDTH - _LEFT - _RIGHT) / len(bins)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - value / ticks[-1] * (_HEIGHT - _TOP - _BOTTOM)

    parts = [_grid(ticks, y, number)]
    every = math.ceil(len(bins) / 12)
    for order, (label, value) in enumerate(bins):
        broad = min(max(wide - 2, 1), _WIDEST_BAR)
        left = _LEFT + order * wide + (wide - broad) / 2
        tooltip = escape(f"{label}: {number(value)}")
        parts.append(
            f'<rect class="bar s0" x="{left:.1f}" y="{y(value):.1f}" width="{broad:.1f}" '
            f'height="{y(0) - y(value):.1f}" rx="2"><title>{tooltip}</title></rect>'
        )
        if order % every == 0:
            middle = left + broad / 2
            parts.append(
                f'<text class="tick" x="{middle:.1f}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(label)}</text>'
            )
    return _svg(parts, _HEIGHT, text)


def bars(rows: Sequence[tuple[str, float]], *, show: Callable[[float], str] = number, text: str = "") -> str:
    """Draw horizontal bars, with the value at the end of each."""
    if not rows:
        return empty()
    most = max(value for _, value in rows) or 1
    step, left = 24, 220
    parts = []
    for order, (label, value) in enumerate(rows):
        top = order * step
        long = value / most * (_WIDTH - left - 90)
        tooltip = escape(f"{label}: {show(value)}")
        short = label if len(label) <= 32 else f"{label[:31]}…"
        parts.append(
            f'<text class="label" x="{left - 8}" y="{top + 16}" text-anchor="end">{escape(short)}'
            f"<title>{tooltip}</title></text>"
            f'<rect class="bar s0" x="{left}" y="{top + 4}" width="{max(long, 1):.1f}" height="{step - 8}" rx="2">'
            f"<title>{tooltip}</title></rect>"
            f'<text class="value" x="{left + long + 8:.1f}" y="{top + 16}">{escape(show(value))}</text>'
        )
    return _svg(parts, len(rows) * step + 4, text)


def empty() -> str:
    return '<p class="empty">No data in this period.</p>'


def _svg(parts: Sequence[str], height: int, text: str) -> str:
    drawn = f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(text)}">{"".join(parts)}</svg>'
    # Narrow screens scroll the chart instead of shrinking it.
    return f'<div class="wide">{drawn}</div>'


def _legend(names: Sequence[str]) -> str:
    keys = "".join(f'<span><i class="key s{order % SERIES}"></i>{escape(name)}</span>' for order, name in enumerate(names))
    return f'<div class="legend">{keys}</div>'


def _grid(ticks: Sequence[float], y: Callable[[float], float], show: Callable[[float], str]) -> str:
    return "".join(
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
        f'<text class="tick" x="{_LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{escape(show(tick))}</text>'
        for tick in ticks
    )


def _time_axis(start: datetime, span: float, x: Callable[[datetime], float]) -> str:
    """Draw up to eight time labels, at whole minutes, hours or days."""
    step = next((step for step in _SPANS if step >= span / 8), math.ceil(span / 8 / 86_400) * 86_400)
    shape = "%H:%M:%S" if step < 60 else "%H:%M" if step < 86_400 else "%m-%d"
    first = math.ceil(start.timestamp() / step) * step
    texts = []
    for order in range(int((start.timestamp() + span - first) // step) + 1):
        at = datetime.fromtimestamp(first + step * order, start.tzinfo)
        place = min(max(x(at), _LEFT + 16), _WIDTH - _RIGHT - 16)
        texts.append(
            f'<line class="grid" x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{_HEIGHT - _BOTTOM}" y2="{_HEIGHT - _BOTTOM + 4}"/>'
            f'<text class="tick" x="{place:.1f}" y="{_HEIGHT - 8}" text-anchor="middle">{at:{shape}}</text>'
        )
    return "".join(texts)


def _span_ticks(most: float) -> list[float]:
    """Return axis values for durations, at whole minutes and hours."""
    if most <= 4:
        return _ticks(most)
    step = next((step for step in _SPANS if step >= most / 4), math.ceil(most / 4 / 86_400) * 86_400)
    return [float(step * order) for order in range(math.ceil(most / step) + 1)]


def _ticks(most: float) -> list[float]:
    """Return four or five round axis values from 0 to at least `most`."""
    if most <= 0:
        return [0.0, 1.0]
    rough = most / 4
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough)
    return [step * order for order in range(math.ceil(most / step) + 1)]
