"""What cannot be sent to the workers is found by ``plan check``, by name."""

from __future__ import annotations

import fnmatch
import json
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ferryman import Document, Plan
from ferryman.cli.app import start
from ferryman.destinations import Null
from ferryman.errors import PlanError
from ferryman.plan.calls import dumps
from ferryman.sources import Memory

FILE = """
import threading
from ferryman import Document, Plan
from ferryman.destinations import Null
from ferryman.sources import Memory

LOCK = threading.Lock()


def guarded(doc):
    with LOCK:
        return doc


def step(doc):
    return guarded(doc)


plan = Plan("locks", version=1)
plan.source("docs", Memory([Document("a")])).step("work", step).destination("out", Null())
"""


def refused(step: Any) -> str:
    plan = Plan("locks", version=1)
    plan.source("docs", Memory([])).step("work", step).destination("out", Null())
    with pytest.raises(PlanError) as error:
        plan.check()
    return str(error.value)


@pytest.mark.rule("plan.pickled")
def test_a_plan_file_says_which_global(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Through the function that uses it; Spark was not started for that."""
    (tmp_path / "plan.py").write_text(FILE)
    assert start(["plan", "check", str(tmp_path / "plan.py")]) == 2
    told = capsys.readouterr().err
    assert "work: cannot be sent to the workers: it uses the global LOCK of the global guarded" in told
    assert "Make it in the workers" in told


def test_what_a_step_closes_over_is_named() -> None:
    """A session, a lock, a connection of the program."""
    lock = threading.Lock()

    def step(doc: Document) -> Document:
        with lock:
            return doc

    assert "it uses the variable lock, and that cannot be pickled" in refused(step)


def test_an_object_is_searched_too() -> None:
    """Its attributes."""

    class Step:
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def __call__(self, doc: Document) -> Document:
            return doc

    assert "it uses the attribute lock" in refused(Step())


def test_what_refuses_by_itself_is_said_in_its_own_words() -> None:
    """As Spark's sessions do."""

    class Session:
        def __reduce__(self) -> Any:
            raise RuntimeError("only on the driver.")

    session = Session()

    def step(doc: Document) -> Document:
        doc["session"] = str(session)
        return doc

    assert "the variable session, and that cannot be pickled: only on the driver. Make" in refused(step)


def test_a_step_that_refers_to_itself_is_fine() -> None:
    """No circle, no finding."""

    def step(doc: Document) -> Document:
        return step(doc) if doc.get("again") else doc

    plan = Plan("circle", version=1)
    plan.source("docs", Memory([])).step("work", step).destination("out", Null())
    assert plan.check() == []


KINDS = """
import collections, contextlib, dataclasses, enum, functools, pickle, subprocess, sys, threading, typing
@functools.cache
def model(): return {"hello": 1}
@functools.lru_cache(maxsize=3, typed=True)
def fib(n): return n if n < 2 else fib(n-1) + fib(n-2)
@functools.singledispatch
def kind(x): return "other"
@kind.register
def _(x: int): return "int"
@dataclasses.dataclass
class Point:
    x: int
    y: int = 2
@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: int
class Color(enum.Enum):
    RED = 1
class Tool:
    @functools.cached_property
    def heavy(self): return 5
    @functools.lru_cache
    def method(self, n): return n + 1
    @functools.singledispatchmethod
    def disp(self, x): return "o"
    @disp.register
    def _(self, x: int): return "i"
    @staticmethod
    @functools.cache
    def st(): return 7
class NT(typing.NamedTuple):
    a: int
Old = collections.namedtuple("Old", "a b")
def counting(f):
    n = 0
    @functools.wraps(f)
    def inner(*a):
        nonlocal n
        n += 1
        return f(*a), n
    return inner
@counting
def counted(x): return x
def outer():
    @functools.cache
    def inner(): return 9
    return inner
nested = outer()
part = functools.partial(model)
tool = Tool()
class TD(typing.TypedDict, total=False):
    a: int
User = typing.NewType('User', int)
@contextlib.contextmanager
def cm(): yield 3
def use_cm():
    with cm() as x: return x
CASES = dict(
    model=lambda: model(),
    fib=lambda: fib(10),
    kind=lambda: kind(1)+kind("x"),
    fields=lambda: [f.name for f in dataclasses.fields(Point(1))],
    asdict=lambda: dataclasses.asdict(Point(1)),
    replace=lambda: dataclasses.replace(Frozen(1), x=2).x,
    color=lambda: Color(1) is Color.RED,
    cprop=lambda: tool.heavy,
    meth=lambda: Tool().method(1),
    disp=lambda: Tool().disp(1),
    st=lambda: Tool.st(),
    nt=lambda: NT(1)._replace(a=2).a,
    old=lambda: Old(1,2).b,
    counted=lambda: counted(1),
    nested=lambda: nested(),
    part=lambda: part(),
    td=lambda: TD(a=1),
    new_type=lambda: User(4),
    cm=use_cm,
    cache_of_builtin=lambda: boxed(3),
    bound=functools.partial(tool.method, 1),
    info=lambda: model.cache_info().maxsize,
)
boxed = functools.lru_cache(maxsize=None)(abs)

from ferryman.plan.calls import dumps

THERE = "import json, pickle, sys; print(json.dumps({n: f() for n, f in pickle.load(sys.stdin.buffer).items()}))"
subprocess.run([sys.executable, "-c", THERE], input=dumps(CASES), check=True)
"""


@pytest.mark.rule("plan.pickled")
def test_what_a_program_defines_works_in_another_process(tmp_path: Path) -> None:
    """Caches, dispatch by type, dataclasses, enums, decorators with a state: the other process has no such module."""
    (tmp_path / "program.py").write_text(KINDS)
    done = subprocess.run([sys.executable, tmp_path / "program.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "model": {"hello": 1}, "fib": 55, "kind": "intother", "fields": ["x", "y"], "asdict": {"x": 1, "y": 2},
        "replace": 2, "color": True, "cprop": 5, "meth": 2, "disp": "i", "st": 7, "nt": 2, "old": 2, "counted": [1, 1],
        "nested": 9, "part": {"hello": 1}, "td": {"a": 1}, "new_type": 4, "cm": 3, "cache_of_builtin": 3, "bound": 2,
        "info": None,
    }  # fmt: skip


BY_NAME = """
from ferryman import Document, Plan
from ferryman.destinations import Null
from ferryman.sources import Memory


class Handle:
    def __reduce__(self):
        return "handle"


handle = Handle()


def step(doc):
    return handle and doc


plan = Plan("names", version=1)
plan.source("docs", Memory([Document("a")])).step("look-up", step).destination("out", Null())
"""


@pytest.mark.rule("plan.pickled")
def test_what_is_sent_as_a_name_only_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It can be pickled, and no worker could unpickle it: step and object are named."""
    (tmp_path / "by_name.py").write_text(BY_NAME)
    assert start(["plan", "check", str(tmp_path / "by_name.py")]) == 2
    told = capsys.readouterr().err
    assert "look-up: cannot be sent to the workers: it uses the global handle, and that cannot be pickled" in told
    assert "by_name.handle is sent by name only" in told


def test_an_installed_cached_function_stays_a_name() -> None:
    """Its module's cache is the one that others have."""
    assert pickle.loads(dumps(fnmatch._compile_pattern)) is fnmatch._compile_pattern  # type: ignore[attr-defined]


BESIDE = """
import pickle, subprocess, sys
from ferryman import Document, Plan
from ferryman.destinations import Null
from ferryman.plan.load import pickle_neighbours_by_value
from ferryman.plan.calls import dumps
from ferryman.sources import Memory
import neighbour

plan = Plan("beside", version=1)
plan.source("docs", Memory([Document("a")])).step("work", neighbour.step).destination("out", Null())
pickle_neighbours_by_value([plan])
there = "import pickle, sys; print(pickle.load(sys.stdin.buffer)(3))"
done = subprocess.run([sys.executable, "-c", there], input=dumps(neighbour.step), cwd="/", capture_output=True)
print(done.stdout.decode().strip() or done.stderr.decode().splitlines()[-1])
"""


@pytest.mark.parametrize(
    ("neighbour", "says"),
    [
        ("def step(doc):\n    return doc\n", "3"),
        (
            "import threading\nLOCK = threading.Lock()\ndef step(doc):\n    with LOCK:\n        return doc\n",
            "ModuleNotFoundError: No module named 'neighbour'",
        ),
    ],
)
def test_modules_beside_a_program_travel_to_other_machines(tmp_path: Path, neighbour: str, says: str) -> None:
    """By value; what cannot is sent by name, as where the machines have it."""
    (tmp_path / "neighbour.py").write_text(neighbour)
    (tmp_path / "program.py").write_text(BESIDE)
    done = subprocess.run([sys.executable, tmp_path / "program.py"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == says


def test_code_keeps_the_name_of_its_file() -> None:
    """The ledger shows where a step failed, whichever version of cloudpickle sent it."""
    names: dict[str, Any] = {}
    exec(compile("def outer(doc):\n    return [each for each in (lambda: doc)()]", "/plans/books.py", "exec"), names)
    sent = pickle.loads(dumps(names["outer"])).__code__
    inner = [each for each in sent.co_consts if hasattr(each, "co_filename")]
    assert inner
    assert {each.co_filename for each in (sent, *inner)} == {"/plans/books.py"}
