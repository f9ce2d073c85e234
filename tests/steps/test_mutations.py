"""``extract_text`` of damaged files: each has an outcome, in time and memory that its size allows.

Files of the corpus are damaged as transfers, disks and attackers do it: bytes changed, cut, doubled, taken out, filled
with zeros, numbers raised; inside of zip archives too, so that damage is not found by a checksum. A child process reads
them, so that one that hangs or ends its process is a finding. ``python -m tests.steps.test_mutations FIRST COUNT``
tries some by their numbers, and prints what is wrong.
"""

from __future__ import annotations

import io
import multiprocessing
import random
import sys
import time
import zipfile
import zlib
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import pytest

from ferryman import steps
from ferryman.document import Document
from ferryman.errors import DeliveryError
from tests.steps import corpus
from tests.steps.corpus import producers

MUTATIONS: Final = 10_000
SHORT: Final = 150
"""Mutations in the ordinary run: some seconds."""

SECONDS: Final = 60
"""A file may take so long; all have less than 2 MB, and take a hundredth of it. The machine may have much else to do,
and a hang is longer than that."""

MEMORY_TIMES: Final = 40
"""By how many times the file's size, unpacked, the process may grow."""

MEMORY_KB: Final = 96 * 1024
"""By how much it may grow in any case: libraries and tables are loaded when the first file of a kind is read (charsets
and PDFium some 60 MB together), and the allocator keeps some 30 MB that were freed."""

_NUMBERS: Final = (b"0", b"-1", b"65535", b"2147483647", b"4294967295", b"99999999999999999999")
_PIECES: Final = (b"\0", b"\xff", b"<", b">", b"{", b"}", b"(", b"[", b"&", b'"', b"\r\n\r\n", b"obj", b"\xef\xbf\xbf")


def seeds() -> list[tuple[str, bytes]]:
    """Name and content of each file that is damaged."""
    files = corpus.good() | {name: raw for name, raw in corpus.shipped().items() if len(raw) < 200_000}
    files |= {sample.name: sample.raw for sample in producers.samples()}
    return sorted(files.items())


def mutated(number: int, files: list[tuple[str, bytes]]) -> tuple[str, bytes]:
    """Name and content of a damaged file; the same for the same number."""
    chance = random.Random(number)
    name, raw = files[number % len(files)]
    if raw.startswith(b"PK\x03\x04") and chance.random() < 0.7:
        return name, _mutate_member(raw, chance)
    if raw.startswith(b"%PDF") and chance.random() < 0.5:
        return name, _mutate_streams(raw, chance)
    return name, _mutate(raw, chance)


