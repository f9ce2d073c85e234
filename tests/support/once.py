"""An at-most-once plan in a folder, whose step writes down what it sees and does what it is told."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

from ferryman import account
from ferryman.destinations import Queue as ToQueue
from ferryman.document import Document
from ferryman.errors import PermanentError, TransientError, Unavailable
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.routers import Duplicate
from ferryman.sources import Queue
from ferryman.state.state import state_root
from tests.support.plan_world import run_plan


class Once:
    """Plan ``once``: queue ``in`` → a step that writes down what it sees → queues ``out`` (and ``other``)."""

    def __init__(self, folder: Path, *, errors: bool = False, fork: bool = False, **source: Any) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.into = DurableQueue("in", folder)
        self.plan = Plan("once", version=1, strategy="at-most-once")
        node: Any = self.plan.source("from_in", Queue("in", folder, **source)).step("see", self.see)
        if fork:
            node = node.route("both", Duplicate())
            node.destination("to_other", ToQueue("other", folder), backoff=0)
        node.destination("to_out", ToQueue("out", folder), backoff=0)
        if errors:
            self.plan.errors(ToQueue("errors", folder), backoff=0)
        self.root = state_root(self.plan, self.state)

    def __reduce__(self) -> Any:  # steps travel to workers
        return Witness, (self.folder,)

    def see(self, doc: Document) -> Document:
        return Witness(self.folder).see(doc)

    def fail(self, n: int, how: str) -> None:
        """The step does this with message ``n`` from now on: an error's name, or "kill"."""
        (self.folder / f"fate-{n}").write_text(how)

    def mend(self, n: int) -> None:
        (self.folder / f"fate-{n}").unlink()

    def run(self, **options: Any) -> Any:
        return run_plan(self.plan, self.state, **options)

    def put(self, *numbers: int) -> None:
        self.into.append([{"n": n} for n in numbers])

    def out(self, queue: str = "out") -> list[int]:
        return [m.body["n"] for m in DurableQueue(queue, self.folder).read(limit=100_000)]

    def errors(self) -> list[str]:
        found = DurableQueue("errors", self.folder).read(limit=100_000)
        return [message["id"] for m in found for message in m.body["messages"]]

    def seen(self) -> Counter[int]:
        path = self.folder / "seen"
        return Counter(map(int, path.read_text().split())) if path.exists() else Counter()

    def status(self) -> dict[str, Any]:
        return account.status(self.root, self.plan)

    def in_doubt(self) -> list[tuple[str, str]]:
        found = account.deliveries(self.root, plan=self.plan, status="in_doubt")
        return sorted((d["document"], d["destination"]) for d in found)


class Witness:
    """What a step is in a worker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def see(self, doc: Document) -> Document:
        n = doc["n"]
        with (self.folder / "seen").open("a") as file:
            file.write(f"{n}\n")
        fate = self.folder / f"fate-{n}"
        how = fate.read_text() if fate.exists() else ""
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how:
            errors = {"transient": TransientError, "permanent": PermanentError, "away": Unavailable, "bug": ValueError}
            raise errors[how](f"{n} is {how}")
        return doc
