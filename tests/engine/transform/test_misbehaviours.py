"""A step that misbehaves for one document harms this one alone, however it is called."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.misbehaving import WAYS, cases
from tests.support.misbehaviours import TABLE
from tests.support.zygote import Zygote


def _sampled() -> set[int]:
    """Numbers of cases in which each misbehaviour stands once at least, and each way."""
    found, names, ways = set(), set(), set()
    order = sorted(range(len(CASES)), key=lambda number: number * 7 % 101)  # from all over the table
    for number in order:
        mine, way = CASES[number]
        if not names.issuperset(mine) or way not in ways:
            found.add(number)
            names.update(mine)
            ways.add(way)
    return found


CASES = cases()
SAMPLED = _sampled()


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    with Zygote(tmp_path_factory.mktemp("zygote"), "tests.support.misbehaving") as found:
        yield found


def test_the_table_is_large_and_the_sample_has_all_of_it() -> None:
    """More than a hundred misbehaviours, each of which is tried each time, and each way to call a step."""
    assert len({each.name for each in TABLE}) == len(TABLE) >= 100
    assert {name for number in SAMPLED for name in CASES[number][0]} == {each.name for each in TABLE}
    assert {CASES[number][1] for number in SAMPLED} == set(WAYS)


@pytest.mark.rule("step.misbehaves")
@pytest.mark.parametrize(
    ("names", "way"),
    [
        pytest.param(*case, id=f"{case[1]}: {case[0][0]}", marks=[] if n in SAMPLED else [pytest.mark.slow])
        for n, case in enumerate(CASES)
    ],
)
def test_a_misbehaviour_is_its_document_s(zygote: Zygote, place: Path, names: tuple[str, ...], way: str) -> None:
    """The document ends as the table says, named with what was wrong; all others are delivered, as they are."""
    code, output = zygote.run(names=names, way=way, folder=str(place))
    assert code == 0, output[-3000:]
