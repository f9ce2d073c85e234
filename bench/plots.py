"""Pictures of the results: speeds beside other programs, growth with the number of documents, where the time goes.

Data is prepared here; ``bench/peers/draw.py`` draws it in the environment that has matplotlib.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import environment, results
from bench.harness import ROOT, print_progress

PICTURES = ROOT / "docs" / "pictures"
ORDER = ("scan", "transform", "commit", "deliver", "settle", "rest")


def draw_all(arguments: Sequence[str]) -> int:
    """Draw all results in the file; the command ``python -m bench plots``."""
    parser = argparse.ArgumentParser(prog="python -m bench plots", description=__doc__)
    parser.add_argument("--results", type=Path, default=results.FILE)
    parser.add_argument("--folder", type=Path, default=PICTURES)
    options = parser.parse_args(arguments)
    figures = results.figures(options.results)
    if not figures:
        print_progress(f"{options.results}: nothing was measured yet")
        return 1
    data = {"speeds": speeds(figures), "growth": growth(figures), "phases": phases(figures)}
    command = [environment.python(), ROOT / "bench" / "peers" / "draw.py", options.folder]
    subprocess.run(command, input=json.dumps(data), text=True, check=True)
    return 0


def speeds(figures: list[dict[str, Any]]) -> list[list[Any]]:
    """Return (name, times as fast as the comparison, lowest and highest of all pairs) of each row."""
    return [[f["key"], f["speed"], f["low"], f["high"]] for f in figures if not f["key"].startswith("growth")]


def growth(figures: list[dict[str, Any]]) -> dict[str, list[list[Any]]]:
    """Return kind of run -> (documents, documents a second, MB of the driver's Python, of a worker, of the JVM)."""
    lines: dict[str, list[list[Any]]] = {}
    for f in figures:
        if f["key"].startswith("growth"):
            peaks = [f["mb"].get(kind, 0) for kind in ("driver", "worker", "jvm")]
            lines.setdefault(f["key"].partition(": ")[2], []).append(
                [f["documents"], f["documents"] / f["seconds"], *peaks]
            )
    return lines


def phases(figures: list[dict[str, Any]]) -> list[list[Any]]:
    """Return (name, seconds by phase in ``ORDER``) of each row with more than two phases."""
    lines = {}
    for f in figures:
        if len(f["phases"]) > 2 and not f["key"].endswith("of both"):
            name = f"{f['key']}, {f['documents']}" if f["key"].startswith("growth") else f["key"]
            lines[name] = [name, [f["phases"].get(phase, 0.0) for phase in ORDER]]
    return list(lines.values())
