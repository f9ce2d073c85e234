"""What the commands make of a flow. No Spark: tasks run in this process."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman.cli.app import start
from ferryman.engine import driver
from ferryman.queues import Queue
from ferryman.testing.inprocess import InProcess

FLOW = """
from pathlib import Path
from ferryman import Flow, Plan
from ferryman.destinations import JsonLines, Queue
from ferryman.sources import Memory
from tests.support.joined import Messages

HERE = Path(__file__).parent

def add(doc):
    if doc["n"] == 13:
        raise ValueError("unlucky")
    doc["n"] += 1
    return doc

orders = Plan("orders")
orders.source("docs", Memory([{"id": f"d{n}", "n": n} for n in (1, 2, 13)])).destination("out", Queue("pipe", HERE))
invoices = Plan("invoices", version=2)
invoices.source("pipe", Messages("pipe", HERE)).step("add", add).destination("out", JsonLines("out.jsonl"), attempts=1)
shop = Flow("shop", [invoices, orders])
"""
DELIVERED = {"waves": 1, "deleted": 0, "dropped": 0, "rejected": 0, "pending": 0, "in_doubt": 0}


@pytest.fixture(autouse=True)
def _in_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Commands run tasks in this process, in a folder with the flow."""

    @contextlib.contextmanager
    def open_runner(*_: Any, **__: Any) -> Iterator[InProcess]:
        yield InProcess()

    monkeypatch.setattr(driver, "open_runner", open_runner)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.py").write_text(FLOW)


Say = Callable[..., tuple[int, str, list[str]]]


@pytest.fixture
def ferryman(capsys: pytest.CaptureFixture[str]) -> Say:
    """A command: its exit code, what it printed, and the lines on stderr."""

    def call(*args: str) -> tuple[int, str, list[str]]:
        code = start(list(args))
        out, err = capsys.readouterr()
        return code, out, err.splitlines()

    return call


@pytest.mark.rule("flow.exit", "flow.run")
def test_run_tells_of_each_plan(ferryman: Say) -> None:
    """Counts, reasons and the next command of each; the exit code is the flow's."""
    code, out, err = ferryman("run", "plan.py")

    assert code == 3
    assert out.splitlines() == [
        "orders: 1 wave: 3 delivered",
        "invoices: 1 wave: 2 delivered",
        "1 failed, the newest of them:",
        f"  3 for out: step add: ValueError: unlucky ({Path('plan.py').absolute()}:12) (attempt 1, the last)",
        "All failed: ferryman deliveries plan.py:invoices --status failed",
        "A document that changes is retried automatically; to retry all: ferryman retry plan.py:invoices",
    ]
    assert any(line.startswith("orders: new state: ") for line in err)
    assert "orders: wave 1: deliveries: 3 delivered, 0 pending, 0 failed or rejected" in err
    assert "invoices: wave 1: deliveries: 2 delivered, 0 pending, 1 failed or rejected" in err
    assert all(line.startswith(("orders: ", "invoices: ")) for line in err)


READS = """
from pathlib import Path
from ferryman import Plan
from ferryman.destinations import JsonLines
from ferryman.sources import Memory, Queue

HERE = Path(__file__).parent

def broken(doc):
    raise ValueError("unlucky")

plan = Plan("reads")
sources = [plan.source("pipe", Queue("pipe", HERE, on_error="continue"))]
if (HERE / "too").exists():
    sources.append(plan.source("docs", Memory([])))
plan.step("broken", broken, after=sources, attempts=1).destination("out", JsonLines("out.jsonl"))
"""


@pytest.mark.parametrize("too", [False, True])
def test_run_tells_what_is_retried(ferryman: Say, too: bool) -> None:
    """Messages never change; documents may."""
    Queue("pipe", ".").append([{"n": 1}])
    Path("plan.py").write_text(READS)
    if too:
        Path("too").touch()
    *_, told = ferryman("run", "plan.py")[1].splitlines()
    automatically = "A document that changes is retried automatically, a message is not; "
    retry = "to retry all: ferryman retry plan.py"
    assert told == f"{automatically if too else 'Messages do not change; '}{retry}"


