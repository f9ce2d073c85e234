"""What a folder's events name: files that were closed or moved here, folders that appeared, what has gone."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ferryman.sources import Csv, Files
from ferryman.sources.base import TouchedFiles
from ferryman.sources.globs import is_unfinished
from ferryman.sources.inotify import CannotWatch, FolderEvents, Inotify, remote_kind


def watched(root: Path, **options: object) -> FolderEvents:
    events = Files(root, **options).watch()  # type: ignore[arg-type]
    assert events is not None
    return events


@pytest.fixture
def events(tmp_path: Path) -> Iterator[FolderEvents]:
    found = watched(tmp_path)
    yield found
    found.close()


def files(events: FolderEvents) -> list[str]:
    events.read()
    return sorted(events.take().files)


def test_a_file_is_named_once_it_was_closed(tmp_path: Path, events: FolderEvents) -> None:
    """One that grows for a minute is named at its end."""
    with (tmp_path / "log.txt").open("w") as file:
        for _ in range(100):
            file.write("a line\n")
            file.flush()
        assert not events.read()
    assert files(events) == ["log.txt"]
    assert files(events) == []


def test_saved_by_renaming(tmp_path: Path, events: FolderEvents) -> None:
    """The usual way: write beside it, then rename over it. Only its own name counts, and nothing has gone."""
    (tmp_path / "a.txt").write_text("1")
    files(events)
    (tmp_path / ".a.txt.x7Gq").write_text("2")
    (tmp_path / ".a.txt.x7Gq").rename(tmp_path / "a.txt")
    assert files(events) == ["a.txt"]
    assert not events.has_gone


def test_saved_with_a_backup(tmp_path: Path, events: FolderEvents) -> None:
    """As vim does: move it away, write it again, remove the backup. It has gone, and is there again when looked for."""
    (tmp_path / "a.txt").write_text("1")
    files(events)
    (tmp_path / "a.txt").rename(tmp_path / "a.txt~")
    (tmp_path / "a.txt").write_text("2")
    (tmp_path / "a.txt~").unlink()
    assert files(events) == ["a.txt"]
    assert events.has_gone
    assert not events.take_gone()


def test_what_is_removed_has_gone(tmp_path: Path, events: FolderEvents) -> None:
    (tmp_path / "a.txt").write_text("1")
    files(events)
    (tmp_path / "a.txt").unlink()
    assert files(events) == []
    assert events.take_gone()
    assert not events.has_gone


def test_what_comes_and_goes_unseen_is_nothing(tmp_path: Path, events: FolderEvents) -> None:
    (tmp_path / "upload.1").write_text("1")
    (tmp_path / "upload.1").unlink()
    assert not events.read()
    assert not events.has_gone


def test_what_comes_and_goes_while_files_are_listed_has_gone(tmp_path: Path, events: FolderEvents) -> None:
    """A listing may have seen it, though its events are read only later."""
    begun = (tmp_path / "begun").open("w")
    assert not events.read()
    events.begin_listing()
    begun.close()
    (tmp_path / "begun").unlink()
    events.read()
    assert events.take_gone()
    (tmp_path / "upload.1").write_text("1")
    (tmp_path / "upload.1").unlink()
    events.read()
    events.end_listing()
    assert events.take_gone()
    (tmp_path / "upload.2").write_text("1")
    (tmp_path / "upload.2").unlink()
    events.read()
    assert not events.has_gone


def test_another_folder_takes_the_name_of_one(tmp_path: Path) -> None:
    """What the old one had has gone, although its name is there."""
    inside = tmp_path / "in"
    (inside / "site").mkdir(parents=True)
    (tmp_path / "next").mkdir()
    events = watched(inside)
    (inside / "site").rename(tmp_path / "previous")
    (tmp_path / "next").rename(inside / "site")
    events.read()
    assert events.take() == TouchedFiles(folders=frozenset({"site"}))
    assert events.take_gone()
    assert not events.has_gone
    events.close()


def test_a_folder_moved_here_is_named_and_watched(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    (outside / "a" / "b").mkdir(parents=True)
    (outside / "a" / "b" / "x").write_text("1")
    inside.mkdir()
    events = watched(inside)
    (outside / "a").rename(inside / "a")
    events.read()
    assert events.take() == TouchedFiles(folders=frozenset({"a"}))
    (inside / "a" / "b" / "y").write_text("2")
    assert files(events) == ["a/b/y"]
    events.close()


def test_folders_that_are_made_while_their_parents_are(tmp_path: Path, events: FolderEvents) -> None:
    """The first events are read when all of it is there already: each file is in a folder that is named."""
    for at in range(20):
        (tmp_path / "deep" / str(at) / "x").mkdir(parents=True)
        (tmp_path / "deep" / str(at) / "x" / "file").write_text("1")
    events.read()
    folders = events.take().folders
    assert "deep" in folders
    (tmp_path / "deep" / "7" / "x" / "later").write_text("1")
    assert files(events) == ["deep/7/x/later"]


def test_a_folder_that_is_renamed(tmp_path: Path) -> None:
    """Its files have new names, also those in folders below it; its old name has gone."""
    (tmp_path / "old" / "deep").mkdir(parents=True)
    events = watched(tmp_path)
    (tmp_path / "old").rename(tmp_path / "new")
    events.read()
    assert events.take().folders == {"new"}
    assert events.take_gone()
    (tmp_path / "new" / "deep" / "x").write_text("1")
    assert files(events) == ["new/deep/x"]
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "y").write_text("1")
    events.read()
    assert events.take().folders == {"old"}
    events.close()


def test_folders_swap_their_names(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name / "sub").mkdir(parents=True)
    events = watched(tmp_path)
    for old, new in ("a", "c"), ("b", "a"), ("c", "b"):
        (tmp_path / old).rename(tmp_path / new)
    events.read()
    assert events.take().folders >= {"a", "b"}
    for name in "ab":
        (tmp_path / name / "sub" / name).write_text("1")
    assert files(events) == ["a/sub/a", "b/sub/b"]
    events.close()


def test_links(tmp_path: Path, events: FolderEvents) -> None:
    """Complete as soon as they are there, so nobody closes them."""
    (tmp_path / "a").write_text("1")
    files(events)
    (tmp_path / "soft").symlink_to("a")
    os.link(tmp_path / "a", tmp_path / "hard")
    assert files(events) == ["hard", "soft"]


def test_only_what_the_globs_take(tmp_path: Path) -> None:
    (tmp_path / "build").mkdir()
    events = watched(tmp_path, include="**/*.txt", exclude="build")
    for name in "a.txt", "a.md", "build/b.txt":
        (tmp_path / name).write_text("1")
    assert files(events) == ["a.txt"]
    events.close()


@pytest.mark.parametrize(
    "name",
    [
        "~$report.docx",
        ".~lock.a.odt#",
        ".a.txt.swp",
        "a.swx",
        "a.txt~",
        "#a.txt#",
        ".#a.txt",
        "a.pdf.part",
        "b.crdownload",
    ],
)
def test_files_that_programs_make_while_they_work(tmp_path: Path, name: str) -> None:
    """They are neither named by events nor listed, as long as the source is watched."""
    assert is_unfinished(name)
    source = Files(tmp_path)
    (tmp_path / name).write_text("1")
    (tmp_path / "a").write_text("1")
    before = {entry.id for piece in source.partitions() for entry in source.listing(piece)}
    events = source.watch()
    assert events is not None
    (tmp_path / name).write_text("2")
    assert files(events) == []
    assert [entry.id for piece in source.partitions() for entry in source.listing(piece)] == ["a"]
    assert source.still_there([name]) == ""
    events.close()
    source.end_watch()
    assert {entry.id for piece in source.partitions() for entry in source.listing(piece)} == before
    assert len(before) == 2


@pytest.mark.parametrize("name", ["a.txt", "part", "a.party", "$a", "#1 hit.txt", "swap", "a.sw", ".hidden"])
def test_other_files_are_documents(name: str) -> None:
    assert not is_unfinished(name)


def test_the_folder_of_states_is_not_watched(tmp_path: Path) -> None:
    """Each wave changes it, which would start the next one."""
    (tmp_path / ".ferryman" / "plan-v1").mkdir(parents=True)
    events = watched(tmp_path)
    (tmp_path / ".ferryman" / "plan-v1" / "lock").write_text("1")
    (tmp_path / "a").write_text("1")
    assert files(events) == ["a"]
    events.close()


def test_names_that_are_not_utf8(tmp_path: Path, events: FolderEvents) -> None:
    """A change of such a file names it, by which it is listed."""
    odd = os.fsencode(tmp_path) + b"/caf\xe9 %#\n.txt"
    Path(os.fsdecode(odd)).write_text("1")
    assert events.read()
    source = Files(tmp_path)
    [piece] = source.changed_partitions(events.take())
    [listed] = source.listing(piece)
    assert listed.id == "caf%E9 %25%23%0A.txt"  # type: ignore[union-attr]


def test_the_names_are_listed_as_a_listing_lists_them(tmp_path: Path) -> None:
    """Those that exist, are taken by the globs and are not behind a link."""
    (tmp_path / "sub").mkdir()
    for name in "a.txt", "b.md", "sub/c.txt":
        (tmp_path / name).write_text("1")
    (tmp_path / "linked").symlink_to("sub")
    (tmp_path / "file-link.txt").symlink_to("a.txt")
    source = Files(tmp_path, include="**/*.txt")
    everything = [entry for piece in source.partitions() for entry in source.listing(piece)]
    names = ("a.txt", "b.md", "sub/c.txt", "linked/c.txt", "file-link.txt", "no.txt", "no/no.txt", "a.txt/x.txt", "sub")
    pieces = source.changed_partitions(TouchedFiles(frozenset(names)))
    assert sorted(entry for piece in pieces for entry in source.listing(piece)) == sorted(everything)


def test_files_in_a_named_folder_are_listed_once(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "x").write_text("1")
    source = Files(tmp_path)
    pieces = source.changed_partitions(TouchedFiles(frozenset({"a/b/x"}), frozenset({"a", "a/b"})))
    assert [entry.id for piece in pieces for entry in source.listing(piece)] == ["a/b/x"]  # type: ignore[union-attr]


def test_a_file_of_rows_is_watched_by_its_folder(tmp_path: Path) -> None:
    """Also if it is saved by renaming, which a watch of the file itself would not survive."""
    rows = tmp_path / "rows.csv"
    rows.write_text("id,n\n1,1\n")
    events = Csv(rows).watch()
    assert events is not None
    for at in range(3):
        (tmp_path / "other").write_text("1")
        (tmp_path / "new").write_text(f"id,n\n1,{at}\n")
        (tmp_path / "new").rename(rows)
        assert files(events) == ["rows.csv"]
    events.close()


def test_a_queue_that_overflows(tmp_path: Path) -> None:
    """The kernel drops events, and says so; everything has to be listed. Nothing is thought to be complete."""
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    events = watched(tmp_path)
    file = tmp_path / "a"
    names = [tmp_path / "a", tmp_path / "b"]
    file.write_text("1")
    for at in range(limit // 2 + 10):
        names[at % 2].rename(names[1 - at % 2])
    assert events.read()
    assert events.overflowed
    assert events.lost_events
    events.forget()
    assert not events.overflowed
    assert not events.is_changed
    (tmp_path / "after").write_text("1")
    assert files(events) == ["after"]
    events.close()


def test_more_names_than_are_remembered(tmp_path: Path, events: FolderEvents, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferryman.limits.WATCH_NAMES", 10)
    for at in range(20):
        (tmp_path / str(at)).write_text("1")
    assert events.read()
    assert events.overflowed
    assert not events.lost_events


@pytest.mark.parametrize("change", ["removed", "moved", "made again"])
def test_the_root_goes(tmp_path: Path, change: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    events = watched(root)
    if change == "moved":
        root.rename(tmp_path / "elsewhere")
    else:
        shutil.rmtree(root)
    if change == "made again":
        root.mkdir()
    with pytest.raises(CannotWatch, match="was removed or moved"):
        events.read()
    events.close()


def test_a_root_that_is_a_link_to_another_folder_by_now(tmp_path: Path) -> None:
    """A full listing reads the other folder, and from then on that one is watched."""
    for name in "one", "two":
        (tmp_path / name).mkdir()
    root = tmp_path / "current"
    root.symlink_to("one")
    events = watched(root)
    root.unlink()
    root.symlink_to("two")
    events.watch_again()
    (tmp_path / "one" / "x").write_text("1")
    (tmp_path / "two" / "y").write_text("1")
    assert files(events) == ["y"]
    events.close()


def test_no_root(tmp_path: Path) -> None:
    with pytest.raises(CannotWatch, match="is not there, or may not be read"):
        watched(tmp_path / "none")


class Limited(Inotify):
    """Refuses all but some watches, as the kernel does at the limit of a user."""

    left = 3

    def add(self, path: str, mask: int) -> int:
        if self.left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        self.left -= 1
        return super().add(path, mask)


def everything(name: str) -> bool:
    return True


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_the_limit_of_watches(tmp_path: Path) -> None:
    """The reason names the setting; nothing is left open. Reached later, too."""
    for name in "abc":
        (tmp_path / "many" / name).mkdir(parents=True)
    before = open_descriptors()
    with pytest.raises(CannotWatch, match=r"sysctl -w fs\.inotify\.max_user_watches=1048576"):
        FolderEvents(str(tmp_path), everything, everything, Limited)
    assert open_descriptors() == before
    (tmp_path / "few" / "a").mkdir(parents=True)
    events = FolderEvents(str(tmp_path / "few"), everything, everything, Limited)
    (tmp_path / "few" / "b").mkdir()
    (tmp_path / "few" / "c").mkdir()
    with pytest.raises(CannotWatch, match="max_user_watches"):
        events.read()
    events.close()
    assert open_descriptors() == before


def test_the_kernels_own_limit(tmp_path: Path) -> None:
    """In a user namespace, which has a limit of its own."""
    for at in range(9):
        (tmp_path / str(at)).mkdir()
    set_limit = "echo 5 > /proc/sys/user/max_inotify_watches"
    if subprocess.run(["unshare", "-Ur", "sh", "-c", set_limit], capture_output=True, check=False).returncode:
        pytest.skip("no user namespaces here")
    code = f"from ferryman.sources import Files; Files({str(tmp_path)!r}).watch()"
    command = f"{set_limit} && exec {sys.executable} -c '{code.replace(chr(39), chr(34))}'"
    done = subprocess.run(["unshare", "-Ur", "sh", "-c", command], capture_output=True, text=True, check=False)
    assert "CannotWatch" in done.stderr
    assert "fs.inotify.max_user_watches" in done.stderr


def test_too_many_watchers(tmp_path: Path) -> None:
    def refuse() -> Inotify:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with pytest.raises(CannotWatch, match=r"sysctl -w fs\.inotify\.max_user_instances=1024"):
        FolderEvents(str(tmp_path), everything, everything, refuse)


MOUNTS = """\
22 27 0:21 / /proc rw,nosuid - proc proc rw
30 22 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
31 30 0:50 / /mnt/nfs rw,relatime shared:2 - nfs4 server:/export rw
32 30 0:51 / /mnt/smb rw - cifs //server/share rw
33 30 0:52 / /mnt/ssh rw - fuse.sshfs me@host:/ rw
34 30 0:53 / /mnt/plan9 rw - 9p host rw
35 30 0:54 / /tmp rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("minor", "kind"), [(50, "nfs4"), (51, "cifs"), (52, "fuse.sshfs"), (53, "9p"), (54, ""), (99, "")]
)
def test_which_file_systems_report_no_changes_of_others(tmp_path: Path, minor: int, kind: str) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert remote_kind(os.makedev(0, minor), str(mounts)) == kind
    assert remote_kind(os.makedev(8, 1), str(mounts)) == ""
    assert remote_kind(os.makedev(8, 1), str(tmp_path / "none")) == ""


def test_a_folder_on_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a folder below the root may be on it."""
    monkeypatch.setattr("ferryman.sources.inotify.remote_kind", lambda device: "nfs4")
    with pytest.raises(CannotWatch, match="is on nfs4, where changes by others are not reported to this machine"):
        watched(tmp_path)


def test_ten_thousand_files_at_once(tmp_path: Path) -> None:
    """All are named, if they are read while they are written."""
    events = watched(tmp_path)
    named: set[str] = set()
    writing = threading.Thread(target=lambda: [(tmp_path / str(at)).write_text("1") for at in range(10_000)])
    writing.start()
    while writing.is_alive():
        events.read()
    writing.join()
    named.update(files(events))
    assert events.overflowed or len(named) == 10_000
    events.close()


def test_nothing_is_left_open(tmp_path: Path) -> None:
    before = open_descriptors()
    for at in range(200):
        events = watched(tmp_path)
        (tmp_path / str(at)).mkdir()
        events.read()
        events.close()
    assert open_descriptors() == before
