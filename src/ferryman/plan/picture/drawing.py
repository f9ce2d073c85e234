"""SVG picture of a plan: one file without scripts or embedded fonts, for light and dark windows.

The shape of a box shows the kind of node, its colour the effect of repeating it. The kind is also written in the box,
so nobody has to distinguish colours.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple
from xml.sax.saxutils import escape

from ferryman.plan.picture.layout import Arrow, GraphLayout, Polyline, Rect, Size, VerticalSegment, lay_out
from ferryman.plan.picture.textual import HIDDEN, MISSING, Box, Drawable, Edge, PlanView, Sketch, titled_sketch

MARGIN = 24.0
HEAD = 64.0
"""Pixels above the plan, for its name."""
NARROWEST = 120.0
PADDING = 16.0
NAME_PX, FACT_PX, TITLE_PX = 14.0, 11.5, 18.0
LINE_PX = 16.0
NAME_SIGNS, FACT_SIGNS, TITLE_SIGNS, TOOLTIP_SIGNS = 36, 40, 100, 4000
"""Characters of names and facts in a box, of the title, and of tooltips; longer ones lose their middle. What a box
lacks is in its tooltip."""

LIGHT = {
    "ground": ("#ffffff", "#d0d7de"), "words": ("#1f2328", "#59636e"), "edge": ("#6e7781", "#cf222e"),
    "source": ("#ddf4ff", "#0969da"), "router": ("#fbefff", "#8250df"), "safe": ("#f6f8fa", "#6e7781"),
    "idempotent": ("#dafbe1", "#1a7f37"), "potent": ("#fff1e5", "#bc4c00"), MISSING: ("#ffebe9", "#cf222e"),
}  # fmt: skip
"""Fill and stroke of boxes; strong and pale colour of words; colour of normal edges, and of those that close a
cycle."""
DARK = {
    "ground": ("#0d1117", "#30363d"), "words": ("#f0f6fc", "#9198a1"), "edge": ("#8b949e", "#ff7b72"),
    "source": ("#0c2d4d", "#4493f8"), "router": ("#2b1d4a", "#ab7df8"), "safe": ("#1c2128", "#8b949e"),
    "idempotent": ("#0f2d1a", "#3fb950"), "potent": ("#3a1e0a", "#f0883e"), MISSING: ("#3c1618", "#ff7b72"),
}  # fmt: skip

LEGEND = {
    ("source", "source"): "source",
    ("step", "safe"): "step: has no effect outside",
    ("step", "idempotent"): "step: repeating it changes nothing outside",
    ("step", "potent"): "step: each call counts (refused)",
    ("router", "router"): "router",
    ("join", "router"): "join: makes one document of one of each input",
    ("alts", "router"): "alts: whichever input has a document",
    ("tee", "safe"): "tee: does not say its effect (refused)",
    ("tee", "idempotent"): "tee: repeating it changes nothing",
    ("tee", "potent"): "tee: each call counts",
    ("destination", "safe"): "destination: does not say its effect (refused)",
    ("destination", "idempotent"): "destination: repeating it changes nothing",
    ("destination", "potent"): "destination: each call counts",
    (MISSING, MISSING): "followed, and not in the plan (refused)",
}
SAMPLE = Size(34.0, 18.0)
LEGEND_ROW_PX = 26.0


class BoxCounts(NamedTuple):
    """Counts drawn into a node's box: numbers of documents or deliveries, in words.

    Attributes:
        good: a line such as ``1 200 delivered``.
        bad: a highlighted line about what needs attention, such as ``3 failed``.
    """

    good: str = ""
    bad: str = ""


def svg(
    what: Drawable,
    counts: Mapping[str, BoxCounts] = MappingProxyType({}),
    subtitle: str = "",
    edge_counts: Mapping[tuple[str, str], str] = MappingProxyType({}),
) -> str:
    """Return the picture as text. Equal plans give equal bytes.

    Args:
        counts: by node, in a flow by ``plan/node``; written into its box.
        subtitle: below the name.
        edge_counts: by (start, end), named as in ``counts``; written on the edge.
    """
    sketch, title = titled_sketch(what)
    title = elide(title, TITLE_SIGNS)
    sketch = sketch._replace(edges=[_add_count(edge, sketch.boxes, edge_counts) for edge in sketch.edges])
    counted = [counts.get(box.name, BoxCounts()) for box in sketch.boxes]
    lines = [_lines(box) for box in sketch.boxes]
    all_rows = [[*rows, *filter(None, each)] for rows, each in zip(lines, counted, strict=True)]
    sizes = [_size(box, rows) for box, rows in zip(sketch.boxes, all_rows, strict=True)]
    place = lay_out(sizes, [Arrow(e.start, e.end, _label_size(e.label)) for e in sketch.edges])
    legend = list(
        _legend(sketch, place, "closes a cycle (refused)" if isinstance(what, PlanView) else "closes a cycle")
    )
    titles = [text_width(title, TITLE_PX, bold=True), text_width(subtitle, FACT_PX)]
    widest = max([*titles, *(w for _, w in legend)])
    width = max(place.width, widest) + 2 * MARGIN
    left = (width - place.width) / 2
    legend_top = HEAD + place.height + MARGIN
    placed = list(_in_rows(legend, width - 2 * MARGIN))
    height = legend_top + (max((row for _, _, row in placed), default=-1) + 1) * LEGEND_ROW_PX + MARGIN / 2
    parts = [
        _opening(width, height),
        f'<title id="ferryman-title">{_escape(title)}</title>',
        f'<desc id="ferryman-desc">{_escape(elide(_description(sketch), TOOLTIP_SIGNS))}</desc>',
        f"<style>{_style()}</style>",
        f"<defs>{_head('head', 'tip')}{_head('wrong-head', 'wrong-tip')}</defs>",
        f'<rect class="ground" x="0.5" y="0.5" width="{_px(width - 1)}" height="{_px(height - 1)}" rx="8"/>',
        _text(MARGIN, 38.0, title, "title"),
        *([_text(MARGIN, 56.0, subtitle, "fact left")] if subtitle else []),
        f'<g transform="translate({_px(left)} {_px(HEAD)})">',
        *_edges(sketch.edges, place),
        *(_node(*of_box) for of_box in zip(sketch.boxes, lines, place.boxes, counted, strict=True)),
        "</g>",
        f'<g class="legend" transform="translate({_px(MARGIN)} {_px(legend_top)})">',
        *(f'<g transform="translate({_px(x)} {_px(row * LEGEND_ROW_PX)})">{part}</g>' for part, x, row in placed),
        "</g>",
        "</svg>\n",
    ]
    return "\n".join(parts).encode("ascii", "xmlcharrefreplace").decode()  # no terminal's encoding can spoil it


def _add_count(edge: Edge, boxes: Sequence[Box], counts: Mapping[tuple[str, str], str]) -> Edge:
    """Return the edge with its count behind its label."""
    count = counts.get((boxes[edge.start].name, boxes[edge.end].name), "")
    return edge._replace(label=", ".join(filter(None, (edge.label, count))))


def _description(sketch: Sketch) -> str:
    """Describe the picture in a sentence, for readers who cannot see it."""
    counts = Counter(box.kind for box in sketch.boxes)
    kinds = ", ".join(f"{count} {kind}{'s' if count > 1 and kind != MISSING else ''}" for kind, count in counts.items())
    names = "; ".join(f"{sketch.boxes[e.start].name} to {sketch.boxes[e.end].name}" for e in sketch.edges)
    return f"{kinds or 'no nodes'}. {names or 'no edges'}."


# --- boxes --------------------------------------------------------------------------------------------------------


def _lines(box: Box) -> list[str]:
    """Return the lines below a box's name: the kind with the type, a target on its own line, then the rest."""
    type_name, *rest = box.facts
    rows = [elide(f"{box.kind} · {type_name}", FACT_SIGNS)]
    for fact in rest:
        joined = f"{rows[-1]}, {fact}"
        if len(rows) > 1 and len(joined) <= FACT_SIGNS and "://" not in rows[-1]:
            rows[-1] = joined
        else:
            rows.append(elide(fact, FACT_SIGNS))
    return rows


