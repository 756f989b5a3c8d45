"""Cron expressions: what they mean, checked against cronsim and against a walk over every minute (docs/adr/0010)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice
from zoneinfo import ZoneInfo

import psycopg
import pytest
from cronsim import CronSim, CronSimError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import Connection
from tests.sql.calls import refused, value

MINUTE = timedelta(minutes=1)
# Clocks that change by an hour, between 1:00 and 3:00: here cronsim walks over every change as the wall does.
PLAIN_ZONES = [
    "UTC",
    "Europe/Berlin",
    "Europe/London",
    "America/New_York",
    "Australia/Sydney",
    "Asia/Kolkata",
    "Pacific/Auckland",
]
# Changes at midnight, by half an hour, at one minute past midnight, and a day that never was.
ODD_ZONES = ["Australia/Lord_Howe", "America/Havana", "America/Santiago", "Asia/Beirut", "America/St_Johns", "Pacific/Apia"]


def next_runs(conn: Connection, cron: str, zone: str, n: int, after: datetime) -> list[datetime]:
    rows = conn.execute("select x from trunkline.next_runs(%s, %s, %s, %s) x", (cron, zone, n, after)).fetchall()
    return [row[0].astimezone(UTC) for row in rows]


def walls(conn: Connection, cron: str, zone: str, after: str, n: int = 4) -> list[str]:
    """The next ticks as the wall shows them, with the distance to UTC."""
    start = datetime.fromisoformat(after).replace(tzinfo=ZoneInfo(zone))
    return [tick.astimezone(ZoneInfo(zone)).strftime("%m-%d %H:%M %z") for tick in next_runs(conn, cron, zone, n, start)]


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("*/20 * * * *", ["01-01 00:20", "01-01 00:40", "01-01 01:00"]),
        ("@hourly", ["01-01 01:00", "01-01 02:00", "01-01 03:00"]),
        ("@daily", ["01-02 00:00", "01-03 00:00", "01-04 00:00"]),
        ("@weekly", ["01-04 00:00", "01-11 00:00", "01-18 00:00"]),
        ("@monthly", ["02-01 00:00", "03-01 00:00", "04-01 00:00"]),
        ("@yearly", ["01-01 00:00", "01-01 00:00", "01-01 00:00"]),
        ("5,10-12 3 * * *", ["01-01 03:05", "01-01 03:10", "01-01 03:11"]),
        ("0 9 * * mon-fri", ["01-01 09:00", "01-02 09:00", "01-05 09:00"]),
        ("0 0 * feb,JUN *", ["02-01 00:00", "02-02 00:00", "02-03 00:00"]),
        ("0 10/6 * * *", ["01-01 10:00", "01-01 16:00", "01-01 22:00"]),
        ("0 0 * * 7", ["01-04 00:00", "01-11 00:00", "01-18 00:00"]),
        ("  0\t0 31 * *  ", ["01-31 00:00", "03-31 00:00", "05-31 00:00"]),
        # both days restricted: one of them is enough; one starts with *: both must hold
        ("0 0 13 * FRI", ["01-02 00:00", "01-09 00:00", "01-13 00:00"]),
        ("0 0 */13 * FRI", ["02-27 00:00", "03-27 00:00", "05-01 00:00"]),
        ("0 0 29 2 *", ["02-29 00:00", "02-29 00:00", "02-29 00:00"]),
    ],
)
def test_expressions(shared_conn: Connection, cron: str, expected: list[str]) -> None:
    """From Thursday, 1 January 2026, 00:00 UTC on: strictly after it."""
    found = next_runs(shared_conn, cron, "UTC", 3, datetime(2026, 1, 1, tzinfo=UTC))
    assert [tick.strftime("%m-%d %H:%M") for tick in found] == expected


@pytest.mark.parametrize(
    ("cron", "named"),
    [
        ("", "5 fields"),
        ("* * * *", "5 fields"),
        ("0 * * * * *", "5 fields"),
        ("@reboot", "5 fields"),
        ("60 * * * *", 'cron field minute: "60"'),
        ("* 24 * * *", 'cron field hour: "24"'),
        ("* * 0 * *", 'cron field day of month: "0"'),
        ("* * L * *", 'cron field day of month: "L"'),
        ("* * * 13 *", 'cron field month: "13"'),
        ("* * * MON *", 'cron field month: "MON"'),
        ("* * * * 8", 'cron field day of week: "8"'),
        ("* * * * MON#2", "cron field day of week"),
        ("5-3 * * * *", 'cron field minute: "5-3"'),
        ("*/0 * * * *", 'cron field minute: "*/0"'),
        ("1,,2 * * * *", 'cron field minute: ""'),
        ("1, * * * *", 'cron field minute: ""'),
        ("-1 * * * *", 'cron field minute: "-1"'),
        ("1.5 * * * *", "cron field minute"),
        ("99999999999 * * * *", "cron field minute"),
        ("? * * * *", 'cron field minute: "?"'),
        ("0 0 30 2 *", "matches no date"),
        ("0 0 31 4,6,9,11 *", "matches no date"),
        ("0 0 " + "1," * 400 + "1 * *", "5 fields"),
        (None, "5 fields, got null"),
    ],
)
def test_bad_expressions(shared_conn: Connection, cron: str | None, named: str) -> None:
    with refused("TL001", named):
        shared_conn.execute("select trunkline.next_runs(%s)", (cron,))


@pytest.mark.parametrize(
    ("zone", "named"),
    [
        ("berlin", "Europe/Berlin"),
        ("new york", "America/New_York"),
        ("Mars/Olympus", "IANA"),
        ("", "time zone"),
        ("FOO5", "IANA"),
        (None, "null"),
    ],
)
def test_bad_zones_name_the_right_one(shared_conn: Connection, zone: str | None, named: str) -> None:
    with refused("TL001", named):
        shared_conn.execute("select trunkline.next_runs('@daily', %s)", (zone,))


@pytest.mark.parametrize(
    ("n", "after"), [(0, None), (10001, None), (None, None), (1, "infinity"), (1, "0001-01-01"), (1, "20000-01-01")]
)
def test_bad_numbers(shared_conn: Connection, n: int | None, after: str | None) -> None:
    with refused("TL001"):
        shared_conn.execute("select trunkline.next_runs('@daily', 'UTC', %s, %s::timestamptz)", (n, after))


def test_a_session_in_another_zone_changes_nothing(shared_conn: Connection) -> None:
    after = datetime(2026, 3, 28, tzinfo=UTC)
    expected = next_runs(shared_conn, "30 2 * * *", "Europe/Berlin", 5, after)
    try:
        shared_conn.execute("set timezone = 'America/Havana'")
        assert next_runs(shared_conn, "30 2 * * *", "Europe/Berlin", 5, after) == expected
    finally:
        shared_conn.execute("reset timezone")


def test_a_time_that_does_not_exist_runs_once_right_after_the_jump(shared_conn: Connection) -> None:
    """2 to 3 o'clock is missing in New York on 8 March 2026."""
    assert walls(shared_conn, "30 2 * * *", "America/New_York", "2026-03-07T12:00", 2) == [
        "03-08 03:00 -0400",
        "03-09 02:30 -0400",
    ]
    several = walls(shared_conn, "0,20,40 2 * * *", "America/New_York", "2026-03-07T12:00", 2)
    assert several == ["03-08 03:00 -0400", "03-09 02:00 -0400"]
    # together with what is due at that moment anyway
    assert walls(shared_conn, "0 2,3 * * *", "America/New_York", "2026-03-07T12:00", 2) == [
        "03-08 03:00 -0400",
        "03-09 02:00 -0400",
    ]
    # what runs all the time has nothing to make up for
    every = walls(shared_conn, "*/30 * * * *", "America/New_York", "2026-03-08T01:00", 3)
    assert every == ["03-08 01:30 -0500", "03-08 03:00 -0400", "03-08 03:30 -0400"]
    assert walls(shared_conn, "*/30 2 * * *", "America/New_York", "2026-03-08T01:00", 1) == ["03-09 02:00 -0400"]


