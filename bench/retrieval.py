"""An index of pages' paragraphs with vectors, beside CocoIndex, LangChain's indexing API and LlamaIndex's pipeline.

All split the same pages in the same way and embed with the same function, a model from a wheel, 64 texts a request. Its
calls are counted: they are what people pay for. The stages: cold, unchanged, 1 % of the pages with another paragraph,
1 % deleted, the whole folder copied beside itself, and a cold start killed once half of the texts were asked for, then
run again until all is right. After each stage the index is compared with the truth. Pages are what ``--files`` counts.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from bench import data, environment
from bench.command import QUIET, command, command_until, ferryman
from bench.harness import ROOT, Measurement, Row, Sizes, compare, empty_folder, median, print_progress
from bench.judge import Verdict, join_verdicts, judge, query_sqlite
from bench.peers.embedding import BYTES, DIMENSIONS, HOLD, LOG, Calls, read_calls
from bench.trips import MOST_RUNS, total_of

PARAGRAPHS: Final = 10
COMMON: Final = 40
"""Paragraphs of which each page has one, as real pages have licences, warnings and forewords."""
SHARE: Final = 100
TARGET: Final = 0.5
_WRITTEN: Final = 1_700_000_000
"""Time of the pages, in seconds since 1970: a file of the last two seconds is read again in the next scan."""
PEERS: Final = ROOT / "bench" / "peers"

PLAN: Final = """
from bench.peers.embedding import BATCH, DIMENSIONS, embed
from ferryman import Plan, Remember, steps
from ferryman.destinations import {kind}
from ferryman.sources import Files

def vectors(docs):
    for doc, vector in zip(docs, embed([doc.text() for doc in docs])):
        doc["vector"] = vector
    return docs

plan = Plan("pages")
pages = plan.source("pages", Files({folder!r}, detect="fingerprint"))
chunks = pages.step("split", steps.split_text(by="paragraphs", key="content"))
remember = Remember(f"wordllama/{{DIMENSIONS}}", reads=["text"], writes=["vector"])
embedded = chunks.step("embed", vectors, batch=BATCH, remember=remember)
embedded.destination("index", {destination})
"""


class Pages:
    """A folder of pages of random words, which changes."""

    def __init__(self, place: Path, pages: int) -> None:
        self.folder = empty_folder(place)
        random = np.random.default_rng(11)
        words = data.words(random).split()

        def paragraph() -> str:
            return " ".join(words[(start := int(random.integers(len(words) - 60))) : start + 60])

        common = [paragraph() for _ in range(COMMON)]
        for number in range(pages):
            texts = [f"{number}.{place} {paragraph()}" for place in range(PARAGRAPHS - 1)]
            texts.insert(number % PARAGRAPHS, common[number % COMMON])
            folder = self.folder / "pages" / f"{number // 100:03d}"
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{number:05d}.txt"
            path.write_text("\n\n".join(texts))
            os.utime(path, (_WRITTEN, _WRITTEN))

    def edit(self) -> None:
        """Give one page in a hundred a new paragraph in place of another, and a new one before all."""
        for path in sorted(self.folder.rglob("*.txt"))[::SHARE]:
            first, *others = path.read_text().split("\n\n")
            path.write_text("\n\n".join([f"New words for {path.stem}", f"{first} changed", *others]))

    def delete(self) -> None:
        """Delete one page in a hundred."""
        for path in sorted(self.folder.rglob("*.txt"))[1::SHARE]:
            path.unlink()

    def copy(self) -> None:
        """Put a copy of all pages beside them."""
        shutil.copytree(self.folder / "pages", self.folder / "copies")

    @property
    def truth(self) -> dict[str, str]:
        """Page and paragraph -> paragraph: an index is right if it has each paragraph of each page once."""
        return dict(chunk_row(page, text) for page, texts in self._texts() for text in texts)

    @property
    def distinct(self) -> int:
        """Number of distinct paragraphs: calls that must be made of an index that has none."""
        return len({text for _, texts in self._texts() for text in texts})

    def _texts(self) -> Iterator[tuple[str, list[str]]]:
        for path in self.folder.rglob("*.txt"):
            yield path.relative_to(self.folder).as_posix(), path.read_text().split("\n\n")


def chunk_row(page: str, text: str) -> tuple[str, str]:
    """Return the judge's row of a paragraph."""
    return f"{page}: {text}", text


