"""Steps by themselves, and some on the engine."""

from tests.support.places import place, trial  # noqa: F401 - fixtures
