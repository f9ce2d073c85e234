"""Metrics as Prometheus reads them: names, labels, values; a file and an endpoint that are kept up to date."""

from __future__ import annotations

import errno
import os
import re
import socket
import threading
import time
import urllib.request
from pathlib import Path

import pytest

import ferryman
from ferryman import Flow, Plan, TransientError, limits
from ferryman.destinations.base import Delivery, Outcome
from ferryman.document import Document
from ferryman.errors import UsageError
from ferryman.monitoring.metrics import (
    FAMILIES,
    MetricsAddress,
    MetricsPublisher,
    MonitoredPlan,
    metrics,
    parse_target,
)
from ferryman.sources import Memory
from ferryman.state.runs import load_runs
from tests.support.monitored import run_monitored, samples_of, value_of
from tests.support.plan_world import PlanWorld, Watch


def keep(doc: Document) -> Document:
    return doc


def test_each_name_of_the_design_is_there(net: PlanWorld) -> None:
    """A plan with a queue, a step and a destination in trouble has all but those of jobs, memories, verifications."""
    net.into.append([{"n": 1}, {"n": 2}])
    from ferryman.sources import Queue

    net.plan.source("in", Queue("in", net.folder)).step("keep", keep).destination("out", net.out())
    net.run()
    net.into.append([{"n": 3}])

    names = {name for name, _ in samples_of(metrics(net.plan, state=net.state))}

    rare = {"ferryman_jobs", "ferryman_remembered_calls_total", "ferryman_verified_through_timestamp_seconds"}
    histogram = {f"ferryman_deliveries_attempts_{end}" for end in ("bucket", "count", "sum")}
    assert names == {*FAMILIES, *histogram} - rare - {"ferryman_deliveries_attempts"}
    assert value_of(metrics(net.plan, state=net.state), "ferryman_queue_messages", source="in") == 1
    assert value_of(metrics(net.plan, state=net.state), "ferryman_queue_oldest_age_seconds", source="in") >= 0


def test_each_sample_is_of_a_plan_and_has_no_time(trial: PlanWorld) -> None:
    """Node exporter drops a file in which one has (prometheus 3930)."""
    trial.put("a")
    trial.run()

    lines = [line for line in metrics(trial.plan, state=trial.state).splitlines() if not line.startswith("#")]

    allowed = "plan|version|source|destination|node|status|outcome|state|le"
    for line in lines:
        match = re.fullmatch(r"ferryman_\w+\{(.*)\} \S+", line)
        assert match, line
        labels = re.findall(r'(\w+)="', match[1])
        assert {"plan", "version"} <= set(labels)
        assert all(re.fullmatch(allowed, label) for label in labels), line
        assert " a" not in line  # no document's id


STRANGE = (
    'say "no"',
    "two\nlines\r\nand\rmore",
    "back\\slash \\n \\",
    '<script>alert(1)</script>"} 5\n# HELP x',
    "invoice\u202egnp.exe\u2066\u200b",
    "x" * 1_000_000,
)
"""Texts that strangers may have chosen."""


def test_ids_and_reasons_are_in_no_sample(trial: PlanWorld) -> None:
    """Whatever is in them: the text has as many samples as if they were plain."""
    names = []
    for turn, texts in enumerate((["plain"] * len(STRANGE), STRANGE)):
        world = PlanWorld(trial.folder / str(turn))
        world.build(answer=lambda delivery: Outcome.permanent(f"refused: {delivery.id}"))
        world.put(*(f"{number} {text}" for number, text in enumerate(texts)))
        world.run()
        text = metrics(world.plan, state=world.state)
        assert value_of(text, "ferryman_failed", destination="out") == len(STRANGE)
        names.append([*samples_of(text)])
        assert len(text) < 10_000
    assert names[0] == names[1]


