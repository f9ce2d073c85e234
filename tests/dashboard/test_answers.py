"""Answers are kept until the state changes; an old one is shown while the new one is found."""

from __future__ import annotations

import threading

import pytest

from ferryman.dashboard import answers as kept_answers
from ferryman.dashboard.answers import Answers, StillCounting


def test_an_answer_is_found_once() -> None:
    answers, asked = Answers(), []
    for _ in range(3):
        assert answers.ask("q", 1, lambda: asked.append(1) or "found").value == "found"
    assert len(asked) == 1


def test_a_first_answer_that_takes_long_is_not_waited_for() -> None:
    answers, gate = Answers(first_s=0.01), threading.Event()
    with pytest.raises(StillCounting):
        answers.ask("q", 1, lambda: gate.wait(60))
    gate.set()
    patient = Answers(first_s=60)
    assert patient.ask("q", 1, lambda: gate.wait(60)).value is True


def test_an_old_answer_is_shown_with_its_age_while_a_new_one_is_found() -> None:
    answers, gate = Answers(first_s=60, again_s=0.01), threading.Event()
    assert answers.ask("q", 1, lambda: "old").as_of is None
    stale = answers.ask("q", 2, lambda: gate.wait(60) and "new")
    assert stale.value == "old"
    assert stale.as_of is not None
    gate.set()
    answers.again_s = 60
    assert answers.ask("q", 2, lambda: "newer").value in ("new", "newer")
    fresh = answers.ask("q", 2, lambda: pytest.fail("it is known"))
    assert fresh.as_of is None


def test_one_question_is_worked_on_once_however_many_ask() -> None:
    answers, gate, asked = Answers(first_s=60), threading.Event(), []

    def find() -> str:
        asked.append(1)
        gate.wait(60)
        return "found"

    threads = [threading.Thread(target=answers.ask, args=("q", 1, find)) for _ in range(8)]
    for thread in threads:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join()
    assert len(asked) == 1


def test_a_page_waits_once_for_all_its_answers() -> None:
    """However many questions a page has: what it has waited for one is taken from the patience for the next."""
    answers, gate = Answers(first_s=60), threading.Event()
    with pytest.raises(StillCounting):
        answers.ask("q", 1, lambda: gate.wait(60), waited_s=60)
    gate.set()


def test_an_error_is_raised_and_not_kept() -> None:
    answers = Answers(first_s=60)
    with pytest.raises(ValueError, match="damaged"):
        answers.ask("q", 1, _fail)
    assert answers.ask("q", 1, lambda: "well").value == "well"


def _fail() -> None:
    raise ValueError("damaged")


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_answers, "KEPT", 10)
    answers = Answers(first_s=60)
    asked: list[int] = []
    for number in (*range(50), 49, 0):
        answers.ask(number, 1, lambda n=number: asked.append(n))  # type: ignore[misc]
    assert asked == [*range(50), 0]  # the last is known, the first is not any more
