"""A job that kills its consumer is found, and no other is accused."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from ferryman.crash import AT_WORK
from ferryman.errors import PermanentError
from ferryman.intake.service import isolation
from ferryman.intake.service.errors import ChildDied, StopRequested, TryLater
from ferryman.intake.service.isolation import ATTEMPTS, CurrentWork
from ferryman.net.allowed_addresses import Reach
from tests.intake.conftest import PATIENT_S, zookeeper_url
from tests.intake.service import killer
from tests.intake.service.child import CHILD
from tests.intake.service.place import Place
from tests.servers.server import Server
from tests.support.zygote import Zygote

FILES = 40
"""Of one job: several threads fetch them, and ask for its lock."""

GOOD = [f"good {n}" for n in range(6)]


def submitted(place: Place, bad: str) -> str:
    """Six good jobs and one whose file has this name."""
    for name in [*GOOD[:3], bad, *GOOD[3:]]:
        place.submit(payload_url=place.put(f"{name}.txt", name).as_uri(), local_id=name)
    return bad


def ended(place: Place) -> dict[str, tuple[str, str]]:
    """Local id -> (status, message) of each job."""
    jobs = [place.queue.load_job(job) for job in place.queue.list_jobs()]
    return {str(job.configuration["local_id"]): (job.status, job.message) for job in jobs}


@pytest.mark.rule("intake.killer")
def test_a_job_that_kills_its_consumer_is_found(place: Path) -> None:
    """The first ``serve`` dies of it. The next one isolates what was at work, and the killer fails after 3 deaths;
    the others are delivered once."""
    there = Place(place, session_timeout_s=1.5)
    bad = submitted(there, killer.KILLS)
    with Zygote(place, CHILD) as zygote:
        code, said = zygote.run(folder=str(place), killer=True)
        assert code == -9, said
        code, said = zygote.run(folder=str(place), killer=True)
    assert code == 0, said
    found = ended(there)
    status, why = found.pop(bad)
    assert status == "Failed"
    assert f"in each of {ATTEMPTS} attempts: signal 9 (SIGKILL)" in why
    assert {status for status, _ in found.values()} == {"Completed"}
    assert there.rows() == [(f"{name}/{name}.txt", name) for name in GOOD]
    assert said.count("ended the child process") == ATTEMPTS
    assert list(there.serving.work.joinpath("at-work").iterdir()) == []


def delivered(there: Place, bad: str) -> None:
    """All but the killer, once; it has failed with the reason."""
    found = ended(there)
    status, why = found.pop(bad)
    assert (status, f"in each of {ATTEMPTS} attempts: signal 9 (SIGKILL)" in why) == ("Failed", True), why
    assert {status for status, _ in found.values()} == {"Completed"}
    assert there.rows() == [(f"{name}/{name}.txt", name) for name in GOOD]
    assert there.queue.audit() == []
    there.queue.close()


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.rule("intake.killer")
def test_it_is_found_on_zookeeper(place: Path, server: Callable[[str], Server]) -> None:
    """Whose lock of the job ends with the session of the ``serve`` that died."""
    url = zookeeper_url(server)
    there = Place(place, session_timeout_s=PATIENT_S, url=url)
    bad = submitted(there, killer.KILLS)
    with Zygote(place, CHILD) as zygote:
        for ends in (-9, 0):
            code, said = zygote.run(folder=str(place), killer=True, url=url)
            assert code == ends, said
    assert said.count("ended the child process") == ATTEMPTS
    delivered(there, bad)


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", pytest.param("zookeeper", marks=pytest.mark.server)])
def test_it_is_found_by_two_serves(place: Path, store: str, request: pytest.FixtureRequest) -> None:
    """That carry the queue together and share the working space: one of them dies of it, and is started again."""
    url = "" if store == "sqlite" else zookeeper_url(request.getfixturevalue("server"))
    there = Place(place, session_timeout_s=PATIENT_S, url=url)
    bad = submitted(there, killer.KILLS)

    def kept_up(name: str) -> list[int]:
        """One that is started again whenever it dies; how it ended each time."""
        folder = place / name
        folder.mkdir()
        codes = []
        with Zygote(folder, CHILD) as zygote:
            while not codes or (codes[-1] and len(codes) < 5):
                codes.append(zygote.run(folder=str(place), killer=True, url=url, state=name)[0])
        return codes

    with ThreadPoolExecutor(2) as pool:
        codes = sorted(pool.map(kept_up, ("a", "b")))
    assert codes == [[-9, 0], [0]]
    delivered(there, bad)


POINTS = ["work.counted", "work.begun:5", "work.died", "work.counted:3", "work.ended:4"]


def test_every_point_is_tried() -> None:
    """No crash point around the work is left out."""
    assert {point.partition(":")[0] for point in POINTS} == AT_WORK.keys()


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_killed_while_it_isolates(place: Path, point: str) -> None:
    """At each step: no death is made of it, and the killer is still found."""
    there = Place(place, session_timeout_s=1.5)
    bad = submitted(there, killer.KILLS)
    with Zygote(place, CHILD) as zygote:
        for arm, ends in (("", -9), (point, -9), ("", 0)):
            code, said = zygote.run(folder=str(place), killer=True, arm=arm)
            assert code == ends, said
    found = ended(there)
    assert found.pop(bad)[0] == "Failed"
    assert {status for status, _ in found.values()} == {"Completed"}
    assert there.rows() == [(f"{name}/{name}.txt", name) for name in GOOD]


@pytest.mark.slow
def test_a_killed_serve_accuses_nobody(place: Path) -> None:
    """What was at work then is done in a child, and is delivered."""
    there = Place(place, session_timeout_s=1.5)
    once = submitted(there, killer.ONCE)
    with Zygote(place, CHILD) as zygote:
        code, said = zygote.run(folder=str(place), killer=True)
        assert code == -9, said
        code, said = zygote.run(folder=str(place), killer=True)
    assert code == 0, said
    assert "ended the child process" not in said
    assert {status for status, _ in ended(there).values()} == {"Completed"}
    assert (f"{once}/{once}.txt", once) in there.rows()


@pytest.mark.slow
def test_a_manifest_that_kills(place: Path) -> None:
    """Its batch fails with the reason; others are made."""
    there = Place(place, session_timeout_s=1.5)
    lines = there.manifest([there.row("a.txt", local_id="a")], f"{killer.KILLS}.csv")
    bad = there.submit(manifest_url=lines)
    there.submit(payload_url=there.put("b.txt", "b").as_uri(), local_id="b")
    with Zygote(place, CHILD) as zygote:
        code, _ = zygote.run(folder=str(place), killer=True)
        assert code == -9
        code, said = zygote.run(folder=str(place), killer=True)
    assert code == 0, said
    batch = there.queue.load_batch(bad)
    assert batch.status == "Failed"
    assert f"in each of {ATTEMPTS} attempts" in batch.message
    assert there.rows() == [("b/b.txt", "b")]


def test_every_stage_in_a_child(intake: Place) -> None:
    """A job that is isolated in every state is delivered as any other, with its originals and its size."""
    rows = [intake.row(f"{n}.txt", "words", local_id="a", primary_id="ark:/1/a") for n in range(FILES)]
    intake.submit(manifest_url=intake.manifest(rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CurrentWork, "_begin", lambda self, id, word: False)
        intake.serve()
    (job,) = (intake.queue.load_job(one) for one in intake.queue.list_jobs())
    assert (job.status, job.space_needed, job.store["files"]) == ("Completed", 5 * FILES, FILES)
    assert intake.rows() == sorted((f"a/{n}.txt", "words") for n in range(FILES))
    assert intake.queue.audit() == []


@pytest.mark.slow
def test_errors_of_a_child_are_its_parents(intake: Place) -> None:
    """The reason is the same as without one, and the reach too."""
    serving = replace(intake.serving, reach=Reach())
    intake.submit(payload_url=intake.put("a.txt", "words").as_uri(), local_id="a")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CurrentWork, "_begin", lambda self, id, word: False)
        intake.serve(**vars(serving))
    assert {status for status, _ in ended(intake).values()} == {"Failed"}
    assert "--allow-files" in ended(intake)["a"][1]


def test_one_at_a_time(tmp_path: Path) -> None:
    """While one is isolated another one waits; a third that nobody died of is worked at meanwhile."""
    at_work = CurrentWork(tmp_path, lambda text: None)
    for name in ("jid1", "jid2"):
        (tmp_path / name).touch()

    def apart() -> str:
        with pytest.raises(TryLater, match="it waits"):
            at_work.run("jid2", lambda: "here", lambda: "apart")
        assert at_work.run("jid3", lambda: "here", lambda: "apart") == "here"
        return "apart"

    assert at_work.run("jid1", lambda: "here", apart) == "apart"
    assert at_work.run("jid1", lambda: "here", apart) == "here"
    assert [path.name for path in tmp_path.iterdir()] == ["jid2"]


def test_deaths_are_counted_over_processes(tmp_path: Path) -> None:
    """Also by another process; an outcome ends the count."""

    def dies() -> str:
        raise ChildDied("signal 9 (SIGKILL)")

    (tmp_path / "jid1").touch()
    for n in range(1, ATTEMPTS):
        with pytest.raises(TryLater):
            CurrentWork(tmp_path, lambda text: None).run("jid1", lambda: "here", dies)
        assert CurrentWork(tmp_path, lambda text: None).deaths("jid1") == n
    with pytest.raises(PermanentError, match=f"each of {ATTEMPTS}"):
        CurrentWork(tmp_path, lambda text: None).run("jid1", lambda: "here", dies)
    assert list(tmp_path.iterdir()) == []


def test_one_who_lost_the_lock_leaves_the_file(tmp_path: Path) -> None:
    """Another process works at the job then, and its file stays."""
    ours, theirs = (CurrentWork(tmp_path, lambda text: None) for _ in range(2))

    def theirs_began() -> str:
        with pytest.raises(StopRequested):
            theirs.run("jid1", lambda: "here", stops)
        return "here"

    def stops() -> str:
        raise StopRequested

    ours.run("jid1", theirs_began, lambda: "apart")
    assert [path.name for path in tmp_path.iterdir()] == ["jid1"]


def test_a_stop_ends_the_child(intake: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait for it."""
    stop = threading.Event()
    intake.submit(payload_url=intake.put("a.txt", "a").as_uri(), local_id="a")
    batch = intake.queue.acquire_pending_batch()
    assert batch is not None
    monkeypatch.setattr(isolation, "run_task", lambda task: signal.pause())
    apart = isolation.Isolation(intake.queue, intake.serving, stop)
    stop.set()
    with pytest.raises(StopRequested):
        apart.plan_batch(batch)


