"""Shapes whose steps make children: fewer, others, or more than are held at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ferryman.document import Document
from ferryman.plan import Plan
from ferryman.routers import ByField, Duplicate
from tests.crash.shapes.shape import (
    BATCH,
    Arrived,
    Corpus,
    Shelf,
    chapters,
    deletes,
    failing,
    source,
    upserts,
    words_of,
)

# -- children in two levels, whose next version has others, elsewhere --------------------------------------------------


FAMILY = [
    {"a": "AB cd", "b": "xy zz ZZZ", "c": "PQ r", "d": "same Game", "e": "e"},
    {"a": "ab EF", "b": "zz XYW", "d": "same Game", "e": "E", "f": "new OLD"},
]


def verses(doc: Document) -> Any:
    """A child for each letter of a child."""
    if doc.id == doc.origin_id:
        return doc
    letters = dict.fromkeys(doc.text())
    return [doc, *(doc.child(letter.lower(), raw=letter.encode()) for letter in letters)]


def half(doc: Document) -> Document:
    doc["half"] = "upper" if doc.text().isupper() else "lower"
    return doc


def members(corpus: Corpus) -> dict[str, str]:
    """Id -> text of all families: what ``chapters`` and ``verses`` make."""
    found = dict(corpus)
    for id, text in corpus.items():
        for word in text.split():
            found[f"{id}#{word.lower()}"] = word
            found |= {f"{id}#{word.lower()}#{letter.lower()}": letter for letter in word}
    return found


def build_family(root: Path, stage: int, guarantee: Callable[[int], str]) -> Plan:
    plan = Plan("family", version=1)
    made = source(plan, "docs", FAMILY[stage]).step("chapters", chapters).step("verses", verses)
    policy: dict[str, Any] = {"batch": BATCH, "backoff": 0}
    teed = made.step("half", half).tee("all", Shelf(root, "all"), guarantee=guarantee(2), **policy)
    fork = teed.route("by-half", ByField("half"))
    upper = fork.step("upper", failing(root, f"upper-{stage}", {"a#ef#f": 1, "b#xyw": 2}))
    upper.destination("above", Shelf(root, "above"), guarantee=guarantee(0), **policy)
    fork.destination("lower", Shelf(root, "lower", {"f#new#n": "first"}), guarantee=guarantee(1), **policy)
    return plan


def expected_family() -> dict[str, Arrived]:
    old = members(FAMILY[0])
    changed = {i: t for i, t in FAMILY[1].items() if FAMILY[0].get(i) != t}
    again, now = members(changed), members(FAMILY[1])
    is_in: dict[str, Callable[[str], bool]] = {
        "all": lambda _: True,
        "above": str.isupper,
        "lower": lambda text: not text.isupper(),
    }
    return {
        name: upserts(*({i: t for i, t in corpus.items() if taken(t)} for corpus in (old, again)))
        + deletes({i for i, t in old.items() if taken(t)} - {i for i, t in now.items() if taken(t)})
        for name, taken in is_in.items()
    }


# -- deletes of a new version that are held for its upserts ------------------------------------------------------------


EDITED = [
    {"a": "x y", "b": "p q", "c": "u v", "d": "s t"},
    {"a": "z y", "b": "r q", "c": "w v", "d": "s m"},
]
"""Each document loses a child and has another in its place. Nothing happens to that of ``d``."""

UNLUCKY = {"a#z": "first", "b#r": "refuse"}
"""Children that destinations refuse once, or for good."""


def build_held(root: Path, stage: int, guarantee: Callable[[int], str], *, fails: int = 1) -> Plan:
    """In stage 1 a step fails ``fails`` times for a child of ``c``; destinations refuse children of ``a`` and ``b``."""
    plan = Plan("held", version=1)
    made = source(plan, "docs", EDITED[min(stage, 1)]).step("chapters", chapters)
    made = made.step("often", failing(root, f"often-{stage}", {"c#w": fails} if stage == 1 else {}))
    all_ = made.route("all", Duplicate())
    for n, name in enumerate(("left", "middle", "right")):
        shelf = Shelf(root, name, UNLUCKY if stage == 1 else {})
        all_.destination(name, shelf, guarantee=guarantee(n), batch=BATCH, backoff=0)
    return plan


def expected_held(*refused: str) -> dict[str, Arrived]:
    """The delete of what was in the place of a refused child does not come."""
    old, new = words_of(EDITED[0]), words_of(EDITED[1])
    made = {id: text for id, text in new.items() if id not in refused}
    lost = {id for id in old.keys() - new.keys() if not {id[0]} & {each[0] for each in refused}}
    return {name: upserts(old, made, route=name) + deletes(lost, route=name) for name in ("left", "middle", "right")}


# -- a step that makes other children at each try ----------------------------------------------------------------------


TRIED = [{"forced": "f", "changed": "c"}, {"forced": "f", "changed": "cc", "late": "l"}]
FIRST_TRY = ("a", "b", "c")


def next_try(times: list[str]) -> tuple[str, ...]:
    """Keys of the children that the try with this number makes."""
    return ("b", *(f"d{n}" for n in times))


def split(root: Path, stage: int, doc: Document) -> Iterator[Document]:
    """The document and its children: which, and their texts, says the number of the try, counted over all processes."""
    calls = root / f"split-{stage}.{doc.id}.calls"
    with calls.open("ab") as file:
        file.write(b".")
    n = calls.stat().st_size
    if (stage, doc.id, n) == (1, "changed", 1):
        raise RuntimeError("not yet")
    yield doc
    first = stage == 0 or (doc.id, n) == ("late", 1)
    for key in FIRST_TRY if first else next_try([str(n)]):
        yield doc.child(key, raw=f"try {n}".encode())


def build_others(root: Path, stage: int, guarantee: Callable[[int], str]) -> Plan:
    """``forced`` is tried again for a person says so, ``changed`` for its first try failed where the children are made,
    ``late`` for it failed itself when its children were through."""
    plan = Plan("others", version=1)
    made = source(plan, "docs", TRIED[stage]).step("split", partial(split, root, stage))
    all_ = made.step("flaky", failing(root, f"flaky-{stage}", {"late": 1})).route("all", Duplicate())
    for n, name in enumerate(("left", "middle", "right")):
        shelf = Shelf(root, name, {"changed#b": "first"})
        all_.destination(name, shelf, guarantee=guarantee(n), batch=BATCH, backoff=0)
    return plan


def expected_others(ledger: list[dict[str, Any]]) -> dict[str, Arrived]:
    """By the tries that were committed. A retry of ``late`` alone lets go what else is made on the way to it, and takes
    back what is not."""
    members = {e["document"] for e in ledger if e["operation"] == "upsert"}

    def family(id: str, stage: int, n: int, keys: Iterable[str]) -> dict[str, str]:
        return {id: TRIED[stage][id], **{f"{id}#{key}": f"try {n}" for key in keys}}

    def at(route: str) -> Arrived:
        wanted = Arrived()
        for id in TRIED[1]:
            before = set(FIRST_TRY)
            if id in TRIED[0]:
                wanted += upserts(family(id, 0, 1, FIRST_TRY), route=route)
            elif f"{id}#a" in members:
                wanted += upserts(family(id, 1, 1, FIRST_TRY), route=route)
                wanted += deletes((f"{id}#{key}" for key in before - {"b"}), route=route)
                continue
            else:
                before = set()
            tries = sorted(int(m.partition("#d")[2]) for m in members if m.startswith(f"{id}#d"))
            assert tries, f"no later try of {id} was committed"
            assert len(tries) == 1 or id == "forced", f"{id} was committed again: {tries}"
            for n in tries:
                keys = next_try([str(n)])
                wanted += upserts(family(id, 1, n, keys), route=route)
                wanted += deletes((f"{id}#{key}" for key in before - {*keys}), route=route)
                before = set(keys)
        return wanted

    return {name: at(name) for name in ("left", "middle", "right")}


# -- a family of more children than are held at once -------------------------------------------------------------------


HELD = 5
"""Children that are held at once, in this shape."""
PAGES = [{"book": "12"}, {"book": "10"}]
IN_STREAM = "in-stream"
"""While this file is there, the process is killed in which a step is in the middle of making the children."""


def pages(root: Path, doc: Document) -> Iterator[Document]:
    """As many children as its text says; the document itself comes between them."""
    for n in range(int(doc.text())):
        if n == HELD + 2 and (root / IN_STREAM).exists():
            (root / IN_STREAM).unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        if n == 1:
            yield doc
        yield doc.child(n, raw=f"{n} of {doc.text()}".encode())


def build_streamed(root: Path, stage: int, guarantee: Callable[[int], str]) -> Plan:
    plan = Plan("streamed", version=1)
    made = source(plan, "docs", PAGES[stage]).step("pages", partial(pages, root)).route("all", Duplicate())
    for n, name in enumerate(("first", "second", "third")):
        shelf = Shelf(root, name, {"book#7": "first"})
        made.destination(name, shelf, guarantee=guarantee(n), batch=BATCH, backoff=0)
    return plan


def expected_streamed() -> dict[str, Arrived]:
    def family(stage: int) -> dict[str, str]:
        total = PAGES[stage]["book"]
        return {"book": total, **{f"book#{n}": f"{n} of {total}" for n in range(int(total))}}

    gone = family(0).keys() - family(1).keys()
    return {
        name: upserts(family(0), family(1), route=name) + deletes(gone, route=name)
        for name in ("first", "second", "third")
    }
