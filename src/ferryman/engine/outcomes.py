"""What the phases of a wave came to, in a line for whoever watches a run."""

from __future__ import annotations

from collections.abc import Sequence

from ferryman.engine.scan.batches import WaveBatch
from ferryman.engine.scan.listing import Listing
from ferryman.engine.transform.staged import Staged
from ferryman.observe.progress import counted, plural


def describe_listing(listings: Sequence[Listing], batches: Sequence[WaveBatch]) -> str:
    """``1000 documents listed, 10 to look at``."""
    listed, rows = sum(listing.rows for listing in listings), sum(batch.rows for batch in batches)
    waves = f" in {len(batches)} waves" if len(batches) > 1 else ""
    return f"{plural(listed, 'document', 'documents')} listed, {counted(rows)} to look at{waves}"


def describe_staged(rows: int, staged: Sequence[Staged]) -> str:
    """``10 documents, 20 deliveries to send, 1 dropped``."""
    deliveries = sum(part.rows for s in staged for _, part in s.outbox)
    dropped = sum(s.counts["dropped"] for s in staged)
    failed = sum(s.counts["dead"] + s.counts["error_doc"] for s in staged)
    more = [f"{counted(n)} {word}" for n, word in ((dropped, "dropped"), (failed, "failed or rejected")) if n]
    sent = f"{plural(deliveries, 'delivery', 'deliveries')} to send"
    return ", ".join([plural(rows, "document", "documents"), sent, *more])
