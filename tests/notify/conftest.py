"""Runs in this process, and those who are told."""

from tests.support.places import place, trial  # noqa: F401 - fixtures
