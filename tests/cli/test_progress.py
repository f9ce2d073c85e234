"""What a run tells while it runs."""

from __future__ import annotations

import io
import logging
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn

from ferryman.observe import (
    Bar,
    LineProgress,
    Observer,
    Pace,
    Silent,
    default_observer,
    duration,
    logging_to,
    one_line,
    progress_observer,
)


def a_wave(observer: Observer) -> None:
    observer.phase(3, "scan")
    observer.outcome("1 300 documents listed")
    observer.staged(1202)
    observer.phase(3, "deliver")
    observer.live(1202)
    observer.settled(1200, 0, 2)


class Clock:
    """A second passes at each look, or as many as it is told."""

    def __init__(self, step: float = 1.0) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def test_in_a_pipe_each_phase_and_each_settled_wave_is_one_line() -> None:
    """What a phase came to and how long it took; what was delivered, is pending, has failed."""
    stream = io.StringIO()

    with progress_observer(stream) as observer:
        a_wave(observer)

    assert stream.getvalue().splitlines() == [
        "wave 3: scan: 1 300 documents listed, 0.0 s",
        "wave 3: deliver: 1 202 deliveries sent, 0.0 s",
        "wave 3: deliveries: 1 200 delivered, 0 pending, 2 failed or rejected",
    ]


def test_a_scan_that_finds_nothing_says_nothing() -> None:
    """With --every it happens all the time; one that takes long is worth a line."""
    stream = io.StringIO()
    clock = Clock()
    lines = LineProgress(stream, clock=clock)

    for wave in (3, 4):
        lines.phase(wave, "scan")
    assert stream.getvalue() == ""
    clock.now += 60
    lines.phase(5, "scan")

    assert stream.getvalue().startswith("wave 4: scan: 6")


def test_a_long_phase_says_now_and_then_how_far_it_is() -> None:
    """With what is left of all waves, as soon as that can be known."""
    stream = io.StringIO()
    clock = Clock(0.0)
    lines = LineProgress(stream, clock=clock)

    lines.planned(4000)
    lines.phase(1, "transform")
    lines.expects(1000)
    clock.now = 10.0
    lines.live(100)
    clock.now = 40.0
    lines.live(400)

    assert stream.getvalue() == "wave 1: transform: 400 of 1 000, 10/s, about 6 min left\n"


def test_a_large_file_says_its_share() -> None:
    clock = Clock(0.0)
    pace = Pace(clock)
    pace.phase("scan")
    clock.now = 30.0
    pace.bytes_read = (3 << 30, 4 << 30)
    pace.live(90_000)
    assert pace.describe() == "90 000, 3 000/s, 75 % of 4.0 GiB read, about 10 s left"
    pace.phase("transform")
    pace.live(10)
    assert "read" not in pace.describe()


def test_the_estimate_counts_the_waves_before() -> None:
    """All that a document goes through takes time, not only the steps."""
    clock = Clock(0.0)
    pace = Pace(clock)

    pace.planned(2000)
    for _ in range(2):
        pace.phase("transform")
        pace.expects(1000)
        clock.now += 50.0
        if clock.now < 100:
            pace.live(1000)
            pace.phase("deliver")
            clock.now += 50.0
            assert pace.left_s() == 100.0
    pace.live(500)

    assert pace.left_s() == 50.0


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (9.9, "9.9 s"), (59.7, "60 s"), (150, "2 min"), (7500, "2 h 5 min")]
)
def test_durations_are_short(seconds: float, text: str) -> None:
    """As precise as people want to know."""
    assert duration(seconds) == text


def test_an_error_is_told_at_once() -> None:
    """Its traceback with -v."""
    short, long = io.StringIO(), io.StringIO()

    LineProgress(short).error("a.txt", "step x: KeyError: 'k' (plan.py:3)", "Traceback\n  line")
    LineProgress(long, verbose=True).error("a.txt", "step x: KeyError: 'k' (plan.py:3)", "Traceback\n  line")

    assert short.getvalue() == "a.txt: step x: KeyError: 'k' (plan.py:3)\n"
    assert long.getvalue() == f"{short.getvalue()}Traceback\n  line\n"


