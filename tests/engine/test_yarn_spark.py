"""A plan on YARN, client mode: changes and deletes, and the kill of an executor, of the application master, of the
driver. One YARN for all; the run that follows a kill is compared with the corpus."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.servers.cache import Missing
from tests.servers.registry import require
from tests.servers.yarn import Yarn, YarnNode, spark_settings
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.server]

PLAN = """
import time
from pathlib import Path

from ferryman import Document, Plan
from ferryman.destinations import Sql
from ferryman.sources import Files

HERE = Path({here!r})


def shout(doc: Document) -> Document:
    if (HERE / "held").exists():  # the test kills something now
        (HERE / "reached").touch()
        while (HERE / "held").exists():
            time.sleep(0.05)
    doc["upper"] = doc.text().upper()
    return doc


plan = Plan("yarn", version=1)
files = plan.source("files", Files(HERE / "corpus", max_deleted=0.5))
rows = Sql(f"sqlite:///{{HERE}}/rows.db", table="rows", columns={{"upper": "upper"}})
files.step("shout", shout).destination("rows", rows)
"""

FILES = 40


@pytest.fixture(scope="module")
def yarn() -> Iterator[Yarn]:
    try:
        with Yarn() as manager, YarnNode(manager):
            yield manager
    except Missing as e:
        require(str(e))


@pytest.fixture
def second_node(yarn: Yarn) -> Iterator[YarnNode]:
    with YarnNode(yarn) as node:
        yield node


class Corpus:
    """Files, the plan that delivers them, and what has arrived."""

    def __init__(self, place: Path, yarn: Yarn) -> None:
        self._place = place
        self._yarn = yarn
        (place / "corpus").mkdir()
        for number in range(FILES):
            (place / "corpus" / f"{number:03}.txt").write_text(f"document {number}")
        (place / "plan.py").write_text(PLAN.format(here=str(place)))

    def change(self, first: int, number: int = 5) -> None:
        """Change so many files, and remove two."""
        for each in range(first, first + number):
            (self._place / "corpus" / f"{each:03}.txt").write_text(f"document {each}, changed")
        for each in range(first + number, first + number + 2):
            (self._place / "corpus" / f"{each:03}.txt").unlink()

    def deliver(self) -> None:
        """Deliver what is there by a run on this machine, which needs no JVM for so few files."""
        command = [sys.executable, "-m", "ferryman.cli", "run", "plan.py"]
        subprocess.run(command, cwd=self._place, capture_output=True, check=True)

    def start(self, executors: int) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-m",
            "ferryman.cli",
            "run",
            "plan.py",
            "--master",
            "yarn",
            *spark_settings(executors),
        ]
        local = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "localhost"}
        return subprocess.Popen(
            command,
            cwd=self._place,
            env={**os.environ, **local, "HADOOP_CONF_DIR": str(self._yarn.conf)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self) -> None:
        """Run until its end, which is a good one."""
        with self.start(1) as run:
            said, _ = run.communicate()
        assert run.returncode == 0, said

    def run_killing(self, kill: Callable[[subprocess.Popen[str], str], None]) -> tuple[int, str]:
        """Kill something while steps run; return how the run ended."""
        held, reached = self._place / "held", self._place / "reached"
        held.touch()
        with self.start(2) as run:
            wait_until(lambda: reached.exists() or run.poll() is not None, "no step runs")
            [application] = self._yarn.applications() or [""]
            assert application, run.communicate()[0]
            kill(run, application)
            reached.unlink()
            held.unlink()
            said, _ = run.communicate()
        return run.returncode, said

    def check(self) -> None:
        """Compare the rows with the corpus."""
        expected = {path.name: path.read_text().upper() for path in (self._place / "corpus").iterdir()}
        with sqlite3.connect(self._place / "rows.db") as database:
            rows = database.execute('SELECT id, upper FROM "rows"').fetchall()
        assert sorted(rows) == sorted(expected.items())
        command = [sys.executable, "-m", "ferryman.cli", "status", "plan.py"]
        done = subprocess.run(command, cwd=self._place, capture_output=True, text=True, check=True)
        assert "Balanced" in done.stdout, done.stdout


def kill_java(main_class: str, application: str) -> None:
    """Kill a process of an application that runs this class."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
                environment = (folder / "environ").read_bytes().decode(errors="replace")
            except OSError:
                continue
            container = application.replace("application_", "container_")
            if main_class in command and command[0].endswith("java") and container in environment:
                os.kill(int(folder.name), signal.SIGKILL)
                return
    raise AssertionError(f"{application} has no {main_class}")


def kill_executor(_: subprocess.Popen[str], application: str) -> None:
    kill_java("org.apache.spark.executor.YarnCoarseGrainedExecutorBackend", application)


def kill_application_master(_: subprocess.Popen[str], application: str) -> None:
    kill_java("org.apache.spark.deploy.yarn.ExecutorLauncher", application)


def kill_driver(run: subprocess.Popen[str], _: str) -> None:
    run.kill()


@pytest.fixture
def corpus(place: Path, yarn: Yarn) -> Corpus:
    return Corpus(place, yarn)


def test_files_change_and_an_executor_is_killed(corpus: Corpus) -> None:
    """The run with the kill goes on by itself."""
    corpus.deliver()
    corpus.check()
    corpus.change(0, 30)
    code, said = corpus.run_killing(kill_executor)
    assert code == 0, said
    corpus.check()


@pytest.mark.slow
@pytest.mark.usefixtures("second_node")
def test_the_application_master_and_the_driver_are_killed(corpus: Corpus) -> None:
    """Each run of them changes and deletes, and so does the one that follows."""
    code, said = corpus.run_killing(kill_application_master)
    assert code in (0, 1), said
    assert code == 0 or "run again" in said
    corpus.run()
    corpus.check()
    corpus.change(10)
    assert corpus.run_killing(kill_driver)[0] == -signal.SIGKILL
    corpus.change(20)
    corpus.run()
    corpus.check()
