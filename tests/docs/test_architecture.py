"""The pages on architecture say what the code does: its points, its functions, its tables, its layers, its tests.

docs/architecture.md is for those who rely on it, docs/reference/protocol.md has every step, CONTRIBUTING.md the layers.
"""

from __future__ import annotations

import importlib
import inspect
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from ferryman import crash
from ferryman.crash import DRIVER, EXECUTOR, QUEUES
from ferryman.records import rows as schemas
from ferryman.state.state import FOLDERS, READERS

ROOT = Path(__file__).parents[2]
OVERVIEW = (ROOT / "docs" / "architecture.md").read_text("utf-8")
PROTOCOL = (ROOT / "docs" / "reference" / "protocol.md").read_text("utf-8")
LAYERS = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
PAGES = {"architecture.md": OVERVIEW, "protocol.md": PROTOCOL, "CONTRIBUTING.md": LAYERS}

_OF_PLANS = {
    **crash.POINTS,
    **crash.KEYED,
    **crash.RESET,
    **crash.STOPS,
    **crash.MEMORY,
    **crash.CHANGES,
    **crash.STREAM,
    **crash.ONCE,
    **crash.VERIFY,
    **crash.REMEMBERED,
    **crash.KAFKA,
    **crash.MIRROR,
    **crash.IMPORT,
}
POINTS = {**_OF_PLANS, **dict.fromkeys(QUEUES, DRIVER)}
PREFIXES = {point.partition(".")[0] for point in POINTS}
SUFFIXES = {point.partition(".")[2] for point in POINTS}


def rows(text: str) -> list[list[str]]:
    """The cells of all rows of all tables."""
    return [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|") and not line.startswith("|---")
    ]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def resolved(name: str) -> Any:
    """The thing that a dotted name below ``ferryman`` names; fails if there is none."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            thing: Any = importlib.import_module(".".join(["ferryman", *parts[:cut]]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            thing = inspect.getattr_static(thing, part) if inspect.isclass(thing) else getattr(thing, part)
        return thing
    raise LookupError(name)


STEPS = [cells for cells in rows(PROTOCOL) if len(cells) == 4 and any(name in POINTS for name in code(cells[2]))]
"""Step, function, crash points, what a kill there leaves."""


def test_every_crash_point_is_there_once() -> None:
    """The protocol's tables name every crash point, each in one place, and none that there is not. Those that a queue
    has, too, are also in its table."""
    named = [name for _, _, points, _ in STEPS for name in code(points)]

    assert sorted(named) == sorted([*POINTS, *(crash.POINTS.keys() & QUEUES.keys())])


@pytest.mark.parametrize("page", PAGES)
def test_no_other_point_is_spoken_of(page: str) -> None:
    """A name that looks like a crash point is one."""
    looks_like = {
        name
        for name in re.findall(r"`([a-z]+\.[a-z]+)`", PAGES[page])
        if name.partition(".")[0] in PREFIXES and name.partition(".")[2] in SUFFIXES
    }

    assert looks_like <= set(POINTS)


@pytest.mark.parametrize("step", STEPS, ids=lambda cells: code(cells[2])[0])
def test_the_point_stands_where_the_page_says(step: list[str]) -> None:
    """The named function holds the crash point, or makes the commit that has it."""
    _, functions, points, left = step
    sources = []
    for name in code(functions):
        thing = resolved(name)
        sources.append(inspect.getsource(getattr(thing, "__func__", thing)))
    for point in code(points):
        kind, _, what = point.partition(".")
        of_a_commit = what in ("written", "logged", "synced", "marked") and f'crash.point("{point}")' not in "".join(
            sources
        )
        wanted = f'"{kind}"' if of_a_commit else f'crash.point("{point}")'
        assert any(wanted in source for source in sources), f"{functions} does not hold {point}"
        assert (POINTS[point] == EXECUTOR) == ("(executor)" in points), f"{point}: who passes it?"
    assert left, "nothing is said of what a kill leaves"


def test_every_name_of_the_code_exists() -> None:
    """What looks like a name of a module, class or function below ``ferryman`` is one."""
    top = {path.stem for path in (ROOT / "src" / "ferryman").iterdir()}
    text = "\n".join(PAGES.values())
    names = {name for name in code(text) if re.fullmatch(r"[a-z_]+(\.\w+)+", name) and name.partition(".")[0] in top}
    names = {name for name in names if not name.endswith(".json")}  # files of a state
    assert len(names) > 30
    for name in sorted(names - set(POINTS)):
        resolved(name)


@pytest.mark.parametrize("table", ["outbox", "documents", "ledger"])
def test_the_tables_have_these_columns(table: str) -> None:
    """Names and order, as in records/schemas.py."""
    [columns] = [code(cells[1]) for cells in rows(PROTOCOL) if cells[0] == f"`{table}`" and "`source`" in cells[1]]

    assert columns == getattr(schemas, table.upper()).names


def test_the_folders_are_those_of_a_state() -> None:
    """What lies in a state directory, and nothing else."""
    section = OVERVIEW.partition("## Where state lives")[2].partition("\n## ")[0]
    named = [code(cells[0])[0] for cells in rows(section) if code(cells[0])]

    assert sorted(named) == sorted(
        {
            *(folder.partition("/")[0] for folder in FOLDERS),
            *(
                "state.json",
                "plan.json",
                "migrated.json",
                "counted",
                "counted.json",
                "notified.json",
                "mirrored.json",
                "passed.json",
                "runs.json",
                "targets.json",
                "verified.json",
                "lock",
                READERS,
            ),
            "state/<name>",  # and exports/<name>
            "streams/<source>",
        }
    )


def test_the_layers_are_those_of_the_contract() -> None:
    """Every layer that exists is in the page's table, in the contract's order."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    [layers] = [c["layers"] for c in contracts if c["type"] == "layers"]
    order = [name for layer in layers for name in re.findall(r"[a-z_.]+", layer)]
    there = {path.stem for path in (ROOT / "src" / "ferryman").iterdir()}
    section = LAYERS.partition("## Who may import whom")[2].partition("\n## ")[0]
    named = [name for cells in rows(section) for name in code(cells[0])]

    assert named == [*(name for name in order if name in there), "testing"]


def test_the_proofs_exist() -> None:
    """Every test that the page names is there."""
    proofs = {name for name in code("\n".join(PAGES.values())) if name.startswith("tests/")}
    assert len(proofs) > 5
    for proof in proofs:
        path, _, function = proof.partition("::")
        text = (ROOT / path).read_text("utf-8")
        assert not function or f"def {function}(" in text, proof


def test_every_invariant_has_a_keeper_and_a_proof() -> None:
    """I1 to I9, in their order: the one page says what holds, the other where it is kept and what proves it."""
    wanted = [f"I{n}" for n in range(1, 10)]
    said = [cells for cells in rows(OVERVIEW) if re.fullmatch(r"I\d", cells[0])]
    kept = [cells for cells in rows(PROTOCOL) if re.fullmatch(r"I\d", cells[0])]

    assert [cells[0] for cells in said] == wanted
    assert all(len(cells) == 2 and all(cells) for cells in said)
    assert [cells[0] for cells in kept] == wanted
    assert all(len(cells) == 3 and all(cells) for cells in kept)
    assert all("tests/" in proofs for _, _, proofs in kept)
