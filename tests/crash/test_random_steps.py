"""Plans by chance whose steps get several documents in a call, or have several calls under way; killed in a call, at a
point of the protocol, or at any time."""

from __future__ import annotations

import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from ferryman.crash import POINTS
from tests.crash import drawn
from tests.support.tiers import sampled
from tests.support.zygote import Zygote

STORIES = 200
SHORT = 93
"""The seed that is tried each time: batches right below the source, then children; chunks that break connections."""
SEEN = "killed"
KILLED = (0, -signal.SIGKILL, -signal.SIGALRM)
"""Exit codes of a run in which somebody may be killed: not the driver, by itself, by its timer."""


def draw(chance: random.Random, root: Path) -> dict[str, Any]:
    """How the next run is killed, as a job of the child."""
    match chance.choice(("call", "call", "point", "time")):
        case "call":
            (root / drawn.DIES).write_text(str(calls(root) + chance.randint(1, 8)))
            return {"fork": chance.random() < 0.5}
        case "point":
            point = chance.choice([p for p in POINTS if p.startswith(("transform.", "commit.", "wave.", "deliver."))])
            return {"arm": [(f"{point}:{chance.randint(1, 2)}", str(root / SEEN))]}
        case _:
            return {"dies_in": chance.uniform(0.02, 0.8)}


def was_killed(root: Path, how: dict[str, Any], code: int) -> bool:
    """Was there a kill? Makes the place ready for the next one."""
    in_call = "fork" in how and not (root / drawn.DIES).exists()
    at_point = (root / SEEN).exists()
    for name in (drawn.DIES, SEEN):
        (root / name).unlink(missing_ok=True)
    return in_call or at_point or code != 0


def calls(root: Path) -> int:
    """Calls of steps so far."""
    counted = root / "calls"
    return counted.stat().st_size if counted.exists() else 0


@pytest.mark.parametrize("seed", sampled([SHORT, *(n for n in range(STORIES) if n != SHORT)], STORIES))
def test_killed_in_calls_for_many_documents(zygote: Zygote, folder: Path, seed: int) -> None:
    """Two runs, each killed once or twice and started again: nothing is lost, nothing doubled beyond the guarantee."""
    chance = random.Random(seed)
    root = folder / f"drawn-{seed}"
    root.mkdir()
    kills = 0
    for stage in (0, 1):
        job = {"root": str(root), "guarantee": "", "shape": drawn.SHAPE, "seed": seed, "stage": stage}
        for _ in range(chance.randint(1, 2)):
            code, said = zygote.run(verb="run", **job, **(how := draw(chance, root)))
            assert code in KILLED, said
            kills += was_killed(root, how, code)
        code, said = zygote.run(verb="run and check" if stage == 1 else "run", **job, kills=kills)
        assert code == 0, said
    assert seed != SHORT or (root / drawn.BROKEN).exists(), "no chunk has broken a connection"
    print(f"story {seed}: {kills} kills")
    shutil.rmtree(root)
