"""``status`` and what is left over of a run, of any number of deliveries: counted a part at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench import synthetic

from ferryman import Plan, account, limits
from ferryman.destinations import Null
from ferryman.sources import Memory
from ferryman.state.state import state_root


@pytest.mark.rule("status.sizes")
def test_everything_is_counted_whatever_the_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a fifth of the memory, and parts of a thousand."""
    monkeypatch.setattr(limits, "QUERY_MEMORY", "24MB")
    monkeypatch.setattr(limits, "COUNTED_ROWS", 1000)
    plan = Plan("many", version=1)
    plan.source("docs", Memory([])).destination("out", Null())
    plan.freeze()
    root = state_root(plan, tmp_path)
    synthetic.state(root, plan, 20_000, revisions=2, dead=5_000)
    found = account.status(root, plan)
    assert found["sources"] == {"docs": {"documents": 20_000, "deleted": 0, "again": 0}}
    assert {name: n for name, n in found["destinations"]["out"].items() if n} == {"delivered": 15_000, "failed": 5_000}
    assert found["balanced"]
    assert {name: n for name, n in account.outstanding(root, plan).items() if n} == {"failed": 5_000}