def test_a_time_that_comes_twice_runs_the_first_time(shared_conn: Connection) -> None:
    """1 to 2 o'clock comes twice in New York on 1 November 2026."""
    assert walls(shared_conn, "30 1 * * *", "America/New_York", "2026-10-31T12:00", 2) == [
        "11-01 01:30 -0400",
        "11-02 01:30 -0500",
    ]
    hourly = walls(shared_conn, "30 * * * *", "America/New_York", "2026-11-01T00:45")
    assert hourly == ["11-01 01:30 -0400", "11-01 01:30 -0500", "11-01 02:30 -0500", "11-01 03:30 -0500"]
    # in the second hour, a time of the first has passed
    second = datetime(2026, 11, 1, 6, 10, tzinfo=UTC)
    assert next_runs(shared_conn, "30 1 * * *", "America/New_York", 1, second) == [datetime(2026, 11, 2, 6, 30, tzinfo=UTC)]


def test_a_day_that_never_was_runs_at_its_end(shared_conn: Connection) -> None:
    """Samoa went from 29 to 31 December 2011."""
    assert walls(shared_conn, "0 12 * * *", "Pacific/Apia", "2011-12-29T11:00", 3) == [
        "12-29 12:00 -1000",
        "12-31 00:00 +1400",
        "12-31 12:00 +1400",
    ]


