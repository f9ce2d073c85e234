"""What was measured so far, in ``build/bench/results.json``: the newest of each benchmark, for the plots."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.harness import ROOT, Row, Sizes

FILE = ROOT / "build" / "bench" / "results.json"


def keep(name: str, rows: Sequence[Row], sizes: Sizes, file: Path = FILE) -> None:
    """Instead of what was there of this benchmark."""
    if not rows:
        return
    known = read(file)
    known[name] = {
        "when": dt.datetime.now(dt.UTC).isoformat(timespec="minutes"),
        "load": round(os.getloadavg()[2], 1),
        "sizes": sizes._asdict(),
        "rows": [{**row._asdict(), "figures": row.figures and row.figures._asdict()} for row in rows],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(known, indent=1))


def read(file: Path = FILE) -> dict[str, Any]:
    """By benchmark; empty where nothing was measured."""
    return json.loads(file.read_text()) if file.exists() else {}


def rows(file: Path = FILE) -> list[Row]:
    """All that were measured, as they were, without their figures."""
    return [Row(**{**row, "figures": None}) for found in read(file).values() for row in found["rows"]]


def figures(file: Path = FILE) -> list[dict[str, Any]]:
    """Of all rows that have some, in the order in which they were measured."""
    rows = (row for found in read(file).values() for row in found["rows"])
    return [row["figures"] for row in rows if row["figures"]]
