"""Runs in this process, and those who are told."""

from tests.support.plan_world import place, trial  # noqa: F401 - fixtures
