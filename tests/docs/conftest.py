"""Fixtures of the other folders that are used here too."""

from tests.support.plan_world import place, trial

__all__ = ["place", "trial"]
