"""The offset ruler: partitions as rows, readers as pins. What is archived, live and new, and where each reader stands.

Positions are distances from the head, in messages or in seconds; the measure says which. Three zones have their own
scales: the archive, the live log (linear) and the head (square root).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
from markupsafe import Markup

Kind = Literal["group", "queue", "spark"]
SHAPES = {
    "group": Markup('<path class="pin" d="M0-6.500 6 5H-6z"/>'),
    "queue": Markup('<rect class="pin" x="-5" y="-5" width="10" height="10" rx="1.500"/>'),
    "spark": Markup('<path class="pin" d="M0-7 7 0 0 7-7 0z"/>'),
}
_LEFT, _ARCHIVE_END, _HEAD, _RIGHT = 4.0, 21.0, 70.0, 96.0
_TOP, _LANE, _STEP = 50, 16, 30
_MOST_DOTS = 4
_MOST_LABEL_ROWS = 8
_LABEL_WIDTH = 16.0
"""Percent of the width that a label takes."""
_LABEL_TURNS = 30.0
"""Labels left of this begin at their pin; others end there."""


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """A partition. Distances are from its head."""

    name: str
    span: float
    """Of the earliest message in the live log."""
    archived: bool = False
    archived_to: float | None = None
    """Of the last archived message, None if nothing is archived."""
    segments: int = 1
    unnumbered: int = 0


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """A reader: its distance from the head in each partition (None: it does not read that one)."""

    name: str
    kind: Kind
    at: Sequence[float | None]
    label: str = ""
    danger: bool = False


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A vertical line, such as the retention."""

    at: float
    label: str
    hard: bool = False