def _size(box: Box, rows: Sequence[str]) -> Size:
    name = text_width(elide(box.name, NAME_SIGNS), NAME_PX, bold=True)
    widest = max([name, *(text_width(row, FACT_PX) for row in rows)])
    side = PADDING + (8 if box.kind in ("router", "join", "alts") else 0)
    return Size(max(NARROWEST, round(widest + 2 * side)), 30.0 + LINE_PX * len(rows))


def _node(box: Box, rows: Sequence[str], at: Rect, counts: BoxCounts) -> str:
    words = [_text(at.middle, at.y + 20, elide(box.name, NAME_SIGNS), "name")]
    words += [_text(at.middle, at.y + 36 + LINE_PX * i, row, "fact") for i, row in enumerate(rows)]
    below = at.y + 36 + LINE_PX * len(rows)
    for look, row in zip(("count", "count bad"), counts, strict=True):
        if row:
            words.append(_text(at.middle, below, row, look))
            below += LINE_PX
    tooltip = elide(f"{box.name}: {box.kind}, {', '.join(box.facts)}", TOOLTIP_SIGNS)
    title = f"<title>{_escape(tooltip)}</title>"
    look = f"{box.look} trouble" if counts.bad else box.look
    return f'<g class="node {box.kind} {look}">{title}{_shape(box.kind, at)}{"".join(words)}</g>'


