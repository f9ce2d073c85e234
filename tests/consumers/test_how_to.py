"""The guide is true: its commands are run, on a real Spark; and what it says of crash points is what there is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ferryman.cli.intake import serve
from ferryman.testing.crash import INTAKE
from tests.cli.test_how_to import commands_of, is_shown
from tests.docs.test_how_to import parts

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.spark
@pytest.mark.rule("intake.serve")
def test_submit_a_batch(place: Path) -> None:
    """Each command of the page is run in a shell; each line that the page shows is a line of its output."""
    command = place / "bin" / "ferryman"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ferryman.cli "$@"\n')
    command.chmod(0o755)
    (place / "bin" / "unzip").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m zipfile "$@"\n')  # not everywhere
    (place / "bin" / "unzip").chmod(0o755)
    page = DOCS / "how-to" / "submit-a-batch.md"
    for file, text in parts(page):
        if file:
            (place / file).write_text(text)
            continue
        for line, shown in commands_of(text):
            done = subprocess.run(
                ["/bin/sh", "-c", line],
                capture_output=True,
                text=True,
                cwd=place,
                env={**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}"},
                check=False,
            )
            assert done.returncode == 0, f"{line}: {done.stderr}"
            for wanted in shown:
                assert is_shown(wanted, done.stdout.splitlines()), f"{line}: no line {wanted!r} in:\n{done.stdout}"


def test_every_crash_point_is_told() -> None:
    """The reference has each point, with what it leaves."""
    page = (DOCS / "reference" / "intake-consumers.md").read_text("utf-8")
    for point, leaves in INTAKE.items():
        assert f"| `{point}` | {leaves} |\n" in page


def test_the_first_signal_stops_gracefully() -> None:
    """It sets the stop, whichever it is; what breaks afterwards breaks because of it; the handlers come back."""
    before = signal.getsignal(signal.SIGTERM)
    with serve.Graceful() as graceful, graceful.excusing():
        assert isinstance(graceful.stop, threading.Event)
        os.kill(os.getpid(), signal.SIGTERM)
        assert graceful.stop.wait(5)
        raise ConnectionError("the JVM has heard it too")
    assert graceful.heard
    assert signal.getsignal(signal.SIGTERM) is before
