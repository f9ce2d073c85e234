"""The command line on Spark, over a folder of many small files, killed from outside."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

PLAN = """
from ferryman import Plan
from ferryman.sources import Files

{destination}


def words(doc):
    doc["words"] = len(doc.text().split())
    return doc


plan = Plan("kills", version=1)
plan.source("files", Files({corpus!r}, fields=False)).step("words", words).destination("log", out, batch=20)
"""


class Killed:
    """A plan of its own in a folder.

    Args:
        destination: Python code that makes the destination ``out``.
        state: where it is, if not beside the corpus.
        settings: for its environment.
    """

    def __init__(
        self, root: Path, destination: str, documents: int, state: str = "", settings: Mapping[str, str] | None = None
    ) -> None:
        self.root = root
        self.state = state or str(root / "state")
        self.environment = {**os.environ, **(settings or {})}
        self.documents = documents
        self.log = root / "run.log"
        corpus = root / "corpus"
        corpus.mkdir()
        for i in range(documents):
            (corpus / f"{i:05}.txt").write_text(f"document number {i}")
        (root / "plan.py").write_text(PLAN.format(destination=destination, corpus=str(corpus)))

    def command(self, verb: str, *options: str) -> list[str]:
        plan = str(self.root / "plan.py")
        return [sys.executable, "-m", "ferryman.cli", verb, plan, "--state", self.state, *options]

    def kill_after(self, seconds: float, chance: random.Random) -> None:
        """Start a run; kill -9 it after this time, alone or with all its workers."""
        process = self._start()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill() if chance.random() < 0.5 else os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def to_the_end(self) -> int:
        """Exit code of a run that nobody disturbs."""
        process = self._start()
        try:
            return process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def check(self) -> None:
        """Everything is accounted for as delivered."""
        told = subprocess.run(self.command("status", "--json"), capture_output=True, check=True, env=self.environment)
        status = json.loads(told.stdout)
        assert status["balanced"]
        assert status["destinations"]["log"]["delivered"] == self.documents

    def _start(self) -> subprocess.Popen[bytes]:
        options = ["--master", "local[2]", "--conf", "spark.driver.memory=512m"]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self.command("run", *options), stdout=log, stderr=log, start_new_session=True, env=self.environment
            )
