"""The promise: calls ≤ distinct inputs + calls under way at kills, and what arrives is what arrives without kills."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ferryman.crash import DRIVER, EXECUTOR, REMEMBERED
from ferryman.remembered.upkeep import StoreKeeper
from tests.remembered.child import DIED
from tests.support.paid import Service, build_paid, steps, vector_of
from tests.support.plan_world import MEMORY, PlanWorld
from tests.support.recorder import Recorder
from tests.support.tiers import sampled
from tests.support.zygote import Zygote

UNDER_WAY = {"batch": 4, "arrow": 4, "threads": 3, "async threads": 3, "async batch": 4}
"""Way to call a step -> inputs of calls that may be under way at once; of the others it is one."""
MODES = list(steps(Service(Path())))
KILLS_OF_A_SEED = 4


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    folder = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
    with Zygote(folder, "tests.remembered.child") as made:
        yield made
    shutil.rmtree(folder)


class Killed:
    """A plan that is killed again and again, and a count of what it may have called at most."""

    def __init__(self, zygote: Zygote, place: Path, mode: str) -> None:
        self._zygote, self._place, self.mode = zygote, place, mode
        self.service = Service(place)
        self.kills = 0

    def run(self, words: list[str], **how: Any) -> bool:
        """Run once; return whether it, or a task of it, was killed."""
        (self._place / DIED).unlink(missing_ok=True)
        code, said = self._zygote.run(root=str(self._place), mode=self.mode, words=words, **how)
        died = (self._place / DIED).exists()
        assert code == (-9 if died and not how.get("fork") else 0), said
        self.kills += died
        return died

    def check(self, words: list[str], seen: set[str]) -> None:
        """Compare what has arrived with what must have, and count calls.

        Args:
            seen: all texts that there ever were.
        """
        lines = Recorder(self._place / "out.jsonl").lines()
        found = {line["id"]: line["fields"] for line in lines if line["op"] == "upsert" and line["said"] == "ok"}
        assert found == {
            f"d{n}": {"words": text, "vector": np.float32(vector_of(text)).tolist()} for n, text in enumerate(words)
        }
        calls = self.service.calls()
        assert set(calls) <= seen
        most = len(seen) + self.kills * UNDER_WAY.get(self.mode, 1)
        assert calls.total() <= most, f"{calls.total()} calls of {len(seen)} inputs with {self.kills} kills"
        totals = StoreKeeper(self._place / "state" / "remembered" / "embed").totals()
        assert totals.in_doubt <= self.kills * UNDER_WAY.get(self.mode, 1)
        if self.mode != "arrow":  # where a function is not called with documents, it cannot ask for the key
            assert all(len(keys) == 1 for keys in self.service.keys().values()), "one key for each input"


@pytest.mark.rule("remember.once-plus-in-flight")
@pytest.mark.parametrize("seed", sampled(range(50), 10))
def test_random_kills(zygote: Zygote, place: Path, seed: int) -> None:
    """Kills of the driver or of a worker at any durable write and in any call, while documents change."""
    chance = random.Random(seed)
    killed = Killed(zygote, place, MODES[(seed + seed // 10) % len(MODES)])
    fork = seed % 4 == 0
    words = [f"t{chance.randrange(8)}" for _ in range(14)]
    seen = {*words}
    while killed.kills < KILLS_OF_A_SEED:
        for n in chance.sample(range(len(words)), 3):
            words[n] = f"t{chance.randrange(30)}"
        seen |= {*words}
        killed.run(words, die_at=chance.randrange(1, 12 if fork else 60), fork=fork)
    killed.run(words)
    killed.check(words, seen)


@pytest.mark.rule("remember.once-plus-in-flight")
@pytest.mark.parametrize(
    "mode", [pytest.param(m, marks=() if m in ("plain", "batch") else pytest.mark.slow) for m in MODES]
)
@pytest.mark.parametrize(
    "point", [point for point in REMEMBERED if point != "remembered.forgotten"] + ["remembered.written"]
)
def test_each_point(zygote: Zygote, place: Path, point: str, mode: str) -> None:
    """A kill at each durable step of a store, of the driver and, where a task is at it, of that alone."""
    killed = Killed(zygote, place, mode)
    words = [f"t{n % 5}" for n in range(12)]
    assert killed.run(words, arm=point, fork=REMEMBERED.get(point) == EXECUTOR and mode == "batch")
    killed.run(words)
    killed.check(words, {*words})


@pytest.mark.rule("remember.bill")
@pytest.mark.parametrize(
    "point", [point for point, who in REMEMBERED.items() if who == DRIVER and "forgot" not in point]
)
def test_the_bill_after_a_kill(zygote: Zygote, place: Path, point: str) -> None:
    """What a run that was killed has called for is in the totals, once, and is not the next run's."""
    words = [f"t{n % 5}" for n in range(12)]
    assert Killed(zygote, place, "plain").run(words, arm=point)
    world = PlanWorld(place, build_paid).build("plain")
    for n, text in enumerate(words):
        world.put(f"d{n}", words=text)
    bill = world.run().remembered["embed"]
    assert (bill["calls"], bill["hits"], bill["spent"], bill["saved"]) == (0, 0, 0, 0)
    totals = StoreKeeper(place / "state" / "remembered" / "embed").totals()
    assert (totals.calls, totals.hits, totals.answers) == (5, 7, 5)
