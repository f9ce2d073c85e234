"""``Sql`` beside a plain loop of inserts: the same rows into the same table and full-text index.

    python bench/sqlite_loop.py --rows 200000

``plain_loop`` and ``sql_write`` can be called by other benchmarks; both return seconds.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import random
import sqlite3
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ferryman.destinations import Delivery, DestinationContext, Guarantee
from ferryman.destinations.sql import Sql

COLUMNS = ("id", "parent_id", "origin_id", "source", "version", "sequence", "delivery_hash", "route", "text", "fields")
Row = tuple[Any, ...]
"""Tuple of the values of COLUMNS."""


def make_rows(count: int, text_bytes: int = 500, seed: int = 1) -> Iterator[Row]:
    """Yield documents of words with the frequencies of a language: the n-th occurs 1/n as often as the first."""
    chance = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary = ["".join(chance.choices(letters, k=chance.randint(2, 10))) for _ in range(30_000)]
    weights = list(itertools.accumulate(1 / n for n in range(1, len(vocabulary) + 1)))
    for i in range(count):
        text = " ".join(chance.choices(vocabulary, cum_weights=weights, k=text_bytes // 5))[:text_bytes]
        id = f"part-{i // 1000:05d}.txt#{i % 1000}"
        digest = blake2b(id.encode(), digest_size=16).hexdigest()
        fields = json.dumps({"title": f"Document {i}"})
        yield id, None, id, "files", digest, 10**14 + i, digest[::-1], "[]", text, fields


def plain_loop(path: Path, rows: Iterable[Row], commit_every: int | None = None, full_text: bool = True) -> float:
    """Insert rows with SQLite's default settings, one statement a row and one for its index entry; return the seconds.

    Commits at the end or every ``commit_every`` rows. The index takes its text from the table (external content), which
    is the quicker kind.
    """
    names = ", ".join(COLUMNS)
    with closing(sqlite3.connect(path)) as connection:
        columns = ", ".join(f"{name} {'INTEGER' if name == 'sequence' else 'TEXT'}" for name in COLUMNS[1:])
        connection.execute(f"CREATE TABLE documents (id TEXT PRIMARY KEY NOT NULL, {columns})")
        connection.execute("CREATE VIRTUAL TABLE documents_fts USING fts5(text, content=documents)")
        insert = f"INSERT INTO documents ({names}) VALUES ({', '.join('?' * len(COLUMNS))})"
        cursor = connection.cursor()
        begin = time.perf_counter()
        for number, row in enumerate(rows, 1):
            cursor.execute(insert, row)
            if full_text:
                cursor.execute("INSERT INTO documents_fts (rowid, text) VALUES (?, ?)", (cursor.lastrowid, row[8]))
            if commit_every and number % commit_every == 0:
                connection.commit()
        connection.commit()
        return time.perf_counter() - begin


def sql_write(path: Path, chunks: Iterable[list[Delivery]], full_text: bool = True) -> float:
    """Return the seconds in ``Sql.write`` and ``close``, without making the deliveries."""
    sql = Sql(f"sqlite:///{path}", full_text=["text"] if full_text else None)
    sql.check()
    sql.open(DestinationContext("bench", 1, "documents", 1, Guarantee.EXACTLY_ONCE))
    seconds = 0.0
    for chunk in chunks:
        begin = time.perf_counter()
        outcomes = sql.write(chunk)
        seconds += time.perf_counter() - begin
        assert all(outcome.kind == "ok" for outcome in outcomes)
    begin = time.perf_counter()
    sql.close()
    return seconds + time.perf_counter() - begin


def deliveries(rows: Iterable[Row], batch: int) -> Iterator[list[Delivery]]:
    """Yield the rows as chunks of deliveries."""
    rows = iter(rows)
    while some := list(itertools.islice(rows, batch)):
        yield [
            Delivery(
                id,
                hash=digest,
                sequence=sequence,
                fields=fields.encode(),
                raw=text.encode(),
                version=version,
                source=source,
                origin_id=origin,
            )
            for id, _, origin, source, version, sequence, digest, _, text, fields in some
        ]


def main() -> None:
    """Print microseconds a document, and the ratio of ``Sql``'s time to the loop's; the best of ``--repeat``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=Sql.preferred_batch)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--no-full-text", action="store_true")
    args = parser.parse_args()
    rows, full_text = list(make_rows(args.rows)), not args.no_full_text
    gc.freeze()  # keep the garbage collector from traversing the rows
    runs = {
        "plain loop, one commit": lambda path: plain_loop(path, rows, None, full_text),
        "plain loop, a commit every 1000": lambda path: plain_loop(path, rows, 1000, full_text),
        f"Sql, chunks of {args.batch}": lambda path: sql_write(path, deliveries(rows, args.batch), full_text),
    }
    best = dict.fromkeys(runs, float("inf"))
    for name in list(runs) * args.repeat:
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
            best[name] = min(best[name], runs[name](Path(folder) / "out.db"))
    sql = list(best)[-1]
    for name, seconds in best.items():
        ratio = "" if name == sql else f"   Sql needs {best[sql] / seconds:.2f} of it"
        print(f"{name:32} {seconds / args.rows * 1e6:6.1f} µs a document{ratio}")


if __name__ == "__main__":
    main()
