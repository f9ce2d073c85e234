"""A plan as a Mermaid flowchart, which GitHub, GitLab and many editors draw."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ferryman.plan.picture.joined import Drawable, drawn
from ferryman.plan.picture.sketch import MISSING, Box

SHAPES = {  # what stands left and right of a label
    "source": ("([", "])"),
    "step": ("[", "]"),
    "router": ("{{", "}}"),
    "join": ("{{", "}}"),
    "alts": ("{{", "}}"),
    "tee": ("[/", "/]"),
    "destination": ("[(", ")]"),
    MISSING: (">", "]"),
}

LOOKS = {  # fill and text are both given, so that dark windows cannot pair one with their own
    "source": "fill:#dbeafe,stroke:#1d4ed8,color:#172554",
    "router": "fill:#ede9fe,stroke:#6d28d9,color:#2e1065",
    "safe": "fill:#f1f5f9,stroke:#475569,color:#0f172a",
    "idempotent": "fill:#dcfce7,stroke:#15803d,color:#052e16",
    "potent": "fill:#ffedd5,stroke:#c2410c,color:#431407",
    MISSING: "fill:#fee2e2,stroke:#b91c1c,color:#450a0a,stroke-dasharray:4 3",
}


def mermaid(what: Drawable) -> str:
    """The flowchart's text, for a block that begins with three backticks and ``mermaid``.

    Dashed edges leave routers that choose: a document takes one of them.
    """
    return "\n".join(_lines(what))


def _lines(what: Drawable) -> Iterator[str]:
    (boxes, edges), title = drawn(what)
    yield "flowchart TD"
    yield f"    %% {_escaped(title)}"
    for number, box in enumerate(boxes):
        left, right = SHAPES[box.kind]
        yield f'    n{number}{left}"{_label(box)}"{right}:::{box.look}'
    for edge in edges:
        arrow = "-.->" if edge.one_of_several else "-->"
        label = f'|"{_escaped(edge.label)}"|' if edge.label else ""
        yield f"    n{edge.start} {arrow}{label} n{edge.end}"
    for look in dict.fromkeys(box.look for box in boxes):
        yield f"    classDef {look} {LOOKS[look]}"


def _label(box: Box) -> str:
    type_name, *rest = box.facts
    lines = [_escaped(box.name), f"{box.kind}: {_escaped(type_name)}", *map(_escaped, rest)]
    return "<br/>".join(lines)


def _escaped(text: str) -> str:
    """Letters, digits and harmless signs as they are, all else as Mermaid's entities (``#34;``)."""
    return re.sub(r"[^\w .,=:/-]|[^\S ]|^-|^\d(?=\d*[.])", lambda found: f"#{_code(found[0])};", text)


def _code(character: str) -> int:
    """Of control characters and halves of surrogate pairs, which no page may hold, that of the replacement sign."""
    code = ord(character)
    return 0xFFFD if code < 32 or 0x7F <= code < 0xA0 or 0xD800 <= code < 0xE000 else code
