"""Every crash point × the guarantees, of a plan over versions of documents in a log: killed there, started again, and
both destinations have what the last versions make, and nothing of older ones."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ferryman.crash import EXECUTOR, POINTS
from tests.crash.versions import GUARANTEES, messages
from tests.support.keyed_topic import KeyedTopic
from tests.support.zygote import Zygote

ELSEWHERE = (
    *("create.", "plan.", "version.", "command.", "scan.", "deliver.hung", "settle.repair", "outdated.", "sweep."),
    *("recover.", "compact.", "checkpoint.", "counted.", "notify."),
)
"""Of a new state, of other sources, of operators, and between waves: what they leave does not depend on the log."""

MORE = {f"{point}:{n}": POINTS[point] for point in ("wave.logged", "deliver.sent") for n in (2, 3)}

CASES = [
    (point, guarantee)
    for point in {**POINTS, **MORE}
    for guarantee in GUARANTEES
    if not point.startswith(ELSEWHERE)
    and (not point.startswith(("deliver.claimed", "deliver.noted")) or guarantee != "exactly-once")
    and (point != "deliver.claimed" or guarantee == "at-most-once")
    and (point != "settle.rewrite" or guarantee != "exactly-once")  # nothing is refused there
]

SHORT = (
    *(("transform.documents", "exactly-once"), ("wave.synced", "exactly-once"), ("deliver.sent:2", "at-least-once")),
    *(("documents.logged", "exactly-once"), ("deliver.claimed", "at-most-once")),
)
"""Tried each time; `make prove` runs all."""


@pytest.fixture(scope="module")
def zygote(folder: Path) -> Iterator[Zygote]:
    with Zygote(folder, "tests.crash.versions") as made:
        yield made


@pytest.fixture(scope="module")
def after_first(folder: Path, zygote: Zygote) -> dict[str, Path]:
    """Guarantee -> a folder in which the first versions were delivered."""
    return {}


def prepared(zygote: Zygote, made: dict[str, Path], folder: Path, guarantee: str) -> Path:
    if guarantee not in made:
        root = folder / f"first-{guarantee}"
        root.mkdir()
        KeyedTopic(root / "topic").write(*messages(1))
        code, said = zygote.run(root=str(root), guarantee=guarantee)
        assert code == 0, said
        made[guarantee] = root
    return made[guarantee]


@pytest.mark.rule("log.versions")
@pytest.mark.parametrize(
    ("point", "guarantee"),
    [case if case in SHORT else pytest.param(*case, marks=pytest.mark.slow) for case in CASES],
)
def test_killed_at_a_point(
    zygote: Zygote, after_first: dict[str, Path], folder: Path, point: str, guarantee: str
) -> None:
    root = folder / "case"
    shutil.rmtree(root, ignore_errors=True)
    first = prepared(zygote, after_first, folder, guarantee)
    root.mkdir()
    for name in ("topic", "state"):
        shutil.copytree(first / name, root / name)
    for path in first.glob("*.jsonl"):
        shutil.copy(path, root)
    topic, second = KeyedTopic(root / "topic"), messages(2)
    topic.write(*second)
    seen = root / "seen"
    code, said = zygote.run(root=str(root), stage=2, guarantee=guarantee, arm=(point, str(seen)))
    assert seen.exists(), f"{point} was not reached: {said}"
    assert code == -9 or {**POINTS, **MORE}[point] == EXECUTOR, said
    code, said = zygote.run(root=str(root), stage=2, guarantee=guarantee, check=True)
    assert code == 0, said
