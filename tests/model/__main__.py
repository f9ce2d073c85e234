"""Explore everything, and tell what it came to.

.venv/bin/python -m tests.model            a line a configuration, a line a mutation
.venv/bin/python -m tests.model --traces   and the shortest way to what each mutation breaks
.venv/bin/python -m tests.model --write    and write the tables of docs/model.md
"""

from __future__ import annotations

import sys

from tests.model import pages
from tests.model.configurations import CONFIGURATIONS
from tests.model.doubts_explored import DOUBT_CONFIGURATIONS, DOUBT_MUTATIONS
from tests.model.keyed.explored import KEYED_CONFIGURATIONS, KEYED_MUTATIONS
from tests.model.mutations import MUTATIONS
from tests.model.queues.configurations import QUEUE_CONFIGURATIONS
from tests.model.queues.mutations import QUEUE_MUTATIONS
from tests.model.queues.once_explored import ONCE_CONFIGURATIONS, ONCE_MUTATIONS


def main() -> int:
    failed = False
    print(f"{'configuration':56} {'states':>9} {'transitions':>12} {'seconds':>8}")
    others = (*ONCE_CONFIGURATIONS, *KEYED_CONFIGURATIONS, *DOUBT_CONFIGURATIONS)
    for config in (*CONFIGURATIONS, *QUEUE_CONFIGURATIONS, *others):
        report = pages.explored(config)
        print(f"{config.name:56} {report.states:9} {report.transitions:12} {report.seconds:8.1f}", flush=True)
        if report.violation is not None:
            failed = True
            print(report.violation)
    print(f"\n{'mutation':56} breaks  after steps")
    for mutation in (*MUTATIONS, *QUEUE_MUTATIONS, *ONCE_MUTATIONS, *KEYED_MUTATIONS, *DOUBT_MUTATIONS):
        violation = pages.explored(mutation.config).violation
        found, steps = ("nothing", 0) if violation is None else (violation.invariant, len(violation.trace))
        failed = failed or found != mutation.breaks
        print(f"{mutation.name:56} {found:7} {steps:6}")
        if "--traces" in sys.argv:
            print(violation)
    if "--write" in sys.argv:
        pages.PAGE.write_text(pages.made(pages.PAGE.read_text("utf-8")), "utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
