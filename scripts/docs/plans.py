"""Generate docs/pictures/plan-*.svg, and the parts of docs/reference/plan.md on them and on bad plans."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any, NamedTuple

from ferryman import Document, Effect, Plan, Remember, destinations, routers, sources, steps
from ferryman.errors import PlanError
from ferryman.net.relative_paths import relative_to
from ferryman.plan import picture
from ferryman.plan.load import load_plan

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "plays.py"


def svg() -> str:
    """Draw docs/pictures/plan-plays.svg: the output of ``ferryman plan show docs/examples/plays.py --format svg``."""
    return picture.svg(load_plan(str(EXAMPLE)))


def papers_svg() -> str:
    """Draw docs/pictures/plan-papers.svg: the plan of the README, as if its file were in the root folder."""
    text = (EXAMPLE.parents[2] / "README.md").read_text("utf-8")
    block = re.search(r"^`papers\.py`:\n\n```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert block is not None
    namespace: dict[str, Any] = {"__name__": "papers"}
    with chdir("/"):
        exec(block[1], namespace)
        return picture.svg(namespace["plan"])


def refused_svg() -> str:
    """Draw docs/pictures/plan-refused.svg: a plan with a cycle, and with an unknown name."""
    with relative_to("/data"):
        return picture.svg(build(REFUSED))


def tree() -> str:
    return f"```text\n{picture.text(load_plan(str(EXAMPLE)))}\n```"


def mermaid() -> str:
    return f"```mermaid\n{picture.mermaid(load_plan(str(EXAMPLE)))}\n```"


def building() -> str:
    """Return the example from the line where its plan begins."""
    text = EXAMPLE.read_text("utf-8")
    return f"```python\n{text[text.index('plan = Plan(') :].strip()}\n```"


class Case(NamedTuple):
    """A mistake, and a plan that makes it."""

    mistake: str
    code: str


REFUSED = """
files = plan.source("files", Files("corpus"))
plan.step("read", read, after=[files, "again"])
plan.step("again", read, after=["read", "nowhere"])
"""

FINDINGS = (
    Case("A plan's name", 'plan = Plan("my plays")\nplan.source("files", Files("corpus")).destination("index", index)'),
    Case(
        "A plan's version",
        'plan = Plan("plays", version="1.0")\nplan.source("files", Files("corpus")).destination("index", index)',
    ),
    Case("A node's name", 'plan.source("my files", Files("corpus")).destination("index", index)'),
    Case(
        "Two nodes of one name",
        'plan.source("files", Files("corpus")).step("read", read).step("read", clean).destination("index", index)',
    ),
    Case("No source", "plan.nodes  # none yet"),
    Case("An object that is not a source", 'plan.source("files", "corpus").destination("index", index)'),
    Case("A step that is not a function", 'plan.source("files", Files("corpus")).step("read", "clean")\n'
         'plan.destination("index", index, after="read")'),
    Case("An object that is not a router",
         'fork = plan.source("files", Files("corpus")).route("fork", "kind")\nfork.destination("index", index)'),
    Case("An object that is not a destination", 'plan.source("files", Files("corpus")).destination("index", "sqlite:///plays.db")'),
    Case(
        "It follows what is not there",
        'plan.source("files", Files("corpus")).destination("index", index, after="raed")',
    ),
    Case(
        "It follows nothing",
        'plan.source("files", Files("corpus")).destination("index", index)\n'
        'plan.step("read", read).destination("other", other)',
    ),
    Case(
        "It follows a destination",
        'stored = plan.source("files", Files("corpus")).destination("index", index)\n'
        'stored.destination("other", other)',
    ),
    Case(
        "A cycle",
        'files = plan.source("files", Files("corpus"))\n'
        'fork = plan.step("read", read, after=[files, "again"]).route("fork", ByField("done"))\n'
        'fork.step("again", clean)\nfork.destination("index", index)',
    ),
    Case("A path that ends in no destination", 'plan.source("files", Files("corpus")).step("read", read)'),
    Case(
        "Several successors without a router",
        'files = plan.source("files", Files("corpus"))\n'
        'files.destination("index", index)\nfiles.destination("other", other)',
    ),
    Case(
        "A branch that is not there",
        'kind = plan.source("files", Files("corpus")).route("by-kind", ByField("kind", default="rest"))\n'
        'kind.destination("index", index)\nkind.destination("other", other)',
    ),
    Case(
        "Unequal branches of a router that is not deterministic, where it refuses them",
        'fork = plan.source("files", Files("corpus")).route("fork", RoundRobin(on_unequal="error"))\n'
        'fork.destination("index", index)\nfork.destination("other", other)',
    ),
    Case(
        "A POTENT step",
        'plan.source("files", Files("corpus")).step("mail", read, effect=Effect.POTENT).destination("index", index)',
    ),
    Case(
        "A step's time-out",
        'plan.source("files", Files("corpus")).step("read", read, timeout=0).destination("index", index)',
    ),
    Case(
        "What becomes of NaN",
        'plan.source("files", Files("corpus")).step("read", read, nan="zero").destination("index", index)',
    ),
    Case(
        "What becomes of old children",
        'plan.source("files", Files("corpus")).destination("index", index, stale="keep")',
    ),
    Case(
        "What a step needs",
        'plan.source("files", Files("corpus")).step("see", read, needs="two gpus").destination("index", index)',
    ),
    Case(
        "What remembers",
        'plan.source("files", Files("corpus")).step("read", read, remember="v1").destination("index", index)',
    ),
    Case(
        "A ready-made step that cannot be remembered",
        'files = plan.source("files", Files("corpus"))\n'
        'files.step("text", steps.extract_text(), remember=Remember("v1")).destination("index", index)',
    ),
    Case(
        "A generator that remembers",
        'def pages(doc):\n    yield doc.child(raw=doc.raw)\n\n'
        'files = plan.source("files", Files("corpus"))\n'
        'files.step("pages", pages, remember=Remember("v1")).destination("index", index)',
    ),
    Case(
        "Two steps that would share answers",
        'plan.source("files", Files("corpus")).step("first", read, remember=Remember("v1", name="read")).step('
        '"second", read, remember=Remember("v1", name="read", reads=["text"])).destination("index", index)',
    ),
    Case(
        "A brake",
        'plan.source("files", Files("corpus")).step("read", read, brake=0).destination("index", index)',
    ),
    Case(
        "Patience",
        'plan.source("files", Files("corpus")).step("read", read, patience="soon").destination("index", index)',
    ),
    Case(
        "A destination that does not say its effect",
        "class Printer(Destination):\n    def write(self, chunk): ...\n\n\n"
        'plan.source("files", Files("corpus")).destination("paper", Printer())',
    ),
    Case(
        "A guarantee that cannot be kept",
        'plan.source("files", Files("corpus")).destination("lines", JsonLines("/data"), guarantee="exactly-once")',
    ),
    Case(
        "Numbers of a policy",
        'plan.source("files", Files("corpus")).destination("index", index, attempts=0)',
    ),
    Case(
        "Waits of a policy",
        'plan.source("files", Files("corpus")).destination("index", index, backoff=[1, -1])',
    ),
    Case(
        "Code that cannot be sent to the workers",
        "lock = threading.Lock()\n\n\ndef guarded(doc):\n    with lock:\n        return doc\n\n\n"
        'plan.source("files", Files("corpus")).step("work", guarded).destination("index", index)',
    ),
    Case(
        "A plan that reads what it writes",
        'again = plan.source("again", sources.Queue("texts", "/data/queues"))\n'
        'again.destination("texts", destinations.Queue("texts", "/data/queues"))',
    ),
    Case(
        "A join of one input",
        'orders = plan.source("orders", sources.Queue("orders", "/data/queues"))\n'
        'plan.join("bill", clean, {"order": orders}).destination("index", index)',
    ),
    Case(
        "An input that is not a log",
        'orders = plan.source("orders", sources.Queue("orders", "/data/queues"))\n'
        'plan.alts("any", [orders, plan.source("files", Files("corpus"))]).destination("index", index)',
    ),
    Case(
        "A combining node that cannot take back what changes",
        'plan.source("files", Files("corpus")).combine("best", max, key="word", value="n").destination("index", index)',
    ),
    Case(
        "Copies that meet in a keyed node",
        'fork = plan.source("files", Files("corpus")).route("fork", Duplicate())\n'
        'ways = [fork.step("one", read), fork.step("two", clean)]\n'
        'plan.keyed("counts", count, key="word", after=ways).destination("index", index)',
    ),
    Case(
        "Options of a keyed node",
        'orders = plan.source("orders", sources.Queue("orders", "/data/queues"))\n'
        'orders.keyed("counts", count, key="word", buckets=0).destination("index", index)',
    ),
    Case(
        "An at-most-once plan that reads files",
        'plan.strategy = "at-most-once"\nplan.source("files", Files("corpus")).destination("index", index)',
    ),
    Case(
        "An at-most-once plan that joins what a filter lets pass",
        'plan.strategy = "at-most-once"\n'
        'orders = plan.source("orders", sources.Queue("orders", "/data/queues", types=["paid"]))\n'
        'prices = plan.source("prices", sources.Queue("prices", "/data/queues"))\n'
        'plan.join("bill", clean, {"order": orders, "price": prices}).destination("index", index)',
    ),
    Case(
        "Two destinations of errors",
        'plan.source("files", Files("corpus")).destination("index", index)\n'
        'plan.errors(destinations.Queue("errors", "/data/queues"))\n'
        'plan.errors(destinations.Queue("others", "/data/queues"), name="others")',
    ),
)  # fmt: skip
"""Plans with one mistake each, which are refused."""

WARNINGS = (
    Case(
        "Two sources whose ids may clash",
        'one = plan.source("one", Files("folder-1"))\ntwo = plan.source("two", Files("folder-2"))\n'
        'plan.destination("index", index, after=[one, two])',
    ),
    Case(
        "Unequal branches of a router that is not deterministic",
        'fork = plan.source("files", Files("corpus")).route("fork", RoundRobin())\n'
        'fork.destination("index", index)\nfork.destination("other", other)',
    ),
    Case(
        "Copies that meet in one target",
        'fork = plan.source("files", Files("corpus")).route("fork", Duplicate())\n'
        'fork.step("short", clean).destination("index", index)\nfork.destination("full", index)',
    ),
    Case(
        "A destination that does not compare sequences",
        "class Notes(Destination):\n    effect = Effect.IDEMPOTENT\n\n    def write(self, chunk): ...\n\n\n"
        'plan.source("files", Files("corpus")).destination("notes", Notes())',
    ),
)


def read(doc: Document) -> Document:
    return doc


def clean(doc: Document) -> Document:
    return doc


def count(key: str, state: Any, documents: list[Document]) -> tuple[int, None]:
    return (state or 0) + len(documents), None


def build(code: str) -> Plan:
    """Build a plan from code, with the names that the page documents."""
    namespace: dict[str, Any] = {
        **{name: getattr(module, name) for module in (routers, sources, destinations) for name in module.__all__},
        "destinations": destinations,
        "sources": sources,
        "Plan": Plan,
        "Remember": Remember,
        "steps": steps,
        "Effect": Effect,
        "threading": threading,
        "plan": Plan("plays", version=1),
        "read": read,
        "clean": clean,
        "count": count,
        "index": destinations.Sql("sqlite:////data/plays.db"),
        "other": destinations.Sql("sqlite:////data/plays.db", table="other"),
        "__name__": __name__,
    }
    exec(code, namespace)
    plan: Plan = namespace["plan"]
    return plan


def findings_of(case: Case) -> list[str]:
    """Return the reasons for which ``plan check`` refuses the plan."""
    try:
        build(case.code).check()
    except PlanError as e:
        return e.findings
    return []


def findings() -> str:
    """Return every mistake that is refused, with the message."""
    return _list(FINDINGS, [findings_of(case) for case in FINDINGS])


def warnings() -> str:
    return _list(WARNINGS, [build(case.code).check() for case in WARNINGS])


def _list(cases: Sequence[Case], messages: Sequence[list[str]]) -> str:
    return "\n".join(f"- {case.mistake}: ``{text}``" for case, [text] in zip(cases, messages, strict=True))
