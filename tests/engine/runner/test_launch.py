"""The launch of Spark's JVM: which Python and user it names, where its output goes, and how a start is ended.

Where Spark is found (``SPARK_HOME``) there is a script instead, which does what a JVM does that fails or hangs.
"""

from __future__ import annotations

import logging
import os
import shlex
import signal
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from ferryman.cli import app
from ferryman.engine.runner.launch import Launch, name_user, python_of_workers
from ferryman.engine.runner.sessions import start
from ferryman.errors import EngineError, UsageError
from tests.support.waiting import wait_until

PLAN = """
from ferryman import Plan
from ferryman.destinations import Null
from ferryman.sources import Memory

plan = Plan("launched", version=1)
plan.source("docs", Memory([{"id": "a", "raw": b"x"}])).step("same", lambda doc: doc).destination("out", Null())
"""

NOISE = """\
26/11/26 10:00:00 WARN Utils: java.net.UnknownHostException: no-such-host: Name or service not known
\tat java.base/java.net.InetAddress.getLocalHost(InetAddress.java:1)
Exception in thread "main" java.lang.InternalError: Error loading java.security file
\tat java.base/java.security.Security.initialize(Security.java:106)
"""


@pytest.fixture
def spark_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program that PySpark starts for a JVM writes what it was given into ``given``, and ends as one that fails.

    A JVM that an earlier test has started in this process, and the session in it, are out of sight meanwhile.
    """
    for name in ("_gateway", "_jvm", "_active_spark_context"):
        monkeypatch.setattr(SparkContext, name, None)
    for name in ("_instantiatedSession", "_activeSession"):
        monkeypatch.setattr(SparkSession, name, None, raising=False)
    script = tmp_path / "spark" / "bin" / "spark-submit"
    script.parent.mkdir(parents=True)
    (tmp_path / "noise").write_text(NOISE)
    script.write_text(f'#!/bin/sh\n(env; echo "$@") > {tmp_path}/given\ncat {tmp_path}/noise >&2\nexit 1\n')
    script.chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    (tmp_path / "plan.py").write_text(PLAN)
    return tmp_path


def hang(spark_home: Path) -> None:
    script = spark_home / "spark" / "bin" / "spark-submit"
    script.write_text(f"#!/bin/sh\necho $$ > {spark_home}/hangs.new\nmv {spark_home}/hangs.new {spark_home}/hangs\n"
                      "exec sleep 1000\n")  # fmt: skip


def test_what_the_jvm_writes_goes_to_the_log(spark_home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The last line, and the only one about the failure, is ours; the log file has the rest, and so has ``-v``."""
    run = ["run", str(spark_home / "plan.py"), "--state", str(spark_home / "state")]
    assert app.start([*run, "--log-file", str(spark_home / "run.log")]) == 2
    lines = capfd.readouterr().err.splitlines()
    assert [line for line in lines if "java" in line or "at java" in line] == lines[-1:]
    assert lines[-1].startswith(
        "error: Spark did not start with --master local[*]: its JVM ended: Error loading java.security file"
    )
    log = (spark_home / "run.log").read_text()
    assert "debug: Spark: Exception in thread" in log
    assert log.count("InetAddress.getLocalHost") == 1
    assert app.start([*run, "-v"]) == 2
    assert "InetAddress.getLocalHost" in capfd.readouterr().err


