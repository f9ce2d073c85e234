"""Workers on this machine load PySpark from the installed package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ferryman.engine.runner import daemon


def test_only_the_zips_of_pyspark_are_left_out() -> None:
    """What else there is to load modules from stays, in its order."""
    path = [
        "",
        "/v/pyspark/python/lib/pyspark.zip",
        "/v/pyspark/python/lib/py4j-0.10.9.9-src.zip",
        "/mine/steps.zip",
        "/v",
    ]

    assert daemon.without_zips(path) == ["", "/mine/steps.zip", "/v"]


class Where:
    """Task: where PySpark was loaded from."""

    def __call__(self, _: int) -> str:
        import pyspark

        return str(pyspark.__file__)


@pytest.mark.spark
def test_workers_load_the_installed_package(spark: Any) -> None:
    """A zip has no bytecode: each worker would compile what it loads."""
    import pyspark

    assert set(spark.submit(Where(), range(2)).result()) == {pyspark.__file__}


PLAN = """
from ferryman import Plan
from ferryman.destinations import Null
from ferryman.sources import Memory

plan = Plan("talkative", version=1)
plan.source("docs", Memory([{"id": "a"}])).destination("out", Null())
"""


@pytest.mark.spark
def test_a_python_that_prints_when_it_starts_is_named(place: Path) -> None:
    """In one line, though Spark says it after an empty "Caused by:". It is ours: ``PYSPARK_PYTHON`` names another one,
    which would not even start, and workers on this machine never run it. The command starts Python twice, for its seed
    of hashes, so it prints twice."""
    (place / "plan.py").write_text(PLAN)
    (place / "sitecustomize.py").write_text("print('good morning')")
    done = subprocess.run(
        [sys.executable, "-m", "ferryman.cli", "run", "plan.py", "--master", "local[2]"],
        capture_output=True, text=True, check=False, cwd=place,
        env={**os.environ, "PYTHONPATH": str(place), "PYSPARK_PYTHON": str(place / "another-python")},
    )  # fmt: skip

    assert (done.returncode, done.stdout) == (1, "good morning\n" * 2), done.stderr
    assert done.stderr.splitlines()[-1] == (
        f"error: Spark: the Python {sys.executable} prints something when it starts, where Spark expects its own "
        "answer. Look for a sitecustomize.py or a .pth file that prints, or for a script that starts Python, and let "
        "it print to standard error."
    )
    assert "Exception" not in done.stderr
