"""An endless run over months, in short: all changes, vanishes, fails, goes away and comes back, and is killed."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ferryman import account
from ferryman.operations import retry
from tests.state.soak import BROKEN, REFUSED, Soak, number_of
from tests.support.plan_world import run_plan

EARLY = 60
"""By this wave of a process everything that it needs is loaded."""

GROWTH_KIB = 32 * 1024
"""What a process may grow by afterwards: what is freed is not always given back."""


@pytest.mark.parametrize(
    ("waves", "life"),
    [(10, 4), pytest.param(2000, 250, marks=[pytest.mark.slow, pytest.mark.timeout(3 * 3600)])],
)
def test_a_soak(tmp_path: Path, waves: int, life: int) -> None:
    """Whenever it is killed the account balances; in the end nothing is pending, and all is where it belongs."""
    soak = Soak(tmp_path)
    soak.corpus.mkdir()
    chance = random.Random(waves)
    seed = 0
    while account_waves(soak) < waves:
        seed += 1
        killed_after(soak, seed, waves, chance.randint(1, life))
        if soak.root.joinpath("state.json").exists():
            assert account.status(soak.root, soak.plan)["balanced"]
        check_memory(soak)
    for flag in soak.away.values():
        flag.unlink(missing_ok=True)
    retry(soak.plan, state=soak.state, status="pending")  # what met an outage often is due in an hour
    summary = run_plan(soak.plan, soak.state, wait=60.0)
    assert summary.pending == summary.in_doubt == 0
    check_destination(soak)


def account_waves(soak: Soak) -> int:
    """How many waves the state has."""
    if not soak.root.joinpath("state.json").exists():
        return 0
    return int(account.status(soak.root, soak.plan)["waves"])


def killed_after(soak: Soak, seed: int, waves: int, turns: int) -> None:
    """The run in a process of its own, until it ends or is killed in the middle of a turn after so many."""
    command = [sys.executable, "-m", "tests.state.soak", str(soak.corpus.parent), str(seed), str(waves)]
    soak.memory.write_text("")
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    while process.poll() is None and len(turns_of(soak)) < turns:
        time.sleep(0.01)
    if process.poll() is None:
        process.kill()
        process.communicate()
    else:
        assert process.returncode == 0, process.communicate()[1].decode()


def turns_of(soak: Soak) -> list[int]:
    """KiB that the process has had at most, after each of its turns."""
    return [int(line) for line in soak.memory.read_text().split()]


def check_memory(soak: Soak) -> None:
    """The process that has just ended did not grow from wave to wave."""
    most = turns_of(soak)
    if len(most) > 2 * EARLY:
        assert most[-1] - most[EARLY] < GROWTH_KIB, f"{most[EARLY]} KiB, and {most[-1]} after {len(most)} turns"


def check_destination(soak: Soak) -> None:
    """It has of each file what it should, as if nothing had ever gone wrong."""
    last = {line["id"]: line for line in soak.out.lines() if line["said"] == "ok"}
    sequences = {line["id"]: line["seq"] for line in sorted(soak.out.lines(), key=lambda each: each["seq"])}
    there = {path.name: path.read_text() for path in soak.corpus.iterdir()}
    for name, text in there.items():
        if number_of(text) % REFUSED and number_of(text) % BROKEN:
            assert (last[name]["op"], last[name]["text"]) == ("upsert", text), name
            assert last[name]["seq"] == sequences[name], f"{name}: an older version came last"
    for name in last.keys() - there.keys():
        assert last[name]["op"] == "delete", f"{name} is gone, and still there"
