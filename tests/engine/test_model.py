"""Anything may happen, in any order: changes, failures, kills, a person's words. In the end all is where it belongs."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from ferryman import limits
from ferryman.destinations.base import Delivery, Effect, Outcome
from ferryman.document import Document
from tests.support.plan_world import MEMORY, Interrupted, PlanWorld, Until
from tests.support.recorder import Recorder

IDS = "abcd"
CONTENTS = ["fine", "also fine", "refuse", "fail", "fail once", "break", "drop", "down"]
PHASES = ["scan", "transform", "commit", "deliver", "settle"]


class Turn(NamedTuple):
    """What happens before a run, and where it is killed."""

    changes: dict[str, str | None]
    """Id -> new content; None: it goes away."""
    word: str | None
    """What a person says: retry, force, or nothing."""
    kill: tuple[str, int] | None
    """Phase, and after how many waves more."""


TURNS = st.lists(
    st.builds(
        Turn,
        changes=st.dictionaries(st.sampled_from(IDS), st.sampled_from([*CONTENTS, None]), max_size=3),
        word=st.sampled_from([None, None, None, "retry", "force", "force one"]),
        kill=st.none() | st.tuples(st.sampled_from(PHASES), st.integers(0, 1)),
    ),
    min_size=1,
    max_size=5,
)


def strict(doc: Document) -> Document | None:
    if doc.text() == "break":
        raise RuntimeError("broken")
    return None if doc.text() == "drop" else doc


def lenient(doc: Document) -> Document:
    return doc


def answer(delivery: Delivery) -> Outcome:
    match delivery.text():
        case "refuse":
            return Outcome.permanent("refused")
        case "fail":
            return Outcome.transient("busy")
        case "fail once" if delivery.attempt == 1:
            return Outcome.transient("not the first time")
        case "down":
            return Outcome.unavailable("down")
        case _:
            return Outcome.ok()


def fine(_: Delivery) -> Outcome:
    return Outcome.ok()


def speak(trial: PlanWorld, word: str | None) -> None:
    if word is not None and trial.root.exists():
        trial.retry(force=word != "retry", document="a" if word == "force one" else None, why="a test says so")


def take_turn(trial: PlanWorld, turn: Turn) -> None:
    for id, content in turn.changes.items():
        if content is None:
            trial.drop(id)
        else:
            trial.put(id, text=content)
    speak(trial, turn.word)
    if turn.kill is None:
        trial.run(wait=0)
        return
    phase, more = turn.kill
    wave = trial.status()["waves"] + 1 + more if trial.root.exists() else 1 + more
    with contextlib.suppress(Interrupted):
        trial.run(wait=0, observer=Until(wave, phase))


def arrived(trial: PlanWorld) -> dict[str, str]:
    """What the destination has in the end, if later ones overwrite earlier ones."""
    there: dict[str, str] = {}
    for line in trial.out().lines():
        if line["said"] == "ok":
            if line["op"] == "upsert":
                there[line["id"]] = line["text"]
            else:
                there.pop(line["id"], None)
    return there


def carry(turns: list[Turn], effect: Effect, folder: Path) -> None:
    out = Recorder(folder / "out.jsonl", effect=effect)
    trial = PlanWorld(folder).build(strict, out=out, answer=answer, attempts=2)
    for turn in turns:
        take_turn(trial, turn)
    trial.run(wait=0)
    check_order(trial)
    strict_name = strict.__name__
    lenient.__name__ = strict_name
    trial.build(lenient, answer=fine, attempts=2)  # everything is well again, and everything is asked for once more
    trial.run(wait=2)
    trial.retry(force=True)
    assert trial.run(wait=2).exit == 0
    assert arrived(trial) == {d["id"]: d["raw"].decode() for d in trial.documents}
    assert not {"owed", "dead", "error", "error_doc", "unknown"} & trial.counts().keys()
    check_order(trial)
    assert trial.run(wait=0).waves == 0


def check_order(trial: PlanWorld) -> None:
    """Each delivery took effect once at most; no row of an id was sent before an older one had its end."""
    effects = [line["hash"] for line in trial.out().lines() if line["said"] == "ok"]
    assert len(set(effects)) == len(effects)
    by_id: dict[str, list[int]] = {}
    for line in trial.out().lines():
        by_id.setdefault(line["id"], []).append(line["seq"])
    assert all(a <= b for found in by_id.values() for a, b in itertools.pairwise(found))


def tried(turns: list[Turn], effect: Effect) -> None:
    folder = Path(tempfile.mkdtemp(prefix="ferryman-test-", dir=MEMORY if MEMORY.is_dir() else None))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "COMPACT_FILES", 2)
        patch.setattr(limits, "CHECKPOINT_COMMITS", 4)
        try:
            carry(turns, effect, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


HEALTH = [HealthCheck.too_slow, HealthCheck.data_too_large]
EFFECTS = st.sampled_from([Effect.IDEMPOTENT, Effect.POTENT])


@examples(max_examples=3, deadline=None, derandomize=True, suppress_health_check=HEALTH, database=None)
@given(turns=TURNS, effect=EFFECTS)
def test_in_the_end_all_is_where_it_belongs(turns: list[Turn], effect: Effect) -> None:
    """A few histories, always the same ones."""
    tried(turns, effect)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@examples(max_examples=300, deadline=None, suppress_health_check=HEALTH, print_blob=True)
@given(turns=TURNS, effect=EFFECTS)
def test_whatever_happens_all_is_where_it_belongs_in_the_end(turns: list[Turn], effect: Effect) -> None:
    """Hundreds of histories, others each time."""
    tried(turns, effect)
