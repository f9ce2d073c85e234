"""Pictures of plans: every node and edge is there, nothing overlaps, and no plan is too wrong to be drawn."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferryman import Plan
from ferryman.destinations import Queue as ToQueue
from ferryman.destinations import Sql
from ferryman.plan import picture
from ferryman.plan.picture import drawing
from ferryman.plan.picture.layout import (
    LOOP_WIDTH,
    Arrow,
    GraphLayout,
    Link,
    Polyline,
    Rect,
    Size,
    assign_layers,
    lay_out,
)
from ferryman.plan.picture.textual import title_of
from ferryman.routers import ByField, Duplicate, RoundRobin
from ferryman.sources import Memory, Queue
from tests.plan.plans import Index, Mail, any_plans, good_plans, same
from tests.support.processes import printed_always

SVG = "{http://www.w3.org/2000/svg}"


def plays() -> Plan:
    """A tee, a router with a default, a join, copies."""
    plan = Plan("plays", version=1)
    text = plan.source("files", Memory([])).step("text", same).tee("notify", Mail("mail://here"))
    kind = text.route("by-kind", ByField("kind", {"com": "comedy", "trag": "tragedy"}, default="tragedy"))
    join = plan.step("join", same, after=[kind.step("comedy", same), kind.step("tragedy", same)])
    copies = join.route("copies", Duplicate())
    copies.destination("index", Index("index://here"))
    copies.destination("other", Index())
    return plan


def parsed(plan: Plan) -> ElementTree.Element:
    return ElementTree.fromstring(picture.svg(plan).encode())


def having(root: ElementTree.Element, look: str) -> list[ElementTree.Element]:
    """Elements of a class, outside the legend."""
    legend = {id(e) for e in root.findall(f"{SVG}g[@class='legend']//*")}
    return [e for e in root.iter() if look in e.get("class", "").split() and id(e) not in legend]


# --- text ---------------------------------------------------------------------------------------------------------


@pytest.mark.rule("plan.pictures")
def test_a_tree_of_taps_branches_joins_and_copies() -> None:
    """A tee stands in its path, a branch says when it is taken, a join is drawn where its first path meets it."""
    assert picture.text(plays()).splitlines()[2:] == [
        "files                       source       Memory",
        "└─ text                     step         same",
        "   └─ notify                tee          Mail, mail://here, potent, at-most-once, 3 attempts",
        "      └─ by-kind            router       ByField, one branch",
        "         ├─ comedy          step         same; branch: kind = com | comedy",
        "         │  └─ join         step         same",
        "         │     └─ copies    router       Duplicate, a copy down each branch",
        "         │        ├─ index  destination  Index, index://here, at-least-once, 3 attempts",
        "         │        └─ other  destination  Index, at-least-once, 3 attempts",
        "         └─ tragedy         step         same; branch: kind = trag, or else",
        "            └─ join         (above)",
    ]


def test_a_tree_names_what_is_not_there() -> None:
    """Also where the node is reached from a source."""
    plan = Plan("p")
    plan.step("b", same, after=[plan.source("a", Memory([])), "nowhere"])

    assert picture.text(plan).splitlines()[-1] == "└─ b  step    same; after nowhere, which is not in the plan"


def test_a_very_long_path() -> None:
    """Longer than Python's stack is deep."""
    plan = Plan("p")
    at = plan.source("s", Memory([]))
    for n in range(1200):
        at = at.step(f"n{n}", same)
    at.destination("d", Index())

    assert len(picture.text(plan).splitlines()) == 1204
    assert picture.mermaid(plan).count("-->") == 1201


# --- Mermaid ------------------------------------------------------------------------------------------------------


