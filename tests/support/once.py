"""An at-most-once plan in a folder, whose step writes down what it sees and does what it is told."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

from ferryman import limits
from ferryman.destinations import Queue as ToQueue
from ferryman.document import Document
from ferryman.errors import PermanentError, TransientError, Unavailable
from ferryman.plan import Plan
from ferryman.routers import Duplicate
from ferryman.sources import Queue
from tests.support.plan_world import PlanWorld


def build_once(
    world: PlanWorld,
    *,
    errors: bool = False,
    fork: bool = False,
    children: bool = False,
    checkpoint: int = 1,
    **source: Any,
) -> Plan:
    """Build plan ``once``: queue ``in`` → a step that writes down what it sees → queues ``out`` (and ``other``)."""
    folder = world.folder
    plan = Plan("once", version=1, strategy="at-most-once", checkpoint=checkpoint)
    node: Any = plan.source("from_in", Queue("in", folder, **source)).step("see", Witness(folder).see)
    if children:
        node = node.step("split", split)
    if fork:
        node = node.route("both", Duplicate())
        node.destination("to_other", ToQueue("other", folder), backoff=0)
    node.destination("to_out", ToQueue("out", folder), backoff=0)
    if errors:
        plan.errors(ToQueue("errors", folder), backoff=0)
    return plan


def split(doc: Document) -> Any:
    """Make many children of a message that is told to have some."""
    return (doc.child(str(n)) for n in range(limits.HELD_CHILDREN + 10)) if doc.fields.pop("children", False) else doc


class Once(PlanWorld):
    """An at-most-once plan; ``put`` appends numbers, with which the step does what it is told."""

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, build_once, field="n")
        self.build(**options)

    def fail(self, n: int, how: str) -> None:
        """The step does this with message ``n`` from now on: an error's name, or "kill"."""
        (self.folder / f"fate-{n}").write_text(how)

    def mend(self, n: int) -> None:
        (self.folder / f"fate-{n}").unlink()

    def errors(self) -> list[str]:
        return [message["id"] for body in self.bodies("errors") for message in body["messages"]]

    def seen(self) -> Counter[int]:
        path = self.folder / "seen"
        return Counter(map(int, path.read_text().split())) if path.exists() else Counter()

    def in_doubt(self) -> list[tuple[str, str]]:
        return sorted((d["document"], d["destination"]) for d in self.deliveries(status="in_doubt"))


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
        if how == "children":
            doc["children"] = True
            return doc
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how:
            errors = {"transient": TransientError, "permanent": PermanentError, "away": Unavailable, "bug": ValueError}
            raise errors[how](f"{n} is {how}")
        return doc
