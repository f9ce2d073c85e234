"""Where the cases work."""

from __future__ import annotations

from tests.support.places import place

__all__ = ["place"]
