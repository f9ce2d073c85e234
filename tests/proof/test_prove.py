"""Proofs of small plans: what takes effect, what is found, and what is left alone."""

from __future__ import annotations

import pickle
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from ferryman import Document, Plan
from ferryman.destinations import JsonLines, Memory, Sql, Webhook
from ferryman.errors import UsageError
from ferryman.proof import broken, child
from ferryman.proof.child import ChildJob, RunAnswer
from ferryman.proof.proof import ProofResult, as_json, prove
from ferryman.proof.report import as_html, notes, verdict
from ferryman.proof.rounds import Inconclusive, Processes, Round
from ferryman.sources import Memory as Documents

DOCUMENTS = 8


def children(doc: Document) -> list[Document]:
    return [doc, doc.child("a", raw=doc.raw)]


def timed(doc: Document) -> Document:
    doc["at"] = time.perf_counter_ns()
    return doc


def calls(address: tuple[str, int], doc: Document) -> Document:
    with socket.create_connection(address, timeout=5):
        return doc


def build(folder: Path, step: Any = children) -> Plan:
    """Return a plan with a destination under each guarantee."""
    plan = Plan("papers")
    source = plan.source("docs", Documents([Document(f"d{n}", raw=b"text %d" % n) for n in range(DOCUMENTS)]))
    steps = source.step("step", step)
    steps.tee("memory", Memory()).tee("hook", Webhook("http://127.0.0.1:9/")).tee(
        "lines", JsonLines(folder / "lines")
    ).destination("index", Sql(f"sqlite:///{folder}/index.db"))
    return plan


def prove_small(folder: Path, **options: Any) -> ProofResult:
    return prove(build(folder, options.pop("step", children)), documents=DOCUMENTS, spark=False, **options)


@pytest.mark.slow
def test_kills_at_each_durable_write_of_a_worker_break_nothing(tmp_path: Path) -> None:
    """Each kill has taken effect, and the user's own destinations are untouched."""
    result = prove_small(tmp_path, kinds=["machine"])

    assert result.violations == []
    assert result.exit == 0
    assert {("machine", "deliver.claimed"), ("machine", "transform.outbox")} <= result.tallies.keys()
    assert all(tally.effects for tally in result.tallies.values())
    assert list(tmp_path.iterdir()) == []
    assert as_json(result)["proved"]
    assert verdict(result).startswith("PROVEN")
    left_out = next(each for each in result.unproved if each.startswith("not tried at all"))
    assert "the driver is killed" in left_out
    assert any(each.startswith("hook: a twin stood in the place of Webhook") for each in result.unproved)


@pytest.mark.rule("prove.effects")
def test_faults_that_hit_nothing_prove_nothing(tmp_path: Path) -> None:
    """A harness that breaks nothing must not be green."""
    result = prove_small(tmp_path, kinds=["refuses"], broken=broken.DISARMED)

    assert result.violations == []
    assert len(result.short) == 4
    assert result.exit == 1
    assert verdict(result).startswith("NOT PROVEN")


@pytest.mark.rule("prove.effects")
def test_a_round_that_shows_nothing_is_not_green() -> None:
    """Its fault is named, with the command that tries it again."""
    result = ProofResult("papers", 0, rounds=2)
    result.tallies["half", "index"].effects = 1
    assert result.exit == 0
    result.inconclusive.append(("half@lines:1@0", "twins or state could not be read: no answer"))

    assert result.exit == 1
    assert not as_json(result)["proved"]
    assert verdict(result) == "NOT PROVEN: 1 round of 2 showed nothing"
    said = "Inconclusive: twins or state could not be read: no answer. To try it again: ferryman half@lines:1@0"
    assert list(notes(result, "ferryman")) == [said]
    assert 'class="verdict good"' not in as_html(result, "ferryman")


@pytest.mark.rule("prove.effects")
def test_a_look_that_does_not_end_shows_nothing(tmp_path: Path) -> None:
    """It breaks no rule either."""

    class Hanging:
        def run(self, job: ChildJob) -> int:
            if job.verb == "look":
                return child.TIMEOUT
            (Path(job.folder) / job.answer).write_bytes(msgspec.json.encode(RunAnswer()))
            return 0

        def kill_stopped(self) -> None:
            pass

    with pytest.raises(Inconclusive, match="look: it has not ended within"):
        Round(cast(Processes, Hanging()), tmp_path / "round", None).play()


