"""Every durable step of a driver, at a state whose lock does not hold: there it sleeps, another one takes over and does
a whole run, and the first one wakes up. Then comes a run that nobody disturbs.

Crash points (see ``test_overtaken``) stand between the steps of the protocol. Here each link, rename, unlink and sync,
and each request to an object store, is a place to sleep: also where a state is made, where tables are made for a new
keyed node, and where logs are folded and trimmed.
"""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.child import OVERTAKEN
from tests.servers.faulty_s3 import BUCKET, FaultyS3
from tests.support.http_store import HttpStore
from tests.support.in_store import set_variables
from tests.support.zygote import Zygote

STOPPED = -signal.SIGSTOP
WHERE = {"disk": ("disk", "disk"), "store": ("store", "store"), "mixed": ("store", "disk")}
"""Name -> where the state is, where the queues are."""
SHAPES = ("first", "second", "node")
"""The driver makes the state; goes on with one; goes on with one whose plan has a new keyed node."""
PARTS = 12
"""Tests into which the steps of a run are cut."""

LOG = r".*p-v1/(?:outbox|documents)/_delta_log"
NAMED = [
    # a first start
    ("disk", "first", rf"before link {LOG}/0+\.json", 2),
    ("store", "first", rf"PUT {LOG}/0+\.json", 2),
    ("disk", "first", r"after link .*state\.json", 1),
    # tables of a new node
    ("mixed", "node", r"PUT .*exports/counts/_delta_log/0+\.json", 1),
    # a commit
    ("disk", "second", rf"after link {LOG}/\d+\.json", 3),
    # a checkpoint, of a state and of a queue
    ("disk", "second", r"before replace .*outbox/_delta_log/.*checkpoint", 1),
    ("disk", "second", rf"after unlink {LOG}/\d+", 2),
    ("store", "second", rf"PUT {LOG}/.*checkpoint", 1),
    ("disk", "second", r"before replace .*queues/\w+/messages/_delta_log/.*checkpoint", 1),
]
"""(where, shape, which steps are counted, the number of the one at which it sleeps): of each CI run."""


@pytest.fixture(scope="module")
def zygote(folder: Path) -> Iterator[Zygote]:
    with Zygote(folder, "tests.crash.steps_of_a_driver") as made:
        yield made


@pytest.fixture(scope="module")
def store() -> Iterator[FaultyS3]:
    with FaultyS3() as server:
        yield server


@pytest.fixture(scope="module")
def worlds(zygote: Zygote, folder: Path, store: FaultyS3) -> Worlds:
    with pytest.MonkeyPatch.context() as patch:
        set_variables(patch, store.settings)
        return Worlds(zygote, folder, store)


@pytest.fixture(autouse=True)
def _nobody_sleeps(zygote: Zygote) -> Iterator[None]:
    yield
    zygote.kill_stopped()


class Worlds:
    """Makes states and queues to begin with, each once, and copies of them."""

    def __init__(self, zygote: Zygote, folder: Path, store: FaultyS3) -> None:
        self._zygote = zygote
        self._folder = folder
        self._url = store.url
        self._store = HttpStore(f"s3://{BUCKET}")
        self._made: dict[str, dict[str, Any]] = {}

    def run(self, job: dict[str, Any], verb: str, stage: int, **more: Any) -> tuple[int, str]:
        return self._zygote.run(verb=verb, stage=stage, **job, **more)

    def wake(self) -> tuple[int, str]:
        return self._zygote.wake()

    def copy(self, where: str, shape: str, name: str) -> dict[str, Any]:
        """A world of its own, in which messages wait that no run has seen."""
        key = f"{where}-{shape}"
        if key not in self._made:
            made = self._job(where, shape, key)
            Path(made["root"], "world").mkdir(parents=True)
            for stage in () if shape == "first" else (1,):
                well(self.run(made, "fill", stage))
                well(self.run(made, "run", stage))
            well(self.run(made, "fill", 1 if shape == "first" else 2))
            self._made[key] = made
        copied = self._job(where, shape, f"{key}-{name}")
        shutil.copytree(self._made[key]["root"], copied["root"])
        for each in self._store.list_objects(f"{key}/"):
            self._store.copy(each.key, f"{key}-{name}/{each.key.removeprefix(f'{key}/')}")
        return copied

    def remove(self, job: dict[str, Any]) -> None:
        shutil.rmtree(job["root"])
        self._store.delete([each.key for each in self._store.list_objects(f"{Path(job['root']).name}/")])

    def _job(self, where: str, shape: str, name: str) -> dict[str, Any]:
        root = self._folder / name
        state, queues = WHERE[where]
        places = {"disk": str(root / "world"), "store": f"s3://{BUCKET}/{name}"}
        return {
            "root": str(root),
            "state": f"{places[state]}/state",
            "queues": f"{places[queues]}/queues",
            "counted_from": 2 if shape == "node" else 1,
            "documents": shape == "second",
            "store": "" if where == "disk" else self._url,
        }


