"""Draw the data that ``bench.plots`` sends on stdin into a folder. Needs matplotlib; imports nothing of Ferryman.

The background is transparent, and the text grey, readable on white and on black.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter, NullFormatter

GREY = "#808080"
BLUE, ORANGE, GREEN, RED, PURPLE = "#3b8bd0", "#e08a2c", "#3fa05a", "#d0514a", "#9a6fc4"
PHASES = {"scan": BLUE, "transform": ORANGE, "commit": RED, "deliver": GREEN, "settle": PURPLE, "start and end": GREY}

mpl.rcParams.update(
    {
        "figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none", "legend.frameon": False,
        "text.color": GREY, "axes.labelcolor": GREY, "axes.edgecolor": GREY, "xtick.color": GREY, "ytick.color": GREY,
        "axes.titlecolor": GREY, "font.size": 9, "axes.spines.top": False, "axes.spines.right": False,
        "svg.hashsalt": "ferryman", "svg.fonttype": "none", "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
    }
)  # fmt: skip


def save(figure: plt.Figure, path: Path) -> None:
    """Save a figure, with equal bytes for equal numbers."""
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)


def speeds(lines: list, path: Path) -> None:
    """Draw how many times as fast as the comparison each is; the line marks 1."""
    lines.reverse()  # the first one on top
    figure, axes = plt.subplots(figsize=(7.2, 0.32 * len(lines) + 0.9))
    for y, (_, speed, low, high) in enumerate(lines):
        color = BLUE if speed >= 1 else ORANGE
        axes.barh(y, speed - 1, left=1, color=color, height=0.6)
        axes.plot([low, high], [y, y], color=GREY, linewidth=1.5, solid_capstyle="butt")
        axes.annotate(f"{speed:.2f}×", (max(speed, high), y), (4, 0), textcoords="offset points", va="center")
    axes.axvline(1, color=GREY, linewidth=1)
    axes.set_xscale("log")
    axes.set_xlim(min(0.1, *(0.8 * line[2] for line in lines)), 1.6 * max(line[3] for line in lines))
    axes.set_yticks(range(len(lines)), [line[0] for line in lines])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}×"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("times as fast as what it is compared with (grey: spread of the pairs)")
    save(figure, path)


def number(value: float, _: object) -> str:
    """Format a number of an axis."""
    return f"{value / 1e6:g} M" if value >= 1e6 else f"{value:,.0f}".replace(",", " ")


def growth(kinds: dict, path: Path) -> None:
    """Draw documents a second, and memory."""
    figure, (speed, memory) = plt.subplots(1, 2, figsize=(7.2, 2.8))
    for (kind, points), color, mark in zip(kinds.items(), (BLUE, ORANGE), ("o", "s"), strict=False):
        points.sort()
        documents = [point[0] for point in points]
        speed.plot(documents, [point[1] for point in points], color=color, marker=mark, label=kind)
        for column, who, style in ((2, "driver", "-"), (3, "worker", "--"), (4, "JVM", ":")):
            memory.plot(
                documents, [point[column] for point in points], style, color=color, marker=mark, label=f"{who}, {kind}"
            )
    for axes, title in ((speed, "documents a second"), (memory, "peak memory, MB")):
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.set_title(title, fontsize=9, loc="left")
        axes.set_xlabel("documents")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(number))
    speed.legend(fontsize=8)
    memory.legend(fontsize=7, handlelength=3.5, loc="upper left", bbox_to_anchor=(1, 1))
    figure.tight_layout()
    save(figure, path)


def phases(lines: list, path: Path) -> None:
    """Draw the shares of the phases in each run's time."""
    lines.reverse()  # the first one on top
    figure, axes = plt.subplots(figsize=(7.2, 0.34 * len(lines) + 1.0))
    for y, (_, seconds) in enumerate(lines):
        left = 0.0
        for share, color in zip((s / sum(seconds) for s in seconds), PHASES.values(), strict=True):
            axes.barh(y, share, left=left, color=color, height=0.62)
            if share >= 0.07:
                axes.annotate(
                    f"{share:.0%}", (left + share / 2, y), ha="center", va="center", color="white", fontsize=8
                )
            left += share
        axes.annotate(f"{sum(seconds):.1f} s", (1.01, y), va="center")
    axes.set_yticks(range(len(lines)), [name for name, _ in lines])
    axes.set_xlim(0, 1)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    handles = [plt.Rectangle((0, 0), 1, 1, color=color) for color in PHASES.values()]
    axes.legend(handles, PHASES, ncols=len(PHASES), fontsize=8, loc="lower left", bbox_to_anchor=(0, 1))
    save(figure, path)


def main() -> None:
    folder, data = Path(sys.argv[1]), json.load(sys.stdin)
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in (("speeds", speeds), ("growth", growth), ("phases", phases)):
        if data[name]:
            draw(data[name], folder / f"bench-{name}.svg")
            sys.stderr.write(f"{folder / f'bench-{name}.svg'}\n")


if __name__ == "__main__":
    main()