@pytest.mark.parametrize("name", STRANGE)
def test_a_strange_name_in_a_state_comes_back_as_it_is(
    trial: PlanWorld, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """No plan has such names; whoever can write to a state may have put them there. They end no label, and no line."""
    from ferryman.monitoring import metrics as module

    trial.put("a")
    trial.run()
    text = metrics(trial.plan, state=trial.state)
    found = module.figures(trial.root, trial.plan)
    strange = found._replace(outstanding={name: found.outstanding["out"]}, available={name: True}, verified={name: 1.0})
    monkeypatch.setattr(module, "figures", lambda root, plan: strange)
    there = samples_of(metrics(trial.plan, state=trial.state))
    assert there["ferryman_node_available", (("node", name),)] == 1
    assert there["ferryman_pending", (("destination", name),)] == 0
    plain = {key for key, labels in samples_of(text)}
    assert {key for key, labels in there} - {"ferryman_verified_through_timestamp_seconds"} == plain


def test_counters_only_grow_and_gauges_are_those_of_status(trial: PlanWorld) -> None:
    """A changed document is delivered again; `status` counts it once."""
    trial.put("a", "b")
    trial.run()
    trial.put("a", text="two")
    trial.run()
    trial.drop("b")
    trial.run()

    text = metrics(trial.plan, state=trial.state)

    assert value_of(text, "ferryman_deliveries_total", destination="out", status="delivered") == 3
    assert value_of(text, "ferryman_deliveries_total", destination="out", status="deleted") == 1
    for status in ("pending", "failed", "rejected", "in_doubt"):
        assert value_of(text, f"ferryman_{status}", destination="out") == trial.status()["destinations"]["out"][status]


def test_what_arrived_only_after_several_tries(net: PlanWorld) -> None:
    def answer(delivery: Delivery) -> Outcome:
        return Outcome.transient("later") if delivery.id == "b" and delivery.attempt < 3 else Outcome.ok()

    net.out().answer = answer
    net.source().destination("out", net.out(), backoff=0)
    net.put("a", "b")
    net.run()

    text = metrics(net.plan, state=net.state)

    assert value_of(text, "ferryman_deliveries_attempts_bucket", destination="out", le="1.0") == 1
    assert value_of(text, "ferryman_deliveries_attempts_bucket", destination="out", le="3.0") == 2
    assert value_of(text, "ferryman_deliveries_attempts_sum", destination="out") == 4


def test_pending_has_an_age_and_its_node_is_not_available(net: PlanWorld) -> None:
    def away(doc: Document) -> Document:
        raise ferryman.Unavailable("the service is away")

    net.source().step("ask", away).destination("out", net.out())
    net.put("a", "b")
    net.run(wait=0)

    text = metrics(net.plan, state=net.state)

    assert value_of(text, "ferryman_pending", destination="out") == 2
    assert value_of(text, "ferryman_oldest_pending_age_seconds") > 0
    assert value_of(text, "ferryman_node_available", node="ask") == 0
    assert value_of(text, "ferryman_node_available", node="out") == 1
    assert ("ferryman_run_last_success_timestamp_seconds", ()) not in samples_of(text)


def test_the_age_of_what_is_pending_does_not_begin_again_with_each_try(net: PlanWorld) -> None:
    def fail(doc: Document) -> Document:
        raise TransientError("not yet")

    net.source().step("ask", fail, patience="1d").destination("out", net.out(), backoff=3600)
    net.put("a")
    net.run(wait=0)
    first = net.history("a")[-1]["created"]
    net.retry()
    net.run(wait=0)

    from datetime import datetime

    from ferryman.account.figures import figures

    assert figures(net.root, net.plan).oldest_pending == pytest.approx(datetime.fromisoformat(first).timestamp())


def test_steps_have_the_seconds_of_their_calls(net: PlanWorld) -> None:
    """Kept in the state, they add up over runs."""
    from ferryman.account.figures import figures

    net.source().step("keep", keep).destination("out", net.out())
    net.put("a")
    net.run()
    first = figures(net.root, net.plan).step_seconds["keep"]
    net.put("b")
    net.run()

    assert 0 < first < figures(net.root, net.plan).step_seconds["keep"]


def test_a_run_records_its_end(trial: PlanWorld) -> None:
    trial.put("a")
    trial.run()
    trial.run()

    runs = load_runs(trial.root)

    assert [run.delivered for run in runs.last] == [1, 0]
    assert runs.success == runs.last[-1]
    text = metrics(trial.plan, state=trial.state)
    assert value_of(text, "ferryman_run_last_success_timestamp_seconds") == runs.last[-1].ended
    assert value_of(text, "ferryman_run_duration_seconds") == runs.last[-1].duration_s


def test_the_record_of_runs_does_not_grow_with_history(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RUNS_KEPT", 2)
    for _ in range(3):
        trial.run()

    assert len(load_runs(trial.root).last) == 2


def test_a_damaged_record_of_runs_stops_no_run(trial: PlanWorld) -> None:
    """Only questions read it: `fsck` names it, the next run replaces it."""
    from ferryman.operations import check

    trial.put("a")
    trial.run()
    (trial.root / "runs.json").write_bytes(b"\x00 nothing of ours")
    assert [Path(each.path).name for each in check(trial.root)] == ["runs.json"]
    assert "ferryman_run_duration_seconds" not in metrics(trial.plan, state=trial.state)

    trial.run()

    assert check(trial.root) == []
    assert len(load_runs(trial.root).last) == 1


def test_two_plans_are_disjoint_with_equal_help(place: Path) -> None:
    """Node exporter reads both files as one."""
    worlds = [PlanWorld(place / name, lambda world, name=name: _plan(world, name)) for name in ("one", "two")]
    texts = []
    for world in worlds:
        world.folder.mkdir()
        world.put("a")
        world.run()
        texts.append(metrics(world.plan, state=world.state))

    series = [{line.rpartition(" ")[0] for line in text.splitlines() if line[0] != "#"} for text in texts]
    helps = [{line for line in text.splitlines() if line[0] == "#"} for text in texts]
    assert not series[0] & series[1]
    assert helps[0] == helps[1]


def _plan(world: PlanWorld, name: str) -> Plan:
    plan = Plan(name, version=1)
    plan.source("docs", Memory(world.documents)).destination("out", world.out())
    return plan


def test_a_flow_has_the_metrics_of_all_its_plans(place: Path) -> None:
    world = PlanWorld(place, lambda world, name="one": _plan(world, name))
    flow = Flow("both", [world.make_plan("one"), world.make_plan("two")])
    world.put("a")
    for plan in flow.plans:
        world.run(plan)

    text = metrics(flow, state=world.state)

    assert {"one", "two"} == set(re.findall(r'plan="(\w+)"', text))
    assert text.count("# HELP ferryman_pending ") == 1


def test_a_plan_that_never_ran_has_none(trial: PlanWorld) -> None:
    assert metrics(trial.plan, state=trial.state) == ""


def test_a_large_state_is_not_counted_again(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a look costs does not grow with history: the run has counted it."""
    monkeypatch.setattr(limits, "COUNTED_EVENTS", 0)
    trial.put("a", "b")
    trial.run()
    before = samples_of(metrics(trial.plan, state=trial.state))

    def refuse(*_: object) -> None:
        raise AssertionError("the ledger is read")

    from ferryman.account.relations import View

    monkeypatch.setattr(View, "ended", refuse)
    monkeypatch.setattr(View, "status", refuse)

    after = samples_of(metrics(trial.plan, state=trial.state))
    same = ("ferryman_deliveries_total", "ferryman_failed", "ferryman_deliveries_attempts_sum")
    assert {k: v for k, v in before.items() if k[0] in same} == {k: v for k, v in after.items() if k[0] in same}


# --- the file ---


def test_the_file_is_replaced_at_the_end_of_a_run(trial: PlanWorld) -> None:
    """Nothing else is left beside it: node exporter would read that, too."""
    path = trial.folder / "metrics" / "trial.prom"
    path.parent.mkdir()
    trial.put("a")

    run_monitored(trial, metrics=path)

    assert value_of(path.read_text(), "ferryman_deliveries_total", destination="out", status="delivered") == 1
    assert os.listdir(path.parent) == ["trial.prom"]


@pytest.mark.parametrize("why", ["no folder", "a full disk"])
def test_a_file_that_cannot_be_written_is_said_once(
    trial: PlanWorld, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    path = trial.folder / ("absent/trial.prom" if why == "no folder" else "trial.prom")
    if why == "a full disk":
        import prometheus_client

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(prometheus_client, "write_to_textfile", full)
        monkeypatch.setattr(limits, "METRICS_EVERY_S", 0.01)
    trial.put("a")

    summary = run_monitored(trial, metrics=path)

    assert summary.exit == 0
    [message] = [each for each in trial.watch.messages if each.startswith("metrics ")]
    assert ("No such file" if why == "no folder" else "No space left") in message
    assert "The run continues without it" in message


def test_a_state_that_is_damaged_meanwhile_is_said_once(trial: PlanWorld) -> None:
    trial.put("a")
    trial.run()
    [log] = sorted((trial.root / "ledger" / "_delta_log").glob("*.json"))[-1:]
    log.write_bytes(b"\x00")
    said: list[str] = []
    path = trial.folder / "m.prom"
    publisher = MetricsPublisher([MonitoredPlan(trial.plan, trial.root)], path, said.append)

    publisher.start()
    publisher.end(time.monotonic() + 60)

    assert len(said) == 1
    assert log.name in said[0]
    assert not path.exists()


# --- the endpoint ---


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def _get(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        body: bytes = answer.read()
        return body.decode()


class Looking(Watch):
    """Looks at the endpoint whenever a wave is delivered."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.port = port
        self.seen: list[str] = []

    def phase(self, wave: int, name: str) -> None:
        super().phase(wave, name)
        if name == "deliver":
            self.seen.append(_get(self.port))


def test_the_endpoint_answers_during_a_run(trial: PlanWorld) -> None:
    """It reads the state beside the run, which goes on meanwhile."""
    trial.put("a")
    trial.run()
    trial.put("b")
    watch = Looking(_free_port())

    run_monitored(trial, watch=watch, metrics=MetricsAddress("", watch.port))

    assert value_of(watch.seen[0], "ferryman_deliveries_total", destination="out", status="delivered") == 1
    assert value_of(watch.seen[0], "ferryman_pending", destination="out") == 1
    with pytest.raises(OSError, match="refused"):
        _get(watch.port)


def test_many_looks_are_one_computation(trial: PlanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    from ferryman.monitoring import metrics as module

    trial.put("a")
    trial.run()
    computed = []
    monkeypatch.setattr(module, "figures", lambda *of, found=module.figures: computed.append(1) or found(*of))
    publisher = MetricsPublisher([MonitoredPlan(trial.plan, trial.root)], MetricsAddress("127.0.0.1", 0), print)

    threads = [threading.Thread(target=publisher.collect) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(computed) == 1


def test_a_port_that_is_taken_is_said_once(trial: PlanWorld) -> None:
    trial.put("a")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        summary = run_monitored(trial, metrics=MetricsAddress("127.0.0.1", taken.getsockname()[1]))

    assert summary.exit == 0
    [message] = [each for each in trial.watch.messages if each.startswith("metrics ")]
    assert "Address already in use. The run continues without it: give another port." in message


@pytest.mark.parametrize(
    ("text", "target"),
    [
        (":9464", MetricsAddress("", 9464)),
        ("127.0.0.1:9464", MetricsAddress("127.0.0.1", 9464)),
        ("[::1]:9464", MetricsAddress("::1", 9464)),
        ("/var/lib/node/plays.prom", Path("/var/lib/node/plays.prom")),
    ],
)
def test_a_target_is_a_file_or_an_address(text: str, target: object) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize("text", ["", ":0", ":70000", "folder/"])
def test_an_impossible_target_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--metrics"):
        parse_target(text)


@pytest.mark.parametrize("option", [{"metrics": ":0"}, {"openlineage": "ftp://host/x"}])
def test_an_impossible_option_is_refused_before_anything(trial: PlanWorld, option: dict[str, str]) -> None:
    trial.put("a")
    with pytest.raises(UsageError, match=f"--{next(iter(option))}"):
        ferryman.run(trial.plan, state=trial.state, **option)  # type: ignore[arg-type]

    assert not trial.state.exists()


def test_rows_that_wait_for_a_destination_are_counted_without_the_ledger(
    trial: PlanWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As during each wave: their number is in the files' statistics."""

    def away(chunk: object) -> None:
        raise ConnectionError("down")

    trial.out().before = away
    trial.put("a", "b", "c")
    trial.run(wait=0)
    pending = trial.status()["destinations"]["out"]["pending"]
    from ferryman.account.relations import View

    monkeypatch.setattr(View, "status", None)

    assert value_of(metrics(trial.plan, state=trial.state), "ferryman_pending", destination="out") == pending == 3
