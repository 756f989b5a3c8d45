"""Cron expressions in words: each says what the expression does, as checked against its run times where that is short."""

from __future__ import annotations

import pytest

from trunkline.cron import in_words


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("* * * * *", "every minute"),
        ("*/5 * * * *", "every 5 minutes"),
        ("*/1 * * * *", "every minute"),
        ("0 * * * *", "every hour"),
        ("15 * * * *", "at minute 15 of the hour"),
        ("0,30 * * * *", "at minutes 0 and 30"),
        ("10-20 * * * *", "at minutes 10 to 20"),
        ("10-20/5 * * * *", "every 5 minutes from 10 to 20"),
        ("0 */2 * * *", "every 2 hours"),
        ("0 9-17 * * 1-5", "at 09:00 to 17:00 from Monday to Friday"),
        ("*/10 9-17 * * *", "every 10 minutes, in hours 9 to 17"),
        ("0 3 * * *", "at 03:00"),
        ("30 6,18 * * *", "at 06:30 and 18:30"),
        ("0 3 * * mon,wed,fri", "at 03:00 on Monday, Wednesday and Friday"),
        ("0 3 1 * *", "at 03:00 on day 1 of the month"),
        ("0 3 1,15 * *", "at 03:00 on days 1 and 15 of the month"),
        ("0 3 1 1 *", "at 03:00 on day 1 of the month in January"),
        ("0 0 * jan-mar 0", "at 00:00 on Sunday from January to March"),
        ("0 0 13 * 5", "at 00:00 on day 13 of the month and also on Friday"),
        ("0 0 */2 * 5", "at 00:00 on every 2 days if it is also on Friday"),
        ("0 0 * */3 *", "at 00:00 every 3 months"),
        ("0 0 * * 7", "at 00:00 on Sunday"),
        ("@daily", "at 00:00"),
        ("@HOURLY", "every hour"),
        ("not cron", "not cron"),
    ],
)
def test_words(expression: str, words: str) -> None:
    assert in_words(expression) == words
