"""The bill: what calls were made, what was answered from memory, and what that cost and saved, in words."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from ferryman.limits import format_count, plural


def dollars(amount: float) -> str:
    """Return an amount of money: ``$0.43``; small amounts with two digits that say something."""
    if amount >= 0.01 or not amount:
        return f"${amount:,.2f}"
    return f"${format(Decimal(f'{amount:.1e}').normalize(), 'f')}"


def describe_bill(name: str, counts: Mapping[str, float]) -> str:
    """Return ``embed: 620 calls ($0.43), 11 380 answers remembered ($7.97 saved), 1 call in doubt``."""
    paid = f" ({dollars(counts['spent'])})" if counts["spent"] else ""
    saved = f" ({dollars(counts['saved'])} saved)" if counts["saved"] else ""
    calls, hits = counts["calls"], counts["hits"]
    parts = [
        f"{plural(calls, 'call', 'calls')}{paid}",
        f"{plural(hits, 'answer', 'answers')} remembered{saved}",
    ]
    if in_doubt := counts["in_doubt"]:
        parts.append(f"{plural(in_doubt, 'call', 'calls')} in doubt made again")
    return f"{name}: {', '.join(parts)}"


def describe_need(call: Mapping[str, Any]) -> str:
    """Return ``embed: 620 of 12 000 documents need a call, $0.43``; where some have the same input, how many calls.

    Args:
        call: an element of ``calls`` of ``preview --json``.
    """
    documents = plural(call["documents"], "document", "documents")
    verb = "needs" if call["need"] == 1 else "need"
    shared = f" ({format_count(call['calls'])} different)" if call["calls"] != call["need"] else ""
    price = f", {dollars(call['cost'])}" if call["cost"] else ""
    return f"{call['step']}: {format_count(call['need'])} of {documents} {verb} a call{shared}{price}"
