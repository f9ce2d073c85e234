"""``python -m bench [NAME …]``: run benchmarks, print the table of their ratios.

Without a name: those that docs/performance.md compares with other programs. ``all``: every one. ``table``: print all
results so far; ``plots``: draw them into docs/pictures. ``profile``: profile some of them by function.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench import plots, profile, results
from bench.harness import Row, Sizes, print_progress, print_table

TABLE = (
    "start",
    "small_files",
    "table_to_null",
    "concurrency",
    "table_to_sqlite",
    "rescan",
    "branches",
    "opensearch",
    "restart",
    "growth",
)
"""Comparisons with other programs; they take half an hour on an idle machine."""

OTHERS = (
    "retry_wave",
    "memory",
    "questions",
    "dashboard",
    "postgres",
    "extract",
    "text",
    "intake",
    "serve",
    "queue",
    "remembered",
    "verify",
    "monitored",
    "kafka",
    "watch",
    "cassandra",
    "flow",
    "combine",
    "sizes",
    "large_state",
    "limited_driver",
    "sources",
    "trips",
    "retrieval",
)
NAMES = (*TABLE, *OTHERS)


def _print_results(arguments: Sequence[str]) -> int:
    print_table(results.rows(*(Path(file) for file in arguments)))
    return 0


COMMANDS = {"plots": plots.draw_all, "profile": profile.main, "table": _print_results}


def main() -> int:
    """Run the benchmarks; return 1 if a target was missed, or a benchmark failed."""
    if sys.argv[1:2] and sys.argv[1] in COMMANDS:
        return COMMANDS[sys.argv[1]](sys.argv[2:])
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which ones: {', '.join(NAMES)}")
    parser.add_argument("--documents", type=int, default=Sizes().documents, help="rows of the table")
    parser.add_argument("--files", type=int, default=Sizes().files, help="files of the folder")
    parser.add_argument("--rounds", type=int, default=Sizes().rounds, help="runs of each; the median counts")
    parser.add_argument("--quick", action="store_true", help="a twentieth of the documents, one round")
    parser.add_argument("--folder", type=Path, help="where the data is made, and kept for the next time")
    parser.add_argument("--results", type=Path, default=results.FILE, help="where the figures are kept, for the plots")
    options = parser.parse_args()
    sizes = Sizes(options.documents, options.files, options.rounds)
    if options.quick:
        sizes = Sizes(sizes.documents // 20, sizes.files // 20, 1)
    names = NAMES if options.names == ["all"] else options.names or TABLE
    if unknown := set(names) - set(NAMES):
        parser.error(f"there is no {', '.join(sorted(unknown))}: choose of {', '.join(NAMES)}")
    with tempfile.TemporaryDirectory(prefix="ferryman-bench-", ignore_cleanup_errors=True) as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        rows = [row for name in names for row in _run(name, sizes, folder, options.results)]
    print_table(rows)
    return 0 if all(row.met for row in rows) else 1


def _run(name: str, sizes: Sizes, folder: Path, file: Path) -> Iterator[Row]:
    """Run one benchmark and yield its rows; a failure becomes a row, so that the others still run."""
    print_progress(f"{name} … (load {os.getloadavg()[0]:.1f})")
    began, rows = time.perf_counter(), []
    try:
        for row in importlib.import_module(f"bench.{name}").measure(sizes, folder):
            print_progress(f"    {row.what}: {row.ours}; {row.beside}; {row.ratio}; {row.memory}")
            rows.append(row)
            yield row
    except (Exception, SystemExit) as e:
        traceback.print_exc()
        yield Row(name, f"failed: {e}", "", "", "", False)
    results.save(name, rows, sizes, file)
    print_progress(f"    {name}: {time.perf_counter() - began:.0f} s (load {os.getloadavg()[0]:.1f})")


if __name__ == "__main__":
    sys.exit(main())
