"""Stories by chance of a plan that takes each message once at most: killed at a note, at a point, in a step or at any
time, with an operator between. Whatever happens, no step sees a message twice that nobody asked for, and few are in
doubt."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman.crash import ONCE
from tests.crash.queues import once
from tests.crash.test_queue_matrix import said_well
from tests.support.tiers import sampled
from tests.support.zygote import Zygote

STORIES = 20
SEEN = "killed"
KILLED = (0, -signal.SIGKILL, -signal.SIGALRM)
"""Exit codes of a run in which somebody may be killed: not the driver, by itself, by its timer."""

ELSEWHERE = ("transform.staged", "transform.done", "commit.ready", "wave.logged", "deliver.sent", "ledger.logged")
COMMANDS = ("command.queued", "command.staged", "wave.logged", "outbox.logged", "command.done")


@pytest.fixture(scope="module")
def zygote(folder: Path) -> Iterator[Zygote]:
    with Zygote(folder, "tests.crash.queues.once_child") as made:
        yield made


class Story:
    """A plan in a folder, and what has happened to it.

    Attributes:
        kills: processes that were killed, so many at most.
        doubts: messages that were in doubt until an operator asked for them.
        retried: messages of a retry, which a kill repeats, until a run has come to its end.
        again: messages that an operator wanted run again, each as often.
    """

    def __init__(self, zygote: Zygote, root: Path, seed: int) -> None:
        root.mkdir()
        self.root, self.chance = root, random.Random(seed)
        self.checkpoint = self.chance.randint(1, 3)
        (root / once.CHECKPOINT).write_text(str(self.checkpoint))
        self._zygote = zygote
        self.kills = self.doubts = 0
        self.retried: set[int] = set()
        self.again: list[int] = []

    def play(self, stage: int) -> None:
        said_well(self._do("fill", stage=stage))
        for _ in range(self.chance.randint(1, 3)):
            self._run_killed()
            if self.chance.random() < 0.5:
                self._run_to_the_end()
                self._ask()
        self._run_to_the_end()
        once.check(self.root, stage, once.in_doubt(self.root), self.again)

    def _do(self, verb: str, **how: Any) -> tuple[int, str]:
        return self._zygote.run(verb=verb, root=str(self.root), **how)

    def _run_killed(self) -> None:
        """One run, with a kill if it comes to where there is one."""
        how, dies = self._kill(), self.root / once.DIES
        in_step = dies.exists()
        code, said = self._do("run", **how)
        assert code in KILLED, said
        self._count(code != 0 or (in_step and not dies.exists()))
        dies.unlink(missing_ok=True)

    def _kill(self) -> dict[str, Any]:
        """Where the next run is killed, as a job of the child."""
        alone = self.chance.random() < 0.5
        match self.chance.choice(("note", "note", "step", "step", "point", "time")):
            case "note":
                return {"alone": alone, "arm": (f"once.noted:{self.chance.randint(1, 8)}", self._seen)}
            case "step":
                (self.root / once.DIES).write_text(str(len(once.calls(self.root)) + self.chance.randint(1, 8)))
                return {"alone": alone}
            case "point":
                return {"alone": alone, "arm": (self.chance.choice((*ONCE, *ELSEWHERE)), self._seen)}
            case _:
                return {"dies_in": self.chance.uniform(0.05, 1)}

    @property
    def _seen(self) -> str:
        return str(self.root / SEEN)

    def _count(self, was_killed: bool) -> None:
        """Count a kill, also of a task, at a point."""
        seen = Path(self._seen)
        if was_killed or seen.exists():
            self.kills += 1
            self.again += self.retried
        seen.unlink(missing_ok=True)

    def _run_to_the_end(self) -> None:
        said_well(self._do("run"))
        self.retried = set()

    def _ask(self) -> None:
        """An operator wants run again what is in doubt, or what has failed."""
        if self.chance.random() < 0.3:
            self.retried = {*once.calls(self.root)} & {*once.FLAKY, *once.BROKEN}
            self.again += self.retried
            said_well(self._do("retry"))
            return
        self.doubts += len(doubtful := once.in_doubt(self.root))
        self.again += doubtful
        how = {"arm": (self.chance.choice(COMMANDS), self._seen)} if self.chance.random() < 0.5 else {}
        code, said = self._do("resolve", **how)
        assert code in KILLED, said
        self._count(code != 0)

    def check(self) -> None:
        """A kill leaves in doubt what a task had noted at once, and no more."""
        deaths = self.kills + once.calls(self.root).count(once.DEADLY[0])
        doubts = self.doubts + len(once.in_doubt(self.root))
        assert doubts <= self.checkpoint * deaths, f"{doubts} in doubt after {deaths} deaths"


@pytest.mark.rule("once.killed", "once.doubt")
@pytest.mark.parametrize("seed", sampled([*range(STORIES)], STORIES))
def test_whatever_is_killed_nothing_is_repeated(zygote: Zygote, folder: Path, seed: int) -> None:
    story = Story(zygote, folder / f"story-{seed}", seed)
    for stage in once.STAGES:
        story.play(stage)
    story.check()
    print(f"story {seed}: checkpoint={story.checkpoint}, {story.kills} kills, {len(story.again)} run again")
    shutil.rmtree(story.root)
