"""The guide is true: its commands are run, on a real Spark; and what it says of crash points is what there is."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from ferryman.cli.intake import serve
from ferryman.crash import AT_WORK, EDITED, INTAKE, MINTED
from tests.support.page import QuickShell, Shell

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.spark
@pytest.mark.rule("intake.serve")
def test_submit_a_batch(place: Path) -> None:
    """Each command of the page is run in a shell; each line that the page shows is a line of its output."""
    with Shell(place) as shell:
        shell.add("unzip", "-m zipfile")  # the machine may have none
        shell.follow(DOCS / "how-to" / "submit-a-batch.md")


@pytest.mark.rule("reach.files")
def test_what_a_submitter_may_do(place: Path) -> None:
    """The same, of what is refused and what allows it."""
    with QuickShell(place) as shell:
        shell.follow(DOCS / "how-to" / "what-a-submitter-may-do.md")


@pytest.mark.rule("intake.minted")
def test_mint_identifiers(place: Path) -> None:
    """The same, of a plan that mints."""
    with QuickShell(place) as shell:
        shell.follow(DOCS / "how-to" / "mint-identifiers.md")


def test_operate_the_queue(place: Path) -> None:
    """The same, of every command of an operator."""
    with QuickShell(place) as shell:
        shell.follow(DOCS / "how-to" / "operate-the-queue.md")


def test_every_crash_point_is_told() -> None:
    """The reference has each point, with what it leaves."""
    page = (DOCS / "reference" / "intake-service.md").read_text("utf-8")
    for point, leaves in (INTAKE | AT_WORK | MINTED | EDITED).items():
        assert f"| `{point}` | {leaves} |\n" in page


def test_the_first_signal_stops_gracefully() -> None:
    """It sets the stop, whichever it is; what breaks afterwards breaks because of it; the handlers come back."""
    before = signal.getsignal(signal.SIGTERM)
    with serve.GracefulStop() as graceful, graceful.ignoring_errors():
        assert isinstance(graceful.stop, threading.Event)
        os.kill(os.getpid(), signal.SIGTERM)
        assert graceful.stop.wait(300)
        raise ConnectionError("the JVM has heard it too")
    assert graceful.requested
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_service_with_nohup_goes_on_without_its_terminal() -> None:
    """As a run does."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with serve.GracefulStop() as graceful:
            graceful.install_handlers()  # again, after Spark's start
            os.kill(os.getpid(), signal.SIGHUP)
            assert not graceful.stop.is_set()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
