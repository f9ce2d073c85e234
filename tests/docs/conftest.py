"""Fixtures of the other folders that are used here too."""

from tests.support.places import place, trial

__all__ = ["place", "trial"]
