"""The ledger in JesterJ's tables: what its queries find there is what ``status``, ``history`` and the detection of
changes say, whatever is killed or away."""

from __future__ import annotations

import datetime as dt
import hashlib
import multiprocessing
import signal
import socket
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ferryman import crash, limits
from ferryman.account.queries import tables
from ferryman.destinations import Cassandra, Delivery, Outcome
from ferryman.document import Document
from ferryman.errors import Dropped, Misconfigured, PermanentError, PlanError, UsageError
from ferryman.mirror.files import export
from ferryman.mirror.mirror import Mirror, MirrorPosition, MirrorTables
from ferryman.mirror.tables import keyspace_of
from ferryman.records import rows as records
from ferryman.routers import Duplicate
from ferryman.state.state import MIRRORED
from ferryman.storage import files
from tests.mirror.conftest import Mirrored
from tests.support.receiver import closed_port

pytestmark = pytest.mark.server

STRANDED = "SELECT docid FROM {}.jj_output_step_status WHERE status = ? PER PARTITION LIMIT 1"
HISTORY = "SELECT docid, status, created FROM {}.jj_output_step_status WHERE docid = ? PER PARTITION LIMIT ?"
LAST_HASH = "SELECT docHash FROM {}.jj_scanner_doc_hash WHERE docid = ? LIMIT 1"
"""The queries of the page, but for its keyspace."""


def judge(doc: Document) -> Document:
    text = doc.text()
    if text.startswith("bad"):
        raise PermanentError("no good")
    if text.startswith("drop"):
        raise Dropped("not wanted")
    return doc


def split(doc: Document) -> Iterator[Document]:
    if doc.text().startswith("parts"):
        yield doc.child("1", fields={"n": 1})
        yield doc.child("2", fields={"n": 2})
    else:
        yield doc


def answer(delivery: Delivery) -> Outcome:
    text = delivery.text()
    if text.startswith("refused"):
        return Outcome.permanent("not here")
    return Outcome.transient("not now") if text.startswith("later") else Outcome.ok()


def away() -> None:
    raise ConnectionError("nobody is at home")


def fill(world: Mirrored) -> None:
    """Documents with every end, in two waves and more."""
    world.out().answer = answer
    made = world.source().step("judge", judge).step("split", split).route("both", Duplicate())
    made.destination("out", world.out(), attempts=2, backoff=3600)
    made.destination("copy", world.out("copy"))
    for text in ("fine", "bad", "drop", "parts", "refused", "later"):
        world.put(text, text=text)
    world.run()
    world.put("fine", text="fine, and newer")
    world.drop("parts")
    world.run()
    world.retry(status="failed", why="try again")
    world.run()


def ledger(world: Mirrored) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tables(world.root, world.plan).ledger.to_pylist()
    return found


@pytest.mark.rule("mirror.rows")
def test_every_event_is_a_row(world: Mirrored) -> None:
    """In the keyspace of its source and destination, with all that the page's columns say, in the order of the ledger;
    an event about the document alone is in the source's keyspace."""
    fill(world)
    done = world.mirror.catch_up()
    events = ledger(world)
    assert done.events == len(events) + len(world.deliveries(status="BATCHED"))
    assert done.behind == 0
    for step in ("out", "copy"):
        rows = world.rows(step)
        mine = [e for e in events if e["destination"] == step]
        assert len(rows) == len(mine)
        assert Counter((r.docid, r.dochash, r.parentid, r.origparentid, r.status, r.outputstepname) for r in rows) == (
            Counter((e["document"], e["version"], e["parent"], e["origin"], e["status"], step) for e in mine)
        )
        for document in {e["document"] for e in mine}:
            newest_first = [r.status for r in rows if r.docid == document]
            assert newest_first[::-1] == [
                e["status"] for e in sorted(mine, key=lambda e: (e["wave"], e["ordinal"])) if e["document"] == document
            ]
    assert {r.message for r in world.rows("out") if r.status == "ERROR_DOC"} == {"step judge: PermanentError: no good"}