def test_newest_tick_of_a_long_pause_is_found_in_few_steps(shared_conn: Connection) -> None:
    query = "select trunkline._cron_newest(trunkline._parse_cron(%s), %s, %s, %s)"
    after, upto = datetime(2016, 1, 1, tzinfo=UTC), datetime(2026, 3, 29, 1, 30, 30, tzinfo=UTC)
    for cron, zone in [
        ("* * * * *", "UTC"),
        ("*/7 3 * * MON", "Europe/Berlin"),
        ("30 2 * * *", "Europe/Berlin"),
        ("0 0 29 2 *", "UTC"),
    ]:
        newest = value(shared_conn, query, cron, zone, after, upto)
        assert newest <= upto
        [later] = next_runs(shared_conn, cron, zone, 1, newest)
        assert later > upto
        assert next_runs(shared_conn, cron, zone, 1, newest - MINUTE) == [newest]


# Random expressions.


def term(low: int, high: int, names: list[str]) -> st.SearchStrategy[str]:
    number = st.integers(low, high).map(str)
    if names:
        number = st.one_of(number, st.sampled_from(names))
    pair = st.tuples(st.integers(low, high), st.integers(low, high)).filter(lambda p: p[0] != p[1]).map(sorted)
    span = pair.map(lambda p: f"{p[0]}-{p[1]}")
    step = st.integers(1, high + 3)
    stepped = st.tuples(st.one_of(number, span, st.just("*")), step).map(lambda p: f"{p[0]}/{p[1]}")
    return st.one_of(number, number, span, stepped, st.just("*"))


def field(low: int, high: int, names: list[str] | None = None) -> st.SearchStrategy[str]:
    one = term(low, high, names or [])
    return st.one_of(st.just("*"), one, st.lists(one, min_size=1, max_size=3).map(",".join))


expressions = st.tuples(
    field(0, 59),
    field(0, 23),
    st.one_of(st.just("*"), field(1, 31)),
    st.one_of(st.just("*"), field(1, 12, ["JAN", "feb", "Mar", "OCT", "NOV"])),
    st.one_of(st.just("*"), field(0, 7, ["SUN", "mon", "Fri", "SAT"])),
).map(" ".join)

# The clocks change in these hours, so that random expressions meet the changes often.
near_changes = st.tuples(field(0, 59), st.one_of(st.just("*"), field(0, 4)), st.just("*"), st.just("*"), st.just("*")).map(
    " ".join
)