def _shape(kind: str, at: Rect) -> str:
    x, y, w, h = at
    place = f'x="{_px(x)}" y="{_px(y)}" width="{_px(w)}" height="{_px(h)}"'
    inner = f'x="{_px(x + 3)}" y="{_px(y + 3)}" width="{_px(w - 6)}" height="{_px(h - 6)}"'
    match kind:
        case "source":
            return f'<rect class="shape" {place} rx="{_px(min(h / 2, 22))}"/>'
        case "router" | "join" | "alts":
            cut = min(12.0, h / 3)
            corners = [
                (x + cut, y), (x + w - cut, y), (x + w, y + h / 2),
                (x + w - cut, y + h), (x + cut, y + h), (x, y + h / 2),
            ]  # fmt: skip
            return f'<polygon class="shape" points="{" ".join(f"{_px(a)},{_px(b)}" for a, b in corners)}"/>'
        case "tee":
            bar = f'<path class="bar" d="M{_px(x + 5)},{_px(y)} v{_px(h)} M{_px(x + w - 5)},{_px(y)} v{_px(h)}"/>'
            return f'<rect class="shape" {place} rx="2"/>{bar}'
        case "destination":
            return f'<rect class="shape" {place} rx="3"/><rect class="bar" {inner} rx="1"/>'
    return f'<rect class="shape" {place} rx="7"/>'


# --- edges --------------------------------------------------------------------------------------------------------


def _edges(edges: Sequence[Edge], place: GraphLayout) -> Iterator[str]:
    """Yield all lines, then all labels, so that no line covers a label."""
    for edge, line in zip(edges, place.polylines, strict=True):
        looks = ["edge", *(["one-of-several"] if edge.one_of_several else []), *(["wrong"] if line.is_reversed else [])]
        path = _path(line) if line.segments else _loop(place.boxes[edge.start])
        head = "wrong-head" if line.is_reversed else "head"
        yield f'<path class="{" ".join(looks)}" d="{path}" marker-end="url(#ferryman-{head})"/>'
    for edge, line in zip(edges, place.polylines, strict=True):
        if line.label:
            x, y, w, h = line.label
            yield f'<rect class="halo" x="{_px(x)}" y="{_px(y)}" width="{_px(w)}" height="{_px(h)}"/>'
            yield _text(line.label.middle, y + h - 5, elide(edge.label, FACT_SIGNS), "label")


