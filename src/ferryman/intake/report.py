"""What a batch's report says: which jobs are delivered, which have failed, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ferryman.intake.nodes import number_of, numbered

LISTED_MAX: Final = 20_000
"""Jobs that a report's node names one by one: 16 bytes each keep it below what a node may hold. More are written as
spans of their numbers, ``jid0000000001..jid0000020000``."""


@dataclass(frozen=True)
class Report:
    """The jobs of a batch that are done with."""

    batch_id: str
    completed: tuple[str, ...]
    failed: tuple[str, ...]
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Of failed jobs: the message of each one's last move."""

    def kept(self, now: str) -> dict[str, Any]:
        """As it is kept in the batch's ``status-report``."""
        return {"last_modified": now, "failed_jobs": spans(self.failed), "successful_jobs": spans(self.completed)}

    def since(self, kept: Mapping[str, Any] | None) -> Report:
        """What of it is not in the report that was kept before. Empty: nobody has to be told anything."""
        if kept is None:
            return self
        failed, completed = set(named(kept.get("failed_jobs"))), set(named(kept.get("successful_jobs")))
        newly = tuple(job for job in self.failed if job not in failed)
        return Report(
            self.batch_id,
            tuple(job for job in self.completed if job not in completed),
            newly,
            {job: why for job, why in self.reasons.items() if job in newly},
        )

    def __bool__(self) -> bool:
        return bool(self.completed or self.failed)


def spans(jobs: Iterable[str]) -> list[str]:
    """Ids of jobs as a report's node has them."""
    ids = sorted(jobs)
    if len(ids) <= LISTED_MAX:
        return ids
    found: list[list[int]] = []
    for job in ids:
        number = number_of(job) or 0
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return [
        numbered("jid", first) if first == last else f"{numbered('jid', first)}..{numbered('jid', last)}"
        for first, last in found
    ]


def named(listed: object) -> Iterable[str]:
    """The ids that a report's node names."""
    for text in listed if isinstance(listed, list) else []:
        first, _, last = str(text).partition("..")
        if not last:
            yield first
            continue
        for number in range(number_of(first) or 0, (number_of(last) or -1) + 1):
            yield numbered("jid", number)
