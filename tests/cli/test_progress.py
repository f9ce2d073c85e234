"""What a run tells while it runs."""

from __future__ import annotations

import io
import logging

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn

from ferryman.observe import Observer, Silent, one_line, watching
from ferryman.observe.log import logging_to
from ferryman.observe.progress import Bar, LineProgress


def a_wave(observer: Observer) -> None:
    observer.phase(3, "scan")
    observer.taken_up(1202)
    observer.phase(3, "deliver")
    observer.settled(1200, 0, 2)


def test_in_a_pipe_each_settled_wave_is_one_line() -> None:
    """One line a wave: what was delivered, is pending, has failed."""
    stream = io.StringIO()

    with watching(stream) as observer:
        a_wave(observer)

    assert stream.getvalue() == "wave 3: 1 200 delivered, 0 pending, 2 failed\n"


def test_verbose_tells_the_phases() -> None:
    """With -v each phase is a line, too."""
    stream = io.StringIO()

    a_wave(LineProgress(stream, verbose=True))

    assert stream.getvalue().splitlines() == [
        "wave 3: scan",
        "wave 3: 1 202 documents taken up",
        "wave 3: deliver",
        "wave 3: 1 200 delivered, 0 pending, 2 failed",
    ]


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
    bar.taken_up(300)
    now[0] = 110.0
    bar.settled(200, 100, 0)

    task = progress.tasks[0]
    assert task.description == "wave 3: deliver"
    assert (task.completed, task.total) == (1402, 1502)
    assert task.fields["figures"] == "1 400 delivered, 100 pending, 2 failed, 140/s"


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
    observer.taken_up(0)
    observer.phase(0, "")
