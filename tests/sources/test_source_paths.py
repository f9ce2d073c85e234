"""Names of files as ids: there and back, whatever they are made of."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferryman.sources import Files
from ferryman.sources.base import id_of, name_of, printable_path

any_name = st.binary(min_size=1, max_size=40).filter(
    lambda b: b"/" not in b and b"\0" not in b and b not in (b".", b"..")
)


@given(any_name)
def test_every_name_survives(raw: bytes) -> None:
    """From any bytes to an id of one line that UTF-8 holds, and back to the same bytes."""
    id = id_of(os.fsdecode(raw))

    assert os.fsencode(name_of(id)) == raw
    assert id.encode().decode() == id
    assert id.splitlines() == [id]
    assert "#" not in id


@pytest.mark.rule("doc.uri")
@given(any_name, any_name)
def test_two_names_have_two_ids(one: bytes, other: bytes) -> None:
    """No two names share an id."""
    assert (id_of(os.fsdecode(one)) == id_of(os.fsdecode(other))) is (one == other)


@pytest.mark.rule("doc.uri")
@pytest.mark.parametrize(
    ("name", "id"),
    [
        (b"histories/henryv.txt", "histories/henryv.txt"),
        (b"a b.txt", "a b.txt"),
        ("ça 日本.txt".encode(), "ça 日本.txt"),
        (b"100%.txt", "100%25.txt"),
        (b"%41", "%2541"),
        (b"c#.md", "c%23.md"),
        (b"a?b&c=d+e:f~g'h", "a?b&c=d+e:f~g'h"),
        (b"\xff\xfe.txt", "%FF%FE.txt"),
        ("é".encode() + b"\xe9", "é%E9"),
        (b"line\nend\ttab\x7f", "line%0Aend%09tab%7F"),
        ("\u2028\x85".encode(), "%E2%80%A8%C2%85"),
        (b"\xed\xa0\x80", "%ED%A0%80"),
    ],
)
def test_ids_stay_readable(name: bytes, id: str) -> None:
    """Only what would be ambiguous, unprintable or undecodable is percent-encoded."""
    assert id_of(os.fsdecode(name)) == id


def test_messages_show_paths_as_they_are_on_one_line() -> None:
    """A path in a message can be copied; what would break the line is encoded."""
    assert printable_path("/data/100%#1/a b") == "/data/100%#1/a b"
    assert printable_path("/data/a\nb\udcff") == "/data/a%0Ab%FF"


@given(raw=any_name.filter(lambda b: len(b) < 40))
def test_files_of_any_name_are_read(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    """What a real file system takes as a name can be listed and read."""
    root = tmp_path_factory.mktemp("names")
    path = os.path.join(os.fsencode(root), raw)
    with open(path, "wb") as file:
        file.write(raw)
    source = Files(root)

    [listed] = [entry for piece in source.partitions() for entry in source.listing(piece)]

    assert source.read(listed).raw == raw


@pytest.mark.parametrize("locale", ["C", "C.UTF-8", "POSIX"])
@pytest.mark.parametrize("utf8_mode", ["0", "1"])
def test_ids_do_not_depend_on_the_locale(tmp_path: Path, locale: str, utf8_mode: str) -> None:
    """A worker with another locale makes the same ids, and finds the files by them."""
    (tmp_path / "ça.txt").write_text("content")
    program = (
        "import sys; from ferryman.sources import Files; s = Files(sys.argv[1])\n"
        "for x in s.listing([('', None)]): sys.stdout.buffer.write(x.id.encode() + b'=' + s.read(x).raw)"
    )

    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        check=True,
        env={**os.environ, "LC_ALL": locale, "PYTHONUTF8": utf8_mode, "PYTHONCOERCECLOCALE": "0"},
    )

    assert done.stdout.decode() == "ça.txt=content"
