"""A plan of any shape in one folder: sources in memory, a recorder at each destination; every run is checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ferryman import account
from ferryman.document import Document
from ferryman.engine.run import Summary
from ferryman.operations import Retried, retry
from ferryman.plan import Handle, Plan
from ferryman.sources import Memory
from ferryman.state.state import state_root
from tests.support.recorder import Recorder
from tests.support.trial import run_plan


class Network:
    """Build ``plan`` with ``source`` and ``out``; change ``documents`` between runs.

    Attributes:
        documents: source -> its list.
        outs: name -> recorder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.plan = Plan("network", version=1)
        self.documents: dict[str, list[Any]] = {}
        self.outs: dict[str, Recorder] = {}

    def source(self, name: str = "docs", **options: Any) -> Handle:
        self.documents[name] = []
        return self.plan.source(name, Memory(self.documents[name], **{"max_deleted": 1.0, **options}))

    def out(self, name: str) -> Recorder:
        """The recorder of this name: give it to destinations and tees."""
        return self.outs.setdefault(name, Recorder(self.folder / f"{name}.jsonl"))

    def counting(self, name: str) -> Callable[[Document], Document]:
        """A step that notes each call; see ``calls``."""
        path = self.folder / f"{name}.calls"

        def step(doc: Document) -> Document:
            with path.open("a") as file:
                file.write(f"{doc.id}\n")
            return doc

        return step

    def calls(self, name: str) -> Counter[str]:
        """Document -> how often this counting step was called for it."""
        path = self.folder / f"{name}.calls"
        return Counter(path.read_text().splitlines()) if path.exists() else Counter()

    def put(self, *ids: str, source: str = "docs", text: str = "one", **fields: Any) -> None:
        """Set these documents' content; unknown ones are added."""
        self.drop(*ids, source=source)
        self.documents[source] += [{"id": id, "raw": text.encode(), **fields} for id in ids]

    def drop(self, *ids: str, source: str = "docs") -> None:
        self.documents[source][:] = [d for d in self.documents[source] if d["id"] not in ids]

    def run(self, **options: Any) -> Summary:
        return run_plan(self.plan, self.state, **{"sleep": lambda _: None, "wait": 10_000.0, **options})

    @property
    def root(self) -> Path:
        return state_root(self.plan, self.state)

    def retry(self, **options: Any) -> Retried:
        return retry(self.plan, state=self.state, **options)

    def counts(self, name: str) -> dict[str, int]:
        """What ``status`` says of a destination, zeros left out."""
        return {k: n for k, n in account.status(self.root, self.plan)["destinations"][name].items() if n}

    def arrived(self, name: str) -> Counter[str]:
        """``id`` or ``id by route`` -> how often it was delivered; deletes with a minus before them."""
        found = (
            ("-" if line["op"] == "delete" else "") + line["id"] + (f" by {line['route']}" if line["route"] else "")
            for line in self.out(name).lines()
            if line["said"] == "ok"
        )
        return Counter(found)

    def events(self, document: str, destination: str) -> list[str]:
        """Statuses of a document at a destination, oldest first; ``-`` before those of its delete."""
        return [
            ("-" if e["operation"] == "delete" else "") + e["status"]
            for e in account.history(self.root, document, self.plan)
            if e["destination"] == destination and e["document"] == document
        ]
