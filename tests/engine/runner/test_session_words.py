"""What is said of a Spark that does not start, and of what it raises."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from ferryman.engine.runner.sessions import _explain_failed_start, start
from ferryman.engine.runner.spark_errors import describe_spark_error, pack_errors, unpack_error
from ferryman.errors import StateDamaged, UsageError

PYTHON = """Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times:
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
{}

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:1)
Caused by: java.lang.IllegalStateException: of Java
"""


@pytest.mark.parametrize("line", ["ValueError: no number", "library.Refused: not today", "library.Silent"])
def test_a_worker_has_the_last_word(line: str) -> None:
    """Whatever its exception is called."""
    assert describe_spark_error(Exception(PYTHON.format(line))) == line


def test_an_error_of_ours_passes_through_spark() -> None:
    """As text: its kind and its values are the same on the other side, its words stand in Spark's log."""
    with pytest.raises(Exception, match="/state/x: it is cut short") as passed, pack_errors():
        raise StateDamaged("/state/x", "it is cut short")
    text = PYTHON.format(f"ferryman.engine.runner.spark_errors.TaskFailed: {passed.value}")
    found = unpack_error(Exception(text))
    assert isinstance(found, StateDamaged)
    assert (found.path, found.what) == ("/state/x", "it is cut short")
    assert unpack_error(Exception("An exception was thrown from the Python worker")) is None
    assert unpack_error(Exception("[ferryman: AAAA]")) is None
    with pytest.raises(ValueError, match="not ours"), pack_errors():
        raise ValueError("not ours")
    pickle.dumps(passed.value)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (
            ["16:57:57 ERROR DiskBlockManager: Failed to create any local dir."],
            "its JVM ended: Failed to create any local dir.",
        ),
        (
            ["Error occurred during initialization of VM", "Too small maximum heap"],
            "its JVM ended: Error occurred during initialization of VM Too small maximum heap",
        ),
        (
            ['Exception in thread "main" org.apache.spark.SparkException: Master must be another', "\tat org.a.b(C:1)"],
            "its JVM ended: Master must be another",
        ),
        ([], "its JVM has ended. Start this program again"),
    ],
)
def test_a_jvm_that_ends_while_it_starts(said: list[str], why: str) -> None:
    """What it said last is the reason, not that nobody answers any more."""
    assert _explain_failed_start(ConnectionRefusedError(111, "Connection refused"), said) == why


@pytest.mark.parametrize("variable", [True, False])
def test_folders_that_spark_cannot_use_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: bool
) -> None:
    """Before it is started: of several, one that can be used is enough."""
    (tmp_path / "file").touch()
    folders = f"{tmp_path}/file,/proc/nowhere"
    conf = {} if variable else {"spark.local.dir": folders}
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    if variable:
        monkeypatch.setenv("SPARK_LOCAL_DIRS", folders)
    name = "SPARK_LOCAL_DIRS" if variable else "spark.local.dir"
    with pytest.raises(
        UsageError, match=rf"^{name}: Spark can.* {tmp_path}/file: .*; /proc/nowhere: .*Give"
    ) as refused:
        start("local[1]", conf, "test")
    assert len(str(refused.value).splitlines()) == 1


def test_another_python_of_the_workers_says_what_to_set() -> None:
    """Of a session that was made before the run: one line, and what to type."""
    text = PYTHON.format(
        "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different "
        "version: 3.9 than that in driver: 3.11, PySpark cannot run with different minor versions."
    )
    told = describe_spark_error(Exception(text))
    assert "3.9 than that in driver: 3.11" in told
    assert "os.environ['PYSPARK_PYTHON'] = sys.executable" in told
    assert "\n" not in told
