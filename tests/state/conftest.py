"""Whole state directories."""

from tests.support.plan_world import place, spark, trial  # noqa: F401 - fixtures
