"""Plans in this process, in memory where there is such a place."""

from __future__ import annotations

from tests.support.plan_world import place, trial

__all__ = ["place", "trial"]
