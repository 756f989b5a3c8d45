"""Describes a cron expression in words."""

from __future__ import annotations

from collections.abc import Callable

Namer = Callable[[str], str]
_NAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    "", "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip


def in_words(expression: str) -> str:
    """Describe an expression that the database accepts, such as "at 03:00 from Monday to Friday".

    An expression with another number of fields is returned as it is.
    """
    text = expression.strip().lower()
    fields = _NAMES.get(text, text).split()
    if len(fields) != 5:
        return expression
    minute, hour, day, month, weekday = fields
    words = _times(minute, hour)
    days = [] if day == "*" else ["on " + _field(day, "day", str, "day {} of the month", "days {} of the month")]
    if weekday != "*":
        on = _field(weekday, "day of the week", _weekday, "{}", "{}")
        days.append(on if on.startswith(("from ", "every ")) else f"on {on}")
    # cron: if both are given, one of them is enough, unless one of the two begins with *
    words += "".join(f" {each}" for each in days[:1])
    if len(days) == 2:
        words += f" {'if it is also' if '*' in (day[0], weekday[0]) else 'and also'} {days[1]}"
    if month != "*":
        of = _field(month, "month", _month, "{}", "{}")
        words += f" {of if of.startswith(('from ', 'every ')) else f'in {of}'}"
    return words


def _times(minute: str, hour: str) -> str:
    if minute.isdigit() and all(part.isdigit() for part in hour.split(",")):
        return "at " + _list([f"{int(each):02}:{int(minute):02}" for each in hour.split(",")])
    if minute == "*":
        at = "every minute"
    elif minute.isdigit():
        at = "every hour" if minute in ("0", "00") else f"at minute {int(minute)} of the hour"
    else:
        at = _field(minute, "minute", str, "at minute {}", "at minutes {}")
    if hour == "*":
        return at
    if at == "every hour":
        return _field(hour, "hour", _clock, "at {}", "at {}")
    return f"{at}, {_field(hour, 'hour', str, 'in hour {}', 'in hours {}')}"


def _field(text: str, unit: str, name: Namer, one: str, many: str) -> str:
    """Describe a field. `one` and `many` are the sentences for a value and for several."""
    if text.startswith("*/"):
        return _every(text[2:], unit)
    if "," not in text and "/" in text:
        span, _, step = text.partition("/")
        low, _, high = span.partition("-")
        end = f" to {name(high)}" if high else ""
        return f"{_every(step, unit)} from {name(low)}{end}"
    if "," not in text and "-" in text:
        low, _, high = text.partition("-")
        return f"from {name(low)} to {name(high)}" if one == "{}" else many.format(f"{name(low)} to {name(high)}")
    parts = [_range(part, unit, name) for part in text.split(",")]
    return (one if len(parts) == 1 else many).format(_list(parts))


def _range(text: str, unit: str, name: Namer) -> str:
    if "/" in text:
        return _field(text, unit, name, "{}", "{}")
    low, dash, high = text.partition("-")
    return f"{name(low)} to {name(high)}" if dash else name(low)


def _every(step: str, unit: str) -> str:
    first, _, rest = unit.partition(" ")
    return f"every {unit}" if step == "1" else f"every {step} {first}s{f' {rest}' if rest else ''}"


def _list(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _clock(text: str) -> str:
    return f"{int(text):02}:00"


def _weekday(text: str) -> str:
    return _DAYS[int(text)] if text.isdigit() else next(day for day in _DAYS if day.lower().startswith(text))


def _month(text: str) -> str:
    return (
        _MONTHS[int(text)]
        if text.isdigit()
        else next(month for month in _MONTHS if month and month.lower().startswith(text))
    )
