"""An endless run in a process of its own, over a folder that changes before each scan. Tests kill it, again and again.

``python -m tests.state.soak FOLDER SEED WAVES`` goes on until the state has so many waves. Before a scan some files are
written, some removed; now and then the destination, or the service of the step, goes away or comes back. What has the
number 17 or 13 among its factors fails for good, at the destination or in the step.
"""

from __future__ import annotations

import random
import resource
import sys
from pathlib import Path

from ferryman.destinations.base import Delivery, Outcome
from ferryman.document import Document
from ferryman.engine.run import Run
from ferryman.engine.settings import RunSettings
from ferryman.errors import PermanentError
from ferryman.observe import Silent
from ferryman.plan import Plan
from ferryman.sources import Files
from ferryman.state.state import State, state_root
from ferryman.testing.inprocess import InProcess
from tests.support.recorder import Recorder

FILES = 40
REFUSED, BROKEN = 17, 13


class Soak:
    """The plan and its folder."""

    def __init__(self, folder: Path) -> None:
        self.corpus = folder / "corpus"
        self.state = folder / "state"
        self.out = Recorder(folder / "out.jsonl")
        self.memory = folder / "memory.txt"
        """A line a turn of the process that runs: KiB that it has had at most."""
        self.away = {name: folder / f"{name}-is-away" for name in ("service", "destination")}
        service, destination = self.away["service"], self.away["destination"]

        def step(doc: Document) -> Document:
            if service.exists():
                raise ConnectionError("the service is away")
            if number_of(doc.text()) % BROKEN == 0:
                raise PermanentError("the step cannot read it")
            return doc

        def answer(delivery: Delivery) -> Outcome:
            if destination.exists():
                return Outcome.unavailable("the destination is away")
            refused = delivery.operation == "upsert" and number_of(delivery.text()) % REFUSED == 0
            return Outcome.permanent("refused") if refused else Outcome.ok()

        self.out.answer = answer
        self.plan = Plan("soak", version=1)
        files = self.plan.source("files", Files(self.corpus, max_deleted=1.0))
        files.step("step", step).destination("out", self.out, batch=7, backoff=0)

    @property
    def root(self) -> Path:
        return state_root(self.plan, self.state)

    def change(self, chance: random.Random) -> None:
        """What happens between two scans."""
        for _ in range(chance.randrange(4)):
            path = self.corpus / f"{chance.randrange(FILES):02}.txt"
            if chance.random() < 0.2:
                path.unlink(missing_ok=True)
            else:
                # Whole or not at all: a kill between opening and writing would leave a version without a number.
                fresh = self.corpus.parent / "fresh.txt"
                fresh.write_text(f"{path.name} {chance.randrange(1, 10_000)}")
                fresh.replace(path)
        for flag in self.away.values():
            if chance.random() < (0.3 if flag.exists() else 0.05):
                flag.unlink() if flag.exists() else flag.touch()

    def go(self, seed: int, waves: int) -> None:
        """Scan and deliver until the state has so many waves."""
        self.plan.freeze()
        self.memory.write_text("")
        with State.take(self.root, self.plan) as state, self.memory.open("a") as memory:
            chance = random.Random(seed)
            run = Run(state, InProcess(), Silent(), RunSettings(wait=0))
            run.recover()
            while state.wave < waves:
                self.change(chance)
                run.turn()
                memory.write(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}\n")
                memory.flush()


def number_of(text: str) -> int:
    """The number of a document's version; every version has one."""
    return int(text.rpartition(" ")[2])


if __name__ == "__main__":
    Soak(Path(sys.argv[1])).go(int(sys.argv[2]), int(sys.argv[3]))
