"""``ferryman fsck``: is every file of the state what was written?"""

from __future__ import annotations

import typer

from ferryman.cli.options import Json, PlanSpec, StateDir, Verbose
from ferryman.cli.terminal import json_line, say


def fsck(plan: PlanSpec, state: StateDir = None, json: Json = False, verbose: Verbose = False) -> None:
    """Verify every file of the state.

    What a large state keeps for `status` is counted again. Changes nothing, starts no Spark. Names what is damaged or
    missing and what can be done. Ends with 1 if there is any.
    """
    from ferryman.operations.fsck import check
    from ferryman.plan.load import load_plan, plan_file
    from ferryman.state.state import state_root

    loaded = load_plan(plan)
    root = state_root(loaded, state, plan_file(plan))
    findings = check(root)
    if json:
        json_line([{"path": str(f.path), "what": f.what, "remedy": f.remedy} for f in findings])
    else:
        for finding in findings:
            say(f"{finding.path}: {finding.what}; {finding.remedy}")
        say(f"{root}: {len(findings)} damaged or missing" if findings else f"{root}: all well")
    if findings:
        raise typer.Exit(1)
