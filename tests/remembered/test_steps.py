"""Steps that remember, in every way in which steps are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.paid import Service, build_paid, steps, vector_of
from tests.support.plan_world import PlanWorld

MODES = list(steps(Service(Path())))


def paid(place: Path, mode: str = "plain", **options: Any) -> PlanWorld:
    return PlanWorld(place, build_paid).build(mode, **options)


def delivered(world: PlanWorld, name: str = "out") -> dict[str, Any]:
    """Id -> fields, as they came last."""
    return {line["id"]: line["fields"] for line in world.out(name).lines() if line["op"] == "upsert"}


@pytest.mark.parametrize("mode", MODES)
def test_each_input_is_called_for_once(place: Path, mode: str) -> None:
    """Equal texts of several documents, in one run and the next, cost one call; a change outside of what is read, none."""
    world, service = paid(place, mode), Service(place)
    texts = [f"t{n % 7}" for n in range(20)]
    for n, text in enumerate(texts):
        world.put(f"d{n}", words=text, title=f"number {n}")
    summary = world.run()
    assert service.calls() == dict.fromkeys(set(texts), 1)
    assert summary.remembered["embed"] | {"bytes": 0, "spent": 0, "saved": 0} == {
        "calls": 7, "hits": 13, "in_doubt": 0, "spent": 0, "saved": 0, "bytes": 0
    }  # fmt: skip
    wanted = {f"d{n}": np.float32(vector_of(text)).tolist() for n, text in enumerate(texts)}
    assert {id: fields["vector"] for id, fields in delivered(world).items()} == wanted
    for n, text in enumerate(texts):
        world.put(f"d{n}", words=text, title="another")
    world.put("new", words="t3")
    assert world.run().remembered["embed"]["hits"] == 21
    assert service.calls().total() == 7
