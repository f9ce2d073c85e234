"""Identifiers that the plan has minted for a job's documents, beside those that the submitter gave."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from ferryman.destinations import JobIdentifiers
from ferryman.intake import Job
from ferryman.plan import DestinationNode, Plan

TOLD: Final = 5
"""Primary ids that are named when documents of one job disagree."""


class Minted:
    """Reads what ``JobIdentifiers`` of a plan has noted; a plan without one costs nothing.

    Args:
        work: the working space, for a plan that is about to run.
    """

    def __init__(self, plan: Plan, work: Path | None = None) -> None:
        self._noting = {
            id(n.destination): n.destination
            for n in plan.nodes
            if isinstance(n, DestinationNode) and isinstance(n.destination, JobIdentifiers)
        }
        if work is not None:
            for each in self._noting.values():
                each.serve(work)

    def identifiers(self, job: Job, documents: Iterable[tuple[str, str]]) -> dict[str, Any] | None:
        """A job's identifiers with those that were minted for its documents (source, id); None: nothing is new.

        Raises:
            ValueError: its documents do not agree about its primary id.
        """
        if not self._noting:
            return None
        before = job.identifiers
        notes = [note for each in self._noting.values() for place in documents for note in each.noted(*place)]
        given = str(before.get("primary_id") or "")
        primary = list(dict.fromkeys(one for one in (given, *(note.primary_id for note in notes)) if one))
        if len(primary) > 1:
            raise ValueError(
                f"its documents name several primary ids ({', '.join(primary[:TOLD])}): a job has one. Mint it from "
                "what they share, and leave alone what the submitter gave."
            )
        local = list(dict.fromkeys([*_listed(before), *(one for note in notes for one in note.local_id)]))
        after = {**before, **({"primary_id": primary[0]} if primary else {}), **({"local_id": local} if local else {})}
        return None if after == before else after


def _listed(identifiers: Mapping[str, Any]) -> list[str]:
    local = identifiers.get("local_id") or []
    return [str(one) for one in (local if isinstance(local, list) else [local])]