def well(said: tuple[int, str]) -> str:
    assert said[0] == 0, said[1]
    return said[1]


def sleep_there(worlds: Worlds, where: str, shape: str, stop: int, pattern: str = "") -> str:
    """What the driver did when it woke up: "overtaken", "went on"; or "not there", if it has no such step."""
    job = worlds.copy(where, shape, f"{stop}-{len(pattern)}")
    stage = 1 if shape == "first" else 2
    code, said = worlds.run(job, "run", stage, stop=stop, pattern=pattern)
    if code != STOPPED:
        well((code, said))
        worlds.remove(job)
        return "not there"
    well(worlds.run(job, "fill", stage + 1))
    said = well(worlds.run(job, "run", stage + 1))
    assert OVERTAKEN not in said, said
    said = well(worlds.wake())
    well(worlds.run(job, "fill", stage + 2))
    assert OVERTAKEN not in well(worlds.run(job, "run and check", stage + 2))
    worlds.remove(job)
    return "overtaken" if OVERTAKEN in said else "went on"


@pytest.mark.rule("state.overtaken")
@pytest.mark.parametrize(("where", "shape", "pattern", "number"), NAMED)
def test_a_driver_that_sleeps_at_a_step(worlds: Worlds, where: str, shape: str, pattern: str, number: int) -> None:
    """It ends because it was overtaken, or normally; nothing is lost or doubled, nothing counts from zero again."""
    assert sleep_there(worlds, where, shape, number, pattern) != "not there"


@pytest.fixture(scope="module")
def steps(worlds: Worlds, folder: Path) -> dict[tuple[str, str], list[str]]:
    """(where, shape) -> the steps of a run that nobody disturbs."""
    found = {}
    for where in WHERE:
        for shape in SHAPES:
            job, listed = worlds.copy(where, shape, "listed"), folder / f"{where}-{shape}.txt"
            well(worlds.run(job, "run", 1 if shape == "first" else 2, list_in=str(listed)))
            found[where, shape] = listed.read_text().splitlines()
            worlds.remove(job)
    return found


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)  # fifty runs and more, also on a machine that is busy
@pytest.mark.rule("state.overtaken")
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_driver_that_sleeps_at_any_step(
    zygote: Zygote, worlds: Worlds, steps: dict[tuple[str, str], list[str]], where: str, shape: str, part: int
) -> None:
    """The same for every one of them."""
    outcomes: Counter[str] = Counter()
    wrong = []
    for number, step in list(enumerate(steps[where, shape], 1))[part::PARTS]:
        try:
            outcomes[sleep_there(worlds, where, shape, number)] += 1
        except AssertionError as e:
            wrong.append(f"step {number}, {step}:\n{e}")
            zygote.kill_stopped()
    print(where, shape, part, dict(outcomes), len(wrong))
    assert not wrong, "\n\n".join(wrong)
