"""A flow is killed while one of its plans is at work, started again, and compared with what should have arrived."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.tiers import sampled
from tests.support.zygote import Zygote

POINTS = (
    "epoch.synced",
    "scan.listed",
    "transform.staged",
    "commit.ready",
    "wave.synced",
    "deliver.sent",
    "deliver.result",
    "deliver.done",
    "settle.closed",
    "ledger.synced",
    "documents.synced",
    "outbox.synced",
)
KILLS = [f"{point}:{plan}" for point in POINTS for plan in (2, 1, 3)]
"""Each plan passes most of them once in a run: the number says which plan dies."""


@pytest.fixture(scope="module")
def flows(folder: Path) -> Iterator[Zygote]:
    with Zygote(folder, "tests.crash.flow") as made:
        yield made


@pytest.mark.rule("flow.kill")
@pytest.mark.parametrize("kill", sampled(KILLS, 8))
def test_a_killed_flow_loses_and_doubles_nothing(flows: Zygote, folder: Path, kill: str) -> None:
    """Wherever it is killed, whichever plan is at work: each message is in each queue once, in order."""
    root = str(folder / kill)

    code, said = flows.run(root=root, arm=kill)
    assert code == -signal.SIGKILL, f"{kill}: this point was not reached\n{said}"

    code, said = flows.run(root=root)
    assert code == 0, said
