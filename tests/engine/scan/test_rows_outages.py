"""Files of rows on a disk or a share that is away: the source waits, as one whose files are read later does."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman.document import Document
from ferryman.errors import Misconfigured
from ferryman.sources import Csv, Files, JsonLines, Lines, Listed, Memory, Source
from ferryman.sources.folder import Root
from tests.support.plan_world import PlanWorld
from tests.support.sleeper import Sleeper
from tests.support.tiers import sampled

KINDS: dict[str, tuple[Callable[..., Source], str]] = {
    "csv": (Csv, "name\n{}\n{}\n"),
    "lines": (Lines, "{}\n{}\n"),
    "jsonlines": (JsonLines, '{{"name": "{}"}}\n{{"name": "{}"}}\n'),
}

OUTAGES = {
    **{name: ("open", getattr(errno, name)) for name in ("EIO", "ESTALE", "ENOTCONN", "EHOSTUNREACH", "ETIMEDOUT")},
    "while it is read": ("read", errno.EIO),
    "while the folder is listed": ("list", errno.ESTALE),
}
"""What fails, and how."""


class Share:
    """A folder with a file of two rows, that can go away."""

    def __init__(self, folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._text, self._patch = folder, text, monkeypatch
        folder.mkdir()
        self.put("a", "one", "two")

    def put(self, name: str, *rows: str) -> None:
        (self.folder / name).write_text(self._text.format(*rows))

    def leave(self, what: str, number: int) -> None:
        scandir = os.scandir

        def fail(*_: Any) -> Any:
            raise OSError(number, os.strerror(number))

        def open_device(*_: Any) -> tuple[int, os.stat_result]:
            return os.open("/proc/self/mem", os.O_RDONLY), os.stat(__file__)  # its first byte cannot be read

        def scan(path: Any = ".") -> Any:
            return fail() if str(path).startswith(str(self.folder)) else scandir(path)

        if what == "list":
            self._patch.setattr(os, "scandir", scan)
        else:
            self._patch.setattr(Root, "_open", open_device if what == "read" else fail)

    def come_back(self, *_: object) -> None:
        self._patch.undo()


@pytest.fixture(params=KINDS.values(), ids=list(KINDS))
def share(place: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Share, Source]]:
    kind, text = request.param
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield Share(place / "share", text, monkeypatch), kind(place / "share", max_deleted=1)


@pytest.mark.rule("outage.source")
@pytest.mark.parametrize(("what", "number"), sampled(OUTAGES.values(), 3), ids=list(OUTAGES))
def test_rows_on_a_share_that_is_away(place: Path, share: tuple[Share, Source], what: str, number: int) -> None:
    """New rows are pending, known ones stay, other sources go on; the run ends with 4 and names the source."""
    there, source = share
    net = PlanWorld.empty(place)
    net.plan.source("rows", source).destination("out", net.out("out"))
    net.source("more").destination("more-out", net.out("more-out"))
    assert net.run().exit == 0
    before = net.arrived("out")
    assert len(before) == 2

    there.put("b", "three", "four")
    net.put("x", source="more")
    there.leave(what, number)
    summary = net.run(wait=0)

    assert summary.exit == 4
    assert summary.messages[-1].startswith("source rows (listing) is not available: ")
    assert os.strerror(number) in summary.messages[-1]
    assert summary.messages[-1].endswith("What waits for it is pending: run again when it is back.")
    assert (net.arrived("out"), net.arrived("more-out")) == (before, {"x": 1})
    there.come_back()
    assert net.run().exit == 0
    assert set(net.arrived("out").values()) == {1}
    assert len(net.arrived("out")) == 4


@pytest.mark.rule("outage.again")
def test_rows_are_asked_for_again_within_the_run(place: Path, share: tuple[Share, Source]) -> None:
    """After 1, 4, 16 s; what failed before and is due is tried then, and no attempt was spent meanwhile."""
    there, source = share
    flag = place / "broken"
    flag.touch()

    def step(doc: Document) -> Document:
        if flag.exists():
            raise RuntimeError("a bug")
        return doc

    trial = PlanWorld(place).build(step, source=source, backoff=10_000)
    assert trial.run(wait=0).exit == 4
    flag.unlink()
    trial.retry(status="pending")
    there.leave("open", errno.EIO)
    sleeper = Sleeper(lambda total: there.come_back() if total > 20 else None)
    assert trial.run(**sleeper.options(), wait=60).exit == 0
    assert sum(sleeper.slept) == pytest.approx(21, abs=1)
    assert trial.counts() == {"delivered": 2}
    assert {line["attempt"] for line in trial.out().lines()} == {1}


@pytest.mark.rule("outage.source")
def test_one_file_of_many(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot be read holds no other up; its rows are pending, and nothing is deleted."""
    (place / "share").mkdir()
    for name in ("a", "b", "c"):
        (place / "share" / name).write_text("one\n")
    trial = PlanWorld(place).build(source=Lines(place / "share"))
    usual = Root._open

    def fail(self: Root, id: str) -> Any:
        if id == "b":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return usual(self, id)

    monkeypatch.setattr(Root, "_open", fail)
    assert trial.run(wait=0).exit == 4
    assert trial.out().counted() == {"a#line=1": 1, "c#line=1": 1}
    monkeypatch.undo()
    assert trial.run().exit == 0
    assert trial.out().counted() == {"a#line=1": 1, "b#line=1": 1, "c#line=1": 1}


@pytest.mark.rule("outage.source")
def test_one_folder_of_a_share(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same of files that are read later: those that were listed are read."""
    for name in ("a", "b"):
        (place / "share" / name).mkdir(parents=True)
        (place / "share" / name / "f").write_text("x")
    trial = PlanWorld(place).build(source=Files(place / "share"))
    scandir = os.scandir

    def scan(path: Any = ".") -> Any:
        if str(path).endswith("/share/b"):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)
    summary = trial.run(wait=0)
    assert (summary.exit, trial.out().counted()) == (4, {"a/f": 1})
    assert "source docs (listing) is not available: " in summary.messages[-1]
    monkeypatch.undo()
    assert trial.run().exit == 0
    assert trial.out().counted() == {"a/f": 1, "b/f": 1}


@pytest.mark.rule("outage.misconfigured")
def test_a_listing_that_somebody_has_to_mend(trial: PlanWorld) -> None:
    """The run does not wait for it."""

    class Locked(Memory):
        def listing(self, partition: Any) -> Iterator[Listed | Document]:
            raise Misconfigured("the password is wrong")

    sleeper = Sleeper()
    trial.build(source=Locked(trial.documents))
    trial.put("a")
    summary = trial.run(**sleeper.options())
    assert (summary.exit, sleeper.slept) == (4, [])
    assert summary.messages[-1] == (
        "source docs (listing) is stopped: the password is wrong. What waits for it is pending: fix it and run again."
    )
