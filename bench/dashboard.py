"""Pages of the dashboard over a large state, many plans, a long flow and a large intake queue.

Of each page: the seconds until it answers for the first time, until everything is on it, and of a later look; and the
CPU of the dashboard until everything is there, and of a later look. Before each page the dashboard is started anew, and
at last once more for all pages, for the peak of its memory.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from bench import synthetic
from bench.harness import Row, Sizes, empty_folder
from ferryman import Document, run
from ferryman.account.queries import cache_counts
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
        with served(named) as site:
            first_s, whole_s = site.look_until_whole(page)
            cold_cpu_s = site.cpu_s() - site.started_cpu_s
            before_s, later_s = site.cpu_s(), []
            for _ in range(max(rounds, 1)):
                began = time.perf_counter()
                site.get(page)
                later_s.append(time.perf_counter() - began)
            cpu_s = (site.cpu_s() - before_s) / len(later_s)
        took_s = statistics.median(later_s)
        cold_s = first_s if page == "/" else whole_s  # the list of plans fills while one looks at it
        ours = (
            f"{took_s:.2f} s (first look {first_s:.1f} s, everything {whole_s:.1f} s; "
            f"CPU {cpu_s:.2f} s, everything {cold_cpu_s:.1f} s)"
        )
        met = took_s <= WARM_S and cold_s <= COLD_S
        yield Row(f"page `{page}`, {what}", ours, "", "", f"≤ {WARM_S:g} s (first look {COLD_S:g} s)", met)
    with served(named) as site:
        for page in pages:
            site.look_until_whole(page)
        peak_mb = site.peak_mb()
    yield Row(f"memory, {what}", f"{peak_mb} MB at its peak", "", "", f"≤ {MEMORY_MB} MB", peak_mb <= MEMORY_MB)


class Site:
    """A dashboard in a process of its own.

    Attributes:
        started_cpu_s: CPU that its start took.
    """

    def __init__(self, url: str, pid: int) -> None:
        self._url, self._pid = url.rstrip("/"), pid
        self.started_cpu_s = self.cpu_s()

    def get(self, page: str) -> str:
        with urlopen(self._url + page) as response:
            return str(response.read().decode())

    def look_until_whole(self, page: str) -> tuple[float, float]:
        """Return the seconds until the page answers, and until everything is on it."""
        began, first_s = time.perf_counter(), 0.0
        while any(words in (text := self.get(page)) for words in COUNTING):
            if COUNTING[0] not in text:
                first_s = first_s or time.perf_counter() - began
            time.sleep(0.05)
        whole_s = time.perf_counter() - began
        return first_s or whole_s, whole_s

    def cpu_s(self) -> float:
        """Return the CPU seconds of the process so far."""
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_mb(self) -> int:
        """Return the peak of the process's memory."""
        [peak] = re.findall(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{self._pid}/status").read_text())
        return int(peak) // 1024


@contextmanager
def served(named: list[str]) -> Iterator[Site]:
    """Serve a dashboard as its command does."""
    command = [sys.executable, "-m", "ferryman.cli", "dashboard", "--port", "0", *named]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield Site(process.stdout.readline().strip(), process.pid)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


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