def test_verbose_tells_when_a_phase_begins() -> None:
    """With -v that is a line, too."""
    stream = io.StringIO()

    a_wave(LineProgress(stream, verbose=True, clock=Clock(0.0)))

    assert stream.getvalue().splitlines() == [
        "wave 3: scan",
        "wave 3: 1 202 deliveries to send",
        "wave 3: scan: 1 300 documents listed, 0.0 s",
        "wave 3: deliver",
        "wave 3: deliver: 1 202 deliveries sent, 0.0 s",
        "wave 3: deliveries: 1 200 delivered, 0 pending, 2 failed or rejected",
    ]


def test_the_bar_moves_while_a_phase_runs() -> None:
    """How far it is, of how much."""
    progress = Progress(TextColumn("{task.description}"), console=Console(file=io.StringIO()))
    clock = Clock(0.0)
    bar = Bar(progress, clock=clock)

    bar.phase(1, "transform")
    bar.expects(200)
    clock.now = 10.0
    bar.live(50)

    task = progress.tasks[0]
    assert task.description == "wave 1: transform: 50 of 200, 5/s, about 30 s left"
    assert (task.completed, task.total) == (50, 200)


def test_a_message_is_one_whole_line() -> None:
    """Messages are neither wrapped nor shortened, whatever is in them."""
    stream = io.StringIO()
    path = "/a/very/long/path/" + "x" * 300

    LineProgress(stream).message(f"{path}: first\nsecond\x1b[31m\n")

    assert stream.getvalue() == f"{path}: first second\\x1b[31m\n"


def test_one_line_keeps_blanks() -> None:
    """Two blanks in a file's name are two blanks, and indentation stays."""
    assert one_line("  a  b.txt: why\r\nso\n") == "  a  b.txt: why so"


def test_the_bar_adds_up() -> None:
    """The bar shows the wave, the sums over all waves, and documents per second."""
    now = [100.0]
    progress = Progress(TextColumn("{task.description}"), console=Console(file=io.StringIO()))
    bar = Bar(progress, clock=lambda: now[0])

    a_wave(bar)
    bar.staged(300)
    now[0] = 110.0
    bar.settled(200, 100, 0)

    task = progress.tasks[0]
    assert task.description.startswith("wave 3: deliver: 1 202")
    assert (task.completed, task.total) == (1402, 1502)
    assert task.fields["figures"] == "deliveries: 1 400 delivered, 100 pending, 2 failed or rejected, 140/s"


def test_a_message_above_the_bar_is_not_wrapped() -> None:
    """On a terminal, too, the terminal itself wraps a long line: what is copied from it is whole."""
    screen = io.StringIO()
    bar = Bar(Progress(TextColumn(""), console=Console(file=screen, width=40)))

    bar.message("[x] " + "y" * 100)

    assert screen.getvalue() == "[x] " + "y" * 100 + "\n"


def test_log_lines_go_the_same_way() -> None:
    """Warnings become one line of the observer; what is less is told with -v only; nothing stays behind."""
    stream = io.StringIO()
    log = logging.getLogger("ferryman.test")

    with logging_to(LineProgress(stream)):
        log.info("nothing")
        log.warning("first %s", "second\nthird")
        try:
            raise ValueError("why")
        except ValueError:
            log.exception("it failed")
    log.warning("after")

    assert stream.getvalue().splitlines() == ["warning: first second third", "error: it failed: ValueError: why"]


@pytest.mark.parametrize("observer", [Silent(), LineProgress(io.StringIO())])
def test_observers_bear_any_order(observer: Observer) -> None:
    """A run may tell of a settled wave before a phase: recovery does."""
    observer.settled(0, 0, 0)
    observer.message("")
    observer.staged(0)
    observer.phase(0, "")


def test_a_notebook_shows_progress_by_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``ferryman.run`` writes lines below the cell; in a program, and in IPython on a terminal, nothing."""
    shells = {"a program": None, "a terminal": SimpleNamespace(), "a notebook": SimpleNamespace(kernel=object())}
    for name, shell in shells.items():
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda shell=shell: shell))
        default_observer().message("wave 1")
        assert capsys.readouterr().err == ("wave 1\n" if name == "a notebook" else "")
