"""What `ferryman run` tells, and hands on to the engine, given a fake engine."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ferryman.cli.app import start
from ferryman.errors import EngineError, StateHeld, UsageError
from tests.support.fakes import Fake, row


@dataclass
class Summary:
    exit: int = 0
    waves: int = 1
    delivered: int = 2
    deleted: int = 0
    dropped: int = 0
    failed: int = 0
    rejected: int = 0
    pending: int = 0
    in_doubt: int = 0
    documents: int = 0
    messages: list[str] = field(default_factory=list)
    remembered: dict[str, dict[str, float]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, int]:
        return {name: value for name, value in vars(self).items() if isinstance(value, int) and name != "documents"}


# --- run ----------------------------------------------------------------------------------------------------------


def test_run_hands_its_options_on(fake: Fake, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each option of the command is an argument of the engine's run, in its units."""
    got: dict[str, Any] = {}

    def run(plan: Any, **options: Any) -> Summary:
        got.update(options, plan=plan.key)
        return Summary()

    fake("ferryman.operations", run=run)

    code = start(
        [
            "run",
            "plan.py",
            "--master",
            "local[1]",
            "--conf",
            "a=b=c",
            "--conf",
            "d=",
            "--wait",
            "2m",
            "--every",
            "30s",
            "--allow-deletes",
            "--accept-changes",
            "--from-version",
            "1",
            "--reset-state",
            "counts",
            "--json",
        ]
    )

    del got["observer"]
    assert got == {
        "plan": "small-v2",
        "state": state.parent,
        "master": "local[1]",
        "conf": {"a": "b=c", "d": ""},
        "preflight": True,
        "take_over": False,
        "wait": 120.0,
        "every": 30.0,
        "watch": False,
        "allow_deletes": True,
        "accept_changes": True,
        "from_version": 1,
        "reset_state": ("counts",),
        "notify": [],
        "metrics": None,
        "openlineage": None,
        "verify_sample": 100,
    }
    assert code == 0
    assert json.loads(capsys.readouterr().out) == Summary().as_dict()


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        ([], False),
        (["--allow-deletes"], True),
        (["--allow-deletes=2019"], ["2019"]),
        (["--allow-deletes=2019", "--allow-deletes=a b"], ["2019", "a b"]),
        (["--allow-deletes=2019", "--allow-deletes"], True),
    ],
)
def test_deletes_are_allowed_everywhere_or_in_folders(
    fake: Fake, state: Path, words: list[str], allowed: bool | list[str]
) -> None:
    """Only what stands behind an equals sign is a folder: before the plan the option may stand alone."""
    got: dict[str, Any] = {}

    def run(plan: Any, **options: Any) -> Summary:
        got.update(options)
        return Summary()

    fake("ferryman.operations", run=run)
    assert start(["run", *words, "plan.py", "--json"]) == 0
    assert got["allow_deletes"] == allowed


