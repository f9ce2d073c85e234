"""A change of what a step's function reaches is noticed: helpers, constants, closures, packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from ferryman import Plan
from ferryman.plan.load import load_plan
from ferryman.plan.reach import reach_of
from ferryman.plan.structure import changes, structure
from ferryman.sources import Memory

PLAN = """
from ferryman import Document, Plan
from ferryman.sources import Memory
{before}
{step}
plan = Plan("p")
plan.source("s", Memory([])).step("step", {fn}{options})
"""

STEP = """
def step(doc):
    doc["x"] = {body}
    return doc
"""


def printed(file: Path, *options: str, **environ: str) -> str:
    """Return the facts of a plan file's step as a process prints them."""
    program = (
        "import json, sys; from ferryman.plan.load import load_plan; from ferryman.plan.reach import reach_of;"
        f"plan = load_plan({str(file)!r}); [node] = [n for n in plan.nodes if n.name == 'step'];"
        "print(json.dumps(reach_of(node).facts, sort_keys=True))"
    )
    command = [sys.executable, *options, "-c", program]
    return subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **environ}).stdout


def plan_of(body: str = "1", before: str = "", fn: str = "step", step: str = STEP, options: str = "") -> str:
    return PLAN.format(before=before, step=step.format(body=body), fn=fn, options=options)


CACHED = "from functools import lru_cache\n@lru_cache\ndef clean(t):\n    return t + {!r}\n"
DECORATED = """
import functools
def loud(word):
    def around(fn):
        @functools.wraps(fn)
        def call(doc):
            doc["y"] = word
            return fn(doc)
        return call
    return around
@loud({!r})
def step(doc):
    return doc
"""
CLASS = """
class Config:
    model = {!r}
    def read(self):
        return self.model
"""
CALLED = """
class Embed:
    def __init__(self, model):
        self._model = model
    def __call__(self, doc):
        doc["m"] = self._model
        return doc
"""
RECURSIVE = """
def even(n):
    return True if n == 0 else odd(n - 1)
def odd(n):
    return {} if n == 0 else even(n - 1)
"""
DISPATCHED = """
from functools import singledispatch
@singledispatch
def clean(x):
    return x
@clean.register
def _of_text(x: str):
    return x + {!r}
"""
CLOSED = """
def made(model):
    def step(doc):
        doc["m"] = model
        return doc
    return step
"""
DATACLASS = """
from dataclasses import dataclass, field
@dataclass
class Config:
    model: str
    sizes: list = field(default_factory=lambda: [1])
CONFIG = Config({!r})
"""
SLOTTED = """
class Config:
    __slots__ = ("model", "unset")
CONFIG = Config()
CONFIG.model = {!r}
"""

CHANGES = {
    "a constant": ("MODEL", "MODEL = {!r}", "MODEL"),
    "an environment variable's default": ("MODEL", "import os\nMODEL = os.environ.get('UNSET_X', {!r})", "MODEL"),
    "a constant of many": ("TABLE['a']", "TABLE = {{'a': [1, ({!r}, 2)]}}", "TABLE"),
    "a set": ("'a' in WORDS", "WORDS = {{'a', 'b', {!r}}}", "WORDS"),
    "a helper": ("clean('a')", "def clean(t):\n    return t + {!r}", "clean()"),
    "a helper's helper": ("a('a')", "def a(t):\n    return b(t)\ndef b(t):\n    return t + {!r}", "b()"),
    "a helper's constant": ("a('a')", "M = {!r}\ndef a(t):\n    return t + M", "M"),
    "a helper's default": ("a('a')", "def a(t, more={!r}):\n    return t + more", "a(): default more"),
    "a helper that needs a keyword": ("a('a')", "def a(t, *, m={!r}):\n    return t + m", "a(): default m"),
    "a lambda": ("f('a')", "f = lambda t: t + {!r}", "<lambda>()"),
    "a cached helper": ("clean('a')", CACHED, "clean()"),
    "a partial": ("f()", "from functools import partial\nf = partial(max, {!r})", "argument 0"),
    "a class attribute": ("Config().read()", CLASS, "Config.model"),
    "a bound method": ("read()", CLASS + "read = Config().read", "Config.model"),
    "circular helpers": ("even(4)", RECURSIVE, "odd()"),
    "a dispatched function": ("clean('a')", DISPATCHED, "_of_text()"),
    "an object of a dataclass": ("CONFIG.model", DATACLASS, "CONFIG"),
    "an object with slots": ("CONFIG.model", SLOTTED, "CONFIG"),
    "a pattern": ("P.pattern", "import re\nP = re.compile({!r})", "P"),
    "an inner function": ("(lambda: MODEL)()", "MODEL = {!r}", "MODEL"),
    "a comprehension": ("[MODEL for _ in 'a']", "MODEL = {!r}", "MODEL"),
    "an enum": ("E.A.value", "from enum import Enum\nclass E(Enum):\n    A = {!r}", "E.A"),
    "an array": ("str(A)", "import numpy\nA = numpy.array([len({!r}), 1.5])", "A"),
    "an item getter": ("get(doc)", "from operator import itemgetter\nget = itemgetter({!r})", "get"),
}


