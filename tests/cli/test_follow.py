"""``history`` of a flow: a document on its way through several plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ferryman.destinations import Queue as ToQueue
from ferryman.operations import follow
from ferryman.plan import Flow, Plan
from ferryman.queues import Queue as DurableQueue
from ferryman.sources import Memory, Queue
from ferryman.state.state import state_root
from tests.support.plan_world import run_plan


def flow_of(place: Path) -> Flow:
    """Documents → texts; texts and prices are joined → bills → ledger."""
    extract, bill, book = Plan("extract"), Plan("bill"), Plan("book")
    documents = [{"id": f"d{n}", "n": n} for n in range(3)]
    extract.source("docs", Memory(documents)).destination("texts", ToQueue("texts", place))
    inputs = {name: bill.source(name, Queue(name, place)) for name in ("texts", "prices")}
    both = bill.join("both", lambda docs: {"n": docs["texts"]["n"], "price": docs["prices"]["price"]}, inputs)
    both.destination("bills", ToQueue("bills", place))
    book.source("bills", Queue("bills", place)).destination("ledger", ToQueue("ledger", place))
    return Flow("shop", [extract, bill, book])


@pytest.mark.rule("flow.history")
def test_a_document_is_followed_through_all_plans(tmp_path: Path) -> None:
    """Over a join, too; a plan without a state is passed over."""
    DurableQueue("prices", tmp_path).append([{"price": n} for n in (7, 8, 9)])
    flow = flow_of(tmp_path)
    extract, bill, book = flow.plans
    roots = {flow.label(plan): state_root(plan, tmp_path / "state") for plan in flow.plans}
    for plan in (extract, bill):
        run_plan(plan, tmp_path / "state")
    assert told(follow(flow, roots, "d1")) == [("extract", "d1", "texts"), ("bill", "texts/2&prices/2", "bills")]
    run_plan(book, tmp_path / "state")
    assert told(follow(flow, roots, "d1")) == [
        ("extract", "d1", "texts"),
        ("bill", "texts/2&prices/2", "bills"),
        ("book", "bills/2", "ledger"),
    ]
    assert told(follow(flow, roots, "bills/3")) == [("book", "bills/3", "ledger")]
    assert follow(flow, roots, "nobody") == []


def told(events: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(e["plan"], e["document"], e["destination"]) for e in events]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A table with a column for the plan, or JSON."""
    from ferryman.cli.app import start

    DurableQueue("prices", tmp_path / "queues").append([{"price": 7}])
    (tmp_path / "shop.py").write_text(
        "from pathlib import Path\n"
        "from tests.cli.test_follow import flow_of\n"
        "flow = flow_of(Path('queues').absolute())\n"
    )
    monkeypatch.chdir(tmp_path)
    flow = flow_of(tmp_path / "queues")
    for plan in flow.plans:
        run_plan(plan, tmp_path / ".ferryman")
    assert start(["history", "shop.py", "d0"]) == 0
    shown = capsys.readouterr().out
    assert [line.split()[2] for line in shown.splitlines()[1:4]] == ["extract", "bill", "book"]
    assert start(["history", "shop.py", "d0", "--json"]) == 0
    assert [event["plan"] for event in json.loads(capsys.readouterr().out)] == ["extract", "bill", "book"]
    assert start(["history", "shop.py", "nobody"]) == 2
    assert "nobody: no plan of flow shop knows such a document" in capsys.readouterr().err
