"""States and targets that were put back from older copies: a run says so; ``adopt`` or ``verify --repair`` heals it."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import closing
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from ferryman import Remember
from ferryman.cli.account import plan_status, print_targets
from ferryman.destinations import Directory, JsonLines, Queue, Sql
from ferryman.document import Document
from ferryman.engine import targets
from ferryman.errors import StateDamaged, StateForeign
from ferryman.intake import Job, JobQueue
from ferryman.intake.job import FILES_FOLDER, StoredFile, inventory_values, write_inventory
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.sources import Jobs, Memory
from ferryman.sources import Queue as FromQueue
from ferryman.state.state import State
from ferryman.state.targets import Probe, load_targets
from ferryman.storage import files
from ferryman.verification import adopt, verify
from tests.support.paid import Service, steps
from tests.support.plan_world import PlanWorld, place
from tests.support.program import run_program

__all__ = ["place"]

IDS = [f"histories/plays/folio/number-{n:03d}-of-the-collection.txt" for n in range(30)]


def build(world: PlanWorld, **destinations: Any) -> Plan:
    plan = Plan("kept", version=1)
    documents = plan.source("docs", Memory(world.documents, max_deleted=1.0))
    *tees, (last, final) = destinations.items()
    for name, destination in tees:
        documents = documents.tee(name, destination, backoff=0)
    documents.destination(last, final, backoff=0)
    return plan


def world_with(folder: Path, **destinations: Any) -> PlanWorld:
    """Run a plan over 30 documents once."""
    world = PlanWorld(folder, partial(build, **destinations))
    world.put(*IDS, title="Henry")
    assert world.run().exit == 0
    return world


def sql(folder: Path, **options: Any) -> Sql:
    return Sql(f"sqlite:///{folder}/out.db", **options)


def titles(folder: Path, table: str = "documents") -> dict[str, str]:
    with closing(sqlite3.connect(folder / "out.db")) as connection:
        return dict(connection.execute(f"SELECT id, text FROM {table}").fetchall())


def keep(path: Path) -> Callable[[], None]:
    """Keep a copy of a file or folder; return what puts it back."""
    copy = path.with_name(f"{path.name}.copy")
    (shutil.copytree if path.is_dir() else shutil.copy)(path, copy)

    def put_back() -> None:
        for each in path.parent.glob(f"{path.name}*"):
            if each != copy:
                shutil.rmtree(each) if each.is_dir() else each.unlink()
        copy.rename(path)

    return put_back


@pytest.mark.rule("verify.state")
def test_a_state_put_back_from_a_copy_is_noticed_and_adopted(place: Path) -> None:
    """Its edits count as newer at once, it ends with 3 until it is adopted, and then nothing differs."""
    log = sql(place, table="log", mode="append")
    lines = JsonLines(place / "lines")
    world = world_with(place, log=log, lines=lines, files=Directory(place / "files"), rows=sql(place))
    put_back = keep(world.state)
    world.put(IDS[0], text="edited before it was lost")
    world.put("new", text="new before it was lost")
    world.drop(IDS[1], IDS[2])
    assert world.run().exit == 0
    put_back()
    world.put(IDS[3], text="edited after it was put back")
    world.put(IDS[2], text="back")
    first = world.run(checked=False)
    assert first.exit == 3
    told = [text for text in first.messages if "put back from an older copy" in text]
    assert [text.split(":")[0] for text in told] == [f"destination {n}" for n in ("files", "lines", "log", "rows")]
    assert all("ferryman adopt PLAN" in text for text in told)
    assert not any("stale" in text for text in first.messages)
    assert titles(place)[IDS[3]] == "edited after it was put back"
    assert titles(place)[IDS[2]] == "back"
    assert (place / "files" / IDS[3]).read_text() == "edited after it was put back"
    assert world.run(checked=False).exit == 3, "until it is settled"
    adopt(world.plan, state=world.state)
    assert world.run().exit == 0
    assert verify(world.plan, state=world.state, destination="rows").exit == 0
    assert verify(world.plan, state=world.state, destination="files").exit == 0
    assert titles(place) == {id: world_text(world, id) for id in titles(place)}
    assert set(titles(place)) == {*IDS, "new"} - {IDS[1]}


def pages(doc: Document) -> list[Document]:
    return [doc, *(doc.child(f"page-{n}", raw=doc.raw) for n in range(len(doc.text())))]


@pytest.mark.parametrize("kind", [Directory, Sql])
def test_what_was_made_after_the_copy_and_is_made_no_more_is_deleted(place: Path, kind: type) -> None:
    """Also the children of a document that the copy knows without them: the state has never heard of these."""
    made = Directory(place / "files") if kind is Directory else sql(place)

    def plan_of(world: PlanWorld) -> Plan:
        plan = Plan("kept", version=1)
        plan.source("docs", Memory(world.documents, max_deleted=1.0)).step("pages", pages).destination("out", made)
        return plan

    world = PlanWorld(place, plan_of)
    world.put("a", "b", text="")
    world.run()
    put_back = keep(world.state)
    world.put("a", text="three")
    world.run()
    put_back()
    world.put("a", text="")
    world.build()
    adopt(world.plan, state=world.state)
    world.run()
    found = verify(world.plan, state=world.state, delete_extra=True, allow_deletes=True)
    assert [each.document for target in found.targets for each in target.differences] == [
        f"a#page-{n}" for n in range(5)
    ]
    world.run()
    if kind is Directory:
        assert sorted(path.name for path in (place / "files").iterdir()) == [".ferryman", "a", "b"]
    else:
        assert sorted(titles(place)) == ["a", "b"]


def test_an_index_of_files_that_has_no_sources_yet(place: Path) -> None:
    """An older Ferryman made it: it gets what it lacks, document by document."""
    world = world_with(place, files=Directory(place / "files"))
    with closing(sqlite3.connect(place / "files" / ".ferryman" / "index.db")) as index, index:
        for name in "source", "version", "route":
            index.execute(f"ALTER TABLE documents DROP COLUMN {name}")
    assert verify(world.plan, state=world.state).exit == 0
    world.put(IDS[0], text="edited")
    assert world.run().exit == 0
    assert verify(world.plan, state=world.state).exit == 0
    with closing(sqlite3.connect(place / "files" / ".ferryman" / "index.db")) as index:
        query = "SELECT source, count(*) FROM documents GROUP BY source ORDER BY count(*)"
        assert index.execute(query).fetchall() == [("docs", 1), (None, len(IDS) - 1)]


def world_text(world: PlanWorld, id: str) -> str:
    [raw] = [each["raw"] for each in world.documents if each["id"] == id]
    return raw if isinstance(raw, str) else bytes(raw).decode()


def test_adopting_before_a_run_ends_right_too(place: Path) -> None:
    """Whatever the state has forgotten; and an adoption may be repeated."""
    world = world_with(place, rows=sql(place))
    put_back = keep(world.state)
    world.put(*IDS[:5], text="edited")
    world.drop(IDS[6])
    assert world.run().exit == 0
    put_back()
    done = [adopt(world.plan, state=world.state, why="restored").exit for _ in range(2)]
    assert done == [3, 0], "the second finds nothing but what is due"
    assert world.run().exit == 0
    assert verify(world.plan, state=world.state).exit == 0
    assert titles(place) == {id: world_text(world, id) for id in IDS if id != IDS[6]}
    assert any("restored" in str(event["message"]) for event in world.history(IDS[0]))


@pytest.mark.rule("verify.adopt")
def test_a_state_older_than_its_queue_is_adopted_without_doubles(place: Path) -> None:
    """A run refuses it; after its adoption messages that the copy does not know do not come again."""
    world = world_with(place, messages=Queue("out", place))
    queue = DurableQueue("out", place)
    put_back = keep(world.state)
    world.put(IDS[0], text="edited")
    world.put("new")
    assert world.run().exit == 0
    assert queue.last_index == 32
    put_back()
    with pytest.raises(StateForeign, match="ferryman adopt PLAN"):
        world.run()
    assert adopt(world.plan, state=world.state).exit == 0
    assert world.run().exit == 0
    assert queue.last_index == 32, "the same edit makes the same message"
    world.put(IDS[0], text="edited again")
    assert world.run().exit == 0
    assert queue.last_index == 33
    hashes = Counter(each.meta["id"] for each in queue.read(1, 100))
    assert (hashes[IDS[0]], hashes["new"], hashes[IDS[1]]) == (3, 1, 1)
    assert verify(world.plan, state=world.state).exit == 0


@pytest.mark.rule("verify.adopt", "verify.repair")
@pytest.mark.parametrize("ran", [True, False])
def test_messages_that_are_lost_after_an_adoption_are_sent_again(place: Path, ran: bool) -> None:
    """Those that the state had forgotten, too, before and after it has sent them again; and nothing twice."""
    world = world_with(place, messages=Queue("out", place))
    shutil.copytree(place / "out", place / "older")
    put_back = keep(world.state)
    world.put(IDS[0], text="edited")
    world.put("new")
    assert world.run().exit == 0
    put_back()
    assert adopt(world.plan, state=world.state).exit == 0
    if ran:
        assert world.run().delivered == 2
    shutil.rmtree(place / "out")
    shutil.copytree(place / "older", place / "out")
    world.build()
    if ran:
        noticed = world.run(checked=False)
        assert (noticed.exit, noticed.delivered) == (3, 0)
        found = verify(world.plan, state=world.state, repair=True)
        assert [each.kind for each in found.targets[0].differences] == ["missing"] * 2
    assert world.run(checked=False).delivered == 2
    assert verify(world.plan, state=world.state).exit == 0
    assert world.run().exit == 0
    arrived = Counter(each.meta["id"] for each in DurableQueue("out", place).read(1, 100))
    assert arrived == {**dict.fromkeys(IDS, 1), IDS[0]: 2, "new": 1}


def test_rows_that_wait_in_the_copy_are_sent_as_newer(place: Path) -> None:
    """What was pending when the copy was made arrives once, also in a queue that has it already."""
    world = PlanWorld(place, partial(build, messages=Queue("out", place), rows=sql(place)))
    (place / "out").mkdir()
    (place / "out" / "not a queue").touch()
    world.put(*IDS)
    assert world.run(wait=0, checked=False).exit == 4
    put_back = keep(world.state)
    shutil.rmtree(place / "out")
    assert world.run().exit == 0
    queue = DurableQueue("out", place)
    assert queue.last_index == 30
    put_back()
    adopt(world.plan, state=world.state)
    assert world.run(checked=False).exit == 0
    assert queue.last_index == 30
    assert verify(world.plan, state=world.state).exit == 0
    assert world.counts("messages")["delivered"] == 30


def empty(folder: Path) -> None:
    for path in (folder / "files").glob("*.jsonl"):
        path.unlink()
    if not (folder / "out.db").exists():
        return
    with closing(sqlite3.connect(folder / "out.db")) as connection, connection:
        connection.execute("DELETE FROM documents")


@pytest.mark.rule("verify.target")
@pytest.mark.parametrize("kind", ["database", "emptied", "folder", "appended", "lines", "emptied lines"])
def test_a_target_that_is_an_older_copy_is_noticed_and_healed(place: Path, kind: str) -> None:
    """It says so at the start, with 3, until a verification has found all of it."""
    appended = sql(place, table="documents", mode="append")
    destinations = {"folder": Directory(place / "files"), "appended": appended}
    destinations |= dict.fromkeys(("lines", "emptied lines"), JsonLines(place / "files"))
    world = world_with(place, rows=destinations.get(kind, sql(place)))
    put_back = keep(place / ("files" if (place / "files").exists() else "out.db"))
    world.put(IDS[0], text="edited")
    world.put("new")
    assert world.run().exit == 0
    assert world.run().exit == 0
    if "emptied" in kind:
        empty(place)
    else:
        put_back()
    world.put("newer")
    found = world.run(checked=False)
    assert found.exit == 3
    assert any(
        "as if it was emptied or put back from an older copy" in text and "verify PLAN --repair" in text
        for text in found.messages
    )
    assert world.run(checked=False).exit == 3
    assert verify(world.plan, state=world.state, repair=True).exit == 3
    assert world.run(checked=False).exit == 3, "it was not compared yet"
    assert verify(world.plan, state=world.state).exit == 0
    assert world.run().exit == 0
    assert load_targets(world.root)["rows"].highest > 0


def test_the_last_deliveries_are_looked_for_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by each run that finds nothing new: they are recorded, and compared with the target."""
    world = world_with(place, rows=sql(place))
    looked: list[int] = []
    find = targets.last_deliveries

    def note(state: State, names: Collection[str], since: int) -> dict[str, list[Probe]]:
        looked.append(since)
        return find(state, names, since)

    monkeypatch.setattr(targets, "last_deliveries", note)
    for _ in range(3):
        assert world.run().exit == 0
    assert looked == [0]
    recorded = load_targets(world.root)["rows"]
    assert recorded.wave == 1
    assert {probe.document for probe in recorded.probes} <= set(IDS)
    assert recorded.probes


