"""The crash matrix with the state in an object store, whose answers are lost, refused and late."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash import scenario
from tests.crash.test_matrix import CASES, is_short, kill_and_check
from tests.servers.faulty_s3 import FaultyS3
from tests.support.zygote import Zygote

ALL_DIFFERENT = 10
"""`make test` runs one case in so many of those that it runs with the state on a disk."""


@pytest.fixture(scope="module")
def store() -> Iterator[FaultyS3]:
    with FaultyS3() as server:
        server.fail(lost=0.02, refused=0.02, slow_s=0.002, seed=1)
        yield server


def elsewhere(point: str) -> bool:
    """Points that a state in an object store does not pass: nothing is ever half written there."""
    return point.startswith("none")


SHORT = [case for case in CASES if is_short(*case)][::ALL_DIFFERENT]


@pytest.mark.rule("store.kill")
@pytest.mark.parametrize(
    ("point", "guarantee", "shape"),
    [pytest.param(*case, marks=[] if case in SHORT else [pytest.mark.slow], id="-".join(case)) for case in CASES],
)
def test_killed_there_and_started_again(
    zygote: Zygote, folder: Path, store: FaultyS3, point: str, guarantee: str, shape: str
) -> None:
    """A kill -9 at this point loses nothing and doubles only what the guarantee allows, wherever the state is."""
    root = folder / f"store-{point}-{guarantee}-{shape}"
    root.mkdir()
    job = {"root": str(root), "guarantee": guarantee, "shape": shape, "store": store.url}
    scenario.write_corpus(root, scenario.first_corpus())
    if shape == "second":
        code, said = zygote.run(verb="run", **job)
        assert code == 0, said
        scenario.write_corpus(root, scenario.second_corpus())
    kill_and_check(zygote, job, point)
