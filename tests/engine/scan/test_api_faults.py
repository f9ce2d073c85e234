"""``Rows`` and ``Cursor`` over a real API with faults: whatever it answers, nothing is deleted that is still there."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from ferryman import limits
from ferryman.errors import Unavailable
from ferryman.sources import Cursor, Rows
from tests.support.api_server import ApiServer, Reply, read_carefully, read_carelessly, read_changes
from tests.support.plan_world import PlanWorld
from tests.support.program import run_program
from tests.support.sleeper import Sleeper

ROWS = 45


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer() as server:
        server.fill(ROWS)
        yield server


def deleted(world: PlanWorld) -> list[str]:
    return sorted(id for id in world.arrived() if id.startswith("-"))


def shift(api: ApiServer, number: int) -> Reply | None:
    """Remove a row of a page that was read: all behind it move by one."""
    if number == 3:
        del api.rows["r1"]
    return None


def grow_and_shrink(api: ApiServer, number: int) -> Reply | None:
    if number == 3:
        del api.rows["r1"]
    if number == 4:
        api.rows["late"] = {"id": "late", "text": "It came while pages were read"}
    return None


CAREFUL: dict[str, Callable[[ApiServer, int], Reply | None]] = {
    "fewer rows than announced": lambda api, n: Reply(body={"total": ROWS, "rows": []}) if n == 3 else None,
    "pages that shift": shift,
    "pages that shift and grow": grow_and_shrink,
    "an error in a 200": lambda api, n: Reply(body={"error": "quota"}) if n == 2 else None,
    "a page of HTML": lambda api, n: Reply(body=b"<html>Log in") if n == 3 else None,
    "a body that is cut off": lambda api, n: Reply(body=api.page(20), cut=30) if n == 3 else None,
    "a token that expires": lambda api, n: Reply(401, b"") if n >= 3 else None,
    "nothing after a token has expired": lambda api, n: Reply(body={"total": 0, "rows": []}) if n >= 3 else None,
    "too many requests": lambda api, n: Reply(429, b"") if n == 3 else None,
    "too many requests, with a time": lambda api, n: Reply(429, b"", {"retry-after": "1"}) if n == 3 else None,
    "unavailable": lambda api, n: Reply(503, b"") if n == 3 else None,
}
CARELESS: dict[str, Callable[[ApiServer, int], Reply | None]] = {
    "nothing at once": lambda api, n: Reply(body={"total": 0, "rows": []}),
    "nothing after a token has expired": lambda api, n: Reply(body={"rows": []}) if n >= 3 else None,
    "an error in a 200": lambda api, n: Reply(body={"error": "quota"}) if n >= 2 else None,
    "one page without end": lambda api, n: Reply(body=api.page(20)) if n >= 3 else None,
    "two pages in turn without end": lambda api, n: Reply(body=api.page(10 * (n % 2))) if n >= 3 else None,
}


@pytest.mark.rule("source.incomplete")
@pytest.mark.parametrize(
    ("read", "fault"),
    [
        *(pytest.param(read_carefully, fault, id=f"careful: {name}") for name, fault in CAREFUL.items()),
        *(pytest.param(read_carelessly, fault, id=f"careless: {name}") for name, fault in CARELESS.items()),
    ],
)
def test_what_an_api_does_not_list_is_not_deleted(
    trial: PlanWorld,
    api: ApiServer,
    read: Callable[[str], Iterator[dict[str, Any]]],
    fault: Callable[[ApiServer, int], Reply | None],
) -> None:
    """https://github.com/elastic/connectors-ruby/pull/174: what a 503 hid was deleted;
    https://github.com/airbytehq/airbyte/issues/48745: rows were missing from a table that changed while it was read;
    https://github.com/elastic/connectors/issues/2631: 50 of 1000 documents came, and no error."""
    source = Rows(partial(read, api.url))
    trial.build(source=source, max_deleted=source.max_deleted)
    assert trial.run().exit == 0
    assert len(trial.arrived()) == ROWS
    api.set_fault(partial(fault, api))
    trial.run(wait=0)
    assert deleted(trial) == []
    api.set_fault()
    api.rows.pop("r1", None)
    api.rows.pop("r2")
    assert trial.run().exit == 0
    assert deleted(trial) == ["-r1", "-r2"]


