"""``status``, ``docs`` and ``history`` of a large ledger: whole processes, from the shell's point of view."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench import data, table_to_null
from bench.harness import ROOT, Row, Sizes, anew, in_turn, spark, within
from ferryman import run

LIMIT_S = 2.0


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    rows = data.table(folder / f"rows-{sizes.documents}", sizes.documents)
    state = anew(folder / "questions")
    run(table_to_null.plan(rows), state=state, spark=spark())
    file = folder / "plan.py"
    file.write_text(f"from pathlib import Path\nfrom bench.table_to_null import plan\np = plan(Path({str(rows)!r}))\n")
    for verb in (["status"], ["deliveries", "--limit", "50"], ["deliveries", "--status", "failed"], ["history"]):
        document = [f"doc-{sizes.documents // 2}"] if verb == ["history"] else []
        command = [verb[0], str(file), *document, *verb[1:], "--state", str(state), "--json"]

        def ask(command: list[str] = command) -> None:
            subprocess.run([sys.executable, "-m", "ferryman.cli", *command], cwd=ROOT, check=True, capture_output=True)

        [took] = in_turn(sizes.rounds, ask)
        yield within(f"`ferryman {' '.join(verb)}`, ledger of {sizes.documents} rows", took, LIMIT_S)
