"""Compressed files: opened as what they are; damaged, cut and harmful ones end with a reason."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from folders import scan
from hypothesis import given
from hypothesis import strategies as st
from rows import documents, failures, rows, told

from ferryman import limits
from ferryman.errors import BadDocument, TransientError
from ferryman.sources import Csv, Files, JsonLines, Lines
from ferryman.sources import folder as packed_module
from ferryman.sources.folder import read_unpacked

Pack = Callable[[bytes], bytes]


def zstd(data: bytes) -> bytes:
    packed: bytes = pa.compress(data, codec="zstd", asbytes=True)
    return packed


PACKS: dict[str, Pack] = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd}
every_kind = pytest.mark.parametrize("kind", PACKS)
TEXT = b"".join(b"line %d of a text\n" % i for i in range(20_000))


@every_kind
def test_rows_come_out_of_compressed_files(tmp_path: Path, kind: str) -> None:
    """By the file's first bytes, whatever its name; ids are those of the packed file."""
    pack = PACKS[kind]
    (tmp_path / f"a.{kind}").write_bytes(pack(b"a,b\n1,2\n"))
    (tmp_path / "b.json").write_bytes(pack(b'{"a": 1}\n'))

    assert list(documents(Lines(tmp_path, f"*.{kind}"))) == [f"a.{kind}#line=1", f"a.{kind}#line=2"]
    assert list(documents(Csv(tmp_path, f"*.{kind}"))) == [f"a.{kind}#row=2"]
    assert list(documents(JsonLines(tmp_path, "*.json"))) == ["b.json#line=1"]


@every_kind
def test_files_are_unpacked_unless_they_are_to_be_left_alone(tmp_path: Path, kind: str) -> None:
    """As they are by default: a document is its bytes."""
    packed = PACKS[kind](TEXT)
    (tmp_path / "a").write_bytes(packed)
    (tmp_path / "plain").write_bytes(b"plain")

    source = Files(tmp_path, decompress=False)
    assert {id: source.read(x).raw for id, x in scan(source).items()} == {"a": packed, "plain": b"plain"}
    source = Files(tmp_path)
    assert {id: source.read(x).raw for id, x in scan(source).items()} == {"a": TEXT, "plain": b"plain"}


@every_kind
@given(data=st.binary(max_size=200), parts=st.integers(1, 3))
def test_what_was_packed_comes_back(kind: str, data: bytes, parts: int) -> None:
    """Also of several streams, one after the other, as ``cat a.gz b.gz`` makes them."""
    assert read_unpacked(PACKS[kind](data) * parts, "x", 1000) == data * parts


@given(st.binary(max_size=30))
def test_what_is_not_packed_stays(data: bytes) -> None:
    """Even if it begins with a few bytes alike."""
    assert read_unpacked(b"BZh" + data, "x", 1000) == b"BZh" + data


@every_kind
def test_a_file_that_breaks_off(tmp_path: Path, kind: str) -> None:
    """Lines: those before are documents, nothing is deleted. Files: ERROR_DOC, for a half document is none."""
    packed = PACKS[kind](TEXT)
    (tmp_path / "a").write_bytes(packed[: len(packed) // 2])

    assert told(Lines(tmp_path)).startswith(f"{tmp_path}/a: ")
    assert "that cannot be unpacked after byte" in told(Lines(tmp_path))
    lines = list(rows(Lines(tmp_path)))
    if kind in ("gz", "xz"):  # the others have larger blocks than this text
        assert lines
    with pytest.raises(
        BadDocument, match=r"/a: .* data that cannot be unpacked after byte \d+ \(.*Make the file again"
    ):
        Files(tmp_path, decompress=True).read(scan(Files(tmp_path))["a"])


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_a_file_that_is_damaged(tmp_path: Path, kind: str) -> None:
    """Its checksum says so. (Zstandard's is left out by most programs.)"""
    packed = bytearray(PACKS[kind](TEXT))
    packed[len(packed) // 2] ^= 0xFF
    (tmp_path / "a").write_bytes(packed)

    assert "that cannot be unpacked after byte" in told(Lines(tmp_path))
    with pytest.raises(BadDocument, match="cannot be unpacked"):
        Files(tmp_path, decompress=True).read(scan(Files(tmp_path))["a"])


def test_zeros_after_the_end_are_padding(tmp_path: Path) -> None:
    """As tapes and xz have them."""
    for kind in ("gz", "xz"):
        assert read_unpacked(PACKS[kind](b"text") + bytes(64), "x", 10) == b"text"


@every_kind
def test_the_limit_counts_what_is_unpacked(tmp_path: Path, kind: str) -> None:
    """And holds before it is all in memory."""
    (tmp_path / "a").write_bytes(PACKS[kind](bytes(50 * limits.MIB)))
    source = Files(tmp_path, max_bytes=limits.MIB, decompress=True)
    listed = scan(source)["a"]

    tracemalloc.start()
    try:
        with pytest.raises(BadDocument, match=f"more than the limit of {limits.MIB} bytes when unpacked. Raise max_by"):
            source.read(listed)
        assert tracemalloc.get_traced_memory()[1] < 20 * limits.MIB
    finally:
        tracemalloc.stop()


@every_kind
def test_a_bomb_of_lines_is_stopped(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each line is small, and there is no end of them."""
    monkeypatch.setattr(limits, "PACKED_FREE_BYTES", limits.MIB)
    monkeypatch.setattr(limits, "PACKED_RATIO", 100)
    (tmp_path / "a").write_bytes(PACKS[kind](b"\n" * 20 * limits.MIB))

    assert "that unpack to more than" in told(Lines(tmp_path))


def test_a_file_cannot_ask_for_any_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest level of xz is within the limit; one byte less is refused."""
    packed = lzma.compress(b"text", preset=9 | lzma.PRESET_EXTREME)
    assert read_unpacked(packed, "x", 10) == b"text"

    monkeypatch.setattr(packed_module.limits, "PACKED_MEMORY_BYTES", limits.MIB)
    with pytest.raises(BadDocument, match=r"cannot be unpacked after byte 0 \(Memory usage limit exceeded"):
        read_unpacked(packed, "x", 10)


@every_kind
def test_a_disk_that_fails_is_no_damage(kind: str) -> None:
    """It is tried again; a damaged file would be refused for good."""

    class Failing(io.RawIOBase):
        def __init__(self) -> None:
            self.parts = [PACKS[kind](TEXT)[:300]]

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            if not self.parts:
                raise TransientError("the disk failed")
            data = self.parts.pop()
            buffer[: len(data)] = data
            return len(data)

    with (
        packed_module.open_unpacked(Failing(), "x", 0) as stream,
        pytest.raises(TransientError, match="the disk failed"),
    ):
        stream.read()


def test_a_damaged_file_stops_no_other(tmp_path: Path) -> None:
    """Each is a piece of its own."""
    for name in "abc":
        (tmp_path / name).write_bytes(gzip.compress(name.encode()))
    (tmp_path / "b").write_bytes(gzip.compress(b"b" * 100)[:-4])

    assert [e.id for e in rows(Lines(tmp_path)) if e.id != "b#line=1"] == ["a#line=1", "c#line=1"]
    assert len(failures(Lines(tmp_path))) == 1