def test_run_as_json(ferryman: Say) -> None:
    """An object of each plan, and the flow's exit code; a second run has nothing to do."""
    code, out, _ = ferryman("run", "plan.py", "--json")

    assert code == 3
    assert json.loads(out) == {
        "flow": "shop",
        "exit": 3,
        "plans": {
            "orders": {**DELIVERED, "exit": 0, "delivered": 3, "failed": 0},
            "invoices": {**DELIVERED, "exit": 3, "delivered": 2, "failed": 1},
        },
    }
    assert [each["waves"] for each in json.loads(ferryman("run", "plan.py", "--json")[1])["plans"].values()] == [0, 0]


def test_the_log_names_the_plan(ferryman: Say, tmp_path: Path) -> None:
    """In JSON by a field, in text before each line."""
    ferryman("run", "plan.py", "--log-format", "json", "--log-file", "run.json")
    events = [json.loads(line) for line in Path("run.json").read_text().splitlines()]
    assert {event["plan"] for event in events} == {"orders", "invoices"}
    assert [e["plan"] for e in events if e["event"] == "finished"] == ["orders", "invoices"]

    shutil.rmtree(".ferryman")
    ferryman("run", "plan.py", "--log-file", "run.log")
    lines = [line.partition(" ")[2] for line in Path("run.log").read_text().splitlines()]
    assert all(line.startswith(("orders: ", "invoices: ")) for line in lines)


@pytest.mark.rule("flow.file")
def test_one_plan_of_it_runs_alone(ferryman: Say) -> None:
    """As any plan; its state is the one that the flow goes on from."""
    assert ferryman("run", "plan.py:orders", "--json")[0] == 0
    assert json.loads(ferryman("run", "plan.py", "--json")[1])["plans"]["orders"]["waves"] == 0


