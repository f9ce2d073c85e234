"""What a destination refused, as messages for the plan's error queue: new rows of the outbox, in the commit by which
the refused ones are held for review."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc

from ferryman.document import encode_fields
from ferryman.plan import Plan, errors_node
from ferryman.records.delivery_hash import hasher
from ferryman.records.events import table_of
from ferryman.records.refusals import error_fields, error_route, failed_message
from ferryman.records.schemas import OUTBOX_FILE
from ferryman.state.state import SEQUENCE, State
from ferryman.storage.handles import DataFile
from ferryman.storage.parquet import Part

_SAME = ("source", "document", "parent", "origin", "version", "revision", "branches", "provenance")
"""Columns that a message has from the refused row."""


class Refusals(NamedTuple):
    """How messages are made of the rows of one outbox file."""

    plan: tuple[str, int]
    errors: str
    """Name of the destination that gets them."""
    destination: str
    """That has refused."""
    wave: int

    def messages(self, rows: pa.Table, failed: Mapping[str, str], first: int) -> pa.Table:
        """Of those of the rows that failed, in OUTBOX_FILE's columns, numbered from ``first``.

        Args:
            failed: delivery hash -> why.
        """
        hashes = rows["delivery_hash"]
        rows = rows.filter(pc.is_in(hashes, value_set=pa.array(list(failed), pa.string())))
        causes = [failed[each] for each in rows["delivery_hash"].to_pylist()]
        columns = {name: rows[name].to_pylist() for name in (*_SAME, "route", "fields")}
        routes = [error_route(self.destination, route, self.wave) for route in columns.pop("route")]
        bodies = columns.pop("fields")
        fields = [
            self._message(cause, id, source, body)
            for cause, id, source, body in zip(causes, columns["document"], columns["source"], bodies, strict=True)
        ]
        names = ("source", "document", "version", "revision")
        digests = [
            hasher(*self.plan, source, self.errors, route, "upsert")(document, version, revision)
            for route, source, document, version, revision in zip(routes, *(columns[n] for n in names), strict=True)
        ]
        n = rows.num_rows
        return table_of(
            OUTBOX_FILE,
            n,
            row=pa.array(range(first, first + n), pa.int64()),
            route=routes,
            operation="upsert",
            delivery_hash=digests,
            attempt=0,
            due=0,
            fields=fields,
            **columns,
        )

    def _message(self, cause: str, id: str, source: str, body: bytes | None) -> bytes:
        message = failed_message(id, source, body or b"{}")
        where, plan = self.destination, self.plan
        return encode_fields(
            error_fields(
                kind="destination", cause=cause, where=where, plan=plan, destinations=[where], messages=[message]
            )
        )


class RefusalReporter:
    """For one wave of a plan; does nothing where the plan has no error queue."""

    def __init__(self, plan: Plan, wave: int, errors: str | None) -> None:
        self._plan = plan
        self._wave = wave
        self._errors = errors

    @classmethod
    def of(cls, plan: Plan, wave: int) -> Self:
        node = errors_node(plan.nodes)
        return cls(plan, wave, None if node is None else node.name)

    def about(self, file: DataFile) -> Refusals | None:
        """For the rows of this outbox file; of the error queue's own nothing is reported."""
        destination = file.partition["destination"]
        if self._errors is None or destination == self._errors:
            return None
        return Refusals((self._plan.name, self._plan.version), self._errors, destination, self._wave)

    def files(self, state: State, parts: Sequence[Part]) -> tuple[list[DataFile], dict[str, int]]:
        """These messages as files to add, under the next sequences; and the transaction that says which come then."""
        if not parts:
            return [], {}
        assert self._errors is not None
        sequence, found = state.next_sequence, []
        for part in parts:
            partition = {"wave": str(self._wave), "destination": self._errors, "first_sequence": str(sequence)}
            found.append(state.outbox.data_file(part, partition))
            sequence += part.rows
        return found, {SEQUENCE: sequence}