@pytest.mark.rule("mirror.queries")
def test_the_page_finds_what_we_say(world: Mirrored) -> None:
    """Stranded documents by status, the history of one, its last hash."""
    fill(world)
    world.drop("fine")
    world.run()
    world.mirror.catch_up()
    newest = {
        (step, d["document"]): d["status"] for step in ("out", "copy") for d in world.deliveries(destination=step)
    }
    for step in ("out", "copy"):
        keyspace = world.keyspace(step=step)
        for status in ("ERROR", "RESTART", "BATCHED", "INDEXING", "DEAD", "ERROR_DOC", "DROPPED", "INDEXED"):
            candidates = [row.docid for row in world.reader.rows(STRANDED.format(keyspace), (status,))]
            stranded = {
                id for id in candidates if world.reader.rows(HISTORY.format(keyspace), (id, 1))[0].status == status
            }
            current = {id for (name, id), found in newest.items() if (name, found) == (step, status)}
            assert current <= stranded, (step, status)
        for document in {id for name, id in newest if name == step}:
            events = [e for e in world.history(document) if e["destination"] == step and e["document"] == document]
            found = world.reader.rows(HISTORY.format(keyspace), (document, 100))
            assert [row.status for row in found][::-1] == [e["status"] for e in events], (step, document)
    from ferryman.account.queries import tables

    known = {
        row["document"]: row
        for row in sorted(tables(world.root, world.plan).documents.to_pylist(), key=lambda r: r["wave"])
    }
    for document, row in known.items():
        [last] = world.reader.rows(LAST_HASH.format(world.keyspace()), (document,))
        assert last.dochash == (row["version"] if row["operation"] == "upsert" else "")
    assert {row.hashalg for row in world.hashes()} == {"BLAKE2b-128"}


@pytest.mark.rule("mirror.queries")
def test_what_waits_is_batched(world: Mirrored) -> None:
    """Deliveries that wait for a destination which is away have no event in the ledger: the page's query finds them,
    and no more once they have arrived."""
    world.put("a", "b")
    world.source().destination("out", world.out())
    world.out().refuse = away
    world.run()
    assert world.counts() == {"pending": 2}
    world.mirror.catch_up()
    assert {(r.docid, r.status) for r in world.rows()} == {("a", "BATCHED"), ("b", "BATCHED")}
    world.mirror.catch_up()
    assert len(world.rows()) == 2
    world.out().refuse = None
    world.run()
    world.mirror.catch_up()
    assert [r.status for r in world.rows("out", "docs", "WHERE docid = ?", "a")] == ["INDEXED", "BATCHED"]


@pytest.mark.rule("mirror.rows")
def test_an_event_that_is_sent_twice_is_one_row(world: Mirrored) -> None:
    fill(world)
    world.mirror.catch_up()
    before = [tuple(r) for r in world.rows()], [tuple(r) for r in world.hashes()]
    (world.root / MIRRORED).unlink()
    again = world.mirror.catch_up()
    assert again.events >= len(before[0])
    assert ([tuple(r) for r in world.rows()], [tuple(r) for r in world.hashes()]) == before


@pytest.mark.slow
def test_a_damaged_position_sends_all_again(world: Mirrored) -> None:
    world.put("a")
    world.source().destination("out", world.out())
    world.run()
    world.mirror.catch_up()
    (world.root / MIRRORED).write_bytes(b"nonsense")
    assert world.mirror.catch_up().events == 1
    assert len(world.rows()) == 1


def _catch_up(root: str, plan: bytes, url: str, point: str) -> None:
    import cloudpickle

    crash.arm(point)
    Mirror(Path(root), cloudpickle.loads(plan), Cassandra(url)).catch_up()


