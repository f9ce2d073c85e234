"""Machines that do not see the same: nothing is deleted, and nothing is passed over, because one of them is blind."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman.engine.run import Summary
from ferryman.plan import Plan
from ferryman.sources import Csv, Doubt, Files, Listed, Source
from ferryman.sources.files import FileSelection
from ferryman.testing.inprocess import InProcess
from tests.support.plan_world import PlanWorld, run_plan
from tests.support.recorder import Recorder

HOST = socket.gethostname()


class Elsewhere(InProcess):
    """Of its tasks, every other one runs on a machine that has another folder at the root's path."""

    def __init__(self, there: Path) -> None:
        super().__init__()
        self.there = str(there)
        self.blind = True
        self.calls = 0

    def _run_one(self, call: bytes) -> Any:
        self.calls += 1
        with pytest.MonkeyPatch.context() as patch:
            if self.blind and self.calls % 2 == 0:
                from ferryman.sources.folder import Root

                of_driver = Root.path_of

                def path_of(root: Root, name: str) -> str:
                    path = of_driver(root, name)
                    return path.replace(root.path, self.there, 1)

                patch.setattr(Root, "path_of", path_of)
            return super()._run_one(call)


class Share(PlanWorld):
    """A corpus of eight folders, each with ten documents, that goes to a recorder; and another machine's view of it."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.corpus = place / "corpus"
        self.there = place / "there"
        self.there.mkdir()
        for folder in range(8):
            for name in range(10):
                file = self.corpus / str(folder) / f"{name}.txt"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(f"{folder}/{name}")
        self.machines = Elsewhere(self.there)

    def make_plan(self) -> Plan:
        plan = Plan("share", version=1)
        plan.source("files", Files(self.corpus)).destination("out", self.out())
        return plan

    def scan(self, *, blind: bool) -> Summary:
        """Run on both machines."""
        self.machines.blind = blind
        return self.run(runner=self.machines)

    def deleted(self) -> list[str]:
        return [id for id in self.out().arrived() if id.startswith("-")]


@pytest.fixture
def share(place: Path) -> Share:
    return Share(place)


@pytest.mark.rule("delete.other-machine")
def test_a_machine_that_does_not_see_folders_deletes_nothing(share: Share) -> None:
    """Their documents stay, and the run names the host and the path; once all see the same, what is gone goes."""
    assert share.scan(blind=False).exit == 0
    summary = share.scan(blind=True)
    assert (summary.exit, share.deleted()) == (4, [])
    told, *_ = [m for m in summary.messages if "incomplete listing" in m]
    assert f"is there on {HOST}, but missing on {HOST}" in told
    assert str(share.corpus) in told
    shutil.rmtree(share.corpus / "3")
    assert share.scan(blind=False).exit == 0
    assert len(share.deleted()) == 10


@pytest.mark.rule("delete.other-machine")
def test_an_empty_folder_on_one_machine_deletes_nothing(share: Share) -> None:
    """An unmounted share is an empty folder."""
    share.scan(blind=False)
    for folder in range(8):
        (share.there / str(folder)).mkdir()
    summary = share.scan(blind=True)
    assert (summary.exit, share.deleted()) == (4, [])
    assert any("is not empty on" in m and "but empty on" in m for m in summary.messages)


@pytest.mark.rule("delete.other-machine")
def test_the_first_run_says_so_too(share: Share) -> None:
    """What a machine does not see is not passed over in silence; the rest is delivered."""
    summary = share.scan(blind=True)
    assert summary.exit == 4
    assert 0 < len(share.out().arrived()) < 80
    assert share.scan(blind=False).exit == 0
    assert len(set(share.out().arrived())) == 80


@pytest.mark.rule("delete.other-machine")
def test_a_driver_that_does_not_see_folders_deletes_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cuts the listing; those who list see folders that it has not named."""
    share = Share(place)
    share.scan(blind=False)
    full = place / "full"
    share.corpus.rename(full)
    share.corpus.mkdir()
    (share.corpus / "a.txt").touch()
    share.machines.there = str(full)
    share.machines.calls = 1  # all that is left to list is one piece, and it is listed elsewhere
    summary = share.scan(blind=True)
    assert (summary.exit, share.deleted()) == (4, [])
    assert any(f"{share.corpus}/0 is not there on {HOST}, but there on {HOST}" in m for m in summary.messages)


def test_an_empty_folder_that_all_see_empty_is_no_matter(share: Share) -> None:
    (share.corpus / "empty").mkdir()
    (share.there / "empty").mkdir()
    assert share.scan(blind=False).exit == 0


