"""Boxes, arrows and text as SVG, for the pictures of the docs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

FONT = "'Helvetica Neue', Arial, 'Liberation Sans', sans-serif"
MONO = "'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace"
INK, PALE = "#1f2933", "#52606d"


class Box(NamedTuple):
    """A rectangle; ``x`` and ``y`` are its upper left corner."""

    x: float
    y: float
    w: float
    h: float

    @property
    def right(self) -> float:
        return self.x + self.w

    @property
    def bottom(self) -> float:
        return self.y + self.h

    @property
    def mid_x(self) -> float:
        return self.x + self.w / 2

    @property
    def mid_y(self) -> float:
        return self.y + self.h / 2


class Picture:
    """Builds an SVG picture. Its background is white, so that it can be read in dark windows too."""

    def __init__(self, width: int, height: int, title: str, made_by: str) -> None:
        self.width, self.height = width, height
        size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="{FONT}">',
            f"<!-- Made by {made_by}: change that, then run `python -m scripts.docs`. -->",
            f"<title>{escape(title)}</title>",
            f'<rect width="{width}" height="{height}" rx="10" fill="#ffffff"/>',
        ]
        self._heads: dict[str, str] = {}

    def box(self, at: Box, fill: str, stroke: str = "none", *, radius: float = 8, width: float = 1.2) -> None:
        self._parts.append(
            f'<rect x="{at.x:g}" y="{at.y:g}" width="{at.w:g}" height="{at.h:g}" rx="{radius:g}" fill="{fill}" '
            f'stroke="{stroke}" stroke-width="{width:g}"/>'
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: float = 14,
        colour: str = INK,
        bold: bool = False,
        mono: bool = False,
        anchor: str = "start",
    ) -> None:
        style = ' font-weight="600"' if bold else ""
        style += f' font-family="{MONO}"' if mono else ""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{colour}" text-anchor="{anchor}"{style}>'
            f"{escape(words)}</text>"
        )

    def lines(self, x: float, y: float, lines: Sequence[str], *, leading: float = 18, **style: object) -> None:
        for i, words in enumerate(lines):
            self.text(x, y + i * leading, words, **style)  # type: ignore[arg-type]

    def line(
        self, x1: float, y1: float, x2: float, y2: float, colour: str, *, width: float = 1.2, dash: str = ""
    ) -> None:
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self._parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{colour}" '
            f'stroke-width="{width:g}"{dashes}/>'
        )

    def arrow(self, path: str, colour: str = PALE, *, width: float = 1.6, dash: str = "", both: bool = False) -> None:
        """Add an arrow along an SVG path, with its head at the end; ``both``: at the start too."""
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        start = f' marker-start="url(#{self._head(colour)})"' if both else ""
        self._parts.append(
            f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width:g}"{dashes}{start} '
            f'marker-end="url(#{self._head(colour)})"/>'
        )

    def to_svg(self) -> str:
        """Return the picture as SVG."""
        heads = "".join(
            f'<marker id="{name}" viewBox="0 0 10 10" refX="8.5" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0,0.8 L9,5 L0,9.2 Z" fill="{colour}"/></marker>'
            for colour, name in self._heads.items()
        )
        head, *rest = self._parts
        return "\n".join([head, f"<defs>{heads}</defs>", *rest, "</svg>\n"])

    def _head(self, colour: str) -> str:
        return self._heads.setdefault(colour, f"head{len(self._heads)}")


def rounded(points: Sequence[tuple[float, float]], radius: float = 8) -> str:
    """Return an SVG path through points with rounded corners; its segments are horizontal or vertical."""
    (x, y), *rest = points
    path = [f"M{x:g},{y:g}"]
    for i, (cx, cy) in enumerate(rest):
        if i == len(rest) - 1:
            path.append(f"L{cx:g},{cy:g}")
            break
        nx, ny = rest[i + 1]
        px, py = points[i]
        into = _towards(cx, cy, px, py, radius)
        out = _towards(cx, cy, nx, ny, radius)
        path.append(f"L{into} Q{cx:g},{cy:g} {out}")
    return " ".join(path)


def _towards(x: float, y: float, to_x: float, to_y: float, by: float) -> str:
    length = max(abs(to_x - x), abs(to_y - y)) or 1.0
    step = min(by, length / 2)
    return f"{x + (to_x - x) / length * step:g},{y + (to_y - y) / length * step:g}"
