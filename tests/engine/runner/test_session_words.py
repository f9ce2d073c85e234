"""What is said of a Spark that does not start, and of what it raises."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from ferryman.engine.runner import sessions
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


STAGE = "Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent failure: Lost task 0.3: "
STACK = "\tat org.apache.spark.scheduler.Task.run(Task.scala:147)\n" * 40
SPOILED = f"""{STAGE}org.apache.spark.SparkException:
Bad data in pyspark.daemon's standard output. Invalid port number/socket path:
  1751477356 (0x68656c6c)
Python command to execute the daemon was:
  /opt/other/python -m pyspark.daemon pyspark.worker
Check that you don't have any unexpected modules or libraries in
your PYTHONPATH:
{STACK}
Driver stacktrace:
{STACK}"""
SILENT = f"{STAGE}org.apache.spark.SparkException: No port number in pyspark.daemon's stdout\n{STACK}"
LACKING = f"""{STAGE}java.io.IOException: Cannot run program "/opt/ours/python": error=2, No such file or directory
{STACK}Caused by: java.io.IOException: error=2, No such file or directory
{STACK}
Driver stacktrace:
{STACK}"""
ENDED = f"""An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: org.apache.spark.SparkException: YARN application has already ended! It might have been killed or the Application
Master may have failed to start. Check the YARN application logs for more details: application_1700000000000_0007
{STACK}"""
EMPTY = f"An error occurred while calling o1.x.\n: org.apache.spark.SparkException: \nthe words\n{STACK}"
CAUSED = f"a\n{STACK}Caused by: org.a.First: one\n{STACK}Caused by: org.a.Second:\n  the text of it\n{STACK}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SPOILED, ["/opt/other/python prints something when it starts", "sitecustomize.py", "spark.pyspark.python"]),
        (SILENT, ["the Python of an executor prints something when it starts"]),
        (LACKING, ["an executor cannot run the Python /opt/ours/python (No such file or directory)", "PYSPARK_PYTHON"]),
        (
            ENDED,
            ["YARN has ended application_1700000000000_0007", "`yarn logs -applicationId application_1"],
        ),
        (
            "Application application_1_2 failed 2 times due to AM Container",
            ["YARN has ended application_1_2"],
        ),
        (EMPTY, ["org.apache.spark.SparkException: the words"]),
        (CAUSED, ["org.a.Second: the text of it"]),
        ("", ["Exception"]),
    ],
)
def test_a_cause_that_a_user_can_act_on(text: str, said: list[str]) -> None:
    """Wherever Spark puts it: in the middle, after an empty line, before two stack traces."""
    described = describe_spark_error(Exception(text))
    assert all(words in described for words in said), described
    assert "\n" not in described


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


def test_on_one_machine_no_name_of_a_host_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose own name does not resolve wrote 60 lines of warnings before each run."""
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    settings = sessions._settings_of("local[2]", {}, False)
    assert (settings["spark.driver.host"], settings["spark.driver.bindAddress"]) == ("127.0.0.1", "127.0.0.1")
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert sessions._settings_of("local[2]", {"spark.driver.host": "here"}, False)["spark.driver.host"] == "here"
    assert "spark.driver.host" not in sessions._settings_of("spark://head:7077", {}, False)
