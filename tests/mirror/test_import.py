"""A plan that was run in JesterJ is taken over: the first run sends only what is not there."""

from __future__ import annotations

import datetime as dt
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from ferryman import crash
from ferryman.engine.jesterj import Imported, Names, import_jesterj
from ferryman.errors import UsageError
from ferryman.mirror.tables import DOC_HASH, STATUS, keyspace_of
from ferryman.net.cassandra import CassandraServers, Connection
from ferryman.plan import Plan
from ferryman.routers import Duplicate
from ferryman.sources import Files
from tests.mirror.conftest import Mirrored, build_own

pytestmark = pytest.mark.server

TTL_S = 90 * 24 * 3600


class JesterJ:
    """What JesterJ leaves in Cassandra, as its own statements write it."""

    def __init__(self, connection: Connection, plan: str, version: int = 4, scanner: str = "Scanner") -> None:
        self._connection, self._plan, self._version, self._scanner = connection, plan, version, scanner
        self._chance = random.Random(7)
        connection.make_tables(self.keyspace(), [DOC_HASH])

    def keyspace(self, step: str = "") -> str:
        return keyspace_of(self._scanner, self._plan, self._version, step)

    def step(self, *names: str) -> None:
        for name in names:
            self._connection.make_tables(self.keyspace(name), [STATUS])

    def seen(self, id: str, content: str) -> None:
        self._write(
            f"{self.keyspace()}.{DOC_HASH.name} (docId, created, createdNanos, antiCollision, hashAlg, docHash)",
            (id, *self._moment(), "MD5", content),
        )

    def status(self, id: str, step: str, *statuses: str, parent: str | None = None, message: str = "") -> None:
        for status in statuses:
            created, nanos, number = self._moment()
            self._write(
                f"{self.keyspace(step)}.{STATUS.name} (docId, docHash, parentId, origParentId, outputStepName, status, "
                "message, antiCollision, created, createdNanos)",
                (id, "HASH", parent, parent, step, status, message, number, created, nanos),
            )

    def _moment(self) -> tuple[int, int, int]:
        time.sleep(0.002)  # JesterJ orders by the clock
        now = time.time_ns()
        return now // 1_000_000, now % 1_000_000, self._chance.randrange(-(2**31), 2**31)

    def _write(self, into: str, values: tuple[Any, ...]) -> None:
        marks = ", ".join("?" * len(values))
        self._connection.rows(f"INSERT INTO {into} VALUES ({marks}) USING TTL {TTL_S}", values)


class Corpus(Mirrored):
    """Files that JesterJ has indexed, and the plan that goes on with them."""

    jesterj: JesterJ

    def write(self, name: str, text: str, *, days_ago: float = 30) -> str:
        """Write a file; return JesterJ's id of it."""
        path = self.folder / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        at = time.time() - days_ago * 86_400
        os.utime(path, (at, at))
        return path.as_uri()

    def take_over(self, **options: Any) -> Imported:
        names = Names("theirs-" + self.folder.name, 4, {"files": "Scanner"}, {"out": "sendToSolr"}, self.strip)
        return import_jesterj(self.plan, self.root, CassandraServers(self.cassandra.url), names, **options)

    @property
    def strip(self) -> str:
        return f"{(self.folder / 'in').as_uri()}/"


def build_files(world: Corpus) -> Plan:
    plan = Plan(f"ours-{world.folder.name}", version=1)
    made = plan.source("files", Files(world.folder / "in", max_deleted=1.0)).route("both", Duplicate())
    made.destination("out", world.out())
    made.destination("copy", world.out("copy"))
    return plan


@pytest.fixture
def corpus(place: Path, cassandra: Any, reader: Connection) -> Corpus:
    made = Corpus(place, build_files, sleep=lambda _: None, wait=0)
    made.cassandra, made.reader = cassandra, reader
    made.jesterj = JesterJ(reader, "theirs-" + place.name)
    made.jesterj.step("sendToSolr", "copy")
    return made


def both(corpus: Corpus, id: str, *statuses: str) -> None:
    for step in ("sendToSolr", "copy"):
        corpus.jesterj.status(id, step, *statuses)