def read_politely(url: str) -> Iterator[dict[str, Any]]:
    try:
        yield from read_carefully(url)
    except HTTPError as e:
        raise Unavailable("429", wait_s=float(e.headers["retry-after"])) from e


@pytest.mark.rule("source.wait")
@pytest.mark.parametrize("asked", [90, 10_000_000])
def test_an_api_says_when_it_may_be_asked_again(trial: PlanWorld, api: ApiServer, asked: int) -> None:
    """The run waits that long, if it may, and a day at most."""
    trial.build(source=Rows(partial(read_politely, api.url)))
    trial.run()
    api.rows["new"] = {"id": "new", "text": "It came while the API was busy"}
    api.set_fault(lambda n: Reply(429, b"", {"retry-after": str(asked)}) if n == 2 else None)
    sleeper, before = Sleeper(), len(api.asked)
    trial.run(**sleeper.options(), wait=100_000.0)
    waited = min(asked, limits.RETRY_AFTER_MAX_S)
    assert waited <= sum(sleeper.slept) < waited + 2
    assert (trial.arrived()["new"], len(api.asked) - before) == (1, 2 + ROWS // 10 + 2)


def test_a_cursor_that_expires_is_followed_from_the_start(trial: PlanWorld, api: ApiServer) -> None:
    api.changes = [(n, {"id": f"c{n}", "n": n}) for n in range(1, 4)]
    trial.build(source=Cursor(partial(read_changes, api.url), start=0, ordered=True))
    trial.run()
    api.changes.append((4, {"id": "c4", "n": 4}))
    api.set_fault(lambda n: Reply(410, b"") if n == 1 else None)
    summary = trial.run()
    assert any("has expired (410 Gone)" in message for message in summary.messages)
    assert trial.arrived() == {"c1": 1, "c2": 1, "c3": 1, "c4": 1}, "what came again was dropped"
    api.set_fault(lambda n: Reply(body={"changes": []}))
    api.changes.append((5, {"id": "c5", "n": 5}))
    trial.run()
    api.set_fault()
    trial.run()
    assert trial.arrived()["c5"] == 1, "an answer without news did not move the cursor"


def test_rows_that_commit_late(trial: PlanWorld, api: ApiServer) -> None:
    """https://github.com/airbytehq/airbyte/issues/85918: a row appears behind the cursor, and is never read."""
    api.changes = [(1_700_000_600, {"id": "early", "n": 1})]
    trial.build(source=Cursor(partial(read_changes, api.url), start=0, lag="5m"))
    trial.run()
    api.changes.insert(0, (1_700_000_500, {"id": "late", "n": 1}))
    trial.run()
    assert trial.arrived() == {"early": 1, "late": 1}


KILLS = [2, pytest.param(1, marks=pytest.mark.slow), *(pytest.param(n, marks=pytest.mark.slow) for n in range(3, 7))]


@pytest.mark.parametrize("page", KILLS)
def test_killed_at_a_page(place: Path, api: ApiServer, page: int) -> None:
    """What came before is not delivered twice, and nothing is left out or deleted."""
    for count, kill_at in ((ROWS, page), (ROWS, 0), (ROWS - 2, page), (ROWS - 2, 0)):
        api.fill(count)
        api.set_fault()
        api.kill_at = kill_at
        ended = run_program("tests.support.api_story", place, api.url)
        assert ended.returncode == (-signal.SIGKILL if kill_at else 0)
    with closing(sqlite3.connect(place / "out.db")) as database:
        rows = {id for (id,) in database.execute("SELECT id FROM documents")}
        sent = database.execute("SELECT id, operation, count(*) FROM sent GROUP BY 1, 2").fetchall()
    assert rows == {f"r{n}" for n in range(ROWS - 2)}
    assert {(id, operation): count for id, operation, count in sent} == {
        **{(f"r{n}", "upsert"): 1 for n in range(ROWS)},
        **{(f"r{n}", "delete"): 1 for n in (ROWS - 2, ROWS - 1)},
    }
