"""Runs and ``status`` at sizes and shapes where states once broke: ids of 45 characters, families, large contents.

Each case is a plan that runs three times: everything is new, nothing is, everything has changed. One that fails is a
row that says so. Peaks of memory are of one case: they are forgotten before the next.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.harness import XMX, Row, Sizes, Took, say, spark, timed
from bench.processes import Watch, forget_peaks
from ferryman import Document, Plan, account, run
from ferryman.destinations import Null
from ferryman.destinations.base import Delivery, Outcome
from ferryman.limits import KIB, MIB
from ferryman.sources import DataFrame, Files
from ferryman.state.state import state_root

LIMIT_MB: Final = 1024
STATUS_S: Final = 5.0

MOST_SHAPES: Final = 1_000_000
"""Of more documents only their number is measured: the other shapes take as long again, each."""


class Case(NamedTuple):
    """``documents`` of ``size`` bytes, each with so many children; ``refused``: the destination takes none of them."""

    documents: int
    children: int = 0
    size: int = 20
    refused: bool = False


def cases(documents: int) -> Iterator[tuple[str, Case]]:
    """As many deliveries as documents are asked for, in every shape; of large contents, as many as fit on a disk."""
    if documents <= MOST_SHAPES:
        for share in (10, 5, 2.5):
            yield "documents", Case(int(documents / share))
    yield "documents", Case(documents)
    if documents <= MOST_SHAPES:
        yield "documents that are refused", Case(documents, refused=True)
        for children in (30, 300, 100_000):
            yield f"families of {children}", Case(max(documents // children, 1), children)
        yield "documents of 1 KB", Case(documents // 5, size=KIB)
        yield "files of 1 MB", Case(max(documents // 5000, 1), size=MIB)
        yield "files of 100 MB", Case(max(documents // 250_000, 1), size=100 * MIB)


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    spark()
    for what, case in cases(sizes.documents):
        told = f"{case.documents} {what}"
        say(f"  {told} …")
        target = f"≤ {LIMIT_MB} MB each, `status` ≤ {STATUS_S:g} s"
        with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as place:
            forget_peaks()
            try:
                with Watch() as watch:
                    took = runs(case, Path(place))
            except Exception as e:
                yield Row(told, f"failed: {e}", "", "", target, False)
                continue
        met = max(watch.peaks["driver"], watch.peaks["worker"]) <= LIMIT_MB and took["`status`"].wall_s <= STATUS_S
        memory = "driver {driver} MB, worker {worker} MB (JVM, -Xmx{xmx}: {jvm} MB)".format(**watch.peaks, xmx=XMX)
        row = Row(told, ", ".join(f"{name} {shown(each)}" for name, each in took.items()), memory, "", target, met)
        say(f"    {row.ours}; {row.beside}")
        yield row


def shown(took: Took) -> str:
    """Without CPU where a process has ended of which nobody knows how much it took."""
    return f"{took.wall_s:.1f} s" + (f" ({took.cpu_s:.1f} s of CPU)" if took.cpu_s > 0 else "")


class Refuse(Null):
    """Takes nothing, each time for a reason of its own: it is not in trouble itself."""

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        return [Outcome.permanent(f"no {delivery.id}") for delivery in chunk]


def plan(case: Case, revision: int, folder: Path) -> Plan:
    """A table in Spark, or for contents of which few make a table's batch, files."""
    made = Plan("sizes", version=1)
    if case.size < MIB:
        node = made.source("docs", DataFrame(lambda spark: rows(spark, case, revision)))
    else:
        write_files(folder, case, revision)
        node = made.source("docs", Files(str(folder)))
    if case.children:
        children = case.children

        def split(doc: Document) -> Iterator[Document]:
            for n in range(children):
                yield doc.child(text=f"passage {n} of {doc['body']}")

        node = node.step("split", split)
    node.destination("out", Refuse() if case.refused else Null())
    return made


def rows(spark: Any, case: Case, revision: int) -> Any:
    """Ids of 45 characters, as files have them, and a text."""
    return spark.range(case.documents).selectExpr(
        "format_string('contracts/2024/region-%02d/file-%011d.pdf', id % 97, id) AS id",
        f"rpad(concat('revision {revision} of ', id), {case.size}, ' and so on') AS body",
    )


def write_files(folder: Path, case: Case, revision: int) -> None:
    """Text that packs well, as most of what is large."""
    folder.mkdir(exist_ok=True)
    line = f"revision {revision}, and so on\n".encode()
    for n in range(case.documents):
        content = (line * (case.size // len(line) + 1))[: case.size - 12]
        (folder / f"file-{n:011d}.txt").write_bytes(b"%011d\n" % n + content)


def runs(case: Case, place: Path) -> dict[str, Took]:
    """All runs of a case, and ``status`` after them; fails if not everything arrived."""
    state, corpus = place / "state", place / "corpus"
    took = {}
    for what, revision in (("new", 1), ("unchanged", 1), ("changed", 2)):
        made = plan(case, revision, corpus)
        expected = 0 if what == "unchanged" else case.documents * (case.children or 1)

        def go(made: Plan = made, expected: int = expected) -> None:
            summary = run(made, state=state, spark=spark())
            assert summary.delivered == (0 if case.refused else expected), summary

        took[what] = timed(go)
    shutil.rmtree(corpus, ignore_errors=True)
    root = state_root(made, state)

    def ask() -> None:
        status = account.status(root, made)
        account.waves(root, plan=made)
        assert status["balanced"], status
        counts = status["destinations"]["out"]
        assert counts["failed" if case.refused else "delivered"] == expected, status

    took["`status`"] = timed(ask)
    return took
