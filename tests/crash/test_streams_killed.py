"""A plan from a stream to PostgreSQL, killed at random: each row of the stream arrives once, whatever was killed."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ferryman.crash import POINTS, STREAM
from tests.crash import streams
from tests.destinations.postgres import Database, database, postgres
from tests.support.plan_world import place
from tests.support.zygote import Zygote

__all__ = ["database", "place", "postgres"]

pytestmark = pytest.mark.server

ENGINE = [p for p in POINTS if p.startswith(("transform", "commit", "wave", "deliver", "settle", "outbox", "epoch"))]
"""Points that a run like this passes, or may pass."""


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    with Zygote(tmp_path_factory.mktemp("zygote"), "tests.crash.streams") as made:
        yield made


class Streamed:
    """Rows that were given to a stream, and what came out of it."""

    def __init__(self, place: Path, database: Database) -> None:
        self.rows = place / "rows.jsonl"
        self.database = database
        self.written = 0

    def put(self, chance: random.Random, most: int = 25) -> None:
        with self.rows.open("a") as file:
            for _ in range(chance.randint(1, most)):
                self.written += 1
                file.write(json.dumps({"id": f"d{chance.randint(1, 30)}", "n": self.written}) + "\n")

    def check(self) -> None:
        newest, made = streams.expected(self.rows)
        found = {id: int(n) for id, n in self.database.query("SELECT id, n FROM out")}
        assert found == newest
        query = "SELECT id, (fields::jsonb ->> 'n')::int FROM log WHERE operation = 'upsert'"
        sent = self.database.query(query)
        assert len(set(sent)) == len(sent), "nothing is sent twice"
        assert newest.items() <= set(sent) <= made, "a version that waits for a retry may be overtaken by a newer one"


@pytest.mark.rule("stream.once")
@pytest.mark.parametrize(
    "kills", [5, pytest.param(50, marks=pytest.mark.slow), pytest.param(51, marks=pytest.mark.slow)]
)
def test_killed_at_random(zygote: Zygote, place: Path, database: Database, kills: int) -> None:
    """The driver or a worker, at a crash point or at any time, while more is written."""
    chance = random.Random(kills)
    streamed = Streamed(place, database)
    points = [*ENGINE, *list(STREAM) * 4]
    killed, took = 0, 0.5
    while killed < kills:
        streamed.put(chance)
        job: dict[str, object] = {
            "url": database.url, "root": str(place), "alone": chance.random() < 0.6, "per_batch": chance.randint(1, 9)
        }  # fmt: skip
        seen = place / f"killed-{killed}-{streamed.written}"
        by_time = chance.random() < 0.5
        if by_time:
            job |= {"kill_s": chance.uniform(0, took), "alone": True, "watch": chance.random() < 0.5}
        else:
            job["arm"] = (f"{chance.choice(points)}:{chance.choice((1, 1, 2, 3, 5))}", str(seen))
        began = time.monotonic()
        code, said = zygote.run(**job)
        assert code in (0, -9), (job, said)
        killed += code == -9 or seen.exists()
        if code == 0:
            took = max(0.3, time.monotonic() - began)
        if chance.random() < 0.5:
            continue  # it is killed again before it was through
        code, said = zygote.run(url=database.url, root=str(place))
        assert code == 0, said
        streamed.check()
    code, said = zygote.run(url=database.url, root=str(place))
    assert code == 0, said
    streamed.check()
    code, said = zygote.run(url=database.url, root=str(place))
    assert (code, said) == (0, "delivered 0\n")
