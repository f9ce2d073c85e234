"""Keys that have left the log: found in few files, each once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ferryman.errors import StateDamaged
from ferryman.queues.table import MessageFile, RememberedKeys, key_name


def files(*numbers: int) -> list[MessageFile]:
    return [MessageFile("", 0, n, n % 7 + 1, 0, 0, 0, key_name(f"k{n}")) for n in numbers]


def test_every_key_is_found(place: Path) -> None:
    """Over thousands, in a few files; another one is not."""
    keys = RememberedKeys(place)
    for start in range(0, 6400, 32):
        keys.remember(files(*range(start, start + 32)))
        assert len(os.listdir(place)) <= 24
    fresh = RememberedKeys(place)
    for n in (0, 1, 31, 32, 3199, 6399):
        assert keys.find(key_name(f"k{n}")) == fresh.find(key_name(f"k{n}")) == range(n, n + n % 7 + 1)
    assert keys.find(key_name("k6400")) is None
    assert keys.find("0" * 32) is None
    assert keys.find("f" * 32) is None


def test_a_key_is_stored_once(place: Path) -> None:
    """However often it is remembered, as kills make it: the files do not grow."""
    keys = RememberedKeys(place)
    for _ in range(200):
        keys.remember(files(1, 2, 3))
    assert sum(path.stat().st_size for path in place.iterdir()) <= 16 * (16 + 3 * 32)
    assert keys.find(key_name("k2")) == range(2, 5)


def test_files_without_keys_are_not_stored(place: Path) -> None:
    RememberedKeys(place).remember([MessageFile("", 0, 1, 1, 0, 0)])
    assert os.listdir(place) == []


def test_a_file_that_is_merged_while_it_is_read(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked for again."""
    keys, other = RememberedKeys(place), RememberedKeys(place)
    keys.remember(files(1))
    [gone] = os.listdir(place)
    listing = os.listdir
    listed = [[gone, "0" * 32]]
    monkeypatch.setattr(os, "listdir", lambda path: listed.pop() if listed else listing(path))
    assert other.find(key_name("k1")) == range(1, 3)


def test_what_is_not_of_that_size_is_damaged(place: Path) -> None:
    (place / "x").write_bytes(b"0" * 20)
    with pytest.raises(StateDamaged, match="it has 20 bytes, which cannot be"):
        RememberedKeys(place).find("0" * 32)