@pytest.mark.rule("delete.other-machine")
def test_a_file_of_rows_that_a_worker_does_not_find(place: Path) -> None:
    """The driver lists such files, a worker opens them."""
    rows = place / "rows"
    rows.mkdir()
    for name in ("a", "b"):
        (rows / f"{name}.csv").write_text("text\none\ntwo\n")
    source = Csv(rows)
    [first, _] = source.partitions()
    (rows / "a.csv").rename(place / "a.csv")
    [doubt] = source.listing(first)
    assert doubt == Doubt("a.csv", "missing")
    assert source.contradiction(doubt) == ""
    (place / "a.csv").rename(rows / "a.csv")
    assert source.contradiction(doubt) == f"{rows}/a.csv is there on {HOST}"


class Lying(Source):
    """A source of one's own says what it doubts, and its driver answers."""

    def partitions(self) -> list[str]:
        return ["shelf"]

    def listing(self, partition: str) -> Iterator[Listed | Doubt]:
        yield Doubt(partition, "empty")

    def contradiction(self, doubt: Doubt) -> str:
        return f"{doubt.place} is full here"


def test_a_source_of_one_s_own_may_doubt(place: Path) -> None:
    plan = Plan("own", version=1)
    plan.source("books", Lying()).destination("out", Recorder(place / "out.jsonl"))
    summary = run_plan(plan, place / "state")
    assert summary.exit == 4
    assert any(f"shelf is full here, but empty on {HOST}" in m for m in summary.messages)


def test_what_a_store_does_not_list_is_looked_at_again(place: Path) -> None:
    """Folders of a bucket: a missing one, an empty one, and one that only a worker sees."""
    import fsspec

    root = f"/machines-{place.name}"
    fsspec.filesystem("memory").pipe_file(f"{root}/full/a", b"a")
    tree = FileSelection(f"memory:/{root}", "**/*", None, None).tree("Files", None)
    assert tree.contradiction(Doubt("full", "missing")).endswith(f"full is there for {HOST}")
    assert tree.contradiction(Doubt("full", "empty")).endswith(f"full is not empty for {HOST}")
    assert tree.contradiction(Doubt("full", "there")) == ""
    assert tree.contradiction(Doubt("gone", "there")).endswith(f"gone is not there for {HOST}")
    assert tree.contradiction(Doubt("gone", "missing")) == ""
    assert tree.contradiction(Doubt("gone", "empty")) == ""
    fsspec.filesystem("memory").rm(root, recursive=True)


@pytest.mark.rule("delete.other-machine")
def test_what_the_driver_sees_is_not_deleted(share: Share) -> None:
    """A machine may have an old copy of a folder, which is neither missing nor empty."""
    share.scan(blind=False)
    for folder in range(8):
        shutil.copytree(share.corpus / str(folder), share.there / str(folder))
        (share.there / str(folder) / "3.txt").unlink()
    summary = share.scan(blind=True)
    assert (summary.exit, share.deleted()) == (4, [])
    assert any(f"3.txt is there on {HOST}, but not in the listing" in m for m in summary.messages)
    for folder in range(8):
        (share.corpus / str(folder) / "3.txt").unlink()
    assert share.scan(blind=True).exit == 0
    assert len(share.deleted()) == 8


def test_what_is_left_out_is_not_there(place: Path) -> None:
    """Files that the globs do not take any more, and what a link has taken the place of, are deleted as before."""
    share = Share(place)
    share.scan(blind=False)
    plan = Plan("share", version=1)
    plan.source("files", Files(share.corpus, exclude=["3", "4/4.txt"])).destination("out", share.out())
    (share.corpus / "5").rename(place / "five")
    (share.corpus / "5").symlink_to(share.corpus / "6")
    (share.corpus / "7" / "7.txt").unlink()
    (share.corpus / "7" / "7.txt").symlink_to(share.corpus / "6")
    assert run_plan(plan, share.state).exit == 0
    assert len(share.deleted()) == 10 + 1 + 10 + 1


def test_a_store_that_lists_less_than_it_has_deletes_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing with fewer pages, or none."""
    import fsspec

    memory = fsspec.filesystem("memory")
    root = f"/store-{place.name}"
    for name in ("a/1", "a/2", "a/3", "b/1", "b/2", "b/3"):
        memory.pipe_file(f"{root}/{name}", name.encode())
    out = Recorder(place / "out.jsonl")
    plan = Plan("store", version=1)
    plan.source("files", Files(f"memory:/{root}")).destination("out", out)
    assert run_plan(plan, place / "state").exit == 0
    of_store = type(memory).ls
    monkeypatch.setattr(type(memory), "ls", lambda *args, **options: of_store(*args, **options)[:2])
    summary = run_plan(plan, place / "state")
    assert summary.exit == 4
    assert not [id for id in out.arrived() if id.startswith("-")]
    assert any("3 is there for" in message for message in summary.messages)
    monkeypatch.setattr(type(memory), "ls", of_store)
    memory.rm(f"{root}/a/3")
    assert run_plan(plan, place / "state").exit == 0
    assert [id for id in out.arrived() if id.startswith("-")] == ["-a/3"]
    memory.rm(root, recursive=True)
