"""Ids that a source brings with a # in them: it parts a child's key from its parent, so it is encoded."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ferryman.document import Document
from ferryman.engine.runner.base import PickledPlan
from ferryman.engine.scan.listing import ListFrame
from ferryman.errors import UsageError
from ferryman.plan import Plan
from ferryman.sources import Csv, DataFrame, Files, JsonLines, Listed, Memory, Source, Sql
from ferryman.sources.base import id_of_text, text_of
from tests.support.plan_world import run_plan
from tests.support.recorder import Recorder


class Given(Source):
    """A source of somebody's own, which is asked for the content by the id that it gave."""

    def __init__(self, ids: list[str]) -> None:
        super().__init__(prefix="mine/")
        self.ids = ids

    def partitions(self) -> list[list[str]]:
        return [self.ids]

    def listing(self, partition: list[str]) -> Iterator[Listed]:
        for id in partition:
            yield Listed(id, 1)

    def read(self, listed: Listed) -> Document:
        return Document(listed.id, raw=listed.id.encode())


def csv(place: Path) -> Source:
    (place / "rows.csv").write_text("id,text\na#b,x\na%23b,y\n100%,z\n")
    return Csv(place / "rows.csv", id="id", content="text")


def jsonlines(place: Path) -> Source:
    lines = ['{"id": "a#b"}', '{"id": "a%23b"}', '{"id": "100%"}']
    (place / "rows.jsonl").write_text("\n".join(lines))
    return JsonLines(place / "rows.jsonl", id="id")


def table(place: Path, changed: str | None) -> Source:
    with sqlite3.connect(place / "rows.db") as db:
        db.execute("CREATE TABLE rows (id TEXT, changed INTEGER)")
        db.executemany("INSERT INTO rows VALUES (?, 1)", [("a#b",), ("a%23b",), ("100%",)])
    db.close()
    return Sql(f"sqlite:///{place / 'rows.db'}", "SELECT * FROM rows", id="id", changed=changed)


KINDS: dict[str, Callable[[Path], Source]] = {
    "Memory": lambda place: Memory([Document("a#b"), {"id": "a%23b"}, {"id": "100%"}]),
    "Csv": csv,
    "JsonLines": jsonlines,
    "Sql": lambda place: table(place, None),
    "Sql(changed=)": lambda place: table(place, "changed"),
    "a source of one's own": lambda place: Given(["a#b", "a%23b", "100%"]),
}


def run(place: Path, source: Source) -> set[str]:
    """The ids that arrive in a run."""
    out = Recorder(place / "out.jsonl")
    plan = Plan("ids", version=1)
    plan.source("in", source).destination("out", out)
    assert run_plan(plan, place / "state").exit == 0
    return set(out.arrived())


@pytest.mark.rule("doc.hash")
@pytest.mark.parametrize("kind", KINDS)
def test_a_hash_in_an_id_is_encoded_and_read_all_the_same(place: Path, kind: str) -> None:
    source = KINDS[kind](place)
    assert run(place, source) == {source.prefix + id for id in ("a%23b", "a%2523b", "100%")}


@pytest.mark.rule("doc.hash")
def test_a_dataframe_s_ids_too(place: Path) -> None:
    plan = Plan("ids", version=1)
    plan.source("in", DataFrame(lambda spark: None, prefix="t/")).destination("out", Recorder(place / "out.jsonl"))
    plan.freeze()
    rows = pa.RecordBatch.from_pydict({"id": ["a#b", "a%23b", "100%"]})
    part = ListFrame(PickledPlan.of(plan), str(place), "in")(0, iter([rows]))
    assert pq.read_table(part.path)["id"].to_pylist() == ["t/a%23b", "t/a%2523b", "t/100%"]


def test_files_are_as_they_were(place: Path) -> None:
    """Their ids are encoded by the source, every % of them."""
    (place / "in").mkdir()
    for name in ("a#b", "a%23b", "100%"):
        (place / "in" / name).write_text(name)
    found = run(place, Files(place / "in"))
    assert found == {"a%23b", "a%2523b", "100%25"}


@pytest.mark.rule("doc.hash")
def test_a_child_never_meets_another_document(place: Path) -> None:
    """Neither overwritten by it, nor deleted when the child is not made any more."""
    documents = [{"id": "a", "keys": ["b"]}, {"id": "a#b", "keys": []}]
    out = Recorder(place / "out.jsonl")
    plan = Plan("ids", version=1)
    made = plan.source("in", Memory(documents)).step(
        "split", lambda doc: [doc.child(key) for key in doc["keys"]] or doc
    )
    made.destination("out", out)
    run_plan(plan, place / "state")
    assert sorted(out.arrived()) == ["a#b", "a%23b"]

    documents[0] = {"id": "a", "keys": ["c"]}
    run_plan(plan, place / "state")
    assert [id for id in out.arrived() if id.startswith("-")] == ["-a#b"]


def test_every_name_has_one_id() -> None:
    """Also names that look like ids, and the way back is the same."""
    names = ["".join(letters) for n in range(1, 7) for letters in product("%#235", repeat=n)]
    ids = [id_of_text(name) for name in names]
    assert len(set(ids)) == len(names)
    assert not any("#" in id for id in ids)
    assert [text_of(id) for id in ids] == names


def test_a_url_stays_readable() -> None:
    assert id_of_text("https://example.org/a%20b?x=1#part") == "https://example.org/a%20b?x=1%23part"


def test_a_prefix_has_no_hash() -> None:
    with pytest.raises(UsageError, match="prefix='a#'"):
        Memory([], prefix="a#")