def test_two_plans_and_rows_of_others_in_one_target_are_no_trouble(place: Path) -> None:
    """Whichever wrote last, and whose rows have the higher sequences; also with prefixes."""
    worlds = []
    for name in ("one", "two"):
        world = PlanWorld(place / name, partial(build_named, name=name, database=place))
        world.state = place / f"state-{name}"
        worlds.append(world)
    for turn in range(3):
        for world in worlds:
            world.put("a", "b", text=f"turn {turn}")
            assert world.run().exit == 0
            assert world.run().messages == []
    with closing(sqlite3.connect(place / "out.db")) as connection, connection:
        connection.execute(
            "INSERT INTO documents (id, origin_id, source, version, sequence, delivery_hash, route, fields) "
            "VALUES ('theirs', 'theirs', 'docs', 'v', 9007199254740000, 'f', '[]', '{}')"
        )
    for world in worlds:
        world.put("c")
        assert world.run().exit == 0


def build_named(world: PlanWorld, name: str, database: Path) -> Plan:
    plan = Plan(name, version=1)
    documents = plan.source("docs", Memory(world.documents, max_deleted=1.0, prefix=f"{name}:"))
    documents.destination("rows", sql(database), backoff=0)
    return plan


def test_a_target_that_an_older_version_filled_is_no_trouble(place: Path) -> None:
    """It has no record of who wrote what; the first run that writes makes it."""
    world = world_with(place, rows=sql(place), lines=JsonLines(place / "lines"))
    with closing(sqlite3.connect(place / "out.db")) as connection, connection:
        connection.execute("DROP TABLE ferryman_writers")
    (world.root / "targets.json").unlink()
    assert world.run().exit == 0
    world.put("new")
    assert world.run().exit == 0
    assert load_targets(world.root)["rows"].highest > 0


