"""The call of a step that a task is in, for what its document tells of it: the idempotency key."""

from __future__ import annotations

from hashlib import blake2b

from ferryman.document import Document
from ferryman.engine.transform.block import Block
from ferryman.plan import Plan


class Calling:
    """Of one task: set before each call of a step, cleared after it.

    Attributes:
        state: id of the state; "" in a preview.
        step: its name; "": no step is being called.
        route: branches of the copying routers so far.
    """

    def __init__(self, plan: Plan, source: str) -> None:
        self.state = ""
        self.step = ""
        self.route = ""
        self._plan = f"{plan.name}\0{plan.version}\0{source}"
        self._block: Block | None = None
        self._row = 0

    def at(self, block: Block, i: int) -> None:
        """The family of this row is walked now."""
        self._block, self._row = block, i

    def key_of(self, doc: Document) -> str | None:
        """32 hex digits, the same on every attempt of this call; None: no step is being called.

        The parts are told apart by NUL, as in ``records.delivery_hash``; the id comes last.
        """
        if not self.step or self._block is None:
            return None
        revision = self._block.revision(self._row)
        parts = (self._plan, self.state, self.step, self.route, doc.version, str(revision), doc.id)
        return blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