@pytest.mark.rule("flow.stop")
def test_a_plan_that_stops_is_told(ferryman: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    """On stderr when it stops, and at the end with the counts of all."""
    from ferryman.engine.scan import phase
    from ferryman.errors import EngineError

    list_sources = phase.list_sources

    def broken(plan: Any, *args: Any) -> Any:
        if plan.name == "invoices":
            raise EngineError("Spark failed.")
        return list_sources(plan, *args)

    monkeypatch.setattr(phase, "list_sources", broken)
    code, out, err = ferryman("run", "plan.py")

    assert code == 1
    assert out.splitlines() == [
        "orders: 1 wave: 3 delivered",
        "invoices: it stopped: Spark failed.",
        "invoices: Nothing was delivered.",
    ]
    assert "invoices: error: it stopped: Spark failed. The other plans go on." in err


def test_options_of_one_plan_are_refused(ferryman: Say) -> None:
    """With the command that does it."""
    one = "ferryman run plan.py:invoices --from-version N"
    other = "ferryman preview plan.py:invoices --doc d1"
    refused = {
        (
            "run",
            "plan.py",
            "--from-version",
            "1",
        ): f"--from-version is for one plan: migrate it first, as in {one}.",
        ("preview", "plan.py", "--doc", "d1"): f"--doc is for one plan, as in {other}.",
    }
    for args, told in refused.items():
        assert ferryman(*args) == (2, "", [f"error: {told.replace('plan', 'plan of flow shop', 1)}"])
    assert not Path(".ferryman").exists()


@pytest.mark.rule("flow.file")
@pytest.mark.parametrize("args", [["retry"], ["resolve", "--as", "failed"], ["fsck"]], ids=lambda a: a[0])
def test_other_commands_say_which_plan_to_name(ferryman: Say, args: list[str]) -> None:
    """And take it."""
    verb, *rest = args
    told = "error: plan.py is a flow of 2 plans (invoices, orders): say which one: plan.py:invoices."
    assert ferryman(verb, "plan.py", *rest) == (2, "", [told])


def test_deliveries_of_each_plan(ferryman: Say) -> None:
    """Under its name, as text and as JSON; filters leave out the plans that they do not concern."""
    code, out, err = ferryman("deliveries", "plan.py")
    assert (code, out.splitlines()) == (0, ["orders:", "", "invoices:"])
    assert sum("nothing has run" in line for line in err) == 2
    ferryman("run", "plan.py")

    headings = [line for line in ferryman("deliveries", "plan.py")[1].splitlines() if line.endswith(":")]
    assert headings == ["orders:", "invoices:"]
    rows = json.loads(ferryman("deliveries", "plan.py", "--json")[1])
    by_plan = {name: sorted(row["document"] for row in rows if row["plan"] == name) for name in ("orders", "invoices")}
    assert by_plan == {"orders": ["d1", "d13", "d2"], "invoices": ["1", "2", "3"]}
    failed = json.loads(ferryman("deliveries", "plan.py", "--json", "--status", "failed")[1])
    assert [(row["plan"], row["document"]) for row in failed] == [("invoices", "3")]
    of_pipe = json.loads(ferryman("deliveries", "plan.py", "--json", "--source", "pipe", "--limit", "1")[1])
    assert [row["plan"] for row in of_pipe] == ["invoices"]
    [reason] = json.loads(ferryman("deliveries", "plan.py", "--json", "--by", "reason")[1])
    assert (reason["plan"], reason["status"], reason["example"]) == ("invoices", "failed", "3")
    [family] = json.loads(ferryman("deliveries", "plan.py", "--json", "--incomplete")[1])
    assert (family["plan"], family["family"], family["failed"]) == ("invoices", "3", 1)
    code, _, err = ferryman("deliveries", "plan.py", "--source", "nobody")
    assert (code, err) == (2, ["error: --source nobody: flow shop has add, docs, out, pipe; name one of these."])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_flow_with_130(
    ferryman: Say, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """All of it, also while one plan is at work; the next run goes on."""
    from ferryman.engine import run

    commit, armed = run.commit_staged, [True]

    def interrupted(state: Any, *args: Any, **options: Any) -> Any:
        commit(state, *args, **options)
        if state.plan.name == "orders" and armed:
            armed.clear()
            signal.raise_signal(number)

    monkeypatch.setattr(run, "commit_staged", interrupted)
    code, out, err = ferryman("run", "plan.py")
    assert (code, out) == (130, "")
    assert err[-1].startswith("interrupted: nothing is lost. Run the same command again")

    assert ferryman("run", "plan.py")[0] == 3
    found = json.loads(ferryman("status", "plan.py", "--json")[1])["plans"]
    assert [found[name]["destinations"]["out"]["delivered"] for name in ("orders", "invoices")] == [3, 2]


# --- what only looks ----------------------------------------------------------------------------------------------


@pytest.mark.rule("flow.status")
def test_status_of_a_flow(ferryman: Say) -> None:
    """Of each plan in the order of their turns, before a run and after it."""
    code, out, err = ferryman("status", "plan.py", "--json")
    assert code == 0
    assert {name: each["waves"] for name, each in json.loads(out)["plans"].items()} == {"orders": 0, "invoices": 0}
    assert len(err) == 2
    assert all("there is no state here yet: nothing has run" in line for line in err)

    ferryman("run", "plan.py")
    found = json.loads(ferryman("status", "plan.py", "--json")[1])
    assert found["flow"] == "shop"
    assert list(found["plans"]) == ["orders", "invoices"]
    assert found["plans"]["invoices"]["destinations"]["out"]["delivered"] == 2
    assert found["plans"]["orders"] == json.loads(ferryman("status", "plan.py:orders", "--json")[1])

    _, out, _ = ferryman("status", "plan.py", "--svg", "flow.svg")
    lines = out.splitlines()
    assert lines.index("plan orders, version 0: 1 wave") < lines.index("plan invoices, version 2: 1 wave")
    assert "Which are failed, and why: ferryman deliveries plan.py:invoices --status failed" in lines
    svg = Path("flow.svg").read_text()
    assert ">2 waves, balanced<" in svg
    assert ">2 delivered<" in svg
    assert ">1 failed<" in svg


@pytest.mark.rule("flow.pictures")
def test_a_flow_is_drawn(ferryman: Say, tmp_path: Path) -> None:
    """In each format: all plans, and which queue joins which."""
    target = (tmp_path / "pipe").as_uri()
    text = ferryman("plan", "show", "plan.py")[1].splitlines()
    assert text[0] == "flow shop, 2 plans"
    assert text.index("plan orders, version 0") < text.index("plan invoices, version 2")
    assert text[-3:] == ["joined by", "", f"orders (out) → invoices (pipe): {target}"]

    svg = ferryman("plan", "show", "plan.py", "--format", "svg")[1]
    for words in ("flow shop, 2 plans", "orders/out", "invoices/pipe", "pipe"):
        assert f">{words}<" in svg
    assert "orders/out to invoices/pipe" in svg

    mermaid = ferryman("plan", "show", "plan.py", "--format", "mermaid")[1]
    assert '    n1 -->|"pipe"| n2\n' in mermaid
    data = json.loads(ferryman("plan", "show", "plan.py", "--format", "json")[1])
    assert list(data["plans"]) == ["orders", "invoices"]
    assert data["joints"] == [
        {"target": target, "writer": "orders", "destination": "out", "reader": "invoices", "source": "pipe"}
    ]


@pytest.mark.rule("flow.pictures")
def test_a_flow_is_drawn_with_counts(ferryman: Say) -> None:
    """Before a run and after it."""
    assert "nothing has run yet" in ferryman("plan", "show", "plan.py", "--format", "svg", "--counts")[1]
    ferryman("run", "plan.py")
    assert ">2 waves, balanced<" in ferryman("plan", "show", "plan.py", "--format", "svg", "--counts")[1]


def test_plan_check_of_a_flow(ferryman: Say) -> None:
    """All plans; warnings behind the plan's name."""
    code, out, _ = ferryman("plan", "check", "plan.py")
    assert code == 0
    assert out.splitlines()[0].startswith("warning: invoices: out: JsonLines does not compare sequences")
    assert out.splitlines()[1:] == [
        "flow shop: orders (2 nodes), invoices (3 nodes): 1 warning",
        "The destinations were not asked: --connect asks them.",
    ]

    Path("plan.py").write_text(FLOW + "orders.step('late', add)\n")
    code, out, err = ferryman("plan", "check", "plan.py")
    assert (code, out) == (2, "")
    assert err[0].startswith("error: orders: late: follows no node")


@pytest.mark.rule("flow.preview")
def test_a_preview_of_a_flow(ferryman: Say) -> None:
    """Of each plan, with what lies in its queues now; nothing is written."""
    code, out, _ = ferryman("preview", "plan.py", "--json")
    assert code == 0
    plans = json.loads(out)["plans"]
    assert list(plans) == ["orders", "invoices"]
    assert len(plans["orders"]["destinations"]["out"]["gets"]) == 3
    assert plans["invoices"]["documents"] == []
    assert not Path("pipe").exists()

    ferryman("run", "plan.py:orders")
    _, out, _ = ferryman("preview", "plan.py", "--limit", "2")
    lines = out.splitlines()
    assert lines[0] == "plan orders"
    assert lines[lines.index("plan invoices") + 1] == "2 documents: 2 new"
    assert lines[-1] == "Nothing was written. To do it: ferryman run plan.py"
