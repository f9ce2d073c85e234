"""Text out of PDF files, beside calling the library for each file in a process pool of the same size.

The language is not looked for, for the library alone does not say it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.pool import Pool
from pathlib import Path

from tests.steps import corpus

from bench.harness import Row, Sizes, anew, as_fast, in_turn, spark
from ferryman import Plan, run, steps
from ferryman.destinations import Null
from ferryman.sources import Files

TARGET = 0.95
PROCESSES = 2
PAGES = 20
SHARE = 5
"""A file takes as long as some hundred of the small ones that other benchmarks read: fewer are enough."""


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    count = max(sizes.files // SHARE, 10)
    paths = papers(folder / f"papers-{count}", count)
    with get_context("fork").Pool(PROCESSES) as pool:
        ours, plain = in_turn(
            sizes.rounds,
            lambda: run(plan(paths), state=anew(folder / "extract"), spark=spark()),
            lambda: in_pool(pool, paths),
        )
    yield as_fast("PDF to text", count, ours, plain, TARGET)


def papers(folder: Path, count: int) -> Path:
    """PDF files of PAGES pages of text, made once."""
    if not folder.is_dir():
        folder.mkdir(parents=True)
        words = corpus.MUSE.replace(",", "").replace(".", "").split()
        for number in range(count):
            chance = random.Random(number)
            pages = [" ".join(chance.choices(words, k=300)) for _ in range(PAGES)]
            (folder / f"{number:06}.pdf").write_bytes(corpus.pdf(pages))
    return folder


def plan(papers: Path) -> Plan:
    made = Plan("extract")
    text = made.source("papers", Files(papers)).step("text", steps.extract_text(languages=None))
    text.destination("nowhere", Null())
    return made


def in_pool(pool: Pool, papers: Path) -> int:
    """Characters of all of them."""
    return sum(pool.imap_unordered(characters, sorted(papers.iterdir()), chunksize=16))


def characters(path: Path) -> int:
    """As somebody would write it."""
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
