"""Text out of PDF files, beside calling the library for each file in a process pool of the same size.

The language is not detected, since the library alone does not detect it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.pool import Pool
from pathlib import Path

from tests.steps import corpus

from bench.harness import Row, Sizes, alternate, empty_folder, spark, speed_row
from ferryman import Plan, run, steps
from ferryman.destinations import Null
from ferryman.sources import Files

TARGET = 0.95
PROCESSES = 2
PAGES = 20
SHARE = 5
"""Divisor of the number of files: one takes as long as some hundred small files of other benchmarks."""


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    count = max(sizes.files // SHARE, 10)
    paths = papers(folder / f"papers-{count}", count)
    with get_context("fork").Pool(PROCESSES) as pool:
        ours, plain = alternate(
            sizes.rounds,
            lambda: run(plan(paths), state=empty_folder(folder / "extract"), spark=spark()),
            lambda: in_pool(pool, paths),
        )
    yield speed_row("PDF to text", count, ours, plain, TARGET)


def papers(folder: Path, count: int) -> Path:
    """Make PDF files of PAGES pages of text, unless they exist."""
    if not folder.is_dir():
        folder.mkdir(parents=True)
        words = corpus.MUSE.replace(",", "").replace(".", "").split()
        for number in range(count):
            chance = random.Random(number)
            pages = [" ".join(chance.choices(words, k=300)) for _ in range(PAGES)]
            (folder / f"{number:06}.pdf").write_bytes(corpus.pdf(pages))
    return folder


def plan(papers: Path) -> Plan:
    plan = Plan("extract")
    text = plan.source("papers", Files(papers)).step("text", steps.extract_text(languages=None))
    text.destination("nowhere", Null())
    return plan


def in_pool(pool: Pool, papers: Path) -> int:
    """Return the number of characters in all files."""
    return sum(pool.imap_unordered(characters, sorted(papers.iterdir()), chunksize=16))


def characters(path: Path) -> int:
    """Return the number of characters in a file, as read by the library alone."""
    import pypdfium2

    book = pypdfium2.PdfDocument(path.read_bytes())
    pages = []
    for page in book:
        letters = page.get_textpage()
        pages.append(letters.get_text_range())
        letters.close()
        page.close()
    book.close()
    return len("\n\n".join(pages))
