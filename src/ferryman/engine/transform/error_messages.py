"""Final failures of steps, routers and sources as messages for the plan's error queue.

A message is a row of the outbox like any other, in the commit that says of the input that it failed: so there is one
for each failure, whatever is killed, and an input never has both an output and an error on one path. What a destination
refuses becomes a message when the wave settles (``settle.refused``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from ferryman.document import Document, encode_fields
from ferryman.engine.transform.block import Block
from ferryman.engine.transform.ends import Met
from ferryman.engine.transform.outbox_stage import OutboxStage
from ferryman.plan import Plan, errors_node
from ferryman.records.family import Owed
from ferryman.records.refusals import error_fields, error_route, failed_message


class ErrorMessages:
    """Of one task."""

    def __init__(self, plan: Plan, source: str, wave: int, outbox: OutboxStage, name: str) -> None:
        self._plan = plan
        self._kinds = {n.name: n.kind for n in plan.nodes}
        self._source = source
        self._wave = wave
        self._outbox = outbox
        self._name = name

    @classmethod
    def of(cls, plan: Plan, source: str, wave: int, outbox: OutboxStage) -> Self | None:
        """None: the plan has no error queue."""
        node = errors_node(plan.nodes)
        return None if node is None else cls(plan, source, wave, outbox, node.name)

    def add(self, block: Block, i: int, met: Met, owed: Sequence[Owed]) -> None:
        """A member of the family of row ``i`` failed for good on the way to those deliveries that are not open."""
        ended = [o.destination for o in owed if not o.open]
        if not ended:
            return
        fields = error_fields(
            kind=self._kinds.get(met.node, "step"),
            cause=met.fault.text,
            where=met.node,
            plan=(self._plan.name, self._plan.version),
            destinations=ended,
            messages=[failed_message(met.doc.id, self._source, block.entry_fields(i))],
        )
        doc = Document.of(met.doc.id, {})
        doc.parent_id = met.doc.parent_id
        end = (self._name, error_route(met.node, met.route, self._wave))
        self._outbox.upsert(block, i, doc, end, met.branches, encode_fields(fields), None)
