"""``status``, ``deliveries`` and ``history`` of a large ledger, as whole commands."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench import data, table_to_null
from bench.harness import ROOT, Row, Sizes, alternate, empty_folder, limit_row, spark
from ferryman import run

LIMIT_S = 2.0


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    rows = data.table(folder / f"rows-{sizes.documents}", sizes.documents)
    state = empty_folder(folder / "questions")
    run(table_to_null.plan(rows), state=state, spark=spark())
    file = folder / "plan.py"
    file.write_text(f"from pathlib import Path\nfrom bench.table_to_null import plan\np = plan(Path({str(rows)!r}))\n")
    for verb in (["status"], ["deliveries", "--limit", "50"], ["deliveries", "--status", "failed"], ["history"]):
        document = [f"doc-{sizes.documents // 2}"] if verb == ["history"] else []
        command = [verb[0], str(file), *document, *verb[1:], "--state", str(state), "--json"]

        def query(command: list[str] = command) -> None:
            subprocess.run([sys.executable, "-m", "ferryman.cli", *command], cwd=ROOT, check=True, capture_output=True)

        [took] = alternate(sizes.rounds, query)
        yield limit_row(f"`ferryman {' '.join(verb)}`, ledger of {sizes.documents} rows", took, LIMIT_S)