class Indexer(NamedTuple):
    """A program with its index. ``line``: its command, given the place of index and state; ``rows``: page and text of
    each chunk in the index that has a vector."""

    name: str
    line: Callable[[Path], list[str | Path]]
    rows: Callable[[Path], Iterable[tuple[str, str]]]


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    count = sizes.files
    ferryman("warm-up")
    for what, indexers in groups().items():
        yield from trip(what, indexers, folder / "retrieval", count, sizes.rounds)


def groups() -> dict[str, list[Indexer]]:
    """Return what is compared: the store -> Ferryman, and the programs beside it."""
    python = environment.python(environment.PEERS_PINS)

    def peer(name: str, program: str, file: str, rows: Callable[[Path], Iterable[tuple[str, str]]]) -> Indexer:
        def line(place: Path) -> list[str | Path]:
            return [python, PEERS / program, place.parent / "pages", place / file, place / "state"]

        return Indexer(name, line, rows)

    sqlite = f'Sql("sqlite:///index.db", vectors={{"vector": {DIMENSIONS}}})'
    lance = f'LanceDB("index.lance", vectors={{"vector": {DIMENSIONS}}})'
    return {
        "SQLite": [
            _ferryman_into(sqlite, _own_sqlite),
            peer("CocoIndex", "cocoindex_pages.py", "index.db", _coco_rows),
        ],
        "LanceDB": [
            _ferryman_into(lance, _own_lance),
            peer("LangChain's indexing API", "langchain_index.py", "index.lance", _chain_rows),
            peer("LlamaIndex's ingestion pipeline", "llamaindex_pipeline.py", "index.lance", _llama_rows),
        ],
    }


def _ferryman_into(destination: str, rows: Callable[[Path], Iterable[tuple[str, str]]]) -> Indexer:
    def line(place: Path) -> list[str | Path]:
        place.mkdir(exist_ok=True)
        kind, folder = destination.partition("(")[0], str(place.parent / "pages")
        (place / "plan.py").write_text(PLAN.format(folder=folder, destination=destination, kind=kind))
        return [sys.executable, "-m", "ferryman.cli", "run", place / "plan.py", "--state", place / "state"]

    return Indexer("Ferryman", line, rows)


class Stage(NamedTuple):
    """One program's part of a stage. ``allowed``: calls that it may have made, those in flight at a kill among them."""

    took: Measurement
    calls: Calls
    verdict: Verdict
    allowed: int
    note: str = ""

    @property
    def right(self) -> bool:
        return self.verdict.right and self.calls.texts <= self.allowed

    def __str__(self) -> str:
        return f"{self.calls.texts} texts in {self.calls.requests} requests{self.note}, {self.verdict}"


KILLED: Final = "killed at half of the calls, run until right"


STAGES: Final[Mapping[str, Callable[[Pages], None]]] = {
    "cold": lambda _: None,
    "unchanged": lambda _: None,
    "1 % of the pages edited": Pages.edit,
    "1 % of the pages deleted": Pages.delete,
    "all pages copied": Pages.copy,
}


def trip(what: str, indexers: Sequence[Indexer], folder: Path, count: int, rounds: int) -> Iterator[Row]:
    """Go the whole trip with all programs, as often as there are rounds, and yield a row for each stage.

    In each stage the programs run one after the other.
    """
    results: dict[str, dict[str, list[Stage]]] = {indexer.name: {} for indexer in indexers}

    def note(name: str, indexer: Indexer, stage: Stage) -> None:
        results[indexer.name].setdefault(name, []).append(stage)
        print_progress(f"    {what}: {name}: {indexer.name}: {_describe([stage])}")

    for _ in range(rounds):
        pages = Pages(empty_folder(folder) / "pages", count)
        known: set[str] = set()
        for name, change in STAGES.items():
            change(pages)
            texts = set(pages.truth.values())
            allowed, known = len(texts - known), known | texts
            for number, indexer in enumerate(indexers):
                note(name, indexer, _run(indexer, folder / f"index-{number}", pages, allowed))
        killed = folder / "killed"
        pages = Pages(killed / "pages", count)
        for number, indexer in enumerate(indexers):
            note(KILLED, indexer, _run_killed(indexer, killed / f"index-{number}", pages))
    own, *others = results
    for other in others:
        for name in (*STAGES, KILLED):
            head = f"{count} pages of {PARAGRAPHS} paragraphs into {what}; {other}: {name}"
            yield _row(head, results[own][name], results[other][name])


