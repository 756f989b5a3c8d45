"""The timeline of a message: what happened in the log and at each reader, as SVG made on the server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo

from markupsafe import Markup

from trunkline.server.console import shapes
from trunkline.server.console.verdicts import Reader

_LEFT, _BREAK, _RIGHT = 14.0, 47.0, 97.0
_TOP, _STEP = 52, 28
_HEAD = timedelta(milliseconds=300)
_MOST_ROWS, _MOST_STEPS = 12, 20
_LOOKS = {None: "c-leased", "acked": "c-acked", "read": "c-acked", "buried": "c-dead", "dead": "c-dead"}


class _Scale:
    """Maps a time to percent of the width. A long timeline has a stretched beginning."""

    def __init__(self, start: datetime, end: datetime) -> None:
        self.start, self.end = start, max(end, start + timedelta(milliseconds=1))
        self.broken = self.end - start > _HEAD * 10

    def x(self, at: datetime) -> float:
        at = min(max(at, self.start), self.end)
        if not self.broken:
            return _LEFT + (at - self.start) / (self.end - self.start) * (_RIGHT - _LEFT)
        if at - self.start <= _HEAD:
            return _LEFT + (at - self.start) / _HEAD * (_BREAK - _LEFT)
        return _BREAK + (at - self.start - _HEAD) / (self.end - self.start - _HEAD) * (_RIGHT - _BREAK)


def timeline(
    published: datetime, sequenced: datetime | None, rows: Sequence[Reader], now: datetime, zone: tzinfo = UTC
) -> Markup:
    """Draw the timeline of a message. `published`: the start; the end is now, or the last expected time."""
    shown = [row for row in rows if row.state != "not_matched"][:_MOST_ROWS]
    known = [at for row in shown for step in row.steps for at in (step.claimed_at, step.settled_at) if at is not None]
    pending = any(row.state in ("ready", "delayed", "leased", "paused", "blocked") for row in shown)
    ends = [published, *([sequenced] if sequenced else []), *known]
    if pending:
        ends += [
            now,
            *(at for row in shown for at in (row.expected, row.until) if at is not None and at - now < timedelta(days=1)),
        ]
    scale = _Scale(published, max(ends))
    height = _TOP + (len(shown) + 1) * _STEP
    out = [
        Markup('<svg class="c" height="{}" role="img" aria-label="{}">').format(height, _told(published, shown, zone)),
        *_axis(scale, height, zone),
        *_log(scale, published, sequenced),
    ]
    for place, row in enumerate(shown):
        out += _lane(scale, row, _TOP + (place + 1) * _STEP, now)
    if pending:
        x = scale.x(now)
        out.append(
            Markup(
                '<line class="base now" x1="{0}%" x2="{0}%" y1="18" y2="{1}"/>'
                '<text class="halo on" x="{0}%" y="13" text-anchor="{2}">now</text>'
            ).format(f"{x:.2f}", height - 8, "end" if x > 90 else "middle")
        )
    return Markup("").join([*out, Markup("</svg>")])


def _told(published: datetime, rows: Sequence[Reader], zone: tzinfo) -> str:
    readers = "; ".join(f"{row.kind} {row.name}: {shapes.state(row.state)[1].lower()}" for row in rows)
    return f"Timeline: published {shapes.clock(published, zone)}. {readers}".strip()


def _axis(scale: _Scale, height: int, zone: tzinfo) -> list[Markup]:
    out = [
        Markup('<text x="{}%" y="31">{}</text><line class="grid" x1="0" x2="100%" y1="38" y2="38"/>').format(
            _LEFT, shapes.clock(scale.start, zone)
        )
    ]
    if scale.broken:
        out += [
            Markup('<rect class="zone-alt" x="{}%" width="{}%" y="0" height="{}"/>').format(
                _LEFT, _BREAK - _LEFT, height - 6
            ),
            Markup('<line class="brk" x1="{0}%" x2="{0}%" y1="0" y2="{1}"/>').format(_BREAK, height - 6),
            Markup('<text class="on" x="{}%" dx="8" y="13">First 300 ms</text>').format(_LEFT),
            Markup('<text class="on" x="{}%" dx="8" y="13">Then</text>').format(_BREAK),
        ]
    middle = scale.start + (scale.end - scale.start) / 2
    for at, anchor in ((middle, "middle"), (scale.end, "end")):
        out.append(
            Markup(
                '<text class="{3}" x="{0}%" y="31" text-anchor="{1}">+{2}</text>'
                '<line class="grid" x1="{0}%" x2="{0}%" y1="34" y2="{4}"/>'
            ).format(
                f"{scale.x(at):.2f}",
                anchor,
                shapes.duration(at - scale.start),
                "opt" if anchor == "middle" else "",
                height - 6,
            )
        )
    return out


def _name(text: str, y: int) -> Markup:
    short = text if len(text) <= 18 else f"{text[:17]}…"
    return Markup('<text class="mid" x="0" y="{}">{}</text>').format(y + 4, short)


def _pin(scale: _Scale, at: datetime, y: int, look: str) -> Markup:
    return Markup('<circle class="pin {}" cx="{}%" cy="{}" r="5"/>').format(look, f"{scale.x(at):.2f}", y)


def _note(x: float, y: int, text: str, look: str = "mid") -> Markup:
    anchor, dx = ("end", -9) if x > 62 else ("start", 9)
    return Markup('<text class="halo {}" x="{}%" dx="{}" y="{}" text-anchor="{}">{}</text>').format(
        look, f"{x:.2f}", dx, y + 4, anchor, text
    )


def _log(scale: _Scale, published: datetime, sequenced: datetime | None) -> list[Markup]:
    out = [_name("log", _TOP), _pin(scale, published, _TOP, "c-ink")]
    if sequenced is None:
        return [*out, _note(scale.x(published), _TOP, "published")]
    after = max(timedelta(0), sequenced - published)
    out.append(_pin(scale, sequenced, _TOP, "c-ink"))
    return [*out, _note(scale.x(sequenced), _TOP, f"published, offset after {shapes.duration(after)}")]


def _lane(scale: _Scale, row: Reader, y: int, now: datetime) -> list[Markup]:
    out = [_name(row.name, y), Markup('<line class="grid" x1="0" x2="100%" y1="{0}" y2="{0}"/>').format(y - 14)]
    last, word = scale.start, ""
    for step in row.steps[-_MOST_STEPS:]:
        if step.claimed_at is None:
            continue
        ended = step.settled_at or now
        look = _LOOKS.get(step.outcome, "c-dead" if step.error else "c-delayed")
        x, width = scale.x(step.claimed_at), scale.x(ended) - scale.x(step.claimed_at)
        out.append(
            Markup('<rect class="fl {} half" x="{}%" width="{}%" y="{}" height="10" rx="2"/>').format(
                look, f"{x:.2f}", f"{max(0.1, width):.2f}", y - 5
            )
        )
        out.append(_pin(scale, step.claimed_at, y, "c-leased"))
        if step.settled_at is not None:
            out.append(_pin(scale, step.settled_at, y, look))
        last = ended
        word = f"{step.outcome or 'leased'} in {shapes.duration(max(timedelta(0), ended - step.claimed_at))}"
        if step.attempt > 1:
            word = f"attempt {step.attempt}: {word}"
    if row.expected is not None and row.state == "ready":
        diamond = Markup('<path class="pin" d="M0-7 7 0 0 7-7 0z"/>')
        place = f"{scale.x(row.expected):.2f}"
        out.append(Markup('<svg class="c-delayed" x="{}%" y="{}" overflow="visible">{}</svg>').format(place, y, diamond))
        word = word or "expected"
        return [*out, _note(scale.x(row.expected), y, word, "warnt")]
    return [*out, _note(scale.x(last), y, word or shapes.state(row.state)[1].lower())]