@cache
def changes(zone: str) -> list[datetime]:
    """The first moments at which the clocks of a zone show something else than before, 2005 to 2025."""
    here, found = ZoneInfo(zone), []
    at = datetime(2005, 1, 1, tzinfo=UTC)
    while at.year < 2026:
        low, high = at, at + timedelta(days=1)
        if low.astimezone(here).utcoffset() != high.astimezone(here).utcoffset():
            while high - low > MINUTE:
                middle = low + (high - low) / 2
                middle = middle.replace(second=0, microsecond=0)
                same = middle.astimezone(here).utcoffset() == at.astimezone(here).utcoffset()
                low, high = (middle, high) if same else (low, middle)
            found.append(high)
        at += timedelta(days=1)
    return found


def moments(zones: list[str]) -> st.SearchStrategy[tuple[str, datetime]]:
    """A zone and a moment, more often than not close to a change of its clocks."""

    def of(zone: str) -> st.SearchStrategy[tuple[str, datetime]]:
        anywhere = st.integers(0, 20 * 365 * 86400).map(lambda s: datetime(2005, 1, 1, tzinfo=UTC) + timedelta(seconds=s))
        if not changes(zone):
            return anywhere.map(lambda at: (zone, at))
        close = st.tuples(st.sampled_from(changes(zone)), st.integers(-5 * 3600, 3 * 3600)).map(
            lambda p: p[0] + timedelta(seconds=p[1])
        )
        return st.one_of(close, close, anywhere).map(lambda at: (zone, at))

    return st.sampled_from(zones).flatmap(of)


def is_fixed(cron: str) -> bool:
    minute, hour, *_ = cron.split()
    return not minute.startswith("*") and not hour.startswith("*")


def by_cronsim(cron: str, zone: str, after: datetime) -> Iterator[datetime]:
    """Return cronsim's result. In a repeated hour it may name a tick of the first pass, which is in the past."""
    here = UTC if zone == "UTC" else ZoneInfo(zone)
    for tick in CronSim(cron, after.astimezone(here)):
        if tick.astimezone(UTC) > after:
            yield tick.astimezone(UTC)


thorough = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@thorough
@given(cron=st.one_of(expressions, near_changes), moment=moments(PLAIN_ZONES))
def test_ticks_are_those_of_cronsim(shared_conn: Connection, cron: str, moment: tuple[str, datetime]) -> None:
    compare(shared_conn, cron, *moment)


@thorough
@given(cron=st.one_of(expressions, near_changes).filter(is_fixed), moment=moments(ODD_ZONES))
def test_fixed_times_are_those_of_cronsim_in_odd_zones_too(
    shared_conn: Connection, cron: str, moment: tuple[str, datetime]
) -> None:
    compare(shared_conn, cron, *moment)


def compare(conn: Connection, cron: str, zone: str, after: datetime) -> None:
    try:
        expected = list(islice(by_cronsim(cron, zone, after), 5))
    except CronSimError:
        expected = []
    if not expected:
        with pytest.raises(psycopg.Error, match="matches no date"):
            next_runs(conn, cron, zone, 5, after)
        return
    assert next_runs(conn, cron, zone, len(expected), after) == expected


@thorough
@given(cron=near_changes.filter(lambda cron: not is_fixed(cron)), moment=moments(PLAIN_ZONES + ODD_ZONES))
def test_wildcard_times_are_those_of_a_walk_over_every_minute(
    shared_conn: Connection, cron: str, moment: tuple[str, datetime]
) -> None:
    """Every minute that really comes is looked at once: also where cronsim stumbles (docs/adr/0010)."""
    zone, after = moment
    here = ZoneInfo(zone)
    sets = CronSim(cron, after)
    at, end, expected = after.replace(second=0), after + timedelta(days=1), []
    while at < end:
        at += MINUTE
        wall = at.astimezone(here)
        if wall.minute in sets.minutes and wall.hour in sets.hours:
            expected.append(at)
    expected = expected[:5]
    found = next_runs(shared_conn, cron, zone, len(expected) or 1, after)
    if expected:
        assert found == expected
    else:
        assert found[0] > end - MINUTE
