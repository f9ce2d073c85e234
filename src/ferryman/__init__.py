"""Ferryman: fault-tolerant document indexing on Spark.

A plan carries documents from sources, through steps, to destinations; every one is accounted for at every destination.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # as typing has it, which takes the command longer to load than all else here
if TYPE_CHECKING:
    from typing import Any, Final

    from ferryman.destinations.base import Effect, Guarantee
    from ferryman.document import Document
    from ferryman.engine.preview import preview
    from ferryman.errors import Dropped, Misconfigured, PermanentError, TransientError, Unavailable
    from ferryman.monitoring.metrics import metrics
    from ferryman.operations import deliveries, fsck, history, resolve, retry, run, status, tables
    from ferryman.plan import Flow, Plan
    from ferryman.proof.proof import prove
    from ferryman.remembered import Remember
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

_MODULES: Final = {
    "Document": "document",
    "Dropped": "errors",
    "Effect": "destinations.base",
    "Flow": "plan",
    "Guarantee": "destinations.base",
    "Misconfigured": "errors",
    "PermanentError": "errors",
    "Plan": "plan",
    "Remember": "remembered",
    "TransientError": "errors",
    "Unavailable": "errors",
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
"""Name -> its module, imported when the name is first used: a plan file needs few of them, and the command begins with
none."""

_PACKAGES: Final = ("destinations", "document", "errors", "limits", "plan", "remembered", "routers", "sources")
"""Modules that are there without an import of their own."""


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"ferryman.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'ferryman' has no attribute {name!r}")
    globals()[name] = found = getattr(importlib.import_module(f"ferryman.{_MODULES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
