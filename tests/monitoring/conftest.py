"""Fixtures of runs that are monitored."""

from __future__ import annotations

import pytest

from tests.support.monitored import clean_environment
from tests.support.plan_world import net, place, trial

__all__ = ["net", "place", "trial"]


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine says where spans or events go."""
    clean_environment(monkeypatch)
