"""What the runner on Spark asks its session, of sessions that only answer these questions."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

import ferryman
from ferryman import Plan
from ferryman.cli import app
from ferryman.destinations import Null
from ferryman.engine.runner.base import RunnerLost
from ferryman.engine.runner.spark import SparkRunner
from ferryman.errors import UsageError
from ferryman.sources import Memory
from ferryman.testing.inprocess import InProcess
from tests.support.plan_world import PlanWorld


def session(master: str = "yarn", cores: int = 2, **settings: str) -> Any:
    """A session with a context that runs, until its ``ended`` is set."""
    ended = [False]
    java = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: ended[0]))
    context = SimpleNamespace(
        master=master,
        applicationId="application_17_0003",
        defaultParallelism=cores,
        getConf=lambda: settings,
        _jsc=java,
    )
    return SimpleNamespace(sparkContext=context, _sc=context, createDataFrame=None, ended=ended)


def test_slots_are_those_of_now() -> None:
    """With dynamic allocation executors come when there is work."""
    spark = session(cores=2)
    runner = SparkRunner(spark)
    assert runner.slots == 2
    spark.sparkContext.defaultParallelism = 40
    assert runner.slots == 40


@pytest.mark.parametrize(("master", "told"), [("yarn", True), ("spark://head:7077", False)])
def test_an_application_that_yarn_has_ended(master: str, told: bool) -> None:
    spark = session(master)
    runner = SparkRunner(spark)
    spark.ended[0] = True
    with pytest.raises(RunnerLost) as lost, runner._convert_errors():
        raise OSError("Job 3 cancelled because SparkContext was shut down")
    said = str(lost.value)
    assert said.startswith("The Spark session was stopped in the middle of the run, by this program or from outside.")
    assert ("`yarn logs -applicationId application_17_0003`" in said) is told
    assert said.endswith("Nothing is lost: run again.")


class JvmEnded(InProcess):
    """Stands for Spark whose JVM is killed while a task runs: nobody answers at its port any more."""

    def __init__(self, error: Exception) -> None:
        super().__init__()

        def refuse() -> None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

        self._error = error
        spark = session()
        spark.sparkContext._jsc.sc = refuse
        self._spark = SparkRunner(spark)

    def run(self, *_: Any) -> list[Any]:
        with self._spark._convert_errors():
            raise self._error


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
        ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
        Py4JNetworkError("Answer from Java side is empty"),
    ],
    ids=["refused", "reset", "empty"],
)
def test_a_jvm_that_is_killed_in_the_middle_of_a_run(trial: PlanWorld, error: Exception) -> None:
    """The words are of Spark, not of the state's folder; the next run delivers."""
    trial.build()
    trial.put("a", "b")
    with pytest.raises(RunnerLost) as lost:
        trial.run(runner=JvmEnded(error))

    assert str(lost.value) == (
        "Spark's JVM ended in the middle of the run: it was killed from outside, ran out of memory, or crashed. "
        "Nothing is lost: run again."
    )
    trial.run()
    assert sorted(trial.out().arrived()) == ["a", "b"]


CLUSTER = {"spark.submit.deployMode": "cluster"}


def test_in_cluster_mode_the_default_state_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be forgotten with its container; nothing is written there."""
    monkeypatch.chdir(place)
    plan = Plan("kept", version=1)
    plan.source("docs", Memory([{"id": "a"}])).destination("out", Null())
    with pytest.raises(UsageError, match="in Spark's cluster mode the default state would lie in a container"):
        ferryman.run(plan, spark=session(**CLUSTER))
    with pytest.raises(UsageError, match="in Spark's cluster mode"):
        ferryman.run(ferryman.Flow("all", plan), spark=session(**CLUSTER))
    assert not list(place.iterdir())


def test_so_it_is_for_the_command(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which spark-submit may start."""
    (place / "plan.py").write_text("raise AssertionError")
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr("pyspark.SparkContext._ensure_initialized", lambda: None)
    monkeypatch.setattr("ferryman.engine.runner.sessions.SparkConf", lambda: CLUSTER)
    monkeypatch.setattr("ferryman.engine.runner.sessions.program_session", lambda: None)  # that of other tests
    assert app.start(["run", str(place / "plan.py")]) == 2
    assert "error: in Spark's cluster mode the default state would lie in" in capsys.readouterr().err


def test_client_mode_has_its_default(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong with this session is found after that."""
    monkeypatch.chdir(place)
    plan = Plan("kept", version=1)
    plan.source("docs", Memory([{"id": "a"}])).destination("out", Null())
    spark = session(**{"spark.submit.deployMode": "client"})
    spark.ended[0] = True
    with pytest.raises(UsageError, match="this Spark session was stopped"):
        ferryman.run(plan, spark=spark)
