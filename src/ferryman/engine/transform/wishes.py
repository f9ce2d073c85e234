"""Documents that a step wants to be read again later."""

from __future__ import annotations

import datetime as dt

from ferryman.document import Again


class Wishes:
    """Of one task, by origin."""

    def __init__(self, now_us: int) -> None:
        self._now_us = now_us
        self._of: dict[str, Again] = {}

    def __contains__(self, origin: object) -> bool:
        return origin in self._of

    def add(self, origin: str, wish: Again) -> None:
        """Of several times the earliest counts."""
        if (before := self._of.get(origin)) is None or wish.after_s < before.after_s:
            self._of[origin] = wish

    def of(self, origin: str) -> Again | None:
        return self._of.get(origin)

    def put_back(self, origin: str, wish: Again | None) -> None:
        """What it was before."""
        self._of.pop(origin, None)
        if wish is not None:
            self._of[origin] = wish

    def fulfil(self, origin: str, before: int | None) -> tuple[int | None, str]:
        """When it is read again, µs since 1970, and what the ledger says of that; "": nothing new.

        Args:
            before: the time of before, where it still counts.
        """
        wish = self._of.pop(origin, None)
        if wish is None:
            return before, ""
        at = self._now_us + int(wish.after_s * 1e6)
        if before is not None and before <= at:
            return before, ""
        when = dt.datetime.fromtimestamp(at // 1_000_000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
        return at, f"partial: it is read again after {when} UTC" + (f" ({wish.why})" if wish.why else "")
