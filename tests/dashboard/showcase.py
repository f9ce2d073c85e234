"""A folder with something of each kind that the dashboard shows, made without Spark in a second or two.

The plans are the ones of a small archive, so that its pages can be pictures in the docs.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ferryman import Flow
from ferryman.intake import JobQueue
from ferryman.plan.load import load, load_plan
from ferryman.queues import Queue
from ferryman.verification import verify
from tests.support.joined import run_flow
from tests.support.plan_world import Watch, run_plan

FLOW = '''\
"""Orders of a shop: what each customer has spent, and a letter to everybody whose total changed."""

from ferryman import Document, Flow, Plan
from ferryman.destinations import Queue, Sql
from ferryman.sources import Queue as FromQueue


def add_up(customer, total, orders):
    total = (total or 0) + sum(order["amount"] for order in orders)
    return total, Document(customer, customer=customer, total=total)


def letter(doc):
    doc.raw = f"Dear {doc['customer']}, you have spent {doc['total']} so far.".encode()
    return doc


spent = Plan("spent", version=1)
orders = spent.source("orders", FromQueue("orders", "queues"))
orders.keyed("totals", add_up, key="customer").destination("changed", Queue("totals", "queues"))
letters = Plan("letters", version=1)
letters.source("totals", FromQueue("totals", "queues")).step("letter", letter).destination(
    "sent", Sql("sqlite:///letters.db")
)
flow = Flow("shop", [spent, letters])
'''
NEWSPAPERS = '''\
"""Issues of a newspaper, page by page; some scans cannot be read."""

from pathlib import Path

from ferryman import Document, Plan, Remember
from ferryman.destinations import Sql
from ferryman.errors import PermanentError
from ferryman.sources import Files

HERE = Path(__file__).parent
MASTHEADS = {"1911-03": "The Gazette"}


def pages(doc):
    """Split an issue into its pages."""
    text = doc.text()
    if text.startswith("torn"):
        raise PermanentError("page 3 is torn")
    if not text:
        raise PermanentError("the scan is empty")
    doc["title"] = MASTHEADS[text.split(",")[0]]
    return [doc, *(doc.child(f"page-{number}", raw=b"%s, page %d" % (doc.raw, number)) for number in (1, 2))]


def embed(doc):
    """Call a model, which costs."""
    doc["vector"] = [float(len(doc.raw)), 1.0]
    return doc


plan = Plan("newspapers", version=2)
scans = plan.source("scans", Files(HERE / "scans", prefix="gazette/")).step("pages", pages, attempts=1)
remember = Remember("words/2", reads=["text"], writes=["vector"], cost=0.00002)
scans.step("embed", embed, remember=remember).destination("index", Sql(f"sqlite:///{HERE}/index.db"))
'''
CUSTOMERS = ("Ada", "Grace", "Hedy", "Katherine", "Mary")
ODD_SCANS = {7: "torn", 9: "torn", 12: "", 13: "1919-03, Monday the 13th"}
"""Day -> what its scan says."""


class Held(Watch):
    """Holds a run when it comes to the delivery of its first wave, until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.is_there, self.may_go = threading.Event(), threading.Event()

    def phase(self, wave: int, name: str) -> None:
        super().phase(wave, name)
        if name == "deliver":
            self.is_there.set()
            self.may_go.wait(600)


@contextmanager
def showcase(folder: Path) -> Iterator[Path]:
    """Fill a folder: a flow of two plans with queues, one of them keyed; a plan with failures, a step that remembers
    and a verified destination, which runs for as long as the block lasts; an intake queue. Yields the flow's file."""
    file = _shop(folder / "shop")
    _intake(folder / "intake")
    place = folder / "newspapers"
    (place / "scans").mkdir(parents=True)
    (place / "plan.py").write_text(NEWSPAPERS)
    plan = load_plan(str(place / "plan.py"))
    for first, last in ((1, 14), (15, 20)):
        _scan(place / "scans", first, last)
        run_plan(plan, place / "state", checked=False)
    verify(plan, state=place / "state")
    _scan(place / "scans", 21, 28)
    held = Held()
    running = threading.Thread(
        target=run_plan, args=[plan, place / "state"], kwargs={"observer": held, "checked": False}
    )
    running.start()
    try:
        assert held.is_there.wait(60)
        yield file
    finally:
        held.may_go.set()
        running.join()


def _shop(folder: Path) -> Path:
    folder.mkdir(parents=True)
    file = folder / "flow.py"
    file.write_text(FLOW)
    orders = Queue("orders", folder / "queues")
    orders.append([_order(number) for number in range(45)])
    flow: Any = load(str(file))
    assert isinstance(flow, Flow)
    run_flow(flow, folder / "state")
    orders.append([_order(number) for number in range(45, 57)])
    return file


def _scan(folder: Path, first: int, last: int) -> None:
    """Put the scans of these days of March 1911 into a folder."""
    for day in range(first, last + 1):
        text = ODD_SCANS.get(day, f"1911-03, the {day}. of the month")
        (folder / f"1911-03-{day:02}.txt").write_text(text)


def _order(number: int) -> dict[str, Any]:
    return {"order": 1001 + number, "customer": CUSTOMERS[number % len(CUSTOMERS)], "amount": 10 + number * 7 % 40}


def _intake(folder: Path) -> None:
    folder.mkdir()
    with JobQueue.open(f"sqlite:///{folder}/queue.db") as queue:
        for number in range(3):
            batch = queue.create_batch({"submitter": "carla", "batchID": f"scans-1911-0{number + 1}"})
            for issue in range(4):
                batch.create_job({"jobID": f"gazette 1911-0{number + 1}-{issue + 1:02}"}, 3)
        held, failed, *_ = queue.list_jobs()
        queue.load_job(held).set_status("Held", "waits for a better scan")
        queue.load_job(failed).fail("the manifest names page 7 twice", revoke=True)
        queue.create_assembly("small", {"assembly": "gazette-1911", "notify": "carla"})
