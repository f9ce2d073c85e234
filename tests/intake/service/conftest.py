"""A place with a queue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.intake.service.place import Place
from tests.support.plan_world import place, spark  # noqa: F401 - fixtures


@pytest.fixture
def intake(place: Path) -> Iterator[Place]:  # noqa: F811 - the fixture
    """A queue, files to submit, a plan."""
    found = Place(place)
    yield found
    found.queue.close()