def without_links(*_: object) -> None:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.mark.parametrize("has_links", [True, False])
def test_marks_of_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool) -> None:
    """One that somebody has swept is made again, and one that is in use is not swept. Others see what is at work, also
    on a file system without links. At the end nothing is left."""
    if not has_links:
        monkeypatch.setattr(os, "link", without_links)
    folder = tmp_path / "at-work"
    folder.mkdir()
    ours, theirs = (CurrentWork(folder, lambda text: None) for _ in range(2))

    def during() -> str:
        theirs.sweep(lambda id: False)
        ours.sweep(lambda id: False)
        assert theirs.run("jid1", lambda: "here", lambda: "apart") == "apart"
        assert ours.run("jid2", lambda: "here", lambda: "apart") == "here"
        return "done"

    for _ in range(2):
        assert ours.run("jid1", during, lambda: "apart") == "done"
        theirs.sweep(lambda id: False)
        assert theirs.run("jid1", lambda: "here", lambda: "apart") == "here"
    ours.close()
    theirs.close()
    assert [path.name for path in tmp_path.rglob("*")] == ["at-work"]


def test_one_thread_ends_after_another_has_begun(tmp_path: Path) -> None:
    """In the same process, after an operator took the lock away: its end does not remove the other's file."""
    at_work = CurrentWork(tmp_path / "at-work", lambda text: None)
    (tmp_path / "at-work").mkdir()

    def first() -> None:
        (tmp_path / "at-work" / "jid1").unlink()  # as whoever isolates it does in the end
        began, ends = threading.Event(), threading.Event()

        def second() -> None:
            began.set()
            assert ends.wait(300)

        other = threading.Thread(target=at_work.run, args=("jid1", second, lambda: None))
        other.start()
        assert began.wait(300)
        threads.append((other, ends))

    threads: list[tuple[threading.Thread, threading.Event]] = []
    at_work.run("jid1", first, lambda: None)
    assert (tmp_path / "at-work" / "jid1").exists()
    for other, ends in threads:
        ends.set()
        other.join()
    assert not (tmp_path / "at-work" / "jid1").exists()
