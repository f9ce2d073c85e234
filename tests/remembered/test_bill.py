"""The bill: before a run, after it, and for all runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ferryman import account
from ferryman.cli.app import start
from ferryman.document import Document
from ferryman.errors import PlanError
from ferryman.plan import Plan
from ferryman.remembered import Remember
from ferryman.remembered.bill import describe_bill, describe_need, dollars
from ferryman.sources import Memory
from ferryman.steps import extract_text, fetch_url, split_text, unpack
from tests.support.paid import Service, build_paid
from tests.support.plan_world import PlanWorld
from tests.support.previewed import previewed
from tests.support.snapshot import snapshot


@pytest.mark.rule("remember.preview")
@pytest.mark.parametrize("mode", ["plain", "batch", "async threads"])
def test_a_preview_says_what_a_run_would_call(place: Path, mode: str) -> None:
    """It counts the calls of all documents, makes none, and writes nothing; remembered answers are shown."""
    world, service = PlanWorld(place, build_paid).build(mode), Service(place)
    for n in range(30):
        world.put(f"d{n:02}", words=f"t{n % 10}")
    world.run()
    for n in range(10, 40):
        world.put(f"d{n:02}", words=f"t{n % 12}", title="changed")
    world.put("e", words="t99")
    before, calls = snapshot(world.state), service.calls()
    found = previewed(world.plan, world.state, limit=40)
    assert (snapshot(world.state), service.calls()) == (before, calls)
    [bill] = found.calls
    need = [n for n in range(10, 40) if n % 12 >= 10]
    assert bill == {"step": "embed", "documents": 31, "need": len(need) + 1, "calls": 3, "cost": 0.003}
    shown = found.destinations["out"]
    assert {row["document"] for row in shown.uncalled} == {"e", *(f"d{n}" for n in need)}
    assert len(shown.gets) == 31 - len(need) - 1, "no delete of what the run would only send again"
    assert not shown.errors
    assert not shown.dropped
    assert describe_need(bill) == f"embed: {len(need) + 1} of 31 documents need a call (3 different), $0.003"
    done = world.run().remembered["embed"]
    assert (done["calls"], done["hits"]) == (3, 28)


@pytest.mark.rule("remember.preview")
def test_each_document_without_an_input_is_a_call_of_the_bill(place: Path) -> None:
    """Documents of one input share a call; one that has nothing of what the step reads shares with nobody."""
    world = PlanWorld(place, build_paid)
    for n in range(4):
        world.put(f"d{n}", words="t0")
    world.put("empty")
    world.put("also empty")
    [bill] = previewed(world.plan, world.state).calls
    assert (bill["documents"], bill["need"], bill["calls"], bill["cost"]) == (6, 6, 3, 0.003)


def test_the_bill_is_in_words() -> None:
    call = {"step": "embed", "documents": 12_000, "need": 620, "calls": 620, "cost": 0.43}
    assert describe_need(call) == "embed: 620 of 12 000 documents need a call, $0.43"
    one = {"step": "embed", "documents": 1, "need": 1, "calls": 1, "cost": 0.0}
    assert describe_need(one) == "embed: 1 of 1 document needs a call"
    counts = {"calls": 620, "hits": 11_380, "in_doubt": 1, "spent": 0.43, "saved": 7.97}
    assert describe_bill("embed", counts) == (
        "embed: 620 calls ($0.43), 11 380 answers remembered ($7.97 saved), 1 call in doubt made again"
    )
    assert [dollars(x) for x in (0, 0.00002, 0.0012, 0.5, 1234.5)] == [
        "$0.00",
        "$0.00002",
        "$0.0012",
        "$0.50",
        "$1,234.50",
    ]


@pytest.mark.rule("remember.bill")
def test_status_and_the_command(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``status`` and ``remembered list | show | forget`` say and do what the store knows."""
    world = PlanWorld(place, build_paid)
    for n in range(4):
        world.put(f"d{n}", words=f"t{n % 2}")
    world.run()
    status = account.status(world.root, world.plan)["remembered"]["embed"]
    assert (status["calls"], status["hits"], status["answers"], status["in_doubt"]) == (2, 2, 2, 0)
    assert (status["spent"], status["saved"]) == (0.002, 0.002)
    monkeypatch.chdir(place)

    def said(*args: str, code: int = 0) -> str:
        assert start(["remembered", *args, "--state", str(world.state)]) == code
        out = capsys.readouterr()
        return out.out + out.err

    assert "embed" in said("list")
    assert json.loads(said("list", "--json"))[0]["hits"] == 2
    assert json.loads(said("show", "embed", "--json"))["versions"]["v1"]["written"] == 2
    assert "v1" in said("show", "embed")
    assert "Say what to forget" in said("forget", "embed", code=2)
    assert "nothing is remembered under the name other" in said("show", "other", code=2)
    assert "Nothing matches" in said("forget", "embed", "--older", "1d")
    (place / "input.json").write_text('{"words": "t0"}')
    assert "1 answer forgotten" in said("forget", "embed", "--input", "input.json")
    assert json.loads(said("forget", "embed", "--document", "d1", "--json")) == {"forgotten": 1, "removed": True}
    assert json.loads(said("show", "embed", "--json"))["versions"] == {}


def _generates(doc: Document) -> Any:
    yield doc


@pytest.mark.rule("remember.fields-only")
@pytest.mark.parametrize(
    ("fn", "remember", "why"),
    [
        (unpack, Remember("v"), "unpack makes children"),
        (split_text(), Remember("v"), "split_text makes children"),
        (extract_text(), Remember("v"), "extract_text changes the content"),
        (fetch_url("url"), Remember("v"), "fetch_url changes the content"),
        (_generates, Remember("v"), "generator"),
        (str, Remember(""), "version=''"),
        (str, Remember("v", reads=[]), "reads=[]"),
        (str, Remember("v", writes=[3]), "writes=[3]"),  # type: ignore[list-item]
        (str, Remember("v", expires="soon"), "expires='soon'"),
        (str, Remember("v", refusals=0), "refusals=0"),
        (str, Remember("v", name="a/b"), "name='a/b'"),
        (str, Remember("v", cost=-1), "cost=-1"),
        (str, Remember("v", max_bytes=5), "max_bytes=5"),
        (str, "v1", "give a Remember"),
    ],
)
def test_what_cannot_be_remembered_is_refused(fn: Any, remember: Any, why: str) -> None:
    plan = Plan("refused")
    node = plan.source("docs", Memory([]))
    node.step("embed", fn, remember=remember).destination("out", _null())
    with pytest.raises(PlanError) as refused:
        plan.check()
    assert any(why in text for text in refused.value.findings), refused.value.findings


def test_two_steps_of_one_name_must_read_the_same() -> None:
    plan = Plan("refused")
    node = plan.source("docs", Memory([])).step("one", str, remember=Remember("v", name="x", reads=["a"]))
    node.step("two", str, remember=Remember("v", name="x", reads=["b"])).destination("out", _null())
    with pytest.raises(PlanError, match="remembers under the name and version of one"):
        plan.check()


def test_a_keyed_node_cannot_remember() -> None:
    """Its state is what it remembers."""
    with pytest.raises(TypeError, match="remember"):
        Plan("refused").keyed("sums", lambda key, state, docs: (state, None), key="k", remember=Remember("v"))  # type: ignore[call-arg]


def _null() -> Any:
    from ferryman.destinations import Null

    return Null()
