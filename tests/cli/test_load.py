"""Plan files: which plan is meant, whose error it is, and what travels to the workers by value."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import cloudpickle
import pytest

from ferryman import Flow
from ferryman.errors import UsageError
from ferryman.plan.load import load, load_plan, plan_file

Write = Callable[[str, str], Path]

ONE = """
from ferryman import Plan
plan = Plan("one", version=3)
"""


@pytest.fixture(autouse=True)
def _no_traces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Modules and paths of one test are not there in the next."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    by_value = set(cloudpickle.list_registry_pickle_by_value())
    yield
    for name in cloudpickle.list_registry_pickle_by_value() - by_value:
        if name in sys.modules:
            cloudpickle.unregister_pickle_by_value(sys.modules[name])
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def refusal(spec: object) -> str:
    with pytest.raises(UsageError) as refused:
        load_plan(str(spec))
    assert refused.value.exit_code == 2
    return str(refused.value)


@pytest.mark.rule("plan.file")
def test_a_file_that_makes_one_plan_is_that_plan(write: Write) -> None:
    """A plan file needs no naming convention: its one Plan is found, also under two names."""
    file = write("some-plan.py", ONE + "same = plan\n")

    assert load_plan(str(file)).key == "one-v3"
    assert plan_file(str(file)) == file


@pytest.mark.rule("plan.file")
def test_the_name_after_the_colon_chooses(write: Write) -> None:
    """Of several plans in a file, one is chosen by name."""
    file = write("many.py", 'from ferryman import Plan\na = Plan("alpha")\nb = Plan("beta")\n')

    assert load_plan(f"{file}:b").name == "beta"
    assert plan_file(f"{file}:b") == file
    told = refusal(file)
    assert "2 plans (a, b)" in told
    assert "many.py:a" in told
    assert "no Plan named 'c'; it has: a, b" in refusal(f"{file}:c")


@pytest.mark.rule("plan.file")
def test_a_module_is_found_in_the_current_folder(write: Write) -> None:
    """package.module:name needs no installation; there is no plan file then."""
    write("catalogue/__init__.py", "")
    write("catalogue/indexing.py", ONE)

    assert load_plan("catalogue.indexing:plan").name == "one"
    assert plan_file("catalogue.indexing:plan") is None
    assert "catalogue.nothing: there is no such module" in refusal("catalogue.nothing:plan")


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("nothing.py", "nothing.py: there is no such file"),
        (".", ". is a folder"),
        ("plan", "'plan' names no plan"),
        ("", "'' names no plan"),
    ],
)
def test_what_names_no_plan_is_refused(spec: str, told: str) -> None:
    """Each refusal tells the forms that there are."""
    refused = refusal(spec)

    assert told in refused
    assert "package.module:name" in refused


def test_a_file_without_a_plan_is_refused(write: Write) -> None:
    """A Plan made in a function does not count."""
    file = write("none.py", "from ferryman import Plan\ndef make():\n    return Plan('x')\n")

    assert "none.py makes no Plan" in refusal(file)


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("x = 1\ny = x / 0\n", 2, "ZeroDivisionError: division by zero"),
        ("def f():\n    return nope\n\nf()\n", 2, "NameError: name 'nope' is not defined"),
        ("x = (\n", 1, "SyntaxError: '(' was never closed"),
        ("\nimport no_such_module\n", 2, "No module named 'no_such_module'. Install it into"),
        ("raise SystemExit\n", 1, "SystemExit"),
        ("from ferryman.sources import Files\nFiles('x', detect='dreams')\n", 2, "detect='dreams': choose one of"),
        ("from ferryman import steps\nsteps.trim('')\n", 2, "give the name of a field, or a list of names. Correct it"),
    ],
)
def test_an_error_in_the_file_names_its_line(write: Write, text: str, line: int, told: str) -> None:
    """What the user's code raises is told with file, line and exception, and not with our stack."""
    file = write("bad.py", text)

    refused = refusal(file)

    assert refused.startswith(f"{file}, line {line}: ")
    assert told in refused
    assert "\n" not in refused


def test_an_error_in_a_neighbour_names_the_neighbour(write: Write) -> None:
    """The deepest line of the user's own files is the one to correct."""
    neighbour = write("helper_of_a_plan.py", "x = 1\n1 / 0\n")
    file = write("plan.py", "import helper_of_a_plan\n")

    assert refusal(file).startswith(f"{neighbour}, line 2: ZeroDivisionError")


