"""Whole state directories."""

from tests.support.places import place, spark, trial  # noqa: F401 - fixtures