def test_run_tells_what_is_left_and_what_to_type(fake: Fake, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Counts, the newest few with their reasons, the commands that go on; the exit code is the run's."""
    fake(
        "ferryman.operations",
        run=lambda plan, **_: Summary(3, 2, 2, dropped=1, rejected=3),
    )
    fake(
        "ferryman.account",
        deliveries=lambda root, status, limit, plan: [row("a b.txt", status, "not\nUTF-8")][:limit],
    )

    code = start(["run", "plan.py", "--state", "my state"])

    assert code == 3
    assert capsys.readouterr().out.splitlines() == [
        "2 waves: 2 delivered, 1 dropped",
        "3 rejected, the newest of them:",
        "  a b.txt for index: not UTF-8",
        "All rejected: ferryman deliveries plan.py --state 'my state' --status rejected",
        "A document that changes is retried automatically; to retry all: ferryman retry plan.py --state 'my state'",
    ]


def test_run_tells_that_something_is_pending(fake: Fake, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is pending is not lost: the next run sends it."""
    fake("ferryman.operations", run=lambda plan, **_: Summary(exit=4, pending=7))
    fake("ferryman.account", reasons=lambda root, status, limit, plan: [], stopped=lambda root, plan: [])

    assert start(["run", "plan.py"]) == 4
    out = capsys.readouterr().out.splitlines()
    assert out[1:] == ["7 pending", "The next run sends what is pending: ferryman run plan.py"]


def test_a_run_without_news_says_so(fake: Fake, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No wave: nothing had changed."""
    fake("ferryman.operations", run=lambda plan, **_: Summary(waves=0, delivered=0))

    assert start(["run", "plan.py"]) == 0
    assert capsys.readouterr().out == "Nothing has changed since the last run.\n"


@pytest.mark.parametrize("code", [2, 4])
def test_a_run_that_only_held_something_back_does_not_say_so(
    fake: Fake, state: Path, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    """Deletes, or a whole source, wait: something has changed."""
    fake("ferryman.operations", run=lambda plan, **_: Summary(exit=code, waves=0, delivered=0))

    assert start(["run", "plan.py"]) == code
    assert capsys.readouterr().out.startswith("Nothing was delivered.\n")


INTERRUPTED = "interrupted: nothing is lost. Run the same command again: it first sends what was committed.\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_with_130(
    fake: Fake, state: Path, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    """Ctrl-C, and SIGTERM like it: the person is told how to go on, and the signals are as they were."""
    before = signal.getsignal(number)

    def run(plan: Any, **_: Any) -> Summary:
        signal.raise_signal(number)
        return Summary()

    fake("ferryman.operations", run=run)

    assert start(["run", "plan.py"]) == 130
    assert capsys.readouterr() == ("", INTERRUPTED)
    assert signal.getsignal(number) is before


def test_an_interrupt_is_not_lost_in_spark(fake: Fake, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Spark's bridge turns the KeyboardInterrupt into a failed job: the run ends all the same, at its next word.

    Spark also takes SIGINT for itself when it starts; its handler is called by ours, for it cancels the jobs.
    """
    cancelled = []

    def cancel(number: int, frame: object) -> None:
        cancelled.append(number)
        raise KeyboardInterrupt

    def run(plan: Any, observer: Any, **_: Any) -> Summary:
        signal.signal(signal.SIGINT, cancel)
        observer.phase(1, "deliver")
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            observer.message("destination index: Spark: Answer from Java side is empty")
        return Summary()

    fake("ferryman.operations", run=run)

    assert start(["run", "plan.py"]) == 130
    assert capsys.readouterr() == ("", INTERRUPTED)
    assert cancelled == [signal.SIGINT]


@pytest.mark.parametrize(
    ("raised", "code", "told"),
    [
        (StateHeld("/s", "here", 7, "noon"), 1, "error: /s is held by process 7 on here since noon."),
        (EngineError("Spark\nfailed"), 1, "error: Spark failed"),
        (UsageError("no"), 2, "error: no"),
        (MemoryError(), 1, "error: there is too little memory for it (MemoryError). It was the command's own process"),
        (ValueError("oh\ndear"), 1, "error: ValueError: oh. This is a bug in Ferryman; -v shows"),
        (PermissionError(13, "Permission denied", "/x"), 1, "error: /x: Permission denied."),
    ],
)
def test_an_error_ends_with_its_code(
    fake: Fake, state: Path, capsys: pytest.CaptureFixture[str], raised: Exception, code: int, told: str
) -> None:
    """One line on stderr, nothing on stdout, no traceback."""

    def run(plan: Any, **_: Any) -> Summary:
        raise raised

    fake("ferryman.operations", run=run)

    assert start(["run", "plan.py", "--json"]) == code
    captured = capsys.readouterr()
    assert captured.err.startswith(told)
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_progress_goes_to_stderr(fake: Fake, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Results own stdout."""

    def run(plan: Any, observer: Any, **_: Any) -> Summary:
        observer.phase(1, "deliver")
        observer.settled(2, 0, 0)
        return Summary()

    fake("ferryman.operations", run=run)

    assert start(["run", "plan.py", "--json"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("wave 1: deliver: ")
    assert lines[1:] == ["wave 1: deliveries: 2 delivered, 0 pending, 0 failed or rejected"]


def test_reasons_add_up_to_the_number_above_them(fake: Fake, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is not printed is counted, with the command that lists it; digits are grouped in one way."""
    numbers = [100_000, 4, 3, 2, 1, 4, 2]
    fake("ferryman.operations", run=lambda plan, **_: Summary(3, 2, 109_926, rejected=sum(numbers), documents=54_957))
    rows = [{"deliveries": n, "reason": f"reason {n}", "example": "a.txt"} for n in numbers]
    fake("ferryman.account", reasons=lambda root, status, limit, plan: rows[:limit])

    assert start(["run", "plan.py"]) == 3
    out = capsys.readouterr().out.splitlines()
    assert out[:2] == ["2 waves: 109 926 delivered, made of 54 957 documents", "100 016 rejected:"]
    assert out[2] == "  100 000: reason 100000 (one of them: a.txt)"
    more = "  and 2 more reasons, 6 deliveries: ferryman deliveries plan.py --status rejected --by reason"
    assert out[7] == more
    assert out[8].startswith("All rejected: ")