def test_what_a_plan_file_prints_is_no_result(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """A print in a plan file must not spoil `status --json`."""
    load_plan(str(write("loud.py", "print('loud')\n" + ONE)))

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "loud\n"


def test_an_edit_within_the_same_second_is_seen(write: Write) -> None:
    """Nothing stale is loaded, and no __pycache__ is left beside the plan."""
    file = write("plan.py", ONE)
    assert load_plan(str(file)).name == "one"
    write("plan.py", ONE.replace("one", "two"))

    assert load_plan(str(file)).name == "two"
    assert not (file.parent / "__pycache__").exists()


def test_a_plan_file_may_be_called_like_a_module(write: Write) -> None:
    """A plan in queue.py does not take the place of Python's own module."""
    assert load_plan(str(write("statistics.py", ONE))).name == "one"

    import statistics

    assert hasattr(statistics, "median")


FROM_ELSEWHERE = """
import sys, cloudpickle
destination, step = cloudpickle.loads(sys.stdin.buffer.read())
print(type(destination).__name__, destination.effect.value, step(20))
"""


def test_what_a_plan_file_defines_is_pickled_by_value(write: Write, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A worker that has neither the plan file nor its neighbours can run its steps and destinations."""
    write("numbers_of_mine/__init__.py", "")
    write("numbers_of_mine/more.py", "def twice(n):\n    return n * 2\n")
    file = write(
        "plan.py",
        """
        from numbers_of_mine import more
        from numbers_of_mine.more import twice
        from ferryman import Effect, Plan
        from ferryman.destinations import Destination
        from ferryman.sources import Files

        class Mine(Destination):
            effect = Effect.POTENT

        def step(n):
            return twice(n) + more.twice(1)

        plan = Plan("by-value")
        plan.source("files", Files(".")).step("step", step).destination("mine", Mine())
        """,
    )
    _, step, mine = load_plan(str(file)).nodes
    blob = cloudpickle.dumps((mine.destination, step.fn))  # type: ignore[attr-defined]

    done = subprocess.run(
        [sys.executable, "-c", FROM_ELSEWHERE],
        input=blob,
        capture_output=True,
        cwd=tmp_path_factory.mktemp("elsewhere"),
        check=False,
    )

    assert done.stdout.decode().split() == ["Mine", "potent", "42"], done.stderr.decode()


def test_installed_packages_are_pickled_by_reference(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an environment that lies below the plan's folder, nothing is carried along."""
    packages = write(".venv/lib/site-packages/installed_thing.py", "x = 1\n").parent
    monkeypatch.syspath_prepend(str(packages))
    file = write("plan.py", "import installed_thing\n" + ONE)

    load_plan(str(file))

    by_value = cloudpickle.list_registry_pickle_by_value()
    assert "plan" in by_value
    assert "installed_thing" not in by_value
    assert not any(name.startswith("ferryman") for name in by_value)


FLOW = """
from ferryman import Flow, Plan
first, second = Plan("orders"), Plan("invoices", version=2)
flow = Flow("shop", [first, second, Plan("third")])
apart = Plan("apart")
"""


@pytest.mark.rule("flow.file")
def test_a_file_that_makes_one_flow_is_that_flow(write: Write) -> None:
    """Whatever plans it makes; the flow can be named, too."""
    file = write("shop.py", FLOW)

    assert load(str(file)) is not load(str(file)), "each time it is made again"
    for spec in (str(file), f"{file}:flow"):
        found = load(spec)
        assert isinstance(found, Flow)
        assert [plan.name for plan in found.plans] == ["orders", "invoices", "third"]


@pytest.mark.rule("flow.file")
def test_one_plan_of_a_flow_is_chosen_by_name(write: Write) -> None:
    """By the name at the file's top level, or by the plan's own."""
    file = write("shop.py", FLOW)

    assert load_plan(f"{file}:second").key == "invoices-v2"
    assert load_plan(f"{file}:invoices").key == "invoices-v2"
    assert load_plan(f"{file}:third").key == "third-v0"
    assert load_plan(f"{file}:apart").key == "apart-v0"
    assert "no Plan or Flow named 'c'; it has: first, second, apart, flow, third. Correct" in refusal(f"{file}:c")


@pytest.mark.rule("flow.file")
def test_what_takes_one_plan_says_which_there_are(write: Write) -> None:
    """A flow of one plan means that plan."""
    file = write("shop.py", FLOW)

    for spec in (str(file), f"{file}:flow"):
        assert refusal(spec) == (f"{spec} is a flow of 3 plans (first, second, third): say which one: shop.py:first.")
    alone = write("alone.py", "from ferryman import Flow, Plan\nflow = Flow('shop', [Plan('one')])\n")
    assert load_plan(str(alone)).name == "one"


def test_of_several_flows_one_is_named(write: Write) -> None:
    """As of several plans."""
    file = write("flows.py", "from ferryman import Flow, Plan\np = Plan('p')\na = Flow('a', [p])\nb = Flow('b', [p])\n")

    assert "flows.py makes 2 flows (a, b): say which one: flows.py:a." in refusal(file)
    assert isinstance(load(f"{file}:b"), Flow)
    assert load_plan(f"{file}:p").name == "p"
