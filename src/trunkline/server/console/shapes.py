"""Numbers, durations, sizes, rates and times as the console writes them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from markupsafe import Markup, escape

_MILLION = 1_000_000
_UNITS = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))
_SPANS = ((86400, "d"), (3600, "h"), (60, "m"))
NOTHING = "\u2013"


def number(value: float | None) -> str:
    """12,204 up to six digits, then 1.40 M."""
    if value is None:
        return NOTHING
    if abs(value) < _MILLION:
        return f"{value:,.0f}"
    return _scaled(value)


def _scaled(value: float) -> str:
    for size, unit in _UNITS:
        if abs(value) >= size:
            return f"{_three(value / size)} {unit}"
    return _three(value)


def _three(value: float) -> str:
    """At most three digits that say something."""
    size = abs(value)
    return (
        f"{value:.0f}"
        if size >= 100 or (value == int(value) and size >= 10)
        else f"{value:.1f}"
        if size >= 10
        else f"{value:.2f}"
    )


def rate(value: float | None) -> str:
    """Messages per second, without the unit: 12.2, 18.4 k."""
    if value is None:
        return NOTHING
    if value >= 1000:
        return _scaled(value)
    return (
        "0"
        if value == 0
        else f"{value:.0f}"
        if value >= 100 or value == int(value)
        else f"{value:.1f}"
        if value >= 0.1
        else "<0.1"
    )


def duration(value: timedelta | float | None) -> str:
    """80 ms, 3.1 s, 2 m 20 s, 31 h 50 m: two parts at most."""
    if value is None:
        return NOTHING
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    sign, seconds = ("-" if seconds < 0 else ""), abs(seconds)
    if seconds == 0:
        return "0 s"
    if seconds < 0.9995:
        return f"{sign}{max(1, round(seconds * 1000))} ms"
    if seconds < 59.95:
        return f"{sign}{seconds:.1f} s".replace(".0 s", " s")
    whole = round(seconds)
    for position, (size, unit) in enumerate(_SPANS):
        # 36 h stays hours: days begin at two
        if whole >= size * (2 if unit == "d" else 1):
            small, name = _SPANS[position + 1] if position + 1 < len(_SPANS) else (1, "s")
            rest = whole % size // small
            return f"{sign}{whole // size} {unit}" + (f" {rest} {name}" if rest else "")
    return f"{sign}{whole} s"


def size(value: float | None) -> str:
    """412 B, 18 MB."""
    if value is None:
        return NOTHING
    for limit, unit in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if abs(value) >= limit:
            part = value / limit
            return f"{part:.1f} {unit}" if part < 10 else f"{part:.0f} {unit}"
    return f"{value:.0f} B"


def share(part: float, whole: float) -> str:
    """A part of a whole in percent: 99.1 %."""
    if not whole:
        return NOTHING
    percent = 100 * part / whole
    return f"{percent:.0f} %" if percent in (0, 100) else f"{min(percent, 99.9):.1f} %"


def plural(count: int, one: str, many: str | None = None) -> str:
    return f"{number(count)} {one if count == 1 else many or one + 's'}"


def zone_name(at: datetime, zone: tzinfo) -> str:
    return "UTC" if zone is UTC else at.astimezone(zone).tzname() or str(zone)


def clock(at: datetime | None, zone: tzinfo = UTC) -> str:
    """14:02:00 UTC."""
    return NOTHING if at is None else f"{at.astimezone(zone):%H:%M:%S} {zone_name(at, zone)}"


def moment(at: datetime | None, zone: tzinfo, now: datetime, *, day: bool = False) -> str:
    """The time of day; with the day if that is not today, or asked for; with the year if that is another."""
    if at is None:
        return NOTHING
    here, today = at.astimezone(zone), now.astimezone(zone)
    text = f"{here:%H:%M:%S} {zone_name(at, zone)}"
    if here.year != today.year:
        return f"{here.day} {here:%b %Y} {text}"
    return f"{here.day} {here:%b} {text}" if day or here.date() != today.date() else text


def time_element(at: datetime | None, zone: tzinfo, now: datetime, *, day: bool = False) -> Markup:
    if at is None:
        return Markup('<span class="faint">{}</span>').format(NOTHING)
    full = at.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(full, moment(at, zone, now, day=day))


def age(at: datetime | None, now: datetime) -> str:
    return NOTHING if at is None else f"{duration(max(now - at, timedelta(0)))} ago"


def text(value: Any, most: int = 200) -> Markup:
    """Any value on one line, cut at a length, with what does not print made visible."""
    line = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in str(value))
    return escape(line if len(line) <= most else line[: most - 1] + "…")


def error(value: str | None, most: int = 200) -> Markup:
    """The line of an error that says most: the last of a traceback, else the first."""
    lines = [line for line in (value or "").splitlines() if line.strip()] or [""]
    return text(lines[-1 if lines[0].startswith("Traceback ") else 0], most)


def short(value: Any) -> str:
    """The end of an id. Its beginning is a time, which neighbours share."""
    return f"…{str(value)[-12:]}"


STATES = {
    "ready": ("ready", "Ready"),
    "running": ("ready", "Running"),
    "delayed": ("delayed", "Delayed"),
    "scheduled": ("delayed", "Delayed"),
    "half-open": ("delayed", "Backing off"),
    "not_sequenced": ("delayed", "No offset yet"),
    "leased": ("leased", "Leased"),
    "read": ("acked", "Read"),
    "blocked": ("gone", "Blocked"),
    "not_matched": ("gone", "Not matched"),
    "gone": ("gone", "Gone"),
    "acked": ("acked", "Acked"),
    "ok": ("acked", "Healthy"),
    "enabled": ("acked", "Healthy"),
    "done": ("acked", "Done"),
    "finished": ("acked", "Done"),
    "nacked": ("delayed", "Retried later"),
    "buried": ("dead", "Given up"),
    "released": ("gone", "Released"),
    "tested": ("leased", "Test"),
    "dead": ("dead", "Dead"),
    "open": ("dead", "Circuit open"),
    "failing": ("dead", "Failing"),
    "failed": ("dead", "Failed"),
    "late": ("delayed", "Late"),
    "never": ("gone", "Never ran"),
    "expired": ("gone", "Expired"),
    "purged": ("gone", "Purged"),
    "paused": ("gone", "Paused"),
    "disabled": ("gone", "Disabled"),
    "stopped": ("gone", "Stopped"),
}
"""Class and word of each state. A state that is not here is shown as plain text."""


def state(name: Any) -> tuple[str, str]:
    """Return the class and the word of a state; of an unknown one its own text."""
    return STATES.get(str(name), ("unknown", str(name)))


FILTERS: dict[str, Callable[..., Any]] = {
    "number": number,
    "rate": rate,
    "duration": duration,
    "size": size,
    "plural": plural,
    "line": text,
    "error": error,
    "short": short,
    "clock": clock,
    "age": age,
}
