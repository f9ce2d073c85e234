"""States with something in them."""

from tests.support.places import place, trial  # noqa: F401 - fixtures
