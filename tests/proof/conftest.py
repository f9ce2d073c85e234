"""Fixtures of plans in folders."""

from __future__ import annotations

from tests.support.plan_world import place

__all__ = ["place"]
