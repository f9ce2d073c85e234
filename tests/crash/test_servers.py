"""Real servers behind the crash points: killed there and started again, the server holds what the oracle says, once.

Of each server: the short list of points in every CI run, all of them in the long proof; and the command line, on Spark,
killed at random times.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferryman.crash import POINTS
from tests.crash import targets
from tests.crash.kills import Killed
from tests.crash.targets import TARGETS
from tests.support.zygote import Zygote

POSSIBLE = [
    point
    for point in POINTS
    if not point.startswith(("version.", "create.", "plan.", "command.", "notify."))
    and point not in ("deliver.claimed", "deliver.noted", "deliver.hung", "settle.repair")
]
"""Points that a second run under exactly-once passes."""

SHORT = [point for point in POSSIBLE if point.startswith(("commit.", "deliver."))]
"""Those beside which a destination is written to. One server is tried in all of them, the others right after they were
sent to: at the others nothing depends on the server. Solr has a test of its own that kills it."""

FIRST = "postgres"

ELSEWHERE = ("cassandra", "mariadb")
"""Servers of which that point is tried beside their other tests, so that they are started once."""


def _in_every_run(name: str, point: str) -> bool:
    return point in SHORT and (name == FIRST or (name in ("opensearch", "redis") and point == "deliver.sent"))


DOCUMENTS = 3000
ROUNDS = 20


@pytest.mark.rule("guarantee.kill", "guarantee.hash")
@pytest.mark.parametrize(
    ("name", "point"),
    [
        pytest.param(name, point, marks=[] if _in_every_run(name, point) else [pytest.mark.slow])
        for name in TARGETS
        for point in POSSIBLE
        if (name, point) not in [(each, "deliver.sent") for each in ELSEWHERE]
    ],
)
def test_killed_there_and_started_again(
    server: Callable[[str], Any], zygote: Zygote, folder: Path, name: str, point: str
) -> None:
    targets.survive(server, zygote, folder, name, point)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize(
    ("name", "number"),
    [(n, i) for n in TARGETS for i in range(ROUNDS)],
)
def test_killed_at_a_random_time(server: Callable[[str], Any], tmp_path: Path, name: str, number: int) -> None:
    """Up to three times, then left alone: every document is there once, and the account adds up."""
    target, real = TARGETS[name], server(TARGETS[name].server)
    place = f"kills-{number}"
    run = Killed(tmp_path, target.code(real, place), DOCUMENTS)
    chance = random.Random(number)
    for _ in range(chance.randint(1, 3)):
        run.kill_after(chance.uniform(2.0, 15.0), chance)
    assert run.to_the_end() == 0, run.log.read_text()
    assert target.contents(real, place) == {f"{i:05}.txt": f"document number {i}" for i in range(DOCUMENTS)}
    run.check()
