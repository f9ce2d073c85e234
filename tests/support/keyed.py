"""Plans that keep state by key, for tests; and their states, read from the tables' files by who knows Delta alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ferryman import Document
from ferryman.destinations import Queue as IntoQueue
from ferryman.errors import Dropped, TransientError
from ferryman.plan import Plan
from ferryman.sources import Queue
from tests.support.plan_world import PlanWorld


def count(key: str, state: int | None, documents: list[Document]) -> tuple[int, Document]:
    """How many documents a key has had; exports what it was and what it is."""
    old, new = state or 0, (state or 0) + len(documents)
    return new, Document(key, key=key, old=old, new=new)


class Counted:
    """``count``; notes each call in a file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __call__(self, key: str, state: int | None, documents: list[Document]) -> tuple[int, Document]:
        with open(self.path, "a") as file:
            file.write(f"{key}\n")
        return count(key, state, documents)


class Hurdle:
    """A step that fails for one key until it is mended."""

    def __init__(self, folder: Path, key: str) -> None:
        self.mended, self.key = str(folder / "mended"), key

    def __call__(self, doc: Document) -> Document:
        if doc["key"] == self.key and not Path(self.mended).exists():
            raise TransientError("not yet")
        return doc


def count_words(folder: Path, update: Callable[..., Any] = count, **options: Any) -> PlanWorld:
    """Create plan ``words``: queue ``in`` → keyed node ``counts``, by ``word`` → queue ``out``."""

    def build(world: PlanWorld) -> Plan:
        plan = Plan("words", version=1)
        node = plan.source("from_in", Queue("in", folder, on_error=options.get("on_error", "stop")))
        node = node.keyed("counts", update, **{"key": "word", **options_of_node})
        node.destination("to_out", IntoQueue("out", folder))
        return plan

    options_of_node = {name: value for name, value in options.items() if name != "on_error"}
    return PlanWorld(folder, build, field="word").build()


class Sums(PlanWorld):
    """A world whose documents have a ``key`` and a number ``n``, which a keyed node sums by key.

    Attributes:
        contents: id -> the document's fields; they are listed before each run.
    """

    def __init__(self, folder: Path, build: Callable[..., Plan]) -> None:
        super().__init__(folder, build)
        self.contents: dict[str, dict[str, Any]] = {}

    def prepare(self) -> None:
        self.documents[:] = [{"id": id, **fields} for id, fields in self.contents.items()]

    def recount(self, step: Callable[[Document], Document] = lambda doc: doc) -> dict[str, int]:
        """Sum what a step makes of the documents, without the engine."""
        found: Counter[str] = Counter()
        for id, fields in self.contents.items():
            try:
                doc = step(Document.of(id, dict(fields)))
            except Dropped:
                continue
            found[doc["key"]] += doc["n"]
        return {key: n for key, n in found.items() if n}