def _path(line: Polyline) -> str:
    """Return the path of an edge: its vertical segments, joined by curves that begin and end vertically."""
    segments = (
        [VerticalSegment(s.x, s.bottom, s.top) for s in reversed(line.segments)] if line.is_reversed else line.segments
    )
    path = [f"M{_px(segments[0].x)},{_px(segments[0].top)}"]
    for before, segment in pairwise([VerticalSegment(segments[0].x, segments[0].top, segments[0].top), *segments]):
        middle = _px((before.bottom + segment.top) / 2)
        if abs(before.x - segment.x) >= 0.5:
            path.append(f"C{_px(before.x)},{middle} {_px(segment.x)},{middle} {_px(segment.x)},{_px(segment.top)}")
        # A line of no length has no direction, so the arrow's head would point anywhere.
        if _px(segment.bottom) != _px(segment.top) or abs(before.x - segment.x) < 0.5:
            path.append(f"V{_px(segment.bottom)}")
    return " ".join(path)


def _loop(box: Rect) -> str:
    x, y = box.x + box.width, box.y + box.height / 2
    return f"M{_px(x)},{_px(y - 9)} c22,-8 22,26 0,18"


def _label_size(label: str) -> Size | None:
    if not label:
        return None
    return Size(text_width(elide(label, FACT_SIGNS), FACT_PX) + 8, LINE_PX + 2)


# --- legend -------------------------------------------------------------------------------------------------------


def _legend(drawn: Sketch, place: GraphLayout, cycle: str) -> Iterator[tuple[str, float]]:
    """Yield (sample with its words, width) for each look that occurs in this picture."""
    there = {(box.kind, box.look) for box in drawn.boxes}
    for (kind, look), words in LEGEND.items():
        if (kind, look) in there:
            yield _sample(f'<g class="{kind} {look}">{_shape(kind, Rect(0, 0, *SAMPLE))}</g>', words)
    line = f'd="M0,{_px(SAMPLE.height / 2)} h{_px(SAMPLE.width)}" marker-end'
    if any(edge.one_of_several for edge in drawn.edges):
        yield _sample(f'<path class="edge one-of-several" {line}="url(#ferryman-head)"/>', "one of several ways")
    if any(polyline.is_reversed for polyline in place.polylines):
        yield _sample(f'<path class="edge wrong" {line}="url(#ferryman-wrong-head)"/>', cycle)


def _sample(shape: str, words: str) -> tuple[str, float]:
    text = _text(SAMPLE.width + 8, 13.0, words, "fact left")
    return f"{shape}{text}", SAMPLE.width + 8 + text_width(words, FACT_PX) + 20


def _in_rows(parts: Sequence[tuple[str, float]], width: float) -> Iterator[tuple[str, float, int]]:
    """Yield (part, x, row), with as many parts in a row as fit."""
    x, row = 0.0, 0
    for part, room in parts:
        if x and x + room > width:
            x, row = 0.0, row + 1
        yield part, x, row
        x += room


# --- SVG ----------------------------------------------------------------------------------------------------------


def _style() -> str:
    return (
        ".ferryman-plan{font-family:system-ui,'Segoe UI','Helvetica Neue',Arial,'Liberation Sans',sans-serif}"
        f".ferryman-plan text{{font-size:{FACT_PX:g}px;text-anchor:middle}}"
        f".ferryman-plan .name{{font-size:{NAME_PX:g}px;font-weight:600}}"
        f".ferryman-plan .title{{font-size:{TITLE_PX:g}px;font-weight:600;text-anchor:start}}"
        ".ferryman-plan .left{text-anchor:start}.ferryman-plan .count{font-weight:600}"
        ".ferryman-plan .shape{stroke-width:1.4}.ferryman-plan .bar{fill:none;stroke-width:1}"
        ".ferryman-plan .missing .shape{stroke-dasharray:4 3}"
        ".ferryman-plan .edge{fill:none;stroke-width:1.5}.ferryman-plan .one-of-several{stroke-dasharray:5 3}"
        f"{_colours(LIGHT)}@media (prefers-color-scheme:dark){{{_colours(DARK)}}}"
    )


