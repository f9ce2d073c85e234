"""Ferryman: fault-tolerant document indexing on Spark.

A plan carries documents from sources, through steps, to destinations; every one is accounted for at every destination.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from ferryman.destinations.base import Effect, Guarantee
from ferryman.document import Document
from ferryman.errors import Dropped, Misconfigured, PermanentError, TransientError, Unavailable
from ferryman.plan import Flow, Plan
from ferryman.remembered import Remember

if TYPE_CHECKING:
    from ferryman.engine.preview import preview
    from ferryman.monitoring.metrics import metrics
    from ferryman.operations import deliveries, fsck, history, resolve, retry, run, status, tables
    from ferryman.proof.proof import prove
    from ferryman.retrieval.search import search
    from ferryman.verification import verify

__all__ = [
    "Document",
    "Dropped",
    "Effect",
    "Flow",
    "Guarantee",
    "Misconfigured",
    "PermanentError",
    "Plan",
    "Remember",
    "TransientError",
    "Unavailable",
    "deliveries",
    "fsck",
    "history",
    "metrics",
    "preview",
    "prove",
    "resolve",
    "retry",
    "run",
    "search",
    "status",
    "tables",
    "verify",
]
__version__ = "0.1.0"

_OPERATIONS: Final = {
    "deliveries": "operations",
    "fsck": "operations",
    "history": "operations",
    "metrics": "monitoring.metrics",
    "preview": "engine.preview",
    "prove": "proof.proof",
    "resolve": "operations",
    "retry": "operations",
    "run": "operations",
    "search": "retrieval.search",
    "status": "operations",
    "tables": "operations",
    "verify": "verification",
}
"""Name -> its module, imported when the name is first used: a plan file needs none of them, nor what they import."""


def __getattr__(name: str) -> Any:
    if name not in _OPERATIONS:
        raise AttributeError(f"module 'ferryman' has no attribute {name!r}")
    globals()[name] = operation = getattr(importlib.import_module(f"ferryman.{_OPERATIONS[name]}"), name)
    return operation


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
