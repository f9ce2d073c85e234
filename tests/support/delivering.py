"""Recorders under each guarantee, destinations that are down or hang, and what they got."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ferryman.destinations.base import Delivery, Effect, Outcome
from ferryman.plan import Plan
from ferryman.sources import Memory
from tests.support.plan_world import run_plan
from tests.support.recorder import Recorder


def kept(place: Path, guarantee: str, **options: Any) -> Recorder:
    """A recorder that can keep this guarantee."""
    effect = Effect.POTENT if guarantee == "at-most-once" else Effect.IDEMPOTENT
    return Recorder(place / "out.jsonl", effect=effect, transactional=guarantee == "exactly-once", **options)


def sizes(out: Recorder) -> list[int]:
    """Rows of each chunk."""
    return [call["rows"] for call in out.calls()]


def by_id(**answers: Outcome | None) -> Callable[[Delivery], Outcome | None]:
    return lambda d: answers.get(d.id, Outcome.ok())


def down(path: Path) -> Callable[..., Outcome]:
    """Says that it is down, as long as the file is there."""

    def answer(delivery: Delivery) -> Outcome:
        return Outcome.unavailable("no shard is there") if path.exists() else Outcome.ok()

    return answer


HUNG_S = 10.0
"""After so long a call is given up."""


def hang(chunk: list[Delivery]) -> None:
    time.sleep(3600)


def beside_a_hanging_one(place: Path, runner: Any, guarantee: str) -> tuple[float, Recorder, Any]:
    """Seconds until the healthy destination had everything; it; the run's summary."""
    plan = Plan("hangs", 1)
    hanging, healthy = kept(place, guarantee, before=hang), Recorder(place / "healthy.jsonl")
    for name, out in (("hanging", hanging), ("healthy", healthy)):
        documents = [{"id": f"{name}{i:03}"} for i in range(600)]
        plan.source(name, Memory(documents)).destination(f"to-{name}", out, batch=50, attempts=1, send_timeout=HUNG_S)
    began = time.time()
    summary = run_plan(plan, place / "state", runner=runner, wait=0, clock=lambda: 0.0)  # it is asked once
    return Path(healthy.path).stat().st_mtime - began, healthy, summary