def _row(what: str, own: Sequence[Stage], other: Sequence[Stage]) -> Row:
    took, beside = (median([stage.took for stage in each]) for each in (own, other))
    ratio, text, _ = compare(what, 0, took, beside, longer=True)
    met = ratio <= TARGET and all(stage.right for stage in own)
    return Row(what, _describe(own), _describe(other), text, f"≤ {TARGET:g}×, calls, right", met)


def _describe(stages: Sequence[Stage]) -> str:
    took = median([stage.took for stage in stages])
    return f"{took.wall_s:.1f} s (CPU {took.cpu_s:.1f} s), {join_verdicts(stages)}"


def _environment(log: Path) -> dict[str, str]:
    return {**QUIET, LOG: str(log)}


def _run(indexer: Indexer, place: Path, pages: Pages, allowed: int) -> Stage:
    log = place / "calls"
    place.mkdir(exist_ok=True)
    log.unlink(missing_ok=True)
    took = command(indexer.line(place), _environment(log))
    return Stage(took, read_calls(log), _judge(indexer, place, pages), allowed)


def _run_killed(indexer: Indexer, place: Path, pages: Pages) -> Stage:
    """Kill the program once half of the texts were asked for, then run it until all is right."""
    log, half = place / "calls", pages.distinct // 2 * BYTES
    place.mkdir(exist_ok=True)
    held = {**_environment(log), HOLD: str(half)}
    took, killed = command_until(indexer.line(place), lambda: log.exists() and log.stat().st_size >= half, held)
    at_kill, all_took, verdict, runs = read_calls(log), [took], _judge(indexer, place, pages), 0
    while not verdict.right and runs < MOST_RUNS:
        all_took.append(command(indexer.line(place), _environment(log)))
        before, verdict, runs = verdict, _judge(indexer, place, pages), runs + 1
        if verdict == before:
            break
    note = f" ({at_kill.texts} before the kill, {at_kill.in_flight} of them in flight; run {runs}× more)"
    allowed = pages.distinct + at_kill.in_flight
    return Stage(total_of(all_took), read_calls(log), verdict, allowed, note if killed else " (ended before the kill)")


def _judge(indexer: Indexer, place: Path, pages: Pages) -> Verdict:
    return judge(pages.truth, (chunk_row(page, text) for page, text in indexer.rows(place)))


def _own_sqlite(place: Path) -> Iterable[tuple[str, str]]:
    query = "SELECT origin_id, text FROM documents JOIN documents_vectors USING (id) WHERE vector IS NOT NULL"
    return query_sqlite(place / "index.db", query)


def _coco_rows(place: Path) -> Iterable[tuple[str, str]]:
    return query_sqlite(place / "index.db", "SELECT page, text FROM documents WHERE vector IS NOT NULL")


def _own_lance(place: Path) -> Iterable[tuple[str, str]]:
    return [
        (row["origin_id"], row["text"])
        for row in _lance(place)
        if row["deleted_at"] is None and row["vector"] is not None
    ]


def _chain_rows(place: Path) -> Iterable[tuple[str, str]]:
    return [(row["metadata"]["source"], row["text"]) for row in _lance(place)]


def _llama_rows(place: Path) -> Iterable[tuple[str, str]]:
    return [(row["doc_id"], row["text"]) for row in _lance(place)]


def _lance(place: Path) -> list[dict[str, object]]:
    import lancedb

    if not (place / "index.lance").exists():
        return []
    database = lancedb.connect(place / "index.lance")
    if "documents" not in database.table_names():
        return []
    rows: list[dict[str, object]] = database.open_table("documents").to_arrow().to_pylist()
    return rows
