"""Steps by themselves, and some on the engine."""

from tests.support.places import place  # noqa: F401 - a fixture