def test_a_limit_of_open_files_is_named(spark_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, named in ((256, True), (4096, False)):
        monkeypatch.setattr("resource.getrlimit", lambda kind, limit=limit: (limit, limit))
        with pytest.raises(UsageError) as failed:
            start("local[1]", {}, "test")
        assert ("no more than 256 files: raise the limit with ulimit -n 4096" in str(failed.value)) is named


def test_a_user_without_a_name_gets_one(spark_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java has no home folder for it, and Hadoop no name."""

    def unknown(_: int) -> None:
        raise KeyError("getpwuid(): uid not found")

    with pytest.raises(UsageError):
        start("local[1]", {}, "test")
    assert "spark.jars.ivy" not in (spark_home / "given").read_text()

    monkeypatch.setattr("pwd.getpwuid", unknown)
    for variable in ("HADOOP_USER_NAME", "SPARK_USER", "USER"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(UsageError):
        start("local[1]", {}, "test")
    given = (spark_home / "given").read_text()
    user = f"user{os.geteuid()}"
    assert {f"HADOOP_USER_NAME={user}", f"SPARK_USER={user}"} <= {*given.splitlines()}
    assert "--conf spark.jars.ivy=/" in given
    assert name_user({"HADOOP_USER_NAME": "mine"}).keys() == {"spark.jars.ivy"}
    with pytest.raises(UsageError):
        start("local[1]", {"spark.jars.ivy": "/theirs"}, "test")
    assert "--conf spark.jars.ivy=/theirs" in (spark_home / "given").read_text()


def test_which_python_workers_run(tmp_path: Path) -> None:
    """On one machine always ours; on a cluster the one that the user names or sends along."""
    for name in ("env.tar.gz", "model.tar.gz"):
        with tarfile.open(tmp_path / name, "w:gz") as packed:
            packed.add("/dev/null", "./bin/python" if name.startswith("env") else "weights")
    with zipfile.ZipFile(tmp_path / "env.zip", "w") as zipped:
        zipped.writestr("bin/python", "")
    other, cluster = {"PYSPARK_PYTHON": "/usr/bin/python3"}, "spark://head:7077"
    packed_env = {"spark.archives": f"{tmp_path}/model.tar.gz#model,{tmp_path}/env.tar.gz#env"}
    named = {"spark.pyspark.python": "./env/bin/python", **packed_env}

    assert python_of_workers("local[*]", named, other) == sys.executable
    assert python_of_workers(cluster, named, other) == "./env/bin/python"
    assert python_of_workers(cluster, packed_env, other) == "/usr/bin/python3"
    assert python_of_workers("yarn", packed_env, {}) == "./env/bin/python"
    assert python_of_workers("yarn", {"spark.archives": f"{tmp_path}/env.zip"}, {}) == "./env.zip/bin/python"
    for archives in (f"{tmp_path}/model.tar.gz#env", "hdfs:///env.tar.gz#env", f"{tmp_path}/none", ""):
        assert python_of_workers("yarn", {"spark.archives": archives}, {}) == sys.executable


def test_the_python_is_named_to_pyspark_only(spark_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable of the program's stays as it is."""
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/other")
    with pytest.raises(UsageError):
        start("local[1]", {}, "test")
    assert f"PYSPARK_PYTHON={sys.executable}" in (spark_home / "given").read_text().splitlines()
    assert os.environ["PYSPARK_PYTHON"] == "/usr/bin/other"


@pytest.mark.parametrize("master", ["local[1]", "local-cluster[1,1,512]"])
def test_an_interrupt_ends_a_start_at_once(spark_home: Path, master: str) -> None:
    """On this machine Spark starts beside the main thread, elsewhere in it."""
    hang(spark_home)
    command = [sys.executable, "-m", "ferryman.cli", "run", "plan.py", "--master", master]
    with subprocess.Popen(command, cwd=spark_home, stderr=subprocess.PIPE, text=True) as run:
        wait_until((spark_home / "hangs").exists, "Spark was not started")
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=60)
    assert run.returncode == 130
    assert said.splitlines()[-1].startswith("interrupted: nothing is lost.")
    assert not any(word in said for word in ("error:", "Traceback"))
    jvm = int((spark_home / "hangs").read_text())
    wait_until(lambda: not Path(f"/proc/{jvm}").exists(), "the JVM is left")


def test_a_signal_that_is_ignored_ends_nothing(spark_home: Path) -> None:
    """As a shell that starts a run in the background has SIGINT ignored."""
    script = spark_home / "spark" / "bin" / "spark-submit"
    script.write_text("#!/bin/sh\nkill -INT $PPID\necho 'Error: it came to its end' >&2\nexit 1\n")
    program = "from ferryman.engine.runner.sessions import start; start('local[1]', {}, 'test')"
    quoted = shlex.join([sys.executable, "-c", program])
    done = subprocess.run(
        ["sh", "-c", f"trap '' INT; exec {quoted}"], cwd=spark_home, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert (
        "UsageError: Spark did not start with --master local[1]: its JVM ended: Error: it came to its end"
        in done.stderr
    )


def test_an_aborted_launch_starts_nothing(spark_home: Path) -> None:
    launch = Launch()
    launch.abort()
    with pytest.raises(EngineError, match="was interrupted"):
        start("local[1]", {}, "test", launch=launch)
    assert not (spark_home / "given").exists()


def test_what_a_step_prints_is_passed_on(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    """After the start; also a prompt without its end. What the JVM writes among it is not."""
    from pyspark import java_gateway

    printed = "\x1e10:00:00 ERROR Executor: it failed\n\nof a step?\n\tat org.a.B(C.scala:1)\n\x1f\n"
    program = f"import sys; print('a step: 1'); sys.stdout.write({printed!r}); print('# 2'); print('3', end='')"
    caplog.set_level(logging.DEBUG, "ferryman.spark")
    launch = Launch()
    with launch.watch():
        process = java_gateway.Popen([sys.executable, "-c", "input(); " + program], stdin=subprocess.PIPE)
    process.communicate(b"\n")
    seen: list[str] = []

    def passed_on() -> str:
        seen.append(capfd.readouterr().err)
        return "".join(seen)

    wait_until(lambda: passed_on().endswith("3"), "not all was passed on")
    assert "".join(seen) == "a step: 1\n# 2\n3"
    assert [record.getMessage().strip() for record in caplog.records] == [
        "Spark: 10:00:00 ERROR Executor: it failed",
        "Spark: of a step?",
        "Spark: \tat org.a.B(C.scala:1)",
    ]
