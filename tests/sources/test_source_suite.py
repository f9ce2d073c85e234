"""Every shipped source keeps the promises of the port; and the suite that says so notices who does not."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ferryman.document import Document
from ferryman.sources import Csv, DataFrame, Files, JsonLines, Lines, Listed, Memory, Parquet, Source
from ferryman.testing.sources import SourceSuite


class TestFiles(SourceSuite):
    def source(self, folder: Path) -> Files:
        (folder / "empty").mkdir()
        (folder / "histories").mkdir()
        (folder / "histories" / "henryv.txt").write_text("O for a Muse of fire")
        (folder / "a b#%\n.txt").write_text("odd name")
        (folder / "empty.txt").touch()
        return Files(folder)

    def absent(self, folder: Path) -> Files:
        return Files(folder / "missing")

    def change(self, source: Source, id: str) -> None:
        self._path(source, id).write_text("changed")

    def remove(self, source: Source, id: str) -> None:
        self._path(source, id).unlink()

    def _path(self, source: Source, id: str) -> Path:
        assert isinstance(source, Files)
        return Path(source.root, id.replace("%0A", "\n").replace("%23", "#").replace("%25", "%"))


class TestFilesUnpacked(TestFiles):
    def source(self, folder: Path) -> Files:
        super().source(folder)
        (folder / "packed.gz").write_bytes(gzip.compress(b"text"))
        return Files(folder, decompress=True)


class TestLines(SourceSuite):
    """Lines are known by their numbers: what is taken away leaves a blank line."""

    text = "one\ntwo\nthree\n"
    blank = ""

    def source(self, folder: Path) -> Source:
        self.folder = folder
        (folder / "b").write_text(self.text)
        (folder / "c.gz").write_bytes(gzip.compress(self.text.encode()))
        (folder / "empty").touch()
        return self.made(folder)

    def made(self, root: Path) -> Source:
        return Lines(root)

    def absent(self, folder: Path) -> Source:
        return self.made(folder / "missing")

    def change(self, source: Source, id: str) -> None:
        lines = (self.folder / "b").read_text().splitlines()
        at = self.at(id)
        lines[at] = lines[at].replace("e", "E")
        (self.folder / "b").write_text("\n".join(lines))

    def remove(self, source: Source, id: str) -> None:
        lines = (self.folder / "b").read_text().splitlines()
        lines[self.at(id)] = self.blank
        (self.folder / "b").write_text("\n".join(lines))

    def at(self, id: str) -> int:
        assert id.startswith("b#")
        return int(id.partition("=")[2]) - 1


class TestCsv(TestLines):
    text = 'id,name\n1,one\n2,"two\nlines"\n3,three\n'

    def made(self, root: Path) -> Source:
        return Csv(root)


class TestCsvWithIds(TestCsv):
    """In one file: an id is one document, in whatever file it stands."""

    def made(self, root: Path) -> Source:
        return Csv(root / "b" if root.is_dir() else root, id="id", content="name")

    def at(self, id: str) -> int:
        assert id == "1"
        return 1


class TestJsonLines(TestLines):
    text = '{"id": 1, "name": "one"}\n{"id": 2, "tags": ["x", {"y": 1}], "name": "e"}\n'

    def made(self, root: Path) -> Source:
        return JsonLines(root)


class TestJsonLinesWithIds(TestJsonLines):
    def made(self, root: Path) -> Source:
        return JsonLines(root, exclude="c.gz", id="/id", content="name")

    def at(self, id: str) -> int:
        return int(id) - 1


class TestParquet(SourceSuite):
    def source(self, folder: Path) -> Parquet:
        self.file = folder / "a.parquet"
        self._write({"1": "one", "2": "two", "3": "three"})
        return Parquet(folder, id="id", content="name")

    def absent(self, folder: Path) -> Parquet:
        return Parquet(folder / "missing")

    def change(self, source: Source, id: str) -> None:
        self._write(self._names() | {id: "changed"})

    def remove(self, source: Source, id: str) -> None:
        self._write({key: name for key, name in self._names().items() if key != id})

    def _names(self) -> dict[str, str]:
        return {row["id"]: row["name"] for row in pq.read_table(self.file).to_pylist()}

    def _write(self, names: dict[str, str]) -> None:
        pq.write_table(
            pa.table({"id": list(names), "name": list(names.values()), "tags": [["x"]] * len(names)}), self.file
        )


class TestMemoryOfAList(SourceSuite):
    def source(self, folder: Path) -> Memory:
        self.documents: list[Any] = [
            {"id": "a", "tags": ["x", "y"], "raw": b"bytes"},
            Document("b", raw=b"", title="B", nested={"deep": [1]}),
            {"id": "c"},
        ]
        return Memory(self.documents)

    def change(self, source: Source, id: str) -> None:
        at = self._at(id)
        self.documents[at] = {"id": id, "title": "changed"}

    def remove(self, source: Source, id: str) -> None:
        del self.documents[self._at(id)]

    def _at(self, id: str) -> int:
        return next(i for i, d in enumerate(self.documents) if (d.id if isinstance(d, Document) else d["id"]) == id)


class TestMemoryOfAFunction(TestMemoryOfAList):
    def source(self, folder: Path) -> Memory:
        super().source(folder)
        return Memory(lambda: iter(self.documents))


class TestTable(SourceSuite):
    """A table is asked by batches; Spark is played by a frame that has only what the source looks at."""

    def source(self, folder: Path) -> DataFrame:
        self.rows: list[dict[str, Any]] = [{"id": i, "title": f"title {i}", "tags": ["x"]} for i in (3, 1, 2)]
        return DataFrame(lambda spark: self, id="id")

    @property
    def dtypes(self) -> list[tuple[str, str]]:
        return [("id", "bigint"), ("title", "string"), ("tags", "array<string>")]

    def pieces(self, source: Source) -> list[Any]:
        assert isinstance(source, DataFrame)
        rows = source.read(None).rows
        return [[pa.RecordBatch.from_pylist(rows[:1]), pa.RecordBatch.from_pylist(rows[1:])]]

    def entries(self, source: Source, piece: Any) -> Iterable[Listed | Document]:
        assert isinstance(source, DataFrame)
        return source.documents(piece)

    def change(self, source: Source, id: str) -> None:
        next(row for row in self.rows if str(row["id"]) == id)["title"] = "changed"

    def remove(self, source: Source, id: str) -> None:
        self.rows = [row for row in self.rows if str(row["id"]) != id]


# --- the suite itself -------------------------------------------------------------------------------------------------


class Numbers(Source):
    """A source that keeps every promise but the one that a test breaks."""

    def __init__(self) -> None:
        super().__init__()
        self.content = {"1": b"one", "2": b"two"}

    def partitions(self) -> list[Any]:
        return [list(self.content)]

    def listing(self, partition: Any) -> Iterator[Listed | Document]:
        return (Listed(id, len(self.content[id]), f"v{len(self.content[id])}") for id in partition)

    def read(self, listed: Listed) -> Document:
        return Document(listed.id, raw=self.content[listed.id], tags=[])


class Prefixing(Numbers):
    def listing(self, partition: Any) -> Iterator[Listed | Document]:
        return (Listed(self.prefix + id, 0) for id in partition)


class Forgetful(Numbers):
    """Does not survive the way to a worker."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "content": {"1": b"one"}}