def _colours(palette: dict[str, tuple[str, str]]) -> str:
    (ground, rim), (strong, pale), (edge, wrong) = palette["ground"], palette["words"], palette["edge"]
    rules = [
        f".ground{{fill:{ground};stroke:{rim}}}", f".halo{{fill:{ground}}}", f"text{{fill:{strong}}}",
        f"text.fact{{fill:{pale}}}", f"text.label{{fill:{pale}}}", f".edge{{stroke:{edge}}}", f".tip{{fill:{edge}}}",
        f".wrong{{stroke:{wrong}}}", f".wrong-tip{{fill:{wrong}}}",
        f"text.bad{{fill:{wrong}}}",
    ]  # fmt: skip
    for look in ("source", "router", "safe", "idempotent", "potent", MISSING):
        fill, stroke = palette[look]
        rules += [f".{look} .shape{{fill:{fill};stroke:{stroke}}}", f".{look} .bar{{stroke:{stroke}}}"]
    rules.append(f".trouble .shape{{stroke:{wrong};stroke-width:2.6}}")
    return "".join(f".ferryman-plan {rule}" for rule in rules)


def _opening(width: float, height: float) -> str:
    w, h = _px(width), _px(height)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="ferryman-plan" width="{w}" height="{h}" '
        f'viewBox="0 0 {w} {h}" role="img" aria-labelledby="ferryman-title ferryman-desc">'
    )


def _head(name: str, look: str) -> str:
    return (
        f'<marker id="ferryman-{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        f'orient="auto"><path class="{look}" d="M0,1 L9,5 L0,9 Z"/></marker>'
    )


def _text(x: float, y: float, words: str, look: str) -> str:
    return f'<text class="{look}" x="{_px(x)}" y="{_px(y)}">{_escape(words)}</text>'


def _escape(words: str) -> str:
    return escape(replace_unprintable(words))


def _px(number: float) -> str:
    """Format a length with one decimal: precise enough, and the same on every machine."""
    return f"{round(number, 1):g}" if abs(number) < 1e5 else f"{number:.0f}"


# Width of text, estimated without a font, because the font that will show it is not known here.

NARROW, WIDE = frozenset("iljtfrI.,:;'|!()[]/ "), frozenset("mwMWQOGD@%—…")
EMS_NARROW, EMS_WIDE, EMS_ELSE, EMS_EAST_ASIAN = 0.36, 0.92, 0.6, 1.05
"""Widths of characters as fractions of the font size; a little more than those of usual sans-serif fonts."""


def text_width(words: str, px: float, *, bold: bool = False) -> float:
    """Estimate the width of a text in pixels: at least that of usual fonts of this size."""
    return sum(map(_width_in_ems, words)) * px * (1.1 if bold else 1.0)


def elide(words: str, limit: int) -> str:
    """Shorten a text to ``limit`` characters by leaving out its middle: the ends of names and paths tell more."""
    if len(words) <= limit:
        return words
    head = (limit - 1) // 2
    return f"{words[:head]}…{words[len(words) - (limit - 1 - head) :]}"


def replace_unprintable(words: str) -> str:
    """Replace what XML cannot hold (control characters, halves of surrogate pairs), and hidden characters, by the
    replacement sign."""
    return re.sub(rf"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\x7f-\x9f{HIDDEN}]", "\ufffd", words)


def _width_in_ems(sign: str) -> float:
    if sign in NARROW:
        return EMS_NARROW
    if sign in WIDE:
        return EMS_WIDE
    return EMS_EAST_ASIAN if unicodedata.east_asian_width(sign) in "WF" else EMS_ELSE
