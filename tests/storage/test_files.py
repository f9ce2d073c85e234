"""Durable files: whole or not there, once where they must be, damage seen."""

from __future__ import annotations

import errno
import multiprocessing
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferryman.errors import StateDamaged
from ferryman.storage import files
from ferryman.storage import files as seals


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_publish_makes_a_file_whole(place: Path) -> None:
    """What is published is there with its content, and nothing else is."""
    assert files.publish(place / "a", b"content")
    assert (place / "a").read_bytes() == b"content"
    assert names(place) == ["a"]


def test_publish_is_exclusive(place: Path) -> None:
    """The second one of a name is refused, and the first one's content stays."""
    assert files.publish(place / "a", b"first")
    assert not files.publish(place / "a", b"second")
    assert (place / "a").read_bytes() == b"first"
    assert names(place) == ["a"]


def _publish(path: Path, content: bytes, go: object, won: object) -> None:
    go.wait()  # type: ignore[attr-defined]
    if files.publish(path, content):
        won.put(content)  # type: ignore[attr-defined]


def test_of_many_processes_that_publish_one_name_one_wins(place: Path) -> None:
    """Exactly one is told that it made the file, and it is this one's content that is there."""
    spawn = multiprocessing.get_context("fork")
    go, won = spawn.Event(), spawn.Queue()
    racers = [
        spawn.Process(target=_publish, args=(place / "a", f"racer {i}".encode() * 1000, go, won)) for i in range(8)
    ]
    for racer in racers:
        racer.start()
    go.set()
    for racer in racers:
        racer.join(300)
        assert racer.exitcode == 0
    winner = won.get(timeout=300)
    assert won.empty()
    assert (place / "a").read_bytes() == winner


def test_replace_sets_the_content(place: Path) -> None:
    """A file is replaced whole, and made if it was not there."""
    files.replace(place / "a", b"first, longer than the second")
    files.replace(place / "a", b"second")
    assert (place / "a").read_bytes() == b"second"
    assert names(place) == ["a"]


@pytest.mark.parametrize("write", [files.replace, files.publish])
def test_a_write_that_fails_leaves_nothing(place: Path, monkeypatch: pytest.MonkeyPatch, write: object) -> None:
    """A full disk in the middle of a write: the name is as it was, no temporary file stays."""
    (place / "old").write_bytes(b"old")

    def full(fd: int, data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    target = place / ("old" if write is files.replace else "new")
    with pytest.raises(OSError, match="No space left"):
        write(target, b"new")  # type: ignore[operator]
    assert names(place) == ["old"]
    assert (place / "old").read_bytes() == b"old"


def test_a_short_write_is_gone_on_with(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """write() may take less than it was given; the rest is written too."""
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:3]))
    files.replace(place / "a", b"eleven chars")
    assert (place / "a").read_bytes() == b"eleven chars"


@pytest.mark.parametrize("write", [files.replace, files.publish])
def test_content_and_name_are_synced_in_this_order(place: Path, monkeypatch: pytest.MonkeyPatch, write: object) -> None:
    """The content is on the disk before the name, and the name's folder before the call returns."""
    told: list[str] = []
    real_fsync, real_link, real_replace = os.fsync, os.link, os.replace

    def fsync(fd: int) -> None:
        told.append("fsync folder" if os.path.isdir(f"/proc/self/fd/{fd}") else "fsync file")
        real_fsync(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", lambda a, b: (told.append("name"), real_link(a, b)))
    monkeypatch.setattr(os, "replace", lambda a, b: (told.append("name"), real_replace(a, b)))
    write(place / "a", b"content")  # type: ignore[operator]
    assert told == ["fsync file", "name", "fsync folder"]


def test_folders_are_made_with_their_parents(place: Path) -> None:
    """Every missing parent is made; a folder that is there is no error."""
    files.make_folder(place / "a" / "b" / "c")
    files.make_folder(place / "a" / "b" / "c")
    assert (place / "a" / "b" / "c").is_dir()


@given(
    record=st.dictionaries(st.text(), st.integers(-(2**53), 2**53) | st.text() | st.none() | st.lists(st.booleans()))
)
def test_a_sealed_record_comes_back(tmp_path_factory: pytest.TempPathFactory, record: dict[str, object]) -> None:
    """What is sealed is unsealed as it was."""
    path = tmp_path_factory.getbasetemp() / "sealed"
    path.write_bytes(seals.seal(record))
    assert seals.unseal(path) == record


SEALED = seals.seal({"format": 1, "plan": "plays", "list": [1, 2, 3]})


@pytest.mark.parametrize("at", range(len(SEALED)))
def test_any_flipped_bit_of_a_sealed_record_is_seen(place: Path, at: int) -> None:
    """Each bit of each byte, of the checksum too: StateDamaged, naming the file."""
    for bit in range(8):
        flipped = bytearray(SEALED)
        flipped[at] ^= 1 << bit
        (place / "sealed").write_bytes(flipped)
        with pytest.raises(StateDamaged) as error:
            seals.unseal(place / "sealed")
        assert error.value.path == str(place / "sealed")


@pytest.mark.parametrize("length", range(len(SEALED)))
def test_a_truncated_sealed_record_is_seen(place: Path, length: int) -> None:
    """Cut anywhere, also to nothing: StateDamaged."""
    (place / "sealed").write_bytes(SEALED[:length])
    with pytest.raises(StateDamaged):
        seals.unseal(place / "sealed")


def test_a_sealed_record_with_more_behind_it_is_seen(place: Path) -> None:
    """Bytes that were appended are damage too."""
    (place / "sealed").write_bytes(SEALED + b" ")
    with pytest.raises(StateDamaged):
        seals.unseal(place / "sealed")


def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files and folders that are synced from now on."""
    found: list[Path] = []
    fsync = os.fsync

    def noting(fd: int) -> None:
        found.append(Path(os.readlink(f"/proc/self/fd/{fd}")))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noting)
    return found


@pytest.mark.rule("state.power-cut")
def test_a_name_that_a_killed_process_gave_becomes_durable(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever finds a file or a folder there builds on its name: the folder above is synced first."""
    (place / "there").write_bytes(b"one")
    found = synced(monkeypatch)
    assert not files.publish(place / "there", b"two")
    assert place in found

    (place / "folder").mkdir()
    found.clear()
    files.make_folder(place / "folder" / "below")
    assert found == [place, place / "folder"]
    files.make_folder(place / "folder" / "below" / "more")
    assert found[2:] == [place / "folder" / "below"], "those were seen to before"