@pytest.mark.parametrize(
    "point",
    [pytest.param(point, marks=[] if point == "mirror.sent" else [pytest.mark.slow]) for point in crash.MIRROR],
)
@pytest.mark.rule("mirror.harmless")
def test_killed_at_each_point_it_goes_on(world: Mirrored, point: str) -> None:
    """What is there afterwards is what is there without a kill."""
    import cloudpickle

    world.put("a", "b")
    made = world.source().route("both", Duplicate())
    made.destination("out", world.out())
    made.destination("copy", world.out("copy"))
    world.out("copy").refuse = away
    world.run()
    plan = cloudpickle.dumps(world.plan)
    process = multiprocessing.get_context("spawn").Process(
        target=_catch_up, args=(str(world.root), plan, world.cassandra.url, point)
    )
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL, "the point was not reached"
    world.mirror.catch_up()
    assert sorted((r.docid, r.status) for r in world.rows("out")) == [("a", "INDEXED"), ("b", "INDEXED")]
    assert sorted((r.docid, r.status) for r in world.rows("copy")) == [("a", "BATCHED"), ("b", "BATCHED")]
    assert len(world.hashes()) == 2


def test_a_run_mirrors_beside_its_work(world: Mirrored) -> None:
    """And says nothing of it; what is missing the next run sends."""
    world.put("a")
    world.source().destination("out", world.out())
    world.plan.mirror(world.target)
    summary = world.run()
    assert summary.messages == []
    assert [r.docid for r in world.rows()] == ["a"]


@pytest.mark.rule("mirror.harmless")
def test_a_mirror_that_is_away_is_no_matter_of_the_run(world: Mirrored) -> None:
    """The run ends as without it, with a message that says what to do; the mirror catches up later."""
    world.source().destination("out", world.out())
    with closed_port() as port:
        world.plan.mirror(Cassandra(f"127.0.0.1:{port}"))
        for n in range(3):  # days
            world.put(f"doc-{n}")
            summary = world.run()
            assert summary.exit == 0
            [message] = [m for m in summary.messages if m.startswith("mirror ")]
            assert f"cassandra://127.0.0.1:{port}" in message
            assert "ferryman ledger export PLAN --to" in message
    world.mirror.catch_up()
    assert {r.docid for r in world.rows()} == {"doc-0", "doc-1", "doc-2"}