class Scale:
    """Maps a distance from the head to percent of the width."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self.archived = any(lane.archived for lane in lanes)
        self.start = _ARCHIVE_END if self.archived else _LEFT
        self.span = max([lane.span for lane in lanes], default=0) or 1.0
        self.head = min(self.span, max(10.0, self.span / 20))
        """Distance that the head zone covers."""

    def x(self, distance: float) -> float:
        distance = max(0.0, distance)
        if distance <= self.head:
            return _RIGHT - math.sqrt(distance / self.head) * (_RIGHT - _HEAD)
        if self.span <= self.head or distance > self.span:
            return self.start
        return _HEAD - (distance - self.head) / (self.span - self.head) * (_HEAD - self.start)


def shape(kind: str, *, danger: bool = False) -> Markup:
    """The shape of a reader, for legends and tables."""
    look = "bad" if danger else kind
    return Markup('<svg class="shape r-{}" viewBox="-6 -7 12 13" aria-hidden="true">{}</svg>').format(
        look, SHAPES.get(kind, SHAPES["group"])
    )


def ruler(
    name: str,
    lanes: Sequence[Lane],
    pins: Sequence[Pin] = (),
    marks: Sequence[Mark] = (),
    *,
    tick: Callable[[float], str],
    summary: str = "",
) -> Markup:
    """Draw the ruler of a topic. `tick` writes distances: "41,900" or "2 m 20 s"."""
    scale = Scale(lanes)
    bottom = _TOP + len(lanes) * _STEP - 8
    labels = min(_MOST_LABEL_ROWS, max(3, len(pins)))
    height = bottom + 26 + labels * 16
    told = summary or _told(name, lanes, pins, tick)
    out = [Markup('<svg class="c" height="{}" role="img" aria-label="{}">').format(height, told)]
    out += _zones(scale, bottom, tick)
    for row, lane in enumerate(lanes):
        out += _lane(scale, lane, _TOP + row * _STEP)
    for mark in marks:
        x = scale.x(mark.at)
        out.append(
            Markup(
                '<line class="{0}" x1="{1}%" x2="{1}%" y1="40" y2="{2}"/>'
                '<text class="lbl halo {3}" x="{1}%" dx="6" y="{4}">{5}</text>'
            ).format(
                "limit" if mark.hard else "soft",
                f"{x:.2f}",
                bottom + 6,
                "badt" if mark.hard else "warnt",
                bottom + 18,
                mark.label,
            )
        )
    rows = [0.0] * labels
    for pin in sorted(pins, key=lambda pin: min((at for at in pin.at if at is not None), default=0.0), reverse=True):
        out += _pin(scale, pin, bottom, height, rows)
    return Markup("").join([*out, Markup("</svg>")])


def _told(name: str, lanes: Sequence[Lane], pins: Sequence[Pin], tick: Callable[[float], str]) -> str:
    readers = "; ".join(
        f"{pin.kind} {pin.name} {pin.label or tick(max((at or 0 for at in pin.at), default=0))}" for pin in pins
    )
    count = len(lanes)
    return f"Offset ruler of topic {name}, {count} partitions. {readers}".strip()


def _zones(scale: Scale, bottom: int, tick: Callable[[float], str]) -> list[Markup]:
    out = [
        Markup('<rect class="zone-alt" x="{}%" width="{}%" y="0" height="{}"/>').format(
            f"{scale.start:g}", f"{_HEAD - scale.start:g}", bottom + 6
        )
    ]
    zones = [(scale.start, "Live log"), (_HEAD, "Head")]
    if scale.archived:
        zones.insert(0, (_LEFT, "Archive"))
    for x, title in zones:
        out.append(Markup('<text class="on" x="{}%" dx="8" y="13">{}</text>').format(f"{x:g}", title))
        out.append(Markup('<line class="brk" x1="{0}%" x2="{0}%" y1="0" y2="{1}"/>').format(f"{x:g}", bottom + 6))
    for distance, look in (
        (scale.span, "opt"),
        (scale.span / 2, "opt"),
        (scale.head, ""),
        (scale.head / 9, "opt"),
        (0.0, "on"),
    ):
        if distance > scale.head or distance in (scale.head, scale.head / 9, 0.0):
            out.append(
                Markup(
                    '<line class="grid" x1="{0}%" x2="{0}%" y1="35" y2="39"/>'
                    '<text class="{1}" x="{0}%" y="31" text-anchor="middle">{2}</text>'
                ).format(f"{scale.x(distance):.2f}", look, "now" if distance == 0 else f"-{tick(distance)}")
            )
    out.append(Markup('<line class="base" x1="{}%" x2="{}%" y1="39.5" y2="39.5"/>').format(f"{_LEFT:g}", f"{_RIGHT:g}"))
    return out


def _bar(look: str, start: float, end: float, y: float, height: int) -> Markup:
    return Markup('<rect class="{}" x="{}%" width="{}%" y="{}" height="{}"/>').format(
        look, f"{start:.2f}", f"{max(0.0, end - start):.2f}", f"{y:g}", height
    )


def _lane(scale: Scale, lane: Lane, y: int) -> list[Markup]:
    start, head = scale.x(lane.span), scale.x(min(lane.span, scale.head))
    out = [_bar("lane", _LEFT, _RIGHT, y, _LANE)]
    if lane.archived and lane.archived_to is not None:
        out.append(_bar("tier-arch", _LEFT, scale.x(lane.archived_to), y + 11, 5))
    if lane.span > 0:
        out += [_bar("tier-live", start, head, y, 9), _bar("tier-head", max(head, _HEAD), _RIGHT, y, 9)]
    for part in range(1, min(lane.segments, 40)):
        x = start + (_RIGHT - start) * part / lane.segments
        out.append(Markup('<line class="segtick" x1="{0}%" x2="{0}%" y1="{1}" y2="{2}"/>').format(f"{x:.2f}", y, y + 9))
    for dot in range(min(lane.unnumbered, _MOST_DOTS)):
        out.append(
            Markup('<circle class="fl c-faint" cx="{}%" cy="{}" r="1.3"/>').format(
                f"{_RIGHT + 0.55 + 0.5 * dot:.2f}", y + 4.5
            )
        )
    out.append(Markup('<text class="mid" x="0" y="{}">{}</text>').format(y + 11, lane.name))
    return out


def _pin(scale: Scale, pin: Pin, bottom: int, height: int, rows: list[float]) -> list[Markup]:
    look = "r-bad" if pin.danger else f"r-{pin.kind}"
    places = [(scale.x(at), _TOP + row * _STEP + 4.5) for row, at in enumerate(pin.at) if at is not None]
    if not places:
        return []
    last = places[-1][0]
    ends = last > _LABEL_TURNS
    begin = last - _LABEL_WIDTH if ends else last
    row = next((row for row, taken in enumerate(rows) if begin >= taken), len(rows) - 1)
    rows[row] = max(rows[row], begin + _LABEL_WIDTH)
    y = bottom + 18 + row * 16
    thread = " ".join(f"{x * 10:.1f},{at:g}" for x, at in [*places, (last, y - 9.0)])
    out = [
        Markup(
            '<svg x="0" y="0" width="100%" height="{0}" viewBox="0 0 1000 {0}" preserveAspectRatio="none">'
            '<polyline class="thread {1}" points="{2}"/></svg>'
        ).format(height, look, thread)
    ]
    out += [
        Markup('<svg class="{}" x="{}%" y="{}" overflow="visible">{}</svg>').format(
            look, f"{x:.2f}", f"{at:g}", SHAPES[pin.kind]
        )
        for x, at in places
    ]
    anchor, dx = ("end", 4) if ends else ("start", -4)
    out.append(
        Markup(
            '<text class="lbl halo mid" x="{}%" dx="{}" y="{}" text-anchor="{}"><tspan class="{}">{}</tspan> {}</text>'
        ).format(f"{last:.2f}", dx, y + 1, anchor, "badt" if pin.danger else "rn", pin.name, pin.label)
    )
    return out
