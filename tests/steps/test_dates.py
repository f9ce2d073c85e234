"""Dates, read and written anew."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferryman.document import Document
from ferryman.errors import BadDocument
from ferryman.steps import reformat_date

moments = st.datetimes(
    min_value=datetime(2, 1, 1),  # noqa: DTZ001 - the strategy adds the zone
    max_value=datetime(9998, 12, 31),  # noqa: DTZ001
    timezones=st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes))),
)


PIECES = [
    "2024",
    "05",
    "1",
    "12",
    "May",
    "Mon",
    "10:00",
    "UTC",
    "GMT+2",
    "+0300",
    "am",
    "EST",
    " ",
    "-",
    ":",
    "T",
    "9" * 20,
]
"""What dates are made of."""


def written(value: Any, *args: Any, **options: Any) -> Any:
    return reformat_date("a", *args, **options)(Document("i", a=value))["a"]


@pytest.fixture(params=["UTC", "America/New_York", "Asia/Kolkata"])
def machine_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The time zone of the machine that a worker happens to run on."""
    with monkeypatch.context() as patch:
        patch.setitem(os.environ, "TZ", request.param)
        time.tzset()
        yield
    time.tzset()


@settings(deadline=None)
@given(moments)
def test_iso_8601_is_read_to_the_microsecond(moment: datetime) -> None:
    """What is written is the same moment in UTC; writing it again changes nothing."""
    text = written(moment.isoformat())

    assert datetime.fromisoformat(text) == moment
    assert text.endswith("Z")
    assert written(text) == text


@settings(deadline=None)
@given(moments)
def test_dates_of_mails_are_read_to_the_second(moment: datetime) -> None:
    """Their offset says the zone."""
    text = written(moment.replace(microsecond=0).strftime("%a, %d %b %Y %H:%M:%S %z")) if moment.year > 999 else None

    assert text is None or datetime.fromisoformat(text) == moment.replace(microsecond=0)


@pytest.mark.usefixtures("machine_zone")
@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("2024-05-01", "2024-05-01T00:00:00Z"),
        ("20240501", "2024-05-01T00:00:00Z"),
        (" 2024-05-01 10:30 ", "2024-05-01T10:30:00Z"),
        ("1 May 2024", "2024-05-01T00:00:00Z"),
        ("May 1, 2024 3:04 pm", "2024-05-01T15:04:00Z"),
        ("Wed, 01 May 2024 10:00:00 GMT", "2024-05-01T10:00:00Z"),
        ("Wed, 01 May 2024 10:00:00 +0300 (MSK)", "2024-05-01T07:00:00Z"),
        ("Wed May 01 2024 10:00:00 GMT+0200 (Central European Summer Time)", "2024-05-01T08:00:00Z"),
        ("29 February 2024", "2024-02-29T00:00:00Z"),
        ("05/01/2024", "2024-05-01T00:00:00Z"),
        ("2024-05-01T10:00:00.123456Z", "2024-05-01T10:00:00.123456Z"),
        (["2024-05-01", None], ["2024-05-01T00:00:00Z", None]),
    ],
)
def test_what_is_understood_without_formats(value: Any, text: Any) -> None:
    """The same on every machine, whatever its time zone."""
    assert written(value) == text


def test_day_first() -> None:
    """What stands first in a date of numbers; ISO 8601 is never turned round."""
    assert written("01/02/2024", "%d.%m.") == "02.01."
    assert written("01/02/2024", "%d.%m.", day_first=True) == "01.02."
    assert written("2024-02-01", "%d.%m.", day_first=True) == "01.02."


@pytest.mark.parametrize(
    ("value", "formats", "text"),
    [
        ("1.5.2024", "%d.%m.%Y", "2024-05-01T00:00:00Z"),
        ("2024", ["%d.%m.%Y", "%Y"], "2024-01-01T00:00:00Z"),
        ("01/05/24 10:00 +0200", "%d/%m/%y %H:%M %z", "2024-05-01T08:00:00Z"),
        (0, "epoch_second", "1970-01-01T00:00:00Z"),
        (1714557600.5, "epoch_second", "2024-05-01T10:00:00.500000Z"),
        ("1714557600000", ["%Y", "epoch_millis"], "2024-05-01T10:00:00Z"),
        (-1, "epoch_second", "1969-12-31T23:59:59Z"),
    ],
)
def test_formats_say_how_dates_are_written(value: Any, formats: Any, text: str) -> None:
    """The first that fits counts."""
    assert written(value, formats=formats) == text


