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
from tests.crash import scenario, targets
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
"""Those beside which a destination is written to. OpenSearch, too, is tried right after it was sent to, one server in
all of them: at the others nothing depends on the server. Solr has a test of its own that kills it."""

FIRST = "postgres"


def _in_every_run(name: str, point: str) -> bool:
    return point in SHORT and (name == FIRST or (name == "opensearch" and point == "deliver.sent"))


DOCUMENTS = 3000
ROUNDS = 20


@pytest.mark.rule("guarantee.kill", "guarantee.hash")
@pytest.mark.parametrize(
    ("name", "point"),
    [
        pytest.param(name, point, marks=[] if _in_every_run(name, point) else [pytest.mark.slow])
        for name in TARGETS
        for point in POSSIBLE
    ],
)
def test_killed_there_and_started_again(
    server: Callable[[str], Any], zygote: Zygote, folder: Path, name: str, point: str
) -> None:
    """Changed, removed, new, unreadable and refused documents: each is there once or accounted for."""
    target, real = TARGETS[name], server(TARGETS[name].server)
    root = folder / f"{name}-{point}"
    root.mkdir()
    place = f"crash-{point}".replace(".", "-")
    targets.keep(root, target.destination(real, place))
    job = {"root": str(root), "guarantee": name, "shape": "server"}
    scenario.write_corpus(root, scenario.first_corpus())
    code, said = zygote.run(verb="run", **job)
    assert code == 0, said
    scenario.write_corpus(root, scenario.second_corpus())
    seen = root / "killed"
    code, said = zygote.run(verb="run", arm=[(point, str(seen))], **job)
    assert code in (0, -9), said
    assert seen.exists(), f"{point} was never reached"
    for _ in range(2):
        code, said = zygote.run(verb="run and check", **job)
        assert code == 0, said
        assert target.contents(real, place) == targets.wanted()


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
