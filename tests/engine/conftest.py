"""Runs, most of them in this process."""

from __future__ import annotations

from tests.support.plan_world import net, place, spark, trial

__all__ = ["net", "place", "spark", "trial"]