# Positions that lie neither in the state nor at a destination.


def adopt_after(world: PlanWorld) -> list[tuple[str, str]]:
    """Adopt a state that a run has called an older copy; return what then differs: kind and reason."""
    assert any("ferryman adopt PLAN" in text for text in world.watch.messages), world.watch.messages
    adopt(world.plan, state=world.state)
    assert world.run().exit == 0
    [target] = verify(world.plan, state=world.state).targets
    return [(each.kind, each.why) for each in target.differences]


UNKNOWN = ("extra", "the ledger does not have it")


@pytest.mark.rule("verify.state")
@pytest.mark.parametrize("whole", [True, False])
def test_answers_that_were_remembered_after_the_copy(place: Path, whole: bool) -> None:
    """They lie beside the state of the plan: if only that is an older copy, nothing is called for again. If they are
    older, too, what they lack is."""
    service = Service(place)
    step, _ = steps(service)["plain"]

    def plan_of(world: PlanWorld) -> Plan:
        plan = Plan("kept", version=1)
        docs = plan.source("docs", Memory(world.documents, max_deleted=1.0))
        docs.step("embed", step, remember=Remember("v1", reads=["words"], writes=["vector"])).destination(
            "rows", sql(place)
        )
        return plan

    world = PlanWorld(place, plan_of)
    world.put("a", words="one")
    assert world.run().exit == 0
    put_back = keep(world.state if whole else world.root)
    world.put("a", words="two")
    world.put("b", words="three")
    assert world.run().exit == 0
    put_back()
    assert world.run(checked=False).exit == 3
    again = 2 if whole else 1
    assert service.calls() == {"one": 1, "two": again, "three": again}
    assert adopt_after(world) == []
    assert service.calls().total() == 1 + 2 * again
    assert sorted(titles(place)) == ["a", "b"]