@pytest.mark.rule("plan.fingerprint")
@pytest.mark.parametrize("what", CHANGES)
def test_what_a_function_reaches_counts(tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body, before, name = CHANGES[what]
    one, other, again = (
        in_process(tmp_path, plan_of(body, before.format(value)), monkeypatch) for value in ("small", "larger", "small")
    )

    assert one == again
    assert [key for key in one.keys() | other.keys() if one.get(key) != other.get(key)] == [name]


def in_process(tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch, helpers: str = "") -> dict[str, str]:
    """Return what counts of the step of a plan file, and of its neighbour ``helpers.py``, loaded into this process."""
    (tmp_path / "reached.py").write_text(source)
    (tmp_path / "helpers.py").write_text(helpers)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "helpers", raising=False)
    plan = load_plan(str(tmp_path / "reached.py"))
    [node] = [n for n in plan.nodes if n.name == "step"]
    return reach_of(node).facts


@pytest.mark.parametrize(
    ("one", "other", "name"),
    [
        (plan_of(step=DECORATED.format("a")), plan_of(step=DECORATED.format("b")), "variable word"),
        (plan_of(step=CALLED, fn="Embed('a')"), plan_of(step=CALLED, fn="Embed('b')"), "attribute _model"),
        (plan_of(step=CLOSED, fn="made('a')"), plan_of(step=CLOSED, fn="made('b')"), "variable model"),
        (
            plan_of(step="def step(doc, model='a'):\n    return doc\n"),
            plan_of(step="def step(doc, model='b'):\n    return doc\n"),
            "default model",
        ),
        (plan_of(options=", depends='a'"), plan_of(options=", depends='b'"), "depends: 0"),
        (plan_of(options=", depends={'m': 1}"), plan_of(options=", depends={'m': 2}"), "depends: m"),
    ],
    ids=["decorator", "object", "closure", "default", "depends", "depends by name"],
)
def test_what_a_step_is_made_of_counts(
    tmp_path: Path, one: str, other: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = (in_process(tmp_path, text, monkeypatch) for text in (one, other))

    assert [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)] == [name]


HELPERS = "MODEL = {!r}\nOTHER = {!r}\ndef clean(t):\n    return t + MODEL\n"


