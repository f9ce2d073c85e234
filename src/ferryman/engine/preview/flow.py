"""Preview of a flow: what each of its plans would do now, on one session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ferryman.account.questions import retry_read
from ferryman.engine import driver
from ferryman.engine.preview.preview import Preview, Previewing, Seen, scratch
from ferryman.observe.progress import Observer, Silent
from ferryman.plan import Flow, Plan
from ferryman.state.state import State, state_root
from ferryman.storage.files import StatePath


def preview_flow(
    flow: Flow,
    *,
    state: str | StatePath | None = None,
    spark: Any = None,
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    limit: int = 20,
    observer: Observer | None = None,
) -> dict[str, Preview]:
    """What a run would do with the first documents of each plan, as its queues are now: by the plans' names, in the
    order of their turns. What a plan would write in this run, those behind it do not see.

    Args:
        limit: how many documents of each plan are transformed.
        state, spark, master, conf: as for ``preview``, and so are the errors.
    """
    flow.freeze()
    observer = observer or Silent()
    plans = {flow.label(plan): (plan, state_root(plan, state)) for plan in flow.order}
    for plan, root in plans.values():
        _seen(plan, root)  # before Spark is started
    found = {}
    with driver.session_for(flow.name, flow.plans, spark, master, conf or {}, observer, soon=True) as runner:
        for name, (plan, root) in plans.items():
            observer.about(name)
            observer.phase(_seen(plan, root).wave + 1, "scan")
            with scratch() as folder:
                found[name] = Previewing(plan, root, folder, runner, observer).of(limit, None)
        observer.about("")
    return found


def _seen(plan: Plan, root: StatePath) -> Seen:
    return retry_read(root, lambda: Seen.of(State(root, plan)))