@pytest.mark.rule("mirror.harmless")
def test_a_run_does_not_wait_for_a_mirror_that_is_slow(world: Mirrored, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that takes the connection and never answers."""
    monkeypatch.setattr(limits, "MIRROR_END_S", 0.2)
    world.put("a")
    world.source().destination("out", world.out())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        world.plan.mirror(Cassandra(f"127.0.0.1:{silent.getsockname()[1]}"))
        summary = world.run()
    assert summary.exit == 0
    assert [m for m in summary.messages if "it is behind, and the run has ended" in m]


@pytest.mark.rule("mirror.harmless")
def test_another_schema_is_named_and_left_alone(world: Mirrored) -> None:
    """Not one keyspace of the mirror is made then, and the run goes on."""
    world.put("a")
    made = world.source().route("both", Duplicate())
    made.destination("out", world.out())
    made.destination("copy", world.out("copy"))
    theirs = world.keyspace(step="out")
    world.reader.define(
        f"CREATE KEYSPACE {theirs} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
    )
    world.reader.define(f"CREATE TABLE {theirs}.jj_output_step_status (docid text PRIMARY KEY, status int)")
    before = world.reader.columns_of(theirs, "jj_output_step_status")
    world.plan.mirror(world.target)
    summary = world.run()
    assert summary.exit == 0
    [message] = [m for m in summary.messages if m.startswith("mirror ")]
    assert f"{theirs}.jj_output_step_status is there already and is another one" in message
    assert world.reader.columns_of(theirs, "jj_output_step_status") == before
    assert not world.reader.columns_of(world.keyspace(step="copy"), "jj_output_step_status")
    assert not world.reader.columns_of(world.keyspace(), "jj_scanner_doc_hash")
    with pytest.raises(Misconfigured):
        world.mirror.catch_up()


def test_a_table_that_was_dropped_is_filled_again(world: Mirrored) -> None:
    world.put("a")
    world.source().destination("out", world.out())
    world.run()
    world.mirror.catch_up()
    world.reader.define(f"DROP TABLE {world.keyspace(step='out')}.jj_output_step_status")
    world.mirror.catch_up()
    assert [r.docid for r in world.rows()] == ["a"]


def test_each_source_has_its_keyspaces(world: Mirrored) -> None:
    """Two sources of a plan with the same ids."""
    for name in ("docs", "mails"):
        world.source(name).destination(f"out-{name}", world.out(name))
        world.put("a", source=name, text=name)
    world.run()
    world.mirror.catch_up()
    for name in ("docs", "mails"):
        [row] = world.rows(f"out-{name}", name)
        [hashed] = world.hashes(name)
        assert (row.docid, row.status, row.dochash) == ("a", "INDEXED", hashed.dochash)
    assert world.keyspace("docs") != world.keyspace("mails")


class Clock(dt.datetime):
    """A clock that an operator puts back."""

    offset = dt.timedelta()

    @classmethod
    def now(cls, tz: Any = None) -> dt.datetime:  # type: ignore[override]
        return super().now(tz) + cls.offset


@pytest.mark.rule("mirror.clock")
def test_times_of_a_document_grow_though_the_clock_goes_back(world: Mirrored, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an hour, between waves that the mirror sees one by one, and in one pass: the same rows."""
    shim = type("Shim", (), {**vars(dt), "datetime": Clock})
    monkeypatch.setattr(records, "dt", shim)
    world.source().destination("out", world.out())
    for hours in (0, -1, -2, 3):
        monkeypatch.setattr(Clock, "offset", dt.timedelta(hours=hours))
        world.put("a", text=f"at {hours}")
        world.put(f"b{hours}")
        world.run()
        world.mirror.catch_up()
    versions = [e["version"] for e in world.history("a")]
    rows = world.rows("out", "docs", "WHERE docid = ?", "a")
    assert [r.dochash for r in rows][::-1] == versions
    assert len({(r.created, r.creatednanos) for r in rows}) == 4
    [late] = world.rows("out", "docs", "WHERE docid = ?", "b-2")
    [first] = world.rows("out", "docs", "WHERE docid = ?", "b0")
    assert late.created < first.created, "documents that the clock does no harm keep their own time"
    assert [h.dochash for h in world.hashes() if h.docid == "a"][::-1] == versions
    before = sorted(map(tuple, world.rows()))
    (world.root / MIRRORED).unlink()
    world.mirror.catch_up()
    assert sorted(map(tuple, world.rows())) == before


@pytest.mark.slow
def test_a_state_put_back_from_an_older_copy_is_mirrored_from_the_beginning(world: Mirrored) -> None:
    world.put("a")
    world.source().destination("out", world.out())
    world.run()
    mirror = world.mirror
    mirror.catch_up()
    [(key, position)] = mirror.read_all().items()
    ahead = {key: MirrorPosition(position.wave + 5, position.batched + 5, tables=position.tables)}
    files.replace(world.root / MIRRORED, files.seal(ahead))
    assert mirror.catch_up().events == 1


def test_ids_that_cassandra_cannot_hold_are_left_out_by_name(world: Mirrored) -> None:
    world.put("a", "x" * 70_000)
    world.source().destination("out", world.out())
    world.run(checked=False)
    done = world.mirror.catch_up()
    assert [r.docid for r in world.rows()] == ["a"]
    assert len(done.refused) == 2
    assert done.refused[0].startswith("the hash of 'xxx")


@pytest.mark.slow
def test_a_large_wave_goes_in_parts(world: Mirrored, monkeypatch: pytest.MonkeyPatch) -> None:
    """A position is recorded after some waves; between two looks only that much is sent again."""
    monkeypatch.setattr(limits, "MIRROR_EVENTS", 3)
    world.source().destination("out", world.out())
    for wave in range(4):
        world.put(*(f"w{wave}-{n}" for n in range(2)))
        world.run()
    passes: list[int] = []
    monkeypatch.setattr(MirrorTables, "take_refused", lambda self: passes.append(1) or [])
    assert world.mirror.catch_up().events == 8
    assert len(passes) == 4
    assert len(world.rows()) == 8


def test_only_one_process_mirrors_at_a_time(world: Mirrored) -> None:
    world.put("a")
    world.source().destination("out", world.out())
    world.run()
    mirror = world.mirror
    with mirror.exclusive() as is_free:
        assert is_free
        assert mirror.catch_up().behind == 0
        assert mirror.catch_up().events == 0
    assert mirror.catch_up().events == 1


@pytest.mark.parametrize("name", ["out.db", pytest.param("out", marks=pytest.mark.slow)])
def test_files_have_the_same_rows(world: Mirrored, name: str) -> None:
    fill(world)
    world.mirror.catch_up()
    to = world.folder / name
    exported = export(world.root, world.plan, to)
    if name.endswith(".db"):
        with sqlite3.connect(to) as db:
            db.row_factory = sqlite3.Row
            statuses = [dict(row) for row in db.execute("SELECT * FROM jj_output_step_status")]
            hashes = [dict(row) for row in db.execute("SELECT * FROM jj_scanner_doc_hash")]
            spaces = {(r[1], r[4]): r[0] for r in db.execute("SELECT * FROM jj_keyspaces")}
    else:
        statuses = pq.read_table(to / "jj_output_step_status.parquet").to_pylist()
        hashes = pq.read_table(to / "jj_scanner_doc_hash.parquet").to_pylist()
        keyspaces = pq.read_table(to / "jj_keyspaces.parquet").to_pylist()
        spaces = {(r["scanner"], r["outputStepName"]): r["keyspace"] for r in keyspaces}
    assert exported == (len(statuses), len(hashes))
    for step in ("out", "copy"):
        assert spaces["docs", step] == world.keyspace(step=step)
        mine = {
            (r["docId"], r["docHash"], r["status"], str(r["created"])[:23], r["createdNanos"], r["antiCollision"])
            for r in statuses
            if r["keyspace"] == spaces["docs", step] and r["status"] != "BATCHED"
        }
        assert mine == {
            (r.docid, r.dochash, r.status, f"{r.created:%Y-%m-%d %H:%M:%S.%f}"[:23], r.creatednanos, r.anticollision)
            for r in world.rows(step)
            if r.status != "BATCHED"
        }
    assert {(r["docId"], r["docHash"]) for r in hashes} == {(r.docid, r.dochash) for r in world.hashes()}
    with pytest.raises(UsageError, match="it is there already"):
        export(world.root, world.plan, to)


def test_the_keyspace_is_named_after_the_text_that_jesterj_hashes() -> None:
    text = "jj_files_plays_2_index"
    assert keyspace_of("files", "plays", 2, "index") == "jj_" + hashlib.md5(text.encode()).hexdigest()
    assert keyspace_of("files", "plays", 2) == "jj_" + hashlib.md5(b"jj_files_plays_2").hexdigest()
    assert len(keyspace_of("s" * 200, "p" * 200, 1, "d" * 200)) == 35


def test_a_mirror_has_no_keyspace_of_its_own(world: Mirrored) -> None:
    with pytest.raises(PlanError, match="without a keyspace"):
        world.plan.mirror(Cassandra("db", "search"))
    with pytest.raises(Misconfigured, match="give a keyspace, as in"):
        Cassandra("db").check()


def test_no_state_is_no_trouble(world: Mirrored) -> None:
    world.source().destination("out", world.out())
    with pytest.raises(UsageError, match="there is no state of this plan yet"):
        world.mirror.catch_up()