@pytest.mark.rule("jesterj.import")
def test_the_first_run_sends_only_what_is_not_there(corpus: Corpus) -> None:
    """Finished deliveries stay; what one step lacks goes there alone; DEAD and ERROR_DOC stay as they are until
    somebody retries them; what has changed since, and what JesterJ does not know, is sent."""
    jesterj = corpus.jesterj
    done = ("PROCESSING", "BATCHED", "INDEXING", "INDEXED")
    for name in ("done ä#1%.txt", "half.txt", "dead.txt", "bad.txt", "dropped.txt", "edited.txt", "forced.txt"):
        id = corpus.write(name, f"content of {name}")
        jesterj.seen(id, "0F" * 16)
        both(corpus, id, "PROCESSING")
    at = (corpus.folder / "in").as_uri()
    both(corpus, (corpus.folder / "in" / "done ä#1%.txt").as_uri(), *done)
    jesterj.status(f"{at}/half.txt", "sendToSolr", *done)
    jesterj.status(f"{at}/half.txt", "copy", "ERROR", "BATCHED")
    jesterj.status(f"{at}/dead.txt", "sendToSolr", "ERROR", "ERROR", "DEAD", message="Retry limit of 3 exceeded")
    jesterj.status(f"{at}/dead.txt", "copy", *done)
    both(corpus, f"{at}/bad.txt", "ERROR_DOC")
    both(corpus, f"{at}/dropped.txt", "DROPPED")
    both(corpus, f"{at}/edited.txt", *done)
    both(corpus, f"{at}/forced.txt", *done, "FORCE")
    corpus.write("edited.txt", "edited since", days_ago=-1)
    corpus.write("new.txt", "nobody knows it")
    found = corpus.take_over()
    assert found == Imported(
        unchanged=2, unfinished=2, changed=1, failed=2, unlisted=0, families=0, unknown=1, unreadable=0, example=""
    )
    assert corpus.status()["balanced"]
    summary = corpus.run()
    sent = {name: {"edited.txt", "new.txt", "forced.txt"} for name in ("out", "copy")}
    sent["copy"].add("half.txt")
    for name, expected in sent.items():
        assert set(corpus.arrived(name)) == {f"{id} by {name}" for id in expected}
    assert (summary.failed, summary.rejected) == (1, 2)
    assert [e["message"] for e in corpus.history("dead.txt") if e["status"] == "DEAD"] == [
        "import-jesterj: Retry limit of 3 exceeded"
    ]
    corpus.retry(status="failed")
    corpus.run()
    assert set(corpus.arrived("out")) == {f"{id} by out" for id in ("edited.txt", "new.txt", "forced.txt", "dead.txt")}
    assert corpus.status()["balanced"]


def test_what_is_gone_is_deleted(corpus: Corpus) -> None:
    """JesterJ left it in the index: the first complete scan finds that it is not there any more."""
    both(corpus, f"{corpus.strip}gone.txt", "INDEXED")
    both(corpus, corpus.write("here.txt", "here"), "INDEXED")
    found = corpus.take_over()
    assert (found.unlisted, found.unchanged, found.example) == (1, 1, "gone.txt")
    corpus.run()
    assert set(corpus.arrived("out")) == {"-gone.txt by out"}


def test_documents_with_children_are_sent_again(corpus: Corpus) -> None:
    """Ids of children mean something else here."""
    id = corpus.write("mail.txt", "mail")
    both(corpus, id, "INDEXED")
    corpus.jesterj.status(f"{id}⇛0", "sendToSolr", "INDEXED", parent=id)
    found = corpus.take_over()
    assert (found.families, found.unchanged) == (1, 0)
    corpus.run()
    assert set(corpus.arrived("out")) == {"mail.txt by out"}


