"""Runs, most of them in this process."""

from tests.support.places import place, spark, trial  # noqa: F401 - fixtures
