"""Summaries of runs and flows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

from ferryman import limits
from ferryman.engine.results import Listing, Staged
from ferryman.engine.tasks import LogBatch, WaveBatch
from ferryman.limits import format_count, plural
from ferryman.observe import format_size

_EXITS_BY_PRECEDENCE: Final = (1, 2, 4, 3)
"""Exit codes by precedence: a flow ends with the first of them that any of its plans has; else 0."""


@dataclasses.dataclass
class Summary:
    """Result of a run: what it did and what it left undone.

    ``waves``, ``delivered``, ``deleted`` and ``dropped`` are this run's, each delivery in one of them; ``failed``,
    ``rejected``, ``pending`` and ``in_doubt`` are the whole state's. ``documents`` is the number of documents that this
    run has read to process them, each of which may make several deliveries, or none.
    """

    exit: int = 0
    waves: int = 0
    delivered: int = 0
    deleted: int = 0
    dropped: int = 0
    failed: int = 0
    rejected: int = 0
    pending: int = 0
    in_doubt: int = 0
    documents: int = 0
    messages: list[str] = dataclasses.field(default_factory=list)
    remembered: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    """Step that remembers -> what became of its inputs in this run: ``calls``, ``hits`` (answered without a call),
    ``in_doubt`` (called again although a call had begun), ``spent`` and ``saved`` (dollars), and the ``bytes`` of its
    store."""

    def as_dict(self) -> dict[str, Any]:
        """Return the object of ``run --json``; ``remembered`` is left out of plans without such steps."""
        return {**self.counts(), **({"remembered": self.remembered} if self.remembered else {})}

    def counts(self) -> dict[str, int]:
        """Return the exit code and the counts, ``documents`` left out."""
        names = ("exit", "waves", "delivered", "deleted", "dropped", "failed", "rejected", "pending", "in_doubt")
        return {name: getattr(self, name) for name in names}

    def set_exit(self, *, held: bool, incomplete: bool, reported: bool = False, replaced: bool = False) -> None:
        """Set the exit code of the command line, from the counts.

        Args:
            held: deletes wait for an operator.
            incomplete: a source was not read to its end, or could not be listed.
            reported: all failures are in the plan's error queue.
            replaced: a target is not the one that was delivered to before.
        """
        if held:
            self.exit = 2
        elif self.pending or incomplete:
            self.exit = 4
        elif self.in_doubt or replaced or ((self.failed or self.rejected) and not reported):
            self.exit = 3


@dataclasses.dataclass
class FlowSummary:
    """Result of a flow's run: what it did and what it left undone.

    Attributes:
        plans: plan name (``name-vVERSION`` where two versions of one are in the flow) -> summary, in order of turns.
        errors: plan that stopped -> reason; its summary has the counts as far as they are known.
    """

    flow: str
    plans: dict[str, Summary] = dataclasses.field(default_factory=dict)
    errors: dict[str, Exception] = dataclasses.field(default_factory=dict)

    @property
    def exit(self) -> int:
        """Return the first of 1, 2, 4, 3, 0 that any plan has."""
        codes = {summary.exit for summary in self.plans.values()}
        return next((code for code in _EXITS_BY_PRECEDENCE if code in codes), 0)

    @property
    def messages(self) -> list[str]:
        """Return the messages of all plans, each after its plan's name."""
        return [f"{name}: {text}" for name, summary in self.plans.items() for text in summary.messages]

    def as_dict(self) -> dict[str, Any]:
        """Return the object of ``run --json``."""
        plans = {name: summary.as_dict() for name, summary in self.plans.items()}
        return {"flow": self.flow, "exit": self.exit, "plans": plans}


# Results of a wave's phases, in a line for the observer of a run.


def describe_listing(listings: Sequence[Listing], batches: Sequence[WaveBatch]) -> str:
    """Return ``1 000 documents listed; 10 are new, or read to see whether they changed``."""
    listed, rows = sum(listing.rows for listing in listings), sum(batch.rows for batch in batches)
    waves = f" in {len(batches)} waves" if len(batches) > 1 else ""
    words = ("is new, or is", "it") if rows == 1 else ("are new, or are", "they")
    read = f"{format_count(rows)} {words[0]} read to see whether {words[1]} changed"
    return f"{plural(listed, 'document', 'documents')} listed; {read}{waves}"


_SIZE_SHOWN: Final = limits.MIB
"""Bytes of a wave's documents from which on their size is said: a wave of one large document looks odd without it."""


def describe_staged(batch: WaveBatch | LogBatch, staged: Sequence[Staged]) -> str:
    """Return ``10 documents of 1.2 GiB, 20 deliveries to send, 1 dropped``."""
    deliveries = sum(part.rows for s in staged for _, part in s.outbox)
    dropped = sum(s.counts["dropped"] for s in staged)
    failed = sum(s.counts["dead"] + s.counts["error_doc"] for s in staged)
    more = [f"{format_count(n)} {word}" for n, word in ((dropped, "dropped"), (failed, "failed or rejected")) if n]
    size = f" of {format_size(batch.bytes)}" if batch.bytes >= _SIZE_SHOWN else ""
    sent = f"{plural(deliveries, 'delivery', 'deliveries')} to send"
    return ", ".join([f"{plural(batch.rows, 'document', 'documents')}{size}", sent, *more])
