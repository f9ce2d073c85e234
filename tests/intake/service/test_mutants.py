"""Whatever is submitted: ``serve`` goes on, each job has an outcome, and each failed one a reason."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from ferryman.errors import UsageError
from ferryman.limits import MIB
from tests.intake.service.mutants import mutant
from tests.intake.service.place import Place, until
from tests.intake.service.soaking import SESSION_S, Soaking

MEMORY_BYTES = 500 * MIB


@pytest.mark.rule("intake.hostile")
@pytest.mark.parametrize("seeds", [range(24), pytest.param(range(24, 324), marks=pytest.mark.slow)], ids=len)
def test_mutants(place: Path, seeds: range) -> None:
    """Manifests, containers and submissions: a good job behind them is delivered, in bounded memory."""
    there = Place(place, SESSION_S)
    good = there.put("good.txt", "good")
    for seed in seeds:
        one = mutant(seed, good.as_uri())
        url = there.put(one.name, one.content).as_uri()
        with suppress(UsageError):  # refused at the door
            there.submit(**{one.url_field: url, **one.submission})
    last = there.submit(payload_url=good.as_uri(), local_id="last")
    process = Soaking(place, there.queue.url)
    until(lambda: over(there))
    assert process.peak_bytes < MEMORY_BYTES
    process.kill()
    assert there.queue.load_batch(last).status == "Completed"
    failed = [there.queue.load_job(job) for job in there.queue.list_jobs("Failed")]
    batches = [there.queue.load_batch(batch) for batch in there.queue.list_batches("Failed")]
    assert [item.id for item in [*failed, *batches] if not item.message] == []
    assert there.queue.audit() == []


def over(place: Place) -> bool:
    """Has everything an outcome?"""
    states = ("Pending", "Processing", "Reporting")
    return not any(place.queue.list_batches(state) for state in states)


def test_payloads_that_are_not_text(intake: Place) -> None:
    """They are submissions of something, which fails; not those whose jobs somebody else makes."""
    values: tuple[object, ...] = ({}, [], 0, False)
    batches = [intake.submit(**{name: value}) for name in ("manifest_url", "payload_url") for value in values]
    intake.serve()
    found = [intake.queue.load_batch(batch) for batch in batches]
    assert [(batch.status, bool(batch.message)) for batch in found] == [("Failed", True)] * len(found)