@pytest.mark.rule("verify.state")
@pytest.mark.parametrize("trimmed", [True, False])
def test_messages_that_were_read_after_the_copy(place: Path, trimmed: bool) -> None:
    """They come again with the same hashes, so that nothing is there twice; what was trimmed meanwhile is named, by the
    run and by a verification."""
    queue = DurableQueue("in", place)

    def plan_of(world: PlanWorld) -> Plan:
        plan = Plan("kept", version=1)
        plan.source("docs", FromQueue("in", place)).destination("rows", sql(place, mode="append"))
        return plan

    def append(*numbers: int) -> None:
        queue.append([{"n": n} for n in numbers])

    world = PlanWorld(place, plan_of)
    append(1, 2)
    assert world.run().exit == 0
    put_back = keep(world.state)
    append(3, 4)
    assert world.run().exit == 0
    assert queue.trim(0) == 4 if trimmed else True
    put_back()
    append(5)
    assert world.run(checked=False).exit == 3
    lost = "in 3 to 4 are not kept any more: they were removed before they were read"
    assert any(lost in text for text in world.watch.messages) is trimmed
    with closing(sqlite3.connect(place / "out.db")) as connection:
        fields = [text for (text,) in connection.execute("SELECT fields FROM documents ORDER BY id")]
    assert [json.loads(text)["n"] for text in fields] == [1, 2, 3, 4, 5]
    assert adopt_after(world) == ([UNKNOWN] * 2 if trimmed else [])