@pytest.mark.parametrize(
    ("before", "body", "names"),
    [
        ("import helpers", "helpers.clean('a')", {"helpers.MODEL"}),
        ("import helpers as h", "h.MODEL", {"helpers.MODEL"}),
        ("from helpers import clean", "clean('a')", {"helpers.MODEL"}),
        ("from helpers import MODEL", "MODEL", {"MODEL"}),
        ("import helpers", "getattr(helpers, 'MODEL')", {"module helpers"}),
        ("", "__import__('helpers').MODEL", set()),
        ("def late():\n    import helpers\n    return helpers.MODEL", "late()", {"module helpers"}),
        ("def late():\n    from helpers import clean\n    return clean('a')", "late()", {"module helpers"}),
    ],
)
def test_modules_of_the_user_are_followed(
    tmp_path: Path, before: str, body: str, names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what is used of them; as a whole where that cannot be seen, or where they are imported late."""
    one, other, unused = (
        in_process(tmp_path, plan_of(body, before), monkeypatch, HELPERS.format(model, unused))
        for model, unused in (("a", "x"), ("b", "x"), ("a", "y"))
    )

    assert {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)} == names
    assert (one == unused) == (not any(name.startswith("module") for name in names))


def test_packages_count_by_their_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a function names of them, also late; nothing of their code is walked, and Python counts by its version."""
    late = "def late():\n    import duckdb\n    return duckdb"
    source = plan_of("(msgspec.json, late())", f"import msgspec, json\n{late}")
    found = in_process(tmp_path, source, monkeypatch)

    assert set(found) == {"Python", "package msgspec", "package duckdb", "late()"}
    assert found["Python"] == f"{sys.version_info.major}.{sys.version_info.minor}"
    import duckdb
    import msgspec

    assert (found["package msgspec"], found["package duckdb"]) == (msgspec.__version__, duckdb.__version__)


EVERYTHING = "\n".join(
    before.format("a").replace("Config", f"Config{n}").replace("CONFIG", f"CONFIG{n}")
    for n, (_, before, _) in enumerate(CHANGES.values())
    if "Enum" not in before
)


def test_facts_are_the_same_in_every_process(tmp_path: Path) -> None:
    """Whatever the seed of hashes, the folder, and the name that the plan is loaded as."""
    names = "MODEL, WORDS, TABLE, clean, a, f, even, P, A, get, STRANGE"
    strange = (
        "STRANGE = [frozenset({('x', 1), 'y', frozenset('abc')}), object(), {'k': {1, 2, 'z'}}, lambda: {'p', 'q'}]"
    )
    (tmp_path / "plan.py").write_text(plan_of(f"({names})", f"{EVERYTHING}\n{strange}"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "other.py").write_bytes((tmp_path / "plan.py").read_bytes())
    seen = {printed(tmp_path / "plan.py", PYTHONHASHSEED=str(seed)) for seed in (0, 1, 77)}
    seen.add(printed(elsewhere / "other.py", PYTHONHASHSEED="5"))
    run_as_program = (tmp_path / "plan.py").read_text() + (
        "\nimport json\nfrom ferryman.plan.reach import reach_of\n"
        "print(json.dumps(reach_of(plan.nodes[1]).facts, sort_keys=True))\n"
    )
    (tmp_path / "program.py").write_text(run_as_program)
    program = [sys.executable, str(tmp_path / "program.py")]
    seen.add(subprocess.run(program, check=True, capture_output=True, text=True).stdout)

    assert len(seen) == 1


def test_a_plan_in_a_zip_is_walked(tmp_path: Path) -> None:
    """Also the modules beside it that its steps import late."""
    seen = []
    for value in ("a", "b"):
        archive = tmp_path / f"{value}.pyz"
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("helpers.py", HELPERS.format(value, "x"))
            late = "def late():\n    import helpers\n    return helpers.MODEL"
            program = plan_of("late()", late) + (
                "\nimport json\nfrom ferryman.plan.reach import reach_of\n"
                "print(json.dumps(reach_of(plan.nodes[1]).facts))"
            )
            file.writestr("__main__.py", program)
        command = [sys.executable, str(archive)]
        seen.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))

    one, other = seen
    assert {key for key in one if one[key] != other[key]} == {"module helpers"}


