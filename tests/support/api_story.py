"""A program to kill while it reads an API: ``python -m tests.support.api_story FOLDER URL``."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from ferryman.destinations import Sql
from ferryman.plan import Plan
from ferryman.sources import Rows
from tests.support.api_server import read_carefully
from tests.support.plan_world import run_plan


def main(place: str, url: str) -> None:
    folder = Path(place)
    plan = Plan("story", version=1)
    node = plan.source("docs", Rows(partial(read_carefully, url)))
    node = node.tee("sent", Sql(f"sqlite:///{folder}/out.db", table="sent", mode="append"))
    node.destination("out", Sql(f"sqlite:///{folder}/out.db"))
    summary = run_plan(plan, folder / "state")
    assert summary.exit == 0, summary.messages


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
