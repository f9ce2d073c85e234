"""Runs, most of them in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.network import Network
from tests.support.places import place, spark, trial

__all__ = ["place", "spark", "trial"]


@pytest.fixture
def net(place: Path) -> Network:
    """A plan of any shape."""
    return Network(place)
