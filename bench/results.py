"""The newest results of each benchmark, in ``build/bench/results.json``, for the plots."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.harness import ROOT, Row, Sizes

FILE = ROOT / "build" / "bench" / "results.json"


def save(name: str, rows: Sequence[Row], sizes: Sizes, file: Path = FILE) -> None:
    """Store the rows of a benchmark in place of its older ones."""
    if not rows:
        return
    stored = read(file)
    stored[name] = {
        "when": dt.datetime.now(dt.UTC).isoformat(timespec="minutes"),
        "load": round(os.getloadavg()[2], 1),
        "sizes": sizes._asdict(),
        "rows": [{**row._asdict(), "figures": row.figures and row.figures._asdict()} for row in rows],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(stored, indent=1))


def read(file: Path = FILE) -> dict[str, Any]:
    """Return benchmark -> its results; empty if nothing was measured."""
    return json.loads(file.read_text()) if file.exists() else {}


def rows(file: Path = FILE) -> list[Row]:
    """Return all stored rows, without their figures."""
    return [Row(**{**row, "figures": None}) for stored in read(file).values() for row in stored["rows"]]


def figures(file: Path = FILE) -> list[dict[str, Any]]:
    """Return the figures of all rows that have some, in the order in which they were measured."""
    rows = (row for stored in read(file).values() for row in stored["rows"])
    return [row["figures"] for row in rows if row["figures"]]
