"""Sizes as people read them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferryman.document import Document
from ferryman.errors import BadDocument
from ferryman.steps import format_size

FACTORS = {
    "Byte": 0,
    "Bytes": 0,
    "kB": 1,
    "MB": 2,
    "GB": 3,
    "TB": 4,
    "PB": 5,
    "EB": 6,
    "ZB": 7,
    "YB": 8,
    "RB": 9,
    "QB": 10,
}


def written(size: Any, **options: Any) -> Any:
    return format_size("a", **options)(Document("i", a=size))["a"]


@pytest.mark.parametrize(
    ("size", "options", "text"),
    [
        (0, {}, "0 Bytes"),
        (1, {}, "1 Byte"),
        (999, {}, "999 Bytes"),
        (1000, {}, "1.0 kB"),
        (999_950, {}, "1.0 MB"),
        (1_234_567, {"digits": 2}, "1.23 MB"),
        (1_500_000, {"digits": 0}, "2 MB"),
        (1536, {"units": "binary"}, "1.5 KiB"),
        ("2048", {"units": "binary"}, "2.0 KiB"),
        (2.5e9, {}, "2.5 GB"),
        ([1000, None, 2000], {}, ["1.0 kB", None, "2.0 kB"]),
    ],
)
def test_sizes(size: Any, options: dict[str, Any], text: Any) -> None:
    """Powers of 1000, or of 1024."""
    assert written(size, **options) == text


@settings(deadline=None)
@given(st.integers(0, 10**33 - 1))
def test_what_is_written_is_the_size_rounded(size: int) -> None:
    """To a tenth of its unit, with fewer than four digits before the point."""
    number, unit = written(size).split()

    assert abs(float(number) * 1000 ** FACTORS[unit] - size) <= 0.0501 * 1000 ** FACTORS[unit]
    assert float(number) < 1000 or size > 999 * 10**30


@pytest.mark.parametrize("size", [-1, float("inf"), 10**400, "1.5", "-1", "ten", "", "٣", True, {"bytes": 1}, [[1]]])
def test_what_is_no_size_is_refused(size: Any) -> None:
    """With the field and the value."""
    with pytest.raises(BadDocument, match=r"^i: field 'a' holds "):
        written(size)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"units": "kilo"}, "units='kilo': choose one of decimal, binary"),
        ({"digits": -1}, "digits=-1: give a number from 0 to 9"),
        ({"digits": 10}, "digits=10"),
        ({"digits": "1"}, "digits='1'"),
    ],
)
def test_mistakes_are_found_when_the_step_is_made(options: dict[str, Any], says: str) -> None:
    """In the plan file."""
    with pytest.raises(ValueError, match=says):
        format_size("a", **options)