@pytest.mark.rule("verify.state")
def test_jobs_that_were_done_after_the_copy(place: Path) -> None:
    """Their states and locks are in the queue: they are not done again, and what they brought stays, although the state
    never hears of it."""
    queue = JobQueue.open(f"sqlite:///{place}/queue.db")
    batch = queue.create_batch({})
    batch.set_status("Processing")

    def plan_of(world: PlanWorld) -> Plan:
        plan = Plan("kept", version=1)
        plan.source("docs", Jobs(queue.url)).destination("rows", sql(place))
        return plan

    def submit(name: str) -> Job:
        job = batch.create_job({}, identifiers={"local_id": [name]})
        path = place / job.id / FILES_FOLDER / "page.txt"
        path.parent.mkdir(parents=True)
        path.write_text(name)
        held = [StoredFile("page.txt", len(name), sha256(name.encode()).hexdigest())]
        job.set_inventory(inventory_values(write_inventory(place / job.id, held), held))
        for state in ("Estimating", "Provisioning", "Downloading", "Processing"):
            job.set_status(state)
        return job

    world = PlanWorld(place, plan_of)
    first = submit("first")
    assert world.run().exit == 0
    first.set_status("Storing")
    put_back = keep(world.state)
    second = submit("second")
    assert world.run().exit == 0
    second.set_status("Storing")
    put_back()
    submit("third")
    assert world.run(checked=False).exit == 3
    assert [queue.load_job(id).status for id in queue.list_jobs()] == ["Storing", "Storing", "Processing"]
    assert adopt_after(world) == [UNKNOWN]
    assert titles(place) == {f"{name}/page.txt": name for name in ("first", "second", "third")}
    queue.close()


class Stopped(Exception):
    """Ends an endless run."""


