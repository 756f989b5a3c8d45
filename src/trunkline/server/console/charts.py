"""Charts as SVG made on the server. Positions are percentages, so text never stretches; colours come from classes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo

import msgspec
from markupsafe import Markup, escape

Number = float | None


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a chart. A value of None is a gap."""

    label: str
    values: Sequence[Number]
    look: str = "c-ink"
    now: str = ""
    """The current value, for the legend."""
    area: bool = False
    dashed: bool = False


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """A horizontal line: hard (red) or soft (amber)."""

    at: float
    label: str
    hard: bool = True


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A dashed vertical line, such as a deploy."""

    at: datetime
    label: str


def _g(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _runs(values: Sequence[Number]) -> list[list[tuple[int, float]]]:
    """Split values at their gaps."""
    runs: list[list[tuple[int, float]]] = [[]]
    for place, value in enumerate(values):
        if value is None or not math.isfinite(value):
            if runs[-1]:
                runs.append([])
        else:
            runs[-1].append((place, value))
    return [run for run in runs if run]


def _points(
    run: list[tuple[int, float]], places: Sequence[float], top: float, low: float, *, height: float, pad: float
) -> str:
    """Return the points of a line. `places`: the x of each value."""
    span = (top - low) or 1
    return " ".join(
        f"{_g(places[place])},{_g(pad + height - (min(value, top) - low) / span * height)}" for place, value in run
    )


def sparkline(values: Sequence[Number], *, look: str = "c-ink", cell: bool = False, label: str = "") -> Markup:
    """A small line without axes, with its own scale. Without a label it is decoration."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    about = Markup('role="img" aria-label="{}"').format(label) if label else Markup('aria-hidden="true"')
    head = Markup('<svg class="spark{} {}" viewBox="0 0 100 22" preserveAspectRatio="none" {}>').format(
        " cell" if cell else "", look, about
    )
    if not known:
        return head + Markup("</svg>")
    low, top = min(known), max(known)
    low = 0.0 if low < top * 0.6 else low * 0.9
    body, places = Markup(""), [place * 100 / max(1, len(values) - 1) for place in range(len(values))]
    for run in _runs(values):
        points = _points(run, places, top or 1, low, height=18, pad=2)
        first, last = points.partition(",")[0], points.rpartition(" ")[2].partition(",")[0]
        body += Markup('<path class="ar" d="M{},22 L{} L{},22z"/><polyline class="ln" points="{}"/>').format(
            first, points, last, points
        )
    return head + body + Markup("</svg>")


def nice(top: float) -> float:
    """Return a round number that is at least `top`."""
    if top <= 0 or not math.isfinite(top):
        return 1.0
    power = 10.0 ** math.floor(math.log10(top))
    return next(step * power for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * power >= top * 0.999)