class Hostile:
    """An object whose every part raises, or never ends."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __repr__(self) -> str:
        raise RuntimeError("repr")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("eq")

    def __hash__(self) -> int:
        raise RuntimeError("hash")


class Raising(type):
    @property
    def __module__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("module")


class Strange(metaclass=Raising):
    pass


def deep(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


def circular() -> Any:
    value: dict[str, Any] = {}
    value["self"] = [value]
    return value


@pytest.mark.parametrize(
    "make",
    [Hostile, Strange, lambda: Strange, lambda: deep(100_000), circular, lambda: [*range(1_000_000)], lambda: 10**6000],
    ids=["hostile", "its class", "class", "deep", "circular", "huge", "large number"],
)
def test_strange_values_do_no_harm(make: Any) -> None:
    """Each is described in the same way again."""

    def found() -> dict[str, str]:
        value = make()

        def step(doc: Any) -> Any:
            return value

        plan = Plan("p")
        plan.source("s", Memory([])).step("step", step)
        return structure(plan)["step"].reaches or {}

    assert found() == found()
    assert "variable value" in found() or "class Strange" in found()


def test_a_longer_list_is_another_value() -> None:
    """Of a huge one the length and the beginning count."""

    def found(value: Any) -> dict[str, str]:
        def step(doc: Any) -> Any:
            return value

        plan = Plan("p")
        plan.source("s", Memory([])).step("step", step)
        return structure(plan)["step"].reaches or {}

    assert len({json.dumps(found([*range(n)])) for n in (1, 2, 100_000, 100_001)}) == 4


def test_files_and_folders_that_a_step_depends_on(tmp_path: Path) -> None:
    """Their content counts, not their time; a file that is not there is one that may come."""

    def found() -> dict[str, str]:
        plan = Plan("p")
        depends = [tmp_path / "model.bin", tmp_path / "folder"]
        plan.source("s", Memory([])).step("step", len, depends=depends)
        return {key.rpartition("/")[2]: fact for key, fact in (structure(plan)["step"].reaches or {}).items()}

    (tmp_path / "folder").mkdir()
    seen = [found()]
    (tmp_path / "model.bin").write_bytes(b"1" * 9_000_000)
    seen.append(found())
    os.utime(tmp_path / "model.bin", (1, 1))
    assert found() == seen[-1]
    (tmp_path / "model.bin").write_bytes(b"1" * 8_999_999 + b"2")
    seen.append(found())
    (tmp_path / "folder" / "a").write_text("x")
    seen.append(found())
    (tmp_path / "folder" / "a").write_text("y")
    seen.append(found())

    assert len({json.dumps(each) for each in seen}) == len(seen)
    assert [each["folder"] for each in seen[:3]] == [seen[0]["folder"]] * 3


def test_a_state_of_an_older_version_sees_no_change() -> None:
    """It has recorded the node's own code only: what that reaches is noticed from the next run on."""
    import msgspec

    plan = Plan("p")
    plan.source("s", Memory([])).step("step", len)
    now = structure(plan)
    before = {name: msgspec.structs.replace(node, reaches=None) for name, node in now.items()}

    assert not any(changes(before, now))
    older = {**before, "step": msgspec.structs.replace(before["step"], code="x")}
    assert changes(older, now).code == ["step"]


def test_a_new_version_of_python_or_a_package_is_named() -> None:
    """With both versions: the code of a helper may be other code there."""
    import msgspec

    plan = Plan("p")
    plan.source("s", Memory([])).step("step", len)
    now = structure(plan)
    reaches = {**(now["step"].reaches or {}), "package numpy": "2.2"}

    def changed(**facts: str) -> list[str]:
        def with_facts(facts: dict[str, str]) -> Any:
            return {**now, "step": msgspec.structs.replace(now["step"], reaches=facts)}

        return changes(with_facts(reaches), with_facts({**reaches, **facts})).code

    assert changed() == []
    assert changed(**{"package numpy": "2.3"}) == ["step (package numpy 2.3 instead of 2.2)"]
    assert changed(Python="9.9", **{"a()": "x"}) == [f"step (Python 9.9 instead of {reaches['Python']})"]
    assert changed(**{"a()": "x", "MODEL": "y"}) == ["step (MODEL, a())"]