@pytest.mark.rule("plan.pictures")
def test_a_flowchart_has_a_line_a_node_and_a_line_an_edge() -> None:
    """Shapes by kind, classes by effect, dashed edges where one of several is taken, labels where there are any."""
    assert picture.mermaid(plays()).splitlines()[:20] == [
        "flowchart TD",
        "    %% plan plays, version 1",
        '    n0(["files<br/>source: Memory"]):::source',
        '    n1["text<br/>step: same"]:::safe',
        '    n2[/"notify<br/>tee: Mail<br/>mail://here<br/>potent<br/>at-most-once<br/>3 attempts"/]:::potent',
        '    n3{{"by-kind<br/>router: ByField<br/>one branch"}}:::router',
        '    n4["comedy<br/>step: same"]:::safe',
        '    n5["tragedy<br/>step: same"]:::safe',
        '    n6["join<br/>step: same"]:::safe',
        '    n7{{"copies<br/>router: Duplicate<br/>a copy down each branch"}}:::router',
        '    n8[("index<br/>destination: Index<br/>index://here<br/>at-least-once<br/>3 attempts")]:::idempotent',
        '    n9[("other<br/>destination: Index<br/>at-least-once<br/>3 attempts")]:::idempotent',
        "    n0 --> n1",
        "    n1 --> n2",
        "    n2 --> n3",
        '    n3 -.->|"kind = com #124; comedy"| n4',
        '    n3 -.->|"kind = trag, or else"| n5',
        "    n4 --> n6",
        "    n5 --> n6",
        "    n6 --> n7",
    ]


@given(any_plans())
def test_a_flowchart_of_any_plan(plan: Plan) -> None:
    """Each line is of one of four forms: no name, however strange, breaks out of its label."""
    missing = {a for n in plan.nodes for a in n.after} - {n.name for n in plan.nodes}
    head, _, *lines = picture.mermaid(plan).split("\n")
    label = r'"[^"`\n]*"'
    nodes = [x for x in lines if re.fullmatch(rf" {{4}}n\d+[(\[{{/>]+{label}[)\]}}/]+:::\w+", x)]
    edges = [x for x in lines if re.fullmatch(rf" {{4}}n\d+ -\.?->(\|{label}\|)? n\d+|    n\d+ --> n\d+", x)]
    classes = [x for x in lines if re.fullmatch(r" {4}classDef \w+ [\w:#, -]+", x)]

    assert head == "flowchart TD"
    assert len(nodes) == len(plan.nodes) + len(missing)
    assert len(edges) == sum(len(n.after) for n in plan.nodes)
    assert len(nodes) + len(edges) + len(classes) == len(lines)


# --- SVG ----------------------------------------------------------------------------------------------------------


def test_a_picture_says_what_it_is() -> None:
    """To those who do not see it, too."""
    root = parsed(plays())

    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title") == "plan plays, version 1"
    told = root.findtext(f"{SVG}desc") or ""
    assert told.startswith("1 source, 4 steps, 1 tee, 2 routers, 2 destinations. files to text; ")
    [notify] = [n for n in having(root, "node") if n.findtext(f"{SVG}title", "").startswith("notify:")]
    assert notify.findtext(f"{SVG}title") == "notify: tee, Mail, mail://here, potent, at-most-once, 3 attempts"
    assert [t.text for t in notify.iter(f"{SVG}text")] == [
        "notify", "tee · Mail", "mail://here", "potent, at-most-once, 3 attempts",
    ]  # fmt: skip


def test_a_picture_is_one_file() -> None:
    """No scripts, no fonts, nothing from elsewhere; colours for light and dark windows."""
    drawn = picture.svg(plays())
    root = ElementTree.fromstring(drawn)

    assert not {e.tag.removeprefix(SVG) for e in root.iter()} & {"script", "image", "foreignObject", "use"}
    assert not re.search(r"@import|@font-face|href", drawn)
    assert set(re.findall(r"url\((.*?)\)", drawn)) <= {"#ferryman-head", "#ferryman-wrong-head"}
    assert "@media (prefers-color-scheme:dark)" in drawn
    assert drawn.isascii()


def test_the_legend_has_what_is_there_and_nothing_else() -> None:
    """Each kind in each of its colours, and the dashes."""
    [legend] = [e for e in parsed(plays()).iter() if e.get("class") == "legend"]

    assert [t.text for t in legend.iter(f"{SVG}text")] == [
        "source",
        "step: has no effect outside",
        "router",
        "tee: each call counts",
        "destination: repeating it changes nothing",
        "one of several ways",
    ]


def test_no_secrets() -> None:
    """Passwords of URLs are in no picture; a target that cannot be told does not stop the drawing."""
    plan = Plan("p")
    fork = plan.source("a", Memory([])).route("fork", Duplicate())
    fork.destination("b", Sql("sqlite://me:secret@/x.db"))
    fork.destination("c", Index())
    broken: Any = plan.nodes[-1]
    broken.destination.target = lambda: 1 / 0

    for draw in (picture.text, picture.mermaid, picture.svg, picture.as_json):
        assert "secret" not in str(draw(plan))