@pytest.mark.rule("jesterj.import")
def test_what_cannot_be_known_is_sent_again_unless_it_is_trusted(world: Mirrored) -> None:
    """A source without times of modification."""
    world.put("a", "b")
    world.source().destination("out", world.out())
    jesterj = JesterJ(world.reader, world.plan.name, 1, "docs")
    jesterj.step("out")
    jesterj.seen("a", "0F" * 16)
    jesterj.status("a", "out", "INDEXED")
    names = Names(world.plan.name, 1, {}, {}, "")
    servers = CassandraServers(world.cassandra.url)
    careful = import_jesterj(world.plan, world.root, servers, names)
    assert (careful.changed, careful.unknown) == (1, 1)
    world.run()
    assert set(world.arrived()) == {"a", "b"}
    trusting = build_own(world)
    trusting.source("docs", world.plan.nodes[0].source).destination("out", world.out("second"))  # type: ignore[attr-defined]
    other = world.folder / "other" / trusting.key
    assert import_jesterj(trusting, other, servers, names, trust=True).unchanged == 1


def test_a_state_that_has_run_is_left_alone(corpus: Corpus) -> None:
    both(corpus, corpus.write("a.txt", "a"), "INDEXED")
    corpus.run()
    with pytest.raises(UsageError, match="has run already"):
        corpus.take_over()


def test_names_that_do_not_fit_are_shown(corpus: Corpus) -> None:
    corpus.write("a.txt", "a")
    names = Names("another", 4, {}, {}, "")
    with pytest.raises(UsageError, match=r"there is no keyspace jj_\w+ \(of jj_files_another_4_out\).*--plan-name"):
        import_jesterj(corpus.plan, corpus.root, CassandraServers(corpus.cassandra.url), names)
    assert not corpus.root.exists()


def test_nothing_in_cassandra_is_changed(corpus: Corpus) -> None:
    both(corpus, corpus.write("a.txt", "a"), "INDEXED")
    keyspace = corpus.jesterj.keyspace("copy")
    query = f"SELECT docid, status, created, writetime(status) AS at FROM {keyspace}.{STATUS.name}"
    before = corpus.reader.columns_of(keyspace, STATUS.name), corpus.reader.rows(query)
    corpus.take_over()
    assert (corpus.reader.columns_of(keyspace, STATUS.name), corpus.reader.rows(query)) == before


def _import(root: str, plan: bytes, url: str, names: Names, point: str) -> None:
    import cloudpickle

    crash.arm(point)
    import_jesterj(cloudpickle.loads(plan), Path(root), CassandraServers(url), names)


@pytest.mark.parametrize(
    "point",
    [
        *crash.IMPORT,
        pytest.param("wave.logged", marks=pytest.mark.slow),
        pytest.param("ledger.logged", marks=pytest.mark.slow),
    ],
)
def test_killed_at_each_point_it_can_be_done_again_or_is_done(corpus: Corpus, point: str) -> None:
    """Before the commit it is done again; after it the first run goes on from there."""
    import cloudpickle

    both(corpus, corpus.write("a.txt", "a"), "INDEXED")
    corpus.write("b.txt", "b")
    names = Names("theirs-" + corpus.folder.name, 4, {"files": "Scanner"}, {"out": "sendToSolr"}, corpus.strip)
    arguments = (str(corpus.root), cloudpickle.dumps(corpus.plan), corpus.cassandra.url, names, point)
    process = multiprocessing.get_context("spawn").Process(target=_import, args=arguments)
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL, "the point was not reached"
    if point == "import.staged":
        assert corpus.take_over().unchanged == 1
    else:
        with pytest.raises(UsageError, match="has run already"):
            corpus.take_over()
    corpus.run()
    assert set(corpus.arrived("out")) == {"b.txt by out"}


def test_a_mirror_of_what_was_taken_over_has_its_history(corpus: Corpus) -> None:
    """Events have the times that they had in JesterJ."""
    both(corpus, corpus.write("a.txt", "a"), "INDEXED")
    [there] = corpus.reader.rows(f"SELECT created FROM {corpus.jesterj.keyspace('copy')}.{STATUS.name}")
    corpus.take_over()
    corpus.mirror.catch_up()
    [row] = corpus.rows("copy", "files")
    assert (row.docid, row.status) == ("a.txt", "INDEXED")
    assert abs(row.created - there.created) < dt.timedelta(milliseconds=1)
