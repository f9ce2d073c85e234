"""tests/README.md names every folder of tests and every helper, and no file of tests is long."""

from __future__ import annotations

import fnmatch
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import schedule, tiers

TESTS = Path(__file__).parents[1]
PAGE = (TESTS / "README.md").read_text("utf-8")


def test_every_folder_and_helper_is_named() -> None:
    """By its name, in code."""
    folders = {path.parent.name for path in TESTS.glob("*/test_*.py")}
    helpers = {path.stem for path in (TESTS / "support").glob("*.py")} - {"__init__"}
    assert {name for name in folders | helpers if f"`{name}`" not in PAGE and f"`tests/{name}`" not in PAGE} == set()


def test_the_schedule_names_files_that_exist() -> None:
    """A pattern without files would be that of a file that was renamed."""
    files = [path.relative_to(TESTS.parent).as_posix() for path in TESTS.rglob("test_*.py")]
    assert [pattern for pattern in schedule.LONGEST if not fnmatch.filter(files, pattern)] == []


def test_no_file_is_long() -> None:
    """At most 900 lines; split by subject, never to fit a number."""
    lines = {path: len(path.read_text("utf-8").splitlines()) for path in TESTS.rglob("*.py")}
    assert {path: n for path, n in lines.items() if n > 900} == {}


@pytest.mark.parametrize(("lengths", "at_once", "most"), [((2, 5), 1, 5), ((2, 3, 5), 2, 15), ((3, 3, 3, 3), 2, 12)])
def test_cases_that_are_chosen_cover_all(lengths: tuple[int, ...], at_once: int, most: int) -> None:
    """Of two parametrizations each value, of more each two together; arguments of one parametrization count as one."""
    product = [*itertools.product(*map(range, lengths))]
    cases = [{**dict(zip("abcd", values, strict=False)), "of a": values[0]} for values in product]
    chosen = [product[n] for n in tiers.covering(cases)]

    def combinations(of: list[tuple[int, ...]]) -> set[Any]:
        return {each for values in of for each in itertools.combinations(enumerate(values), at_once)}

    assert combinations(chosen) == combinations(product)
    assert len(chosen) <= most


def test_cases_of_one_parametrization_are_all_chosen() -> None:
    """Also where there is none at all."""
    assert tiers.covering([{"a": n, "b": n} for n in range(4)]) == [0, 1, 2, 3]
    assert tiers.covering([{}]) == [0]
    assert tiers.covering([]) == []


class _Item:
    """What choosing needs of a test."""

    def __init__(self, file: str, *rules: str, marker: str = "") -> None:
        self.nodeid = f"tests/{file}::test_it"
        self._rules, self._marker = rules, marker

    def iter_markers(self, name: str) -> list[Any]:
        return [SimpleNamespace(args=self._rules)] if name == "rule" and self._rules else []

    def get_closest_marker(self, name: str) -> object:
        return name if name == self._marker else None


def test_a_sample_has_each_rule_and_each_server() -> None:
    """The simplest test of a rule that no other proves, one of each file of a server; neither slow ones nor Spark."""
    served = [_Item("test_solr.py", "a.b", marker="server"), _Item("test_solr.py", marker="server")]
    plain = [_Item("test_a.py", "a.b"), _Item("test_b.py", "a.b"), _Item("test_c.py"), _Item("test_d.py", "a.c")]
    never = [_Item("test_e.py", "a.d", marker="slow"), _Item("test_f.py", "a.e", marker="spark")]
    items: Any = [*never, *served, *plain]

    assert tiers.missing(items, set()) == {served[0], plain[0], plain[3]}
    assert tiers.missing(items, {plain[1], served[1]}) == {plain[3]}