def test_zones() -> None:
    """One for times that say none, one for what is written."""
    assert written("2024-05-01 10:00", from_zone="Europe/Paris") == "2024-05-01T08:00:00Z"
    assert written("2024-12-31T23:30:00Z", "%Y-%m-%d", to_zone="Europe/Paris") == "2025-01-01"
    assert written("2024-05-01T10:00:00Z", to_zone="Europe/Paris") == "2024-05-01T12:00:00+02:00"
    assert written("2024-05-01T10:00:00+05:00", from_zone="Europe/Paris") == "2024-05-01T05:00:00Z"


def test_an_hour_that_comes_twice_is_the_first() -> None:
    """The clocks of Paris went back at three on 27 October 2024."""
    assert written("2024-10-27 02:30", from_zone="Europe/Paris") == "2024-10-27T00:30:00Z"


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("", "is not a date that can be read"),
        ("tomorrow", "is not a date that can be read"),
        ("2024-02-30", "is not a date that can be read"),
        ("10:61202420242024202499999999999", "is not a date that can be read"),
        ("May 2024", "does not say year, month and day"),
        ("Mon May 2024", "does not say year, month and day"),
        ("10:30", "does not say year, month and day"),
        ("1 May", "does not say year, month and day"),
        ("1 May 2024 10:00 EST", "names the time zone EST, which is not known for certain"),
        ("1 May 2024 10:00 EST-5", "names the time zone EST"),
        ("0001-01-01T00:00:00+05:00", "is before the year 1 or after 9999"),
        (1714557600, "is a number. Say what it counts"),
        (True, "where a number or text is needed"),
        ({"year": 2024}, "where a number or text is needed"),
    ],
)
def test_what_is_no_certain_date_is_refused(value: Any, says: str) -> None:
    """Nothing is made up: no day, no zone."""
    with pytest.raises(BadDocument, match=f"^i: field 'a' holds .*{says}"):
        written(value)


@pytest.mark.parametrize("value", ["1/5/2024", "x", float("inf"), 1e300])
def test_what_is_in_no_format_is_refused(value: Any) -> None:
    """The message names the formats."""
    with pytest.raises(BadDocument, match=r"is not a date as in '%d\.%m\.%Y' or 'epoch_millis'"):
        written(value, formats=["%d.%m.%Y", "epoch_millis"])


def test_a_number_is_no_date_of_text() -> None:
    """Only what counts since 1970 takes numbers."""
    with pytest.raises(BadDocument, match="holds 2024: is not a date as in '%Y'"):
        written(2024, formats="%Y")


@settings(deadline=None)
@given(st.text() | st.lists(st.sampled_from(PIECES)).map("".join))
def test_any_text_is_a_date_or_refused(text: str) -> None:
    """No other error comes out of the parser; what it reads is read again as the same."""
    try:
        once = written(text)
    except BadDocument:
        return
    assert datetime.fromisoformat(once).tzinfo == UTC
    assert written(once) == once


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"from_zone": "Mars/Base"}, "time zone 'Mars/Base': give an IANA name"),
        ({"to_zone": ""}, "time zone ''"),
        ({"to_zone": "../UTC"}, "time zone '../UTC'"),
        ({"formats": "%Q"}, "format '%Q': .* bad directive"),
        ({"formats": "%H:%M"}, "format '%H:%M': has no year"),
        ({"formats": ["%Y", ""]}, "format '': has no year"),
        ({"formats": "epoch"}, "format 'epoch': has no year"),
        ({"to": ""}, "to='': give a format of strftime"),
        ({"to": "epoch_second"}, "to='epoch_second'"),
        ({"formats": "%Y", "day_first": True}, "day_first is for dates without formats"),
    ],
)
def test_mistakes_are_found_when_the_step_is_made(options: dict[str, Any], says: str) -> None:
    """In the plan file."""
    with pytest.raises(ValueError, match=says):
        reformat_date("a", **options)