def test_the_same_plan_gives_the_same_bytes_in_every_process() -> None:
    """A committed picture can be compared."""
    program = "from tests.plan.test_pictures import picture, plays; print(ascii(picture.svg(plays())))"
    assert printed_always(program) == ascii(picture.svg(plays())) + "\n"


@pytest.mark.rule("plan.pictures")
@given(any_plans())
@settings(deadline=None)
def test_a_picture_of_any_plan(plan: Plan) -> None:
    """It is XML; each node is a box, each name that is not there too; each name that is followed is an edge."""
    root = parsed(plan)
    missing = {a for n in plan.nodes for a in n.after} - {n.name for n in plan.nodes}
    wanted = Counter(drawing.replace_unprintable(name) for name in [*(n.name for n in plan.nodes), *missing])
    boxes = having(root, "node")
    titles = Counter(box.findtext(f"{SVG}title", "").rpartition(": ")[0] for box in boxes)

    assert sum(titles.values()) == sum(wanted.values())
    assert Counter(re.sub(r"\r\n?", "\n", n) for n in wanted.elements()) == titles
    assert len(having(root, "edge")) == sum(len(n.after) for n in plan.nodes)
    assert len([b for b in boxes if "missing" in b.get("class", "").split()]) == len(missing)
    assert not overlapping([rect(box) for box in boxes])


@given(any_plans())
def test_text_and_json_of_any_plan(plan: Plan) -> None:
    """They never fail, and hold every node."""
    told = picture.text(plan)
    data = json.loads(json.dumps(picture.as_json(plan)))

    assert all(node.name in told for node in plan.nodes)
    assert [n["name"] for n in data["nodes"]] == [n.name for n in plan.nodes]


@given(good_plans())
@settings(deadline=None)
def test_a_plan_in_order_has_no_red(plan: Plan) -> None:
    """Red is for what is refused; a node stands below all that it follows."""
    root = parsed(plan)
    tops = {box.findtext(f"{SVG}title", "").partition(":")[0]: rect(box) for box in having(root, "node")}

    assert not having(root, "wrong")
    assert not having(root, "missing")
    for node in plan.nodes:
        for before in node.after:
            assert tops[before].y + tops[before].height < tops[node.name].y


def rect(box: ElementTree.Element) -> Rect:
    """Where a box stands, by its shape."""
    [shape] = [e for e in box if e.get("class") == "shape"]
    if points := shape.get("points"):
        x, y = zip(*(map(float, p.split(",")) for p in points.split()), strict=True)
        return Rect(min(x), min(y), max(x) - min(x), max(y) - min(y))
    return Rect(*(float(shape.get(name, "")) for name in ("x", "y", "width", "height")))


def overlapping(boxes: list[Rect]) -> list[tuple[Rect, Rect]]:
    return [
        (a, b)
        for i, a in enumerate(boxes)
        for b in boxes[:i]
        if a.x < b.x + b.width and b.x < a.x + a.width and a.y < b.y + b.height and b.y < a.y + a.height
    ]


# --- layout -------------------------------------------------------------------------------------------------------


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Size], list[Arrow]]:
    count = draw(st.integers(0, 14))
    sizes = [Size(draw(st.integers(40, 300)), draw(st.integers(20, 100))) for _ in range(count)]
    label = st.one_of(st.none(), st.builds(Size, st.integers(10, 200), st.just(18)))
    ends = st.integers(0, max(0, count - 1))
    return sizes, draw(st.lists(st.builds(Arrow, ends, ends, label), max_size=24)) if count else []


def points(way: Polyline) -> list[tuple[float, float]]:
    """The edge as many points: straight at each stop, bent between them, as it is drawn."""
    found = []
    for stop in way.segments:
        found += [(stop.x, stop.top + (stop.bottom - stop.top) * t / 8) for t in range(9)]
    for a, b in pairwise(way.segments):
        for t in (n / 16 for n in range(17)):
            middle = (a.bottom + b.top) / 2
            weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3)
            x = sum(w * v for w, v in zip(weights, (a.x, a.x, b.x, b.x), strict=True))
            y = sum(w * v for w, v in zip(weights, (a.bottom, middle, middle, b.top), strict=True))
            found.append((x, y))
    return found