def _mutate(raw: bytes, chance: random.Random) -> bytes:
    """Damage bytes in one to eight places."""
    data = bytearray(raw)
    for _ in range(chance.choice((1, 1, 2, 4, 8))):
        if not data:
            break
        at = chance.randrange(len(data))
        length = min(chance.choice((1, 1, 2, 4, 16, 64, 512)), len(data) - at)
        match chance.randrange(9):
            case 0:
                data[at] ^= 1 << chance.randrange(8)
            case 1:
                data[at : at + length] = chance.randbytes(length)
            case 2:
                del data[at : at + length]
            case 3:
                data[at:at] = data[at : at + length] * chance.choice((1, 2, 50, 500))
            case 4:
                del data[at:]
            case 5:
                data[at : at + length] = bytes(length)
            case 6:
                data[at:at] = chance.choice(_PIECES) * chance.choice((1, 3, 300, 3000))
            case 7:
                data[at : at + 4] = chance.choice((b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\x80", bytes(4)))
            case 8:
                _raise_number(data, at, chance)
    return bytes(data)


def _raise_number(data: bytearray, at: int, chance: random.Random) -> None:
    """Put another number in place of the next one that is written in digits."""
    start = next((n for n in range(at, min(at + 4096, len(data))) if data[n : n + 1].isdigit()), None)
    if start is not None:
        end = next((n for n in range(start, len(data)) if not data[n : n + 1].isdigit()), len(data))
        data[start:end] = chance.choice(_NUMBERS)


def _mutate_member(raw: bytes, chance: random.Random) -> bytes:
    """Damage a member of a zip, and pack it again."""
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            members = {info.filename: archive.read(info) for info in archive.infolist()}
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError):
        return _mutate(raw, chance)
    name = chance.choice(sorted(members))
    members[name] = _mutate(members[name], chance)
    return corpus.zipped(members)


def _mutate_streams(raw: bytes, chance: random.Random) -> bytes:
    """Damage a stream of a PDF that is compressed, and compress it again; its stated length stays."""
    starts = [at for at in range(len(raw)) if raw.startswith(b"stream", at) and raw[at - 3 : at] != b"end"]
    start = raw.find(b"\n", chance.choice(starts)) + 1 if starts else 0
    end = raw.find(b"endstream", start)
    try:
        content = zlib.decompress(raw[start:end].rstrip(b"\r\n"))
    except zlib.error:
        return _mutate(raw, chance)
    return raw[:start] + zlib.compress(_mutate(content, chance)) + b"\n" + raw[end:]


def unpacked_size(raw: bytes) -> int:
    """The size of a file, or of what a zip in it unpacks to, whichever is larger."""
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            return max(len(raw), sum(info.file_size for info in archive.infolist()))
    except Exception:  # a broken archive, in any way
        return len(raw)


# -- the child ---------------------------------------------------------------------------------------------------------


def _memory_kb(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def read_all(connection: Connection, numbers: list[int]) -> None:
    """Read damaged files; send the number of each before, and afterwards what is wrong with its outcome, or ""."""
    files, extract = seeds(), steps.extract_text(languages=None)
    for number in numbers:
        name, raw = mutated(number, files)
        connection.send((number, None))
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak
        before = _memory_kb("VmRSS")
        wrong = outcome_of(extract, name, raw)
        grown, allowed = _memory_kb("VmHWM") - before, MEMORY_TIMES * unpacked_size(raw) // 1024 + MEMORY_KB
        if grown > allowed:
            wrong = wrong or f"grew by {grown} KB, {allowed} are allowed"
        connection.send((number, f"{name}: {wrong}" if wrong else ""))
    connection.send((-1, ""))


def outcome_of(extract: steps.extract_text, name: str, raw: bytes) -> str:
    """What is wrong with the outcome of a file; "" if it is a text, or an error that says what to do."""
    try:
        found = extract(Document(name, raw=raw))
        for doc in found if isinstance(found, list) else [found]:
            if not doc.refused:
                (doc.raw or b"").decode()
    except DeliveryError as e:
        return "" if str(e).startswith(f"{name}: ") and str(e).endswith(".") else f"says {e}"
    except BaseException as e:
        return f"{type(e).__name__}: {e}"
    return ""


def findings(numbers: list[int]) -> Iterator[tuple[int, str]]:
    """Yield number and finding of each damaged file that is not treated as it should be."""
    context = multiprocessing.get_context("spawn")
    rest = list(numbers)
    while rest:
        ours, theirs = context.Pipe()
        child: Any = context.Process(target=read_all, args=(theirs, rest), daemon=True)
        child.start()
        theirs.close()
        number, finding = rest[0], ""
        try:
            while ours.poll(SECONDS + 1):
                said, wrong = ours.recv()
                if said < 0:
                    return
                number = said
                if wrong is not None:
                    rest = rest[rest.index(number) + 1 :]
                    if wrong:
                        yield number, wrong
            finding = f"no outcome within {SECONDS} s"
        except EOFError:
            child.join()
            finding = f"ends its process: exit code {child.exitcode}"
        finally:
            child.kill()
            child.join()
        yield number, f"{mutated(number, seeds())[0]}: {finding}"
        rest = [each for each in rest if each > number]


@pytest.mark.rule("step.damaged-files")
def test_some_damaged_files_have_outcomes() -> None:
    """In a share of a second each, and of the memory that their size allows."""
    assert list(findings(list(range(SHORT)))) == []


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, MUTATIONS, 1000))
def test_every_damaged_file_has_an_outcome(first: int) -> None:
    """Ten thousand of them."""
    assert list(findings(list(range(first, first + 1000)))) == []


if __name__ == "__main__":
    began = time.monotonic()
    wanted = range(int(sys.argv[1]), int(sys.argv[1]) + int(sys.argv[2]))
    for number, finding in findings(list(wanted)):
        print(number, finding, flush=True)  # noqa: T201
    print(f"{len(wanted)} in {time.monotonic() - began:.0f} s")  # noqa: T201
