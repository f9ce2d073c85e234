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
from bench.harness import ROOT, say

PICTURES = ROOT / "docs" / "pictures"
ORDER = ("scan", "transform", "commit", "deliver", "settle", "rest")


def draw_all(arguments: Sequence[str]) -> int:
    """``python -m bench plots``: of all that is in the file of results."""
    parser = argparse.ArgumentParser(prog="python -m bench plots", description=__doc__)
    parser.add_argument("--results", type=Path, default=results.FILE)
    parser.add_argument("--folder", type=Path, default=PICTURES)
    asked = parser.parse_args(arguments)
    found = results.figures(asked.results)
    if not found:
        say(f"{asked.results}: nothing was measured yet")
        return 1
    data = {"speeds": speeds(found), "growth": growth(found), "phases": phases(found)}
    command = [environment.python(), ROOT / "bench" / "peers" / "draw.py", asked.folder]
    subprocess.run(command, input=json.dumps(data), text=True, check=True)
    return 0


def speeds(found: list[dict[str, Any]]) -> list[list[Any]]:
    """A line each: its name, how many times as fast as what is beside it, the lowest and the highest of all pairs."""
    return [[f["key"], f["speed"], f["low"], f["high"]] for f in found if not f["key"].startswith("growth")]


def growth(found: list[dict[str, Any]]) -> dict[str, list[list[Any]]]:
    """By kind of run: documents, documents a second, MB of the driver's Python, of a worker, of the JVM."""
    lines: dict[str, list[list[Any]]] = {}
    for f in found:
        if f["key"].startswith("growth"):
            peaks = [f["mb"].get(who, 0) for who in ("driver", "worker", "jvm")]
            lines.setdefault(f["key"].partition(": ")[2], []).append(
                [f["documents"], f["documents"] / f["seconds"], *peaks]
            )
    return lines


def phases(found: list[dict[str, Any]]) -> list[list[Any]]:
    """A line each: its name, seconds of each phase in this order; of those with more than one phase, each once."""
    lines = {}
    for f in found:
        if len(f["phases"]) > 2 and not f["key"].endswith("of both"):
            name = f"{f['key']}, {f['documents']}" if f["key"].startswith("growth") else f["key"]
            lines[name] = [name, [f["phases"].get(phase, 0.0) for phase in ORDER]]
    return list(lines.values())
