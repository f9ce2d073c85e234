"""Delivery hashes: equal on every attempt for ever, different for every other delivery."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferryman.records.rows import hasher

NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,8}", fullmatch=True)
ROUTES = st.lists(NAMES, max_size=3).map("/".join)
VERSIONS = st.binary(min_size=16, max_size=16).map(bytes.hex)
TEXTS = st.text(st.characters(codec=None), max_size=12)
"""Any text, lone surrogates too: names of files on Linux need not be UTF-8."""
DELIVERIES = st.tuples(
    NAMES,  # plan
    st.integers(0, 2**40),  # its version
    NAMES,  # source
    NAMES,  # destination
    ROUTES,
    st.sampled_from(["upsert", "delete"]),
    TEXTS,  # document
    VERSIONS,
    st.integers(1, 2**62),  # revision
)


def hash_of(delivery: tuple[Any, ...]) -> str:
    *shared, document, version, revision = delivery
    return hasher(*shared)(document, version, revision)


@given(one=DELIVERIES, other=DELIVERIES)
def test_distinct_deliveries_have_distinct_hashes(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    """Equal hashes: equal deliveries."""
    assert (hash_of(one) == hash_of(other)) == (one == other)


@given(one=DELIVERIES, other=DELIVERIES, at=st.integers(0, 8))
def test_each_part_counts(one: tuple[Any, ...], other: tuple[Any, ...], at: int) -> None:
    """Deliveries that differ in one part only have distinct hashes."""
    changed = (*one[:at], other[at], *one[at + 1 :])
    assert (hash_of(changed) == hash_of(one)) == (changed == one)


@given(delivery=DELIVERIES)
def test_a_hash_is_32_hex_digits_and_stays_the_same(delivery: tuple[Any, ...]) -> None:
    """Made anew, or by a function that made others before."""
    digest = hash_of(delivery)
    assert len(digest) == 32
    assert set(digest) <= set("0123456789abcdef")
    *shared, document, version, revision = delivery
    made = hasher(*shared)
    made("another", version, revision)
    assert made(document, version, revision) == digest == hash_of(delivery)


def test_parts_do_not_run_into_each_other() -> None:
    """What one part ends with and the next begins with is told apart, also where an id has the separator in it."""
    cases: list[tuple[Any, ...]] = [
        ("ab", 1, "c", "d", "", "upsert", "x", "v", 1),
        ("a", 1, "bc", "d", "", "upsert", "x", "v", 1),
        ("a", 1, "b", "cd", "", "upsert", "x", "v", 1),
        ("a", 1, "b", "c", "d", "upsert", "x", "v", 1),
        ("a", 11, "b", "c", "d", "upsert", "x", "v", 1),
        ("a", 1, "b", "c", "d", "upsert", "1\0x", "v", 1),
        ("a", 1, "b", "c", "d", "upsert", "x", "v", 11),
        ("a", 1, "b", "c", "d/e", "upsert", "x", "v", 1),
        ("a", 1, "b", "c", "d", "delete", "x", "v", 1),
    ]
    assert len({hash_of(c) for c in cases}) == len(cases)


VECTORS = [
    (
        ("plays", 1, "files", "index", "", "upsert", "histories/henryv.txt", "0" * 32, 1),
        "e71d50ffe8530338e9b89db5423e3897",
    ),
    (
        ("plays", 1, "files", "index", "", "delete", "histories/henryv.txt", "0" * 32, 2),
        "9037da37631bf5d2a42f9754643539e4",
    ),
    (
        ("plays", 2, "files", "index", "left/right", "upsert", "ünï€\udc80", "f" * 32, 2**40),
        "085afa23d2905a23ba7a0ff9a7fe6b5d",
    ),
]


@pytest.mark.parametrize(("delivery", "digest"), VECTORS)
def test_known_hashes(delivery: tuple[Any, ...], digest: str) -> None:
    """They are stored in people's databases: another way to make them would deliver everything again."""
    assert hash_of(delivery) == digest


def test_another_process_makes_the_same_hash() -> None:
    """Not by way of anything that Python draws by lot."""
    code = "from ferryman.records.rows import hasher; print(hasher(*{!r})(*{!r}))"
    delivery, digest = VECTORS[0]
    done = subprocess.run(
        [sys.executable, "-c", code.format(delivery[:6], delivery[6:])], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == digest
