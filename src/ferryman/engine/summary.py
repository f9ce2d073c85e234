"""What a run did, and what it left."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Summary:
    """What a run did (``waves``, ``delivered``, ``dropped``) and what it left (the other counts, of the state)."""

    exit: int = 0
    waves: int = 0
    delivered: int = 0
    dropped: int = 0
    dead: int = 0
    error_doc: int = 0
    owed: int = 0
    unknown: int = 0
    messages: list[str] = dataclasses.field(default_factory=list)

    def as_dict(self) -> dict[str, int]:
        """The keys of ``run --json``."""
        counts = dataclasses.asdict(self)
        del counts["messages"]
        return counts
