"""Plans whose power is cut, in a process of its own: it forks, which nobody may who has used delta-rs.

.venv/bin/python -m tests.crash.power_cuts FOLDER points KIND FIRST EVERY
.venv/bin/python -m tests.crash.power_cuts FOLDER chance KIND SEED...
"""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from ferryman import Document, limits, operations
from ferryman.destinations import Queue as IntoQueue
from ferryman.plan import Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.remembered import Remember
from ferryman.sources import Memory, Queue
from ferryman.state.state import state_root
from ferryman.testing.inprocess import InProcess
from tests.support.invariants import states
from tests.support.keyed import count
from tests.support.plan_world import run_plan
from tests.support.power_cut import cut_by_chance, images_at_points, in_child

WORDS = [*"abcabdab"]


def same(doc: Document) -> Document:
    return doc


IN_A_CALL = 2
"""Documents in a call of the step that remembers: so many may be under way when the power is cut."""
ALWAYS = ("update.result", "once.kept", "remembered.answered")
"""Points at which each pass is tried."""


class PaidStep:
    """A step that asks a service, which has each call on its disk before it answers."""

    def __init__(self, folder: Path) -> None:
        self._calls = str(folder / "calls")

    def __call__(self, docs: list[Document]) -> list[Document]:
        fd = os.open(self._calls, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, "".join(f"{doc['word']}\n" for doc in docs).encode())
        os.fsync(fd)
        os.close(fd)
        for doc in docs:
            doc["answer"] = doc["word"] * 2
        return docs

    def calls(self) -> Counter[str]:
        """Return word -> how often it was called for."""
        return Counter(Path(self._calls).read_text().split()) if os.path.exists(self._calls) else Counter()


class World:
    """A plan with its queues and its state, in one folder ``disk``; what it must come to.

    Attributes:
        cuts: how often its power was cut.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self.kind, self.cuts = folder, kind, 0
        self.queues = str(folder / "queues")
        (folder / "calls").touch()

    def plan(self) -> Plan:
        strategy: dict[str, Any] = {"strategy": "at-most-once"} if self.kind == "once" else {}
        plan = Plan("words", version=1, **strategy)
        words = plan.source("from_in", Queue("in", self.queues))
        if self.kind == "once":
            words.step("same", same).destination("to_out", IntoQueue("out", self.queues), batch=2, backoff=0)
            return plan
        out = IntoQueue("out", self.queues)
        if self.kind == "remembered":
            remember = Remember("v1", reads=["word"], writes=["answer"])
            asked = words.step("ask", PaidStep(self.folder), batch=IN_A_CALL, remember=remember)
            asked.destination("to_out", out, batch=2, backoff=0)
            return plan
        words.keyed("counts", count, key="word").destination("to_out", out, batch=2, backoff=0)
        documents = [{"id": f"d{n}", "word": word} for n, word in enumerate("ab")]
        plan.source("listed", Memory(documents)).keyed("listed_counts", count, key="word").destination(
            "to_listed", IntoQueue("listed", self.queues), backoff=0
        )
        return plan

    def put(self, words: list[str], key: str) -> None:
        DurableQueue("in", self.queues).append([{"word": word} for word in words], key=key)

    def run(self) -> None:
        summary = run_plan(self.plan(), self.folder / "state", runner=InProcess(), checked=False)
        assert summary.exit in ((0, 3) if self.kind == "once" else (0,)), "\n".join(summary.messages)

    def check(self, words: list[str], *, kept: bool = False) -> None:
        """Each word was counted, or carried on, once; at most once where that was promised. Each was called for once,
        where that is remembered, and again if the power was cut in its call.

        Args:
            kept: what the step made was kept: nothing may be in doubt.
        """
        root = state_root(self.plan(), self.folder / "state")
        out = [message.body for message in DurableQueue("out", self.queues).read(limit=1000)]
        if self.kind == "once":
            assert not (came := Counter(body["word"] for body in out)) - Counter(words)
            assert not kept or came == Counter(words)
        elif self.kind == "remembered":
            assert Counter(body["word"] for body in out) == Counter(words)
            assert all(body["answer"] == body["word"] * 2 for body in out)
            calls = PaidStep(self.folder).calls()
            assert set(calls) == set(words)
            assert calls.total() <= len(set(words)) + IN_A_CALL * self.cuts, calls
        else:
            assert states(root, "counts") == Counter(words)
            changes: dict[str, int] = {}
            for body in out:
                assert body["old"] == changes.get(body["key"], 0), "an export is missing, or came twice"
                changes[body["key"]] = body["new"]
            assert changes == Counter(words)
            assert states(root, "listed_counts") == {"a": 1, "b": 1}
        assert operations.check(root) == []


def starts_after_each_point(place: Path, kind: str, first: int, every: int) -> set[str]:
    """Run, with a power cut at each point that a run passes; the points at which a start was tried."""
    disk, images = place / "disk", place / "images"
    disk.mkdir()
    images.mkdir()
    world = World(disk, kind)

    def begin() -> None:
        world.put(WORDS[:3], "first")
        world.run()

    def work() -> None:
        world.put(WORDS[3:], "second")
        world.run()

    in_child(begin)
    found = images_at_points(disk, images, work)
    in_child(partial(world.check, WORDS))
    tried = set()
    for number, (point, image) in enumerate(found):
        if number % every == first or point in ALWAYS:
            shutil.rmtree(disk)
            image.rename(disk)
            world.cuts = 1

            def start(kept: bool = point == "once.kept") -> None:
                work()
                world.run()
                world.check(WORDS, kept=kept)

            try:
                in_child(start)
            except AssertionError as e:
                raise AssertionError(f"after a power cut at pass {number}, {point}: {e}") from e
            tried.add(point)
    return tried


def cuts_by_chance(place: Path, kind: str, seed: int) -> int:
    """Runs of which the power is cut at any sync, again and again; how many were cut."""
    chance, cuts, words = random.Random(seed), 0, list[str]()
    disk, image = place / f"disk{seed}", place / f"image{seed}"
    disk.mkdir()
    world = World(disk, kind)
    for stage in range(2):
        more = [chance.choice("abcd") for _ in range(chance.randint(1, 9))]
        words += more

        def work(stage: int = stage, more: list[str] = more) -> None:
            world.put(more, f"stage{stage}")
            world.run()

        for _ in range(chance.randint(1, 3)):
            if cut_by_chance(disk, image, work, chance.randrange(1 << 30), chance.choice([40, 120, 250])):
                shutil.rmtree(disk)
                image.rename(disk)
                world.cuts = cuts = cuts + 1
        in_child(work)
        in_child(partial(world.check, words))
    shutil.rmtree(disk)
    return cuts


def main(folder: str, how: str, kind: str, *numbers: str) -> None:
    """Print the points at which a start was tried, or the number of cuts."""
    for name, soon in {"CHECKPOINT_COMMITS": 4, "QUEUE_COMMITS": 4, "COMPACT_FILES": 2, "QUEUE_FILES": 2}.items():
        setattr(limits, name, soon)  # logs are folded and files are merged soon
    if how == "points":
        first, every = map(int, numbers)
        print(*sorted(starts_after_each_point(Path(folder), kind, first, every)), sep="\n")
    else:
        print(sum(cuts_by_chance(Path(folder), kind, int(seed)) for seed in numbers))


if __name__ == "__main__":
    main(*sys.argv[1:])
