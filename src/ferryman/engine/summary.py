"""What a run did, and what it left."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Summary:
    """What a run did and what it left.

    ``waves``, ``delivered``, ``deleted`` and ``dropped`` are this run's, each delivery in one of them; ``failed``,
    ``rejected``, ``pending`` and ``in_doubt`` are the whole state's.
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
    messages: list[str] = dataclasses.field(default_factory=list)

    def as_dict(self) -> dict[str, int]:
        """The keys of ``run --json``."""
        counts = dataclasses.asdict(self)
        del counts["messages"]
        return counts

    def set_exit(self, *, held: bool, incomplete: bool) -> None:
        """The exit code of the command line, from the counts.

        Args:
            held: deletes wait for an operator.
            incomplete: a source was not listed to its end, or could not be looked at.
        """
        if held:
            self.exit = 2
        elif self.pending or incomplete:
            self.exit = 4
        elif self.failed or self.rejected or self.in_doubt:
            self.exit = 3
