"""A source that is wrong as a whole: it is named, and the others go on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ferryman.destinations import JsonLines
from ferryman.engine.runner.base import QueryFailed
from ferryman.engine.summary import Summary
from ferryman.errors import EngineError, FerrymanError, Misconfigured, UsageError, WorkerDied
from ferryman.plan import Plan
from ferryman.sources import DataFrame, Files, Listed, Memory, Source, Sql
from ferryman.testing.inprocess import InProcess
from tests.support.plan_world import run_plan


class Silent(Exception):
    """An error that cannot say what it is."""

    def __str__(self) -> str:
        raise ValueError("no words")


class Odd(Source):
    """Does what it is told where it is told to."""

    def __init__(self, at: str, act: Callable[[], Any]) -> None:
        super().__init__()
        self._at, self._act = at, act

    def _do(self, at: str, otherwise: Any) -> Any:
        return self._act() if at == self._at else otherwise

    def check(self) -> None:
        self._do("check", None)

    def partitions(self) -> list[Any]:
        return self._do("partitions", [0])  # type: ignore[no-any-return]

    def listing(self, partition: Any) -> Iterator[Any]:
        yield Listed("a", 1)
        yield self._do("listing", Listed("b", 1))


def raising(error: BaseException) -> Callable[[], Any]:
    def act() -> Any:
        raise error

    return act


def run(place: Path, source: Source, **options: Any) -> Summary:
    """Beside a source of two documents that is well."""
    plan = Plan("two", version=1)
    plan.source("well", Memory([{"id": "1"}, {"id": "2"}])).destination("out", JsonLines(place / "out"))
    plan.source("other", source).destination("rows", JsonLines(place / "rows"))
    return run_plan(plan, place / "state", wait=0, **options)


ERRORS: dict[str, tuple[Callable[[], BaseException], str]] = {
    "plain": (lambda: ValueError("no such thing"), "ValueError: no such thing"),
    "leaving": (lambda: SystemExit(3), "SystemExit: 3"),
    "usage": (lambda: UsageError("give another name."), "give another name"),
    "engine": (lambda: EngineError("the store is away."), "the store is away"),
    "silent": (Silent, "a Silent that cannot say why"),
    "surrogate": (lambda: OSError("\udcff"), r"\udcff"),
}


@pytest.mark.rule("outage.wrong-source")
@pytest.mark.parametrize("at", ["check", "partitions", "listing"])
@pytest.mark.parametrize("kind", list(ERRORS))
def test_what_a_source_raises_stops_no_other(place: Path, kind: str, at: str) -> None:
    """Whatever it is, and wherever: the run ends with 4, and says which source it was."""
    error, words = ERRORS[kind]
    summary = run(place, Odd(at, raising(error())))
    assert (summary.exit, summary.delivered) == (4, 2)
    told = [message for message in summary.messages if "source other" in message]
    assert told
    assert words in told[0]


@pytest.mark.rule("outage.wrong-source")
@pytest.mark.parametrize(
    ("at", "answer", "words"),
    [
        ("partitions", lambda: None, "NoneType"),
        ("partitions", lambda: [threading.Lock()], "partitions() returns cannot be sent to the workers: cannot pickle"),
        ("listing", lambda: None, "its listing yields None"),
        ("listing", lambda: "b", "its listing yields 'b'"),
        ("listing", lambda: Listed(7, 1), "other"),  # type: ignore[arg-type]
    ],
)
def test_what_a_source_answers_stops_no_other(place: Path, at: str, answer: Callable[[], Any], words: str) -> None:
    """Where something else is wanted."""
    summary = run(place, Odd(at, answer))
    assert (summary.exit, summary.delivered) == (4, 2)
    assert words in " ".join(summary.messages)


@pytest.mark.rule("outage.wrong-source")
def test_a_query_that_is_none_and_a_folder_that_is_missing(place: Path) -> None:
    """Beside others; a plan of nothing else does nothing, and says why."""
    (place / "shop.db").touch()
    query = Sql(f"sqlite:///{place}/shop.db", "SELECT id FROM nowhere", id="id")
    for source, words in ((query, "no such table: nowhere"), (Files(place / "missing"), "there is no such folder")):
        summary = run(place, source)
        assert summary.exit == 4
        assert any(words in each and "source other" in each for each in summary.messages)
    plan = Plan("alone", version=1)
    plan.source("rows", query).destination("out", JsonLines(place / "alone"))
    with pytest.raises(UsageError, match="no such table: nowhere"):
        run_plan(plan, place / "state")


class OfFrames(InProcess):
    """Calls what reads a frame, and fails as Spark does."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self._error = error

    def run_frame(self, read: Callable[[Any], Any], task: Callable[[int, Any], Any]) -> list[Any]:
        if self._error is not None:
            raise self._error
        try:
            read(None)
        except FerrymanError:
            raise
        except Exception as e:
            raise QueryFailed(str(e)) from e
        return []


@pytest.mark.rule("outage.wrong-source")
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("no such table"), "is stopped: no such table"),
        (Misconfigured("no rights"), "is stopped: no rights"),
        (ConnectionError("the catalogue is away"), "is not available: the catalogue is away"),
        (EngineError("the engine of the catalogue"), "is stopped: the engine of the catalogue"),
        (SystemExit(2), "SystemExit: 2"),
    ],
)
def test_a_frame_that_cannot_be_made_stops_no_other(place: Path, error: BaseException, words: str) -> None:
    """By what its function raises it is wrong, or away."""
    summary = run(place, DataFrame(lambda _: raising(error)()), runner=OfFrames())
    assert (summary.exit, summary.delivered) == (4, 2)
    assert words in " ".join(summary.messages)


@pytest.mark.rule("outage.wrong-source")
def test_a_frame_whose_query_fails_stops_no_other(place: Path) -> None:
    """Nor one over which workers die; but Spark itself is everybody's."""
    frame = DataFrame(lambda _: None)
    for error in (QueryFailed("[DIVIDE_BY_ZERO]"), WorkerDied("Spark: a Python worker died")):
        summary = run(place, frame, runner=OfFrames(error))
        assert summary.exit == 4
        assert str(error) in " ".join(summary.messages)
    with pytest.raises(EngineError, match="JVM ended"):
        run(place, frame, runner=OfFrames(EngineError("Spark's JVM ended")), checked=False)