def chart(
    title: str,
    unit: str,
    lines: Sequence[Line],
    times: Sequence[datetime],
    *,
    since: datetime,
    until: datetime,
    tick: Callable[[float], str],
    zone: tzinfo = UTC,
    limits: Sequence[Limit] = (),
    events: Sequence[Event] = (),
    height: int = 132,
    summary: str = "",
) -> Markup:
    """A chart over time, with at most three lines. The y axis starts at 0; `tick` writes its values.

    `times`: the time of each value of the lines.
    """
    known = [value for line in lines for value in line.values if value is not None and math.isfinite(value)]
    top = nice(max([*known, *(limit.at for limit in limits)], default=0))
    told = summary or f"{title}: " + ", ".join(f"{line.label} {line.now}" for line in lines if line.now)
    out = [
        Markup('<figure class="chart"><figcaption><h2>{}</h2><span class="note">{}</span><span class="legend">').format(
            title, unit
        ),
        *(Markup('<span class="key {}">{} <b>{}</b></span>').format(line.look, line.label, line.now) for line in lines),
        Markup('</span></figcaption><svg class="c" height="{}" role="img" aria-label="{}">').format(height + 18, told),
    ]
    steps = [(value, round(height - value / top * height) + 0.5) for value in (0, top / 2, top)]
    for value, y in steps:
        out.append(
            Markup('<line class="{0}" x1="0" x2="100%" y1="{1}" y2="{1}"/>').format("grid" if value else "base", _g(y))
        )
    out.append(
        Markup(
            '<svg x="0" y="0" width="100%" height="{0}" viewBox="0 0 1000 {0}" preserveAspectRatio="none"'
            ' overflow="visible">'
        ).format(height)
    )
    places = [min(1000.0, max(0.0, _percent(at, since, until) * 10)) for at in times]
    for line in lines:
        for run in _runs(line.values):
            points = _points(run, places, top, 0, height=height, pad=0)
            first, last = points.partition(",")[0], points.rpartition(" ")[2].partition(",")[0]
            if line.area:
                out.append(
                    Markup('<path class="ar {}" d="M{},{} L{} L{},{}z"/>').format(
                        line.look, first, height, points, last, height
                    )
                )
            out.append(
                Markup('<polyline class="ln {}{}" points="{}"/>').format(line.look, " dash" if line.dashed else "", points)
            )
    out.append(Markup("</svg>"))
    for limit in limits:
        y = round(height - limit.at / top * height) + 0.5
        out.append(
            Markup(
                '<line class="{0}" x1="0" x2="100%" y1="{1}" y2="{1}"/>'
                '<text class="halo {2}" x="100%" y="{3}" text-anchor="end">{4}</text>'
            ).format("limit" if limit.hard else "soft", _g(y), "badt" if limit.hard else "warnt", _g(y - 5), limit.label)
        )
    for event in events:
        x = _percent(event.at, since, until)
        if 0 <= x <= 100:
            anchor, dx = ("start", 4) if x < 60 else ("end", -4)
            out.append(
                Markup(
                    '<line class="event" x1="{0}%" x2="{0}%" y1="0" y2="{1}"/>'
                    '<text class="halo mid" x="{0}%" dx="{2}" y="9" text-anchor="{3}">{4}</text>'
                ).format(_g(x), height, dx, anchor, event.label)
            )
    for value, y in steps[1:]:
        out.append(Markup('<text class="halo" x="0" y="{}">{}</text>').format(_g(y + (11 if y < 10 else -4)), tick(value)))
    out += _times(since, until, zone, height)
    if not known:
        out.append(
            Markup('<text class="mid" x="50%" y="{}" text-anchor="middle">No values yet</text>').format(height * 3 // 4)
        )
    return Markup("").join([*out, Markup("</svg></figure>")])


def _percent(at: datetime, since: datetime, until: datetime) -> float:
    return (at - since) / max(until - since, timedelta(microseconds=1)) * 100


def _times(since: datetime, until: datetime, zone: tzinfo, height: int) -> list[Markup]:
    """Labels of the x axis: both ends and the middle; the day too where the range passes midnight."""
    days = since.astimezone(zone).date() != until.astimezone(zone).date()
    labels = []
    for share, anchor in ((0, "start"), (50, "middle"), (100, "end")):
        at = (since + (until - since) * share / 100).astimezone(zone)
        text = f"{at:%a %H:%M}" if days and share != 100 else f"{at:%H:%M}"
        labels.append(Markup('<text x="{}%" y="{}" text-anchor="{}">{}</text>').format(share, height + 15, anchor, text))
    return labels


def meter(parts: Sequence[tuple[float, str]], label: str, *, cell: bool = False) -> Markup:
    """A bar of shares in percent, each with its class."""
    height, x = (6 if cell else 10), 0.0
    out = [
        Markup('<svg class="meter{}" role="img" aria-label="{}"><rect class="track" width="100%" height="{}"/>').format(
            " cell" if cell else "", label, height
        )
    ]
    for share, look in parts:
        if share > 0:
            out.append(
                Markup('<rect class="fl {}" x="{}%" width="{}%" height="{}"/>').format(
                    look, f"{x:.2f}", f"{share:.2f}", height
                )
            )
        x += share
    return Markup("").join([*out, Markup("</svg>")])


def describe(words: str) -> Markup:
    return Markup("<desc>") + escape(words) + Markup("</desc>")
