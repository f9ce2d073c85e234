"""States with something in them."""

from __future__ import annotations

import pytest

from ferryman import limits
from ferryman.limits import KIB
from ferryman.state import maintenance
from tests.support.plan_world import place, trial
from tests.support.tiers import sampled

__all__ = ["place", "trial"]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files close at 32 KiB of content, row groups at 8 KiB, and four small files of any size are merged."""
    monkeypatch.setattr(limits, "PART_BYTES", 32 * KIB)
    monkeypatch.setattr(limits, "GROUP_BYTES", 8 * KIB)
    monkeypatch.setattr(limits, "COMPACT_FILES", 4)
    monkeypatch.setattr(maintenance, "TINY_PER_SMALL", 1)


@pytest.fixture(params=sampled([limits.COMMAND_DELIVERIES, 1], 2), ids=["in one wave", "in many waves"])
def in_waves(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that concerns very many deliveries is cut into waves; so may be one that concerns a few."""
    monkeypatch.setattr(limits, "COMMAND_DELIVERIES", request.param)