@pytest.mark.slow
@pytest.mark.rule("prove.effects")
def test_a_twin_that_does_not_answer_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All went well in the round, but nobody could look at its end."""
    run, looks = Processes.run, Counter[str]()

    def not_looking(processes: Processes, job: ChildJob) -> int:
        looks[job.verb] += 1
        return child.TIMEOUT if job.verb == "look" and looks["look"] > 2 else run(processes, job)

    monkeypatch.setattr(Processes, "run", not_looking)
    result = prove_small(tmp_path, fault="drops@memory:1@0")

    assert result.violations == []
    assert {fault for fault, _ in result.inconclusive} >= {"drops@memory:1@0"}
    assert len(result.inconclusive) == result.rounds
    assert result.exit == 1
    assert verdict(result) == f"NOT PROVEN: {result.rounds} rounds of {result.rounds} showed nothing"


SHOWN = ("outcome",)
"""Rules whose breaking is found in the ordinary tests; ``make prove`` tries all of them."""


@pytest.mark.parametrize(
    "rule", [r if r in SHOWN else pytest.param(r, marks=pytest.mark.slow) for r in broken.RULES if r != "faults"]
)
def test_a_rule_that_is_broken_on_purpose_is_found(tmp_path: Path, rule: str) -> None:
    kinds = broken.RULES[rule].kinds
    result = prove_small(tmp_path, kinds=kinds, broken=rule)

    assert result.violations, "it was not found"
    assert result.exit == 1
    fault, _ = result.violations[0]
    said = list(notes(result, "ferryman prove --fault"))
    assert any(each.endswith(f"To see it again: ferryman prove --fault {fault}") for each in said)


@pytest.mark.slow
def test_a_violation_is_seen_again_by_its_fault(tmp_path: Path) -> None:
    fault = "half@lines:1@1"

    assert prove_small(tmp_path, fault=fault).violations == []
    again = prove_small(tmp_path, fault=fault, broken="outcome").violations

    assert {name for name, _ in again} == {fault}
    assert any("lost" in what for _, what in again)


@pytest.mark.slow
def test_a_step_that_is_not_deterministic_is_named(tmp_path: Path) -> None:
    result = prove_small(tmp_path, step=timed, fault="drops@memory:1@0")

    assert result.violations == []
    assert list(result.undetermined) == ["step"]
    assert any(each.startswith("step step makes something else") for each in result.unproved)


@contextmanager
def service() -> Iterator[tuple[tuple[str, int], list[int]]]:
    """Yield the address of a server, and a list that grows with each connection."""
    connections: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connections.append(1)
                connection.close()

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname(), connections
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.rule("prove.steps")
def test_a_step_may_not_call_a_service_unless_it_is_allowed(tmp_path: Path) -> None:
    with service() as (address, connections):

        def ask(doc: Document) -> Document:
            return calls(address, doc)

        with pytest.raises(UsageError, match=r"step step calls .*--allow-steps step"):
            prove_small(tmp_path, step=ask, fault="drops@memory:1@0")
        assert connections == []

        result = prove_small(tmp_path, step=ask, fault="drops@memory:1@0", allow_steps=["step"])
        assert result.exit == 0
        assert len(connections) >= result.calls["step"] > 0


class Noisy:
    """Prints when it is loaded, as modules that a plan imports may."""

    def __reduce__(self) -> Any:
        return print, ("loading the model",)


def test_what_a_plan_prints_while_it_is_loaded_is_not_an_answer(tmp_path: Path) -> None:
    setup = tmp_path / "setup.pickle"
    setup.write_bytes(pickle.dumps(Noisy()))
    with Processes(setup) as processes:
        assert processes.wake_orphans() == 0


def test_what_cannot_be_proved_like_this_is_refused(tmp_path: Path) -> None:
    for options, message in (
        ({"broken": "gravity"}, "there is no such rule"),
        ({"kinds": ["meteor"]}, "there is no such kind of fault"),
        ({"fault": "meteor@x:1@0"}, "there is no fault meteor"),
        ({"fault": "nonsense"}, "as a violation prints it"),
        ({"allow_steps": ["other"]}, "the plan has step"),
    ):
        with pytest.raises(UsageError, match=message):
            prove_small(tmp_path, **options)


def test_the_report_is_a_page_of_its_own() -> None:
    result = ProofResult("<plan>", 7, documents={"docs": 3})
    result.violations.append(("driver@wave.logged:1@0", "index: 1 lost, such as <b>"))
    result.unproved.append("what it loses, `verify <plan>` finds")
    result.tallies["driver", "wave.logged"].effects = 1

    page = as_html(result, "ferryman prove --fault")

    assert "&lt;plan&gt;" in page
    assert "<b>" not in page
    assert "<code>verify &lt;plan&gt;</code>" in page
    assert "`" not in page
    assert "BROKEN: 1 violation" in page
    assert "http" not in page.replace("http-equiv", "")
    assert "$" not in page