@pytest.mark.rule("verify.sample")
def test_an_endless_run_verifies_a_sample_and_says_what_it_finds(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every hour, of what keeps a document per id; ``status`` has what was found; 0 switches it off."""
    world = world_with(place, log=sql(place, table="log", mode="append"), rows=sql(place))
    with closing(sqlite3.connect(place / "out.db")) as connection, connection:
        connection.execute("UPDATE documents SET text = 'changed'")
        connection.execute("DELETE FROM log")

    def run_hours(hours: int, size: int) -> list[str]:
        now = [0.0]

        def sleep(_s: float) -> None:
            now[0] += 3600.0
            if now[0] > hours * 3600.0:
                raise Stopped

        with pytest.raises(Stopped):
            world.run(every=3600.0, verify_sample=size, clock=lambda: now[0], sleep=sleep, checked=False)
        return [text for text in world.watch.messages if "sample" in text]

    assert run_hours(2, 0) == []
    assert run_hours(0, 20) == []
    [told, _] = run_hours(2, 20)
    assert "of a sample of 20 documents 0 missing, 20 changed" in told
    assert "destination rows" in told
    found = plan_status(world.plan, world.root)["verified"]
    assert found["rows"]["failed"]["differing"] == 20
    assert found["rows"]["through"] is None
    print_targets(world.plan, world.root, "plan.py", None)
    assert "rows: 20 of 20 deliveries differed" in capsys.readouterr().out
    verify(world.plan, state=world.state, destination="rows", repair=True)
    assert world.run(checked=False).delivered == 30
    run_hours(1, 20)
    assert plan_status(world.plan, world.root)["verified"]["rows"]["sampled"]["compared"] == 20
    assert verify(world.plan, state=world.state, destination="rows").exit == 0
    assert plan_status(world.plan, world.root)["verified"]["rows"]["through"] == world.status()["waves"]


@pytest.mark.parametrize("name", ["targets.json", "verified.json"])
@pytest.mark.parametrize("content", [[1, 2], {"rows": 7}, {"rows": {"id": 5}}, "text", {"rows": {"clean": "x"}}])
def test_records_of_another_form_are_made_again(place: Path, name: str, content: Any) -> None:
    """As another version may have written them; a damaged file is named."""
    world = world_with(place, rows=sql(place))
    assert verify(world.plan, state=world.state).exit == 0
    files.replace(world.root / name, files.seal(content))
    print_targets(world.plan, world.root, "plan.py", None)
    assert verify(world.plan, state=world.state).exit == 0
    world.put("new")
    assert world.run().exit == 0
    assert verify(world.plan, state=world.state).exit == 0


@pytest.mark.parametrize("name", ["targets.json", "verified.json"])
def test_a_damaged_record_is_named(place: Path, name: str) -> None:
    """By whatever reads it first; ``verify`` makes the results of verifications again."""
    world = world_with(place, rows=sql(place))
    assert verify(world.plan, state=world.state).exit == 0
    (world.root / name).write_bytes(b"no checksum {}")
    with pytest.raises(StateDamaged, match=name):
        world.run()
    with pytest.raises(StateDamaged, match=name):
        adopt(world.plan, state=world.state)


@pytest.mark.rule("verify.adopt")
@pytest.mark.parametrize(
    "point",
    [
        "adopt.accepted",
        pytest.param("command.queued", marks=pytest.mark.slow),
        "command.staged",
        pytest.param("wave.logged", marks=pytest.mark.slow),
        pytest.param("command.done", marks=pytest.mark.slow),
        pytest.param("command.queued:2", marks=pytest.mark.slow),
        "verified.recorded",
        pytest.param("targets.recorded", marks=pytest.mark.slow),
        pytest.param("deliver.sent", marks=pytest.mark.slow),
    ],
)
def test_an_adoption_may_be_killed(place: Path, point: str) -> None:
    """The same commands again end it: nothing is lost, and the queue gets nothing twice."""
    program = "tests.support.adopted_story"
    run_program(program, place, "lose").check_returncode()
    killed = run_program(program, place, "adopt", point=point)
    assert killed.returncode == -signal.SIGKILL, killed
    done = run_program(program, place, "adopt")
    assert done.stdout.split() == ["0", "0", "14"], done.stderr
