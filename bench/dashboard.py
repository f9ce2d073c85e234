"""Pages of the dashboard over a large state, many plans, a long flow and a large intake queue.

Of each page: the seconds until it answers for the first time, until everything is on it, and of a later look. Before
each page all answers are forgotten. What is looked at is made in a process of its own, so that the peak of memory is
the dashboard's.
"""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from starlette.testclient import TestClient

from bench import synthetic
from bench.harness import Row, Sizes, alternate, empty_folder
from ferryman import Document, run
from ferryman.account.queries import cache_counts
from ferryman.dashboard.answers import Answers
from ferryman.dashboard.app import make_app
from ferryman.dashboard.guard import Settings
from ferryman.dashboard.places import Places
from ferryman.destinations import Null
from ferryman.intake import JobQueue
from ferryman.observe import Silent
from ferryman.plan import Plan
from ferryman.plan.load import load
from ferryman.sources import Memory
from ferryman.state.state import State

WARM_S, COLD_S, MEMORY_MB = 0.3, 2.0, 300
FAILED_EVERY = 333
"""Every so many deliveries one has failed."""
PLANS, JOBS = 1_000, 100_000
"""Plans in the house, and jobs in the queue, at most."""
DOCUMENTS_A_PLAN, DOCUMENTS_A_JOB = 1000, 10
"""Documents of the size option for each plan of the house, and for each job: a million makes all of them."""
JOBS_A_BATCH, JOBS_AT_ONCE = 1000, 100
COUNTING = ("nobody has asked this since it changed", "are being counted", "is being counted")
"""Words of a page that has not everything yet; the first ones of a page that has nothing."""

PAGES = (
    "",
    "/failures",
    "/failures?status=failed",
    "/document?id={document}",
    "/runs",
    "/runs?wave=1",
    "/verify",
    "/remembered",
    "/state",
    "/picture.svg",
    "/confirm?verb=retry&status=failed",
    "/outcome?message=nothing",
)
FLOW = """
from ferryman import Flow, Plan
from ferryman.destinations import Queue as ToQueue
from ferryman.sources import Memory, Queue

plans = []
for number in range({plans}):
    plan = Plan(f"part-{{number}}")
    source = Queue(f"q{{number}}", {place!r}) if number else Memory([{{"id": str(n), "n": n}} for n in range(100)])
    plan.source("in", source).destination("out", ToQueue(f"q{{number + 1}}", {place!r}))
    plans.append(plan)
flow = Flow("long", plans)
"""
FLOW_PLANS = 20


def measure(sizes: Sizes, folder: Path) -> Iterator[Row]:
    plans = min(PLANS, sizes.documents // DOCUMENTS_A_PLAN)
    jobs = min(JOBS, sizes.documents // DOCUMENTS_A_JOB)
    root = folder / "dashboard"
    document = synthetic.id_of(sizes.documents // 2)
    pages = ["/", *(f"/plans/sizes-v1{page.replace('{document}', document)}" for page in PAGES)]
    yield from look_at(f"{sizes.documents} deliveries", root, make_state, sizes.documents, pages, sizes.rounds)
    yield from look_at(f"{plans} plans", root, make_plans, plans, ["/", "/plans/plan-7-v1"], sizes.rounds)
    pages = ["/flows", "/flows/long", "/flows/long/picture.svg", "/queues", "/queues/q7"]
    yield from look_at(f"a flow of {FLOW_PLANS} plans", root, make_flow, FLOW_PLANS, pages, sizes.rounds)
    [intake] = Places([f"sqlite:///{root}/queue.db"]).find().intakes
    pages = [
        "/",
        "/intake",
        f"/intake/{intake}",
        f"/intake/{intake}?kind=jobs&state=Pending",
        f"/intake/{intake}/item?id=jid0000000007",
    ]
    yield from look_at(f"{jobs} jobs", root, make_intake, jobs, pages, sizes.rounds)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    yield Row("peak memory of the dashboard", f"{peak_mb} MB", "", "", f"≤ {MEMORY_MB} MB", peak_mb <= MEMORY_MB)


def look_at(
    what: str, root: Path, make: Callable[[Path, int], None], count: int, pages: list[str], rounds: int
) -> Iterator[Row]:
    """Make a folder in another process, and look at pages of it."""
    empty_folder(root)
    maker = multiprocessing.get_context("fork").Process(target=make, args=(root, count))
    maker.start()
    maker.join()
    assert maker.exitcode == 0
    named = [str(root), *map(str, root.glob("*.py"))]
    for page in pages:
        answers = Answers()
        site = TestClient(make_app(named, Settings(), answers), base_url="http://localhost")
        began = time.perf_counter()
        first_s = 0.0
        while any(words in (text := _get(site, page)) for words in COUNTING):
            if COUNTING[0] not in text:
                first_s = first_s or time.perf_counter() - began
            time.sleep(0.05)
        whole_s = time.perf_counter() - began

        def look(site: TestClient = site, page: str = page) -> None:
            _get(site, page)

        [took] = alternate(rounds, look)
        answers.close()
        first_s = first_s or whole_s
        cold_s = first_s if page == "/" else whole_s  # the list of plans fills while one looks at it
        ours = f"{took.wall_s:.2f} s (first look {first_s:.1f} s, everything {whole_s:.1f} s)"
        met = took.wall_s <= WARM_S and cold_s <= COLD_S
        yield Row(f"page `{page}`, {what}", ours, "", "", f"≤ {WARM_S:g} s (first look {COLD_S:g} s)", met)


def _get(site: TestClient, page: str) -> str:
    response = site.get(page)
    assert response.status_code == 200, f"{page}: {response.status_code}\n{response.text}"
    return response.text


def make_state(root: Path, documents: int) -> None:
    """Make a state of which some deliveries have failed."""
    plan = plan_named("sizes")
    synthetic.state(root / plan.key, plan, documents, dead_every=FAILED_EVERY)
    with State.take(root / plan.key, plan) as state:
        cache_counts(state, replace=True)  # as a run does after its last wave


def make_plans(root: Path, plans: int) -> None:
    """Make small states, each of which has a failure."""
    for number in range(plans):
        plan = plan_named(f"plan-{number}")
        synthetic.state(root / plan.key, plan, 100, dead=1)


def make_flow(root: Path, plans: int) -> None:
    """Run plans each of which reads what the one before it has sent."""
    file = root / "long.py"
    file.write_text(FLOW.format(plans=plans, place=str(root / "queues")))
    run(load(str(file)), state=root / "states", observer=Silent())


def make_intake(root: Path, jobs: int) -> None:
    """Make an intake queue of batches with pending jobs."""
    with JobQueue.open(f"sqlite:///{root}/queue.db") as queue:
        for _ in range(0, jobs, JOBS_A_BATCH):
            queue.create_batch({"submitter": "bench"})
            batch = queue.acquire_pending_batch()
            assert batch is not None
            for first in range(0, JOBS_A_BATCH, JOBS_AT_ONCE):
                values = [
                    {"configuration": {"payload_url": f"http://127.0.0.1/{first + n}"}} for n in range(JOBS_AT_ONCE)
                ]
                batch.create_jobs([({**each, "identifiers": {}, "metadata": {}}, 5) for each in values])
            batch.unlock()


def plan_named(name: str) -> Plan:
    plan = Plan(name, version=1)
    plan.source("docs", Memory([])).step("parse", _parse).destination("out", Null())
    return plan


def _parse(doc: Document) -> Document:
    return doc
