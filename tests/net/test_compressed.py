"""Decompression: several members, and what follows the last one."""

from __future__ import annotations

import gzip
import io
import random
from pathlib import Path

import pytest

from ferryman.net.compressed import DAMAGE_ERRORS, UnpackedStream

REPORTS = Path(__file__).parents[1] / "steps" / "corpus" / "reports"

ONE, TWO = gzip.compress(b"one\n", mtime=0), gzip.compress(b"two\n", mtime=0)
NOISE = random.Random(1).randbytes(300_000)


def unpacked(raw: bytes) -> bytes:
    with io.BufferedReader(UnpackedStream(io.BufferedReader(io.BytesIO(raw)), lambda size: None)) as stream:
        return stream.read()


@pytest.mark.parametrize(
    ("raw", "content"),
    [
        ((REPORTS / "two.txt.gz").read_bytes(), b"one\ntwo\n"),
        (ONE + TWO, b"one\ntwo\n"),
        (ONE + bytes(1000) + TWO + bytes(1000), b"one\ntwo\n"),
        (gzip.compress(NOISE) + TWO, NOISE + b"two\n"),
    ],
    ids=["report", "two", "zeros between", "larger than a chunk"],
)
def test_every_member_of_a_gzip_is_read(raw: bytes, content: bytes) -> None:
    """One after the other, as ``gzip`` does; zeros between them are padding."""
    assert unpacked(raw) == content


@pytest.mark.parametrize(
    "raw",
    [
        (REPORTS / "garbage.txt.gz").read_bytes(),
        gzip.compress(b"The ferry leaves at nine.\n") + b"<!-- sent by a form -->",
        gzip.compress(b"The ferry leaves at nine.\n") + b"\x1f",
    ],
    ids=["report", "text", "a byte"],
)
def test_what_follows_a_gzip_is_ignored(raw: bytes) -> None:
    """A line end that a transfer has appended costs no document."""
    assert unpacked(raw) == b"The ferry leaves at nine.\n"


@pytest.mark.parametrize(
    "raw",
    [ONE[:-1], ONE + TWO[:15], gzip.compress(NOISE)[:-9], ONE[:-8] + bytes(8)],
    ids=["cut", "cut later", "cut before its checksum", "another checksum"],
)
def test_a_damaged_gzip_is_an_error(raw: bytes) -> None:
    """It breaks off, in its second member too, or its checksum is wrong."""
    with pytest.raises(DAMAGE_ERRORS):
        unpacked(raw)