def holds(box: Rect, x: float, y: float) -> bool:
    return box.x + 0.01 < x < box.x + box.width - 0.01 and box.y + 0.01 < y < box.y + box.height - 0.01


def touching(place: GraphLayout) -> list[tuple[Rect, Polyline]]:
    return [
        (box, way) for way in place.polylines for box in place.boxes if any(holds(box, x, y) for x, y in points(way))
    ]


@given(graphs())
@settings(deadline=None)
def test_nothing_is_in_the_way(graph: tuple[list[Size], list[Arrow]]) -> None:
    """Of any graph: boxes and labels do not overlap, no edge runs through a box, all is on the sheet."""
    place = lay_out(*graph)
    labels = [way.label for way in place.polylines if way.label]

    assert not overlapping([*place.boxes, *labels])
    assert not touching(place)
    assert len(place.polylines) == len(graph[1])
    for x, y, width, height in [*place.boxes, *labels]:
        assert -0.01 <= x <= x + width <= place.width + 0.01
        assert -0.01 <= y <= y + height <= place.height + 0.01
    for arrow, way in zip(graph[1], place.polylines, strict=True):
        ends = [place.boxes[arrow.start], place.boxes[arrow.end]]
        if way.segments:
            upper, lower = ends[::-1] if way.is_reversed else ends
            assert way.segments[0].top == pytest.approx(upper.y + upper.height)
            assert way.segments[-1].bottom == pytest.approx(lower.y)
            assert (way.label is None) == (arrow.label is None)
        else:
            assert arrow.start == arrow.end


def test_loops_have_room() -> None:
    """An edge from a box to itself stands at its right, and its neighbour makes way."""
    place = lay_out([Size(100, 50)] * 2, [Arrow(0, 0)])

    assert place.boxes[1].x - place.boxes[0].x - 100 >= LOOP_WIDTH


def test_edges_that_need_not_cross_do_not() -> None:
    """A ladder whose right and left sides were made in turn is untangled."""
    links = [Link(0, 3), Link(1, 2), Link(2, 5), Link(3, 4), Link(4, 6), Link(5, 7)]
    rows = assign_layers(8, links).rows

    sides = [[{0: 0, 3: 0, 4: 0, 6: 0}.get(box, 1) for box in row] for row in rows]
    assert sides == [sides[0]] * 4


def test_a_path_is_a_straight_line() -> None:
    """Boxes of a path that nothing else touches stand below each other, whatever their widths."""
    place = lay_out([Size(60, 30), Size(200, 30), Size(100, 30)], [Arrow(0, 1), Arrow(1, 2)])

    assert {round(box.middle, 3) for box in place.boxes} == {100.0}


@pytest.mark.timeout(30)
def test_a_large_plan_is_drawn_in_seconds() -> None:
    """300 nodes, of which some have long edges."""
    links = [Arrow(n // 3, n) for n in range(1, 300)] + [Arrow(n, n + 100) for n in range(0, 200, 7)]
    place = lay_out([Size(120, 50)] * 300, links)

    assert not overlapping(place.boxes)


@pytest.mark.parametrize(
    ("mapping", "default", "labels"),
    [
        ({}, None, ["kind = a", "kind = b"]),
        ({}, "b", ["kind = a", "else"]),
        ({"x": "a", 1: "a", "y": "b"}, None, ["kind = x | 1 | a", "kind = y | b"]),
        ({"x": "a"}, "a", ["kind = x, or else", "kind = b"]),
    ],
    ids=["names", "default", "mapping", "both"],
)
def test_labels_of_branches(mapping: dict[Any, str], default: str | None, labels: list[str]) -> None:
    """They say when a document takes the branch; other routers say nothing."""
    router = ByField("kind", mapping, default)

    assert [router.label("a"), router.label("b")] == labels
    assert RoundRobin().label("a") == Duplicate().label("a") == ""


def test_long_words_are_shortened_in_the_middle() -> None:
    """The ends tell more; the length is kept."""
    assert drawing.elide("sqlite:////data/index.db#documents", 20) == "sqlite://…#documents"
    assert drawing.elide("short", 5) == "short"


def test_the_title_names_the_strategy(tmp_path: Path) -> None:
    plan = Plan("bills", version=2, strategy="at-most-once")
    plan.source("orders", Queue("orders", tmp_path)).destination("out", ToQueue("out", tmp_path))
    assert title_of(plan) == "plan bills, version 2, at-most-once"
