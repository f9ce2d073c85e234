"""``python -m bench [NAME …]``: run benchmarks, print the table of their ratios."""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from pathlib import Path

from bench.harness import Row, Sizes, print_table, say

NAMES = (
    "table_to_null",
    "table_to_sqlite",
    "branches",
    "retry_wave",
    "rescan",
    "memory",
    "questions",
    "opensearch",
    "postgres",
    "extract",
    "intake",
    "serve",
    "queue",
    "flow",
    "combine",
    "sizes",
    "large_state",
    "limited_driver",
    "start",
)


def main() -> int:
    """1 if a target was missed."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which ones (all): {', '.join(NAMES)}")
    parser.add_argument("--documents", type=int, default=Sizes().documents, help="rows of the table")
    parser.add_argument("--files", type=int, default=Sizes().files, help="files of the folder")
    parser.add_argument("--rounds", type=int, default=Sizes().rounds, help="runs of each; the median counts")
    parser.add_argument("--quick", action="store_true", help="a twentieth of the documents, one round")
    parser.add_argument("--folder", type=Path, help="where the data is made, and kept for the next time")
    asked = parser.parse_args()
    sizes = Sizes(asked.documents, asked.files, asked.rounds)
    if asked.quick:
        sizes = Sizes(sizes.documents // 20, sizes.files // 20, 1)
    with tempfile.TemporaryDirectory(prefix="ferryman-bench-") as temporary:
        rows: list[Row] = []
        for name in asked.names or NAMES:
            say(f"{name} …")
            rows += importlib.import_module(f"bench.{name}").measure(sizes, asked.folder or Path(temporary))
    print_table(rows)
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
