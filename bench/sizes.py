"""Runs and ``status`` at sizes and shapes where states once broke: ids of 45 characters, families, large contents.

Each case is a plan that runs three times: everything is new, nothing is, everything has changed. A failure becomes a
row. Peaks of memory are reset before each case.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.harness import XMX, Measurement, Row, Sizes, print_progress, spark, timed
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
"""Greatest number of documents for which all shapes are measured; each takes as long again."""


class Case(NamedTuple):
    """A shape: documents of ``size`` bytes, each with so many children; ``refused``: the destination refuses all."""

    documents: int
    children: int = 0
    size: int = 20
    refused: bool = False


def cases(documents: int) -> Iterator[tuple[str, Case]]:
    """Yield every shape with as many deliveries as ``documents``; with large contents, as many as fit on a disk."""
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
        title = f"{case.documents} {what}"
        print_progress(f"  {title} …")
        target = f"≤ {LIMIT_MB} MB each, `status` ≤ {STATUS_S:g} s"
        with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as place:
            forget_peaks()
            try:
                with Watch() as watch:
                    took = runs(case, Path(place))
            except Exception as e:
                yield Row(title, f"failed: {e}", "", "", target, False)
                continue
        met = max(watch.peaks["driver"], watch.peaks["worker"]) <= LIMIT_MB and took["`status`"].wall_s <= STATUS_S
        memory = "driver {driver} MB, worker {worker} MB (JVM, -Xmx{xmx}: {jvm} MB)".format(**watch.peaks, xmx=XMX)
        row = Row(
            title, ", ".join(f"{name} {describe_time(each)}" for name, each in took.items()), memory, "", target, met
        )
        print_progress(f"    {row.ours}; {row.beside}")
        yield row


def describe_time(took: Measurement) -> str:
    """Format seconds and CPU seconds; without these if they are unknown, as a process has ended unobserved."""
    return f"{took.wall_s:.1f} s" + (f" ({took.cpu_s:.1f} s of CPU)" if took.cpu_s > 0 else "")


class Refuse(Null):
    """Refuses every delivery, each with a different reason, so that the destination counts as healthy."""

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        return [Outcome.permanent(f"no {delivery.id}") for delivery in chunk]


def plan(case: Case, revision: int, folder: Path) -> Plan:
    """Return a plan that reads a table in Spark or, for large contents, files."""
    plan = Plan("sizes", version=1)
    if case.size < MIB:
        node = plan.source("docs", DataFrame(lambda spark: rows(spark, case, revision)))
    else:
        write_files(folder, case, revision)
        node = plan.source("docs", Files(str(folder)))
    if case.children:
        children = case.children

        def split(doc: Document) -> Iterator[Document]:
            for n in range(children):
                yield doc.child(text=f"passage {n} of {doc['body']}")

        node = node.step("split", split)
    node.destination("out", Refuse() if case.refused else Null())
    return plan


def rows(spark: Any, case: Case, revision: int) -> Any:
    """Return rows with ids of 45 characters, like paths of files, and a text."""
    return spark.range(case.documents).selectExpr(
        "format_string('contracts/2024/region-%02d/file-%011d.pdf', id % 97, id) AS id",
        f"rpad(concat('revision {revision} of ', id), {case.size}, ' and so on') AS body",
    )


def write_files(folder: Path, case: Case, revision: int) -> None:
    """Write text that compresses well, like most large contents."""
    folder.mkdir(exist_ok=True)
    line = f"revision {revision}, and so on\n".encode()
    for n in range(case.documents):
        content = (line * (case.size // len(line) + 1))[: case.size - 12]
        (folder / f"file-{n:011d}.txt").write_bytes(b"%011d\n" % n + content)


def runs(case: Case, place: Path) -> dict[str, Measurement]:
    """Measure all runs of a case, and ``status`` after them; fail if not everything arrived."""
    state, corpus = place / "state", place / "corpus"
    took = {}
    for what, revision in (("new", 1), ("unchanged", 1), ("changed", 2)):
        case_plan = plan(case, revision, corpus)
        expected = 0 if what == "unchanged" else case.documents * (case.children or 1)

        def go(case_plan: Plan = case_plan, expected: int = expected) -> None:
            summary = run(case_plan, state=state, spark=spark())
            assert summary.delivered == (0 if case.refused else expected), summary

        took[what] = timed(go)
    shutil.rmtree(corpus, ignore_errors=True)
    root = state_root(case_plan, state)

    def query_status() -> None:
        status = account.status(root, case_plan)
        account.waves(root, plan=case_plan)
        assert status["balanced"], status
        counts = status["destinations"]["out"]
        assert counts["failed" if case.refused else "delivered"] == expected, status

    took["`status`"] = timed(query_status)
    return took
