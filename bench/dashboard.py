"""Pages of the dashboard over a large state: the first look, and each one after it."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from pathlib import Path

from starlette.testclient import TestClient

from bench import synthetic
from bench.harness import Row, Sizes, alternate, empty_folder, limit_row
from ferryman.account.queries import cache_counts
from ferryman.dashboard.app import make_app
from ferryman.dashboard.guard import Settings
from ferryman.destinations import Null
from ferryman.plan import Plan
from ferryman.sources import Memory
from ferryman.state.state import State

WARM_S = 0.3
FAILED = 3
"""Deliveries in a thousand that have failed."""

PAGES = (
    "",
    "/failures",
    "/failures?status=failed",
    "/document?id={document}",
    "/runs",
    "/runs?wave=1",
    "/verify",
    "/confirm?verb=retry&status=failed",
)


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    states = empty_folder(folder / "dashboard")
    plan = Plan("sizes", version=1)
    plan.source("docs", Memory([])).destination("out", Null())
    root = states / plan.key
    synthetic.state(root, plan, sizes.documents, dead=sizes.documents * FAILED // 1000)
    with State.take(root, plan) as state:
        cache_counts(state, replace=True)  # as a run does after its last wave
    site = TestClient(make_app([str(states)], Settings()), base_url="http://localhost")
    document = synthetic.id_of(sizes.documents // 2)
    for page in ("/", *(f"/plans/sizes-v1{each}" for each in PAGES)):
        address = page.replace("{document}", document)
        began = time.perf_counter()
        while "This state is large" in site.get(address).text:
            time.sleep(0.05)
        cold_s = time.perf_counter() - began

        def look(address: str = address) -> None:
            assert site.get(address).status_code == 200

        [took] = alternate(sizes.rounds, look)
        yield limit_row(f"page `{page}`, {sizes.documents} deliveries (first look {cold_s:.1f} s)", took, WARM_S)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"peak memory of this process, which made the state too: {peak_mb} MB")
