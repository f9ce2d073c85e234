"""Sources with a memory on Spark: their listings and their reads are tasks of its workers."""

from __future__ import annotations

import json
import mailbox
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ferryman import account
from ferryman.destinations import JsonLines
from ferryman.plan import Plan
from ferryman.sources import Cursor, Git, Mailbox, Rows
from ferryman.state.state import state_root
from tests.servers.registry import require_command
from tests.support.git_server import GitRepository
from tests.support.mails import mail
from tests.support.plan_world import run_plan
from tests.support.source_story import read_changes, read_rows


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text(json.dumps(rows))
    return str(path)


@pytest.mark.spark
def test_four_sources_run_on_spark(place: Path, spark: Any) -> None:
    """Each finds what has come and what is gone, by what it remembers."""
    require_command("git")
    rows, changes = place / "rows.json", place / "changes.json"
    repository, mails = GitRepository(place / "r"), mailbox.Maildir(place / "mails")
    first = [{"id": f"r{n}", "text": "first"} for n in range(3)]
    write(rows, first)
    write(changes, first)
    keys = [mails.add(mail(n)) for n in range(3)]
    for n in range(3):
        repository.put(f"{n}.txt", "first")
    repository.commit()
    plan = Plan("four", version=1)
    sources = {
        "rows": Rows(partial(read_rows, str(rows)), prefix="rows/", max_deleted=1),
        "changes": Cursor(partial(read_changes, str(changes)), ordered=True, prefix="changes/"),
        "git": Git(repository.path, cache=place / "cache", prefix="git/", max_deleted=1),
        "mail": Mailbox(place / "mails", prefix="mail/", max_deleted=1),
    }
    nodes = [plan.source(name, source) for name, source in sources.items()]
    plan.destination("out", JsonLines(place / "out"), after=nodes)

    assert run_plan(plan, place / "state", runner=spark).delivered == 12
    assert run_plan(plan, place / "state", runner=spark).waves == 0
    write(rows, [{"id": "r0", "text": "second"}, first[1]])
    write(changes, [*first, {"id": "r0", "text": "second"}, {"id": "r2"}])
    mails.remove(keys[2])
    mails.add(mail("new"))
    repository.put("0.txt", "second")
    repository.git("rm", "--quiet", "2.txt")
    repository.commit()
    summary = run_plan(plan, place / "state", runner=spark)

    assert (summary.exit, summary.delivered, summary.deleted) == (0, 4, 4)
    counts = account.status(state_root(plan, place / "state"), plan)["sources"]
    assert {name: (each["documents"], each["deleted"]) for name, each in counts.items()} == {
        "rows": (2, 1),
        "changes": (2, 1),
        "git": (2, 1),
        "mail": (3, 1),
    }
