"""The worked examples of state by key, and a tree of counts, equal a recount after each round, whatever was killed."""

from __future__ import annotations

import random
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from ferryman import crash
from ferryman.crash import EXECUTOR, KEYED
from ferryman.queues import Queue as DurableQueue
from tests.crash.examples import load
from tests.support.tree import Recount
from tests.support.zygote import Zygote

POINTS = {**crash.POINTS, **KEYED}
SHORT, FULL = (3, 40), (4, 1000)
"""Rounds, and loads in each."""


@pytest.fixture(scope="module")
def zygote(folder: Path) -> Iterator[Zygote]:
    made = Zygote(folder, "tests.crash.examples")
    yield made
    made.close()


def carry(zygote: Zygote, chance: random.Random, kills: int, **job: str) -> None:
    """Run an example to its end, after some kills."""
    for _ in range(kills):
        point = chance.choice([p for p in POINTS if not p.startswith(("create.", "plan."))])
        code, said = zygote.run(arm=f"{point}:{chance.choice([1, 1, 2])}", fork=POINTS[point] == EXECUTOR, **job)
        assert code in (0, -signal.SIGKILL), said
        (Path(job["root"]) / "killed").unlink(missing_ok=True)
    code, said = zygote.run(**job)
    assert code == 0, said


def full(*case: object) -> object:
    return pytest.param(*case, marks=[pytest.mark.slow])


@pytest.mark.rule("keyed.kill")
@pytest.mark.parametrize(
    ("size", "ids", "deletes", "kills"),
    [
        (SHORT, 30, 0.2, 1),
        full(FULL, 500, 0.0, 0),
        full(FULL, 10_000, 0.0, 0),
        full(FULL, 500, 0.1, 2),
        full(FULL, 10_000, 0.1, 2),
    ],
)
def test_the_inverse_of_references_is_a_recount(
    zygote: Zygote, folder: Path, size: tuple[int, int], ids: int, deletes: float, kills: int
) -> None:
    """Documents of 1 to 20 references come, are changed by another load, and go."""
    rounds, loads = size
    chance = random.Random(ids + kills)
    root = folder / f"references-{ids}-{kills}"
    root.mkdir()
    queue = DurableQueue("documents", root / "queues")
    there: dict[str, set[str]] = {}
    for _ in range(rounds):
        messages = []
        for _ in range(loads):
            document = f"d{chance.randrange(ids)}"
            refs = [f"d{chance.randrange(ids)}" for _ in range(chance.randint(1, 20))]
            gone = chance.random() < deletes
            messages.append({"document": document, "refs": " ".join(refs), "gone": gone})
            there[document] = set() if gone else set(refs)
        queue.append(messages)
        carry(zygote, chance, kills, root=str(root), name="references")
        with sqlite3.connect(root / "inverse.db") as db:
            found = set(db.execute("SELECT word, document FROM inverse"))
        assert found == {(word, document) for document, words in there.items() for word in words}


@pytest.mark.rule("keyed.kill")
@pytest.mark.parametrize(("size", "kills"), [(SHORT, 1), full(FULL, 3)])
def test_each_word_is_ranked_exactly_once(zygote: Zygote, folder: Path, size: tuple[int, int], kills: int) -> None:
    """Under its count; the example's own checker says so, and names a word that is ranked twice."""
    rounds, loads = size
    chance = random.Random(loads)
    root = folder / f"ranking-{loads}"
    root.mkdir()
    queue = DurableQueue("words", root / "queues")
    wrong = load("ranking", root).wrong
    for _ in range(rounds):
        queue.append([{"word": f"w{int(chance.expovariate(0.1))}"} for _ in range(loads)])
        carry(zygote, chance, kills, root=str(root), name="ranking")
        assert wrong(str(root / "ranking.db"), str(root / "queues")) == []
    with sqlite3.connect(root / "ranking.db") as db:
        db.execute("UPDATE ranking SET id = '999999/' || substr(id, 8) WHERE id = (SELECT min(id) FROM ranking)")
    assert len(wrong(str(root / "ranking.db"), str(root / "queues"))) == 2


@pytest.mark.rule("keyed.kill")
@pytest.mark.parametrize(("rounds", "entries", "kills"), [(2, 40, 1), full(20, 100, 0), full(20, 100, 2)])
def test_a_tree_of_counts_is_a_recount(zygote: Zygote, folder: Path, rounds: int, entries: int, kills: int) -> None:
    """Triples feed pairs, pairs feed singles; after each round each key is in its index by count exactly once."""
    chance, recount = random.Random(kills), Recount(rounds)
    root = folder / f"tree-{rounds}-{kills}"
    root.mkdir()
    queue = DurableQueue("in", root)
    for _ in range(rounds):
        queue.append(recount.entries(entries))
        carry(zygote, chance, kills, root=str(root), name="tree")
        recount.check(root)