class Sharing(Numbers):
    """Gives away its own documents."""

    def __init__(self) -> None:
        super().__init__()
        self.given = {id: Document(id, raw=raw, tags=["x"]) for id, raw in self.content.items()}

    def read(self, listed: Listed) -> Document:
        return self.given[listed.id]


class TwoLines(Numbers):
    def listing(self, partition: Any) -> Iterator[Listed | Document]:
        return (Listed(f"{id}\n", 0) for id in partition)


class Twice(Numbers):
    def partitions(self) -> list[Any]:
        return [["1"], ["2", "1"]]


class Moody(Numbers):
    """Brings another order each time."""

    def partitions(self) -> list[Any]:
        self.content = dict(reversed(self.content.items()))
        return super().partitions()


class Renaming(Numbers):
    def read(self, listed: Listed) -> Document:
        return Document(f"x{listed.id}", raw=b"")


class StrRaw(Numbers):
    def read(self, listed: Listed) -> Document:
        return Document(listed.id, raw="text")  # type: ignore[arg-type]


class Blind(Numbers):
    """Its fingerprint never changes."""

    def listing(self, partition: Any) -> Iterator[Listed | Document]:
        return (Listed(id, 0, "always the same") for id in partition)


class Crashing(Numbers):
    """Lets Python's own errors out where a document is gone."""


def change(source: Source, id: str) -> None:
    assert isinstance(source, Numbers)
    source.content[id] = b"three"


def remove(source: Source, id: str) -> None:
    assert isinstance(source, Numbers)
    del source.content[id]


BROKEN: list[tuple[type[Numbers], str]] = [
    (Prefixing, "test_ids_are_without_prefix"),
    (Forgetful, "test_it_works_from_a_worker"),
    (Sharing, "test_a_step_changes_only_its_own_copy"),
    (TwoLines, "test_ids_are_plain_text"),
    (Twice, "test_ids_are_plain_text"),
    (Moody, "test_a_scan_repeats_itself"),
    (Renaming, "test_content_is_a_document"),
    (StrRaw, "test_content_is_a_document"),
    (Blind, "test_a_change_is_seen"),
    (Crashing, "test_a_removed_document_is_not_listed"),
    (Numbers, "test_check_says_what_is_missing"),
]


@pytest.mark.parametrize(("broken", "promise"), BROKEN, ids=lambda x: getattr(x, "__name__", x))
def test_the_suite_notices_a_source_that_breaks_a_promise(
    broken: Callable[[], Source], promise: str, tmp_path: Path
) -> None:
    """A conformance suite that passes everything would prove nothing."""
    suite = SourceSuite()
    suite.source = suite.absent = lambda folder: broken()  # type: ignore[method-assign]
    suite.change, suite.remove = change, remove  # type: ignore[method-assign]

    with pytest.raises((AssertionError, KeyError)):
        getattr(suite, promise)(tmp_path)


def test_hooks_that_are_not_overridden_skip(tmp_path: Path) -> None:
    """A source that cannot be changed from a test skips those promises; it does not pass them."""
    import unittest

    suite = SourceSuite()
    suite.source = lambda folder: Numbers()  # type: ignore[method-assign]
    for promise in (
        "test_a_change_is_seen",
        "test_a_removed_document_is_not_listed",
        "test_check_says_what_is_missing",
    ):
        with pytest.raises(unittest.SkipTest):
            getattr(suite, promise)(tmp_path)
