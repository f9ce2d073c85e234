"""``ferryman adopt``: goes on from a state that was put back from an older copy."""

from __future__ import annotations

import typer

from ferryman.cli.options import Json, PlanSpec, StateDir, Verbose, Why
from ferryman.cli.terminal import print_json
from ferryman.cli.verify import as_json, print_repair, print_target


def adopt(plan: PlanSpec, why: Why = "", state: StateDir = None, json: Json = False, verbose: Verbose = False) -> None:
    """Go on from a state, or with targets, that were put back from an older copy.

    For a run that said so. Everything that is sent from now on counts as newer than what the destinations have; then
    they are compared with the ledger as by `verify`, and the next run sends what differs. Deletes nothing: after that
    run, `ferryman verify PLAN --delete-extra` has removed what should not be there.

    Exit codes: 0 all is there; 3 something differs, and is due now; 4 a destination could not be read, or none can be.
    """
    from ferryman import verification
    from ferryman.plan.load import load_plan, plan_file
    from ferryman.state.state import state_root

    loaded = load_plan(plan)
    found = verification.adopt(loaded, state=state_root(loaded, state, plan_file(plan)).parent, why=why)
    if json:
        print_json(as_json(found))
    else:
        for target in found.targets:
            print_target(target, verbose=verbose)
        print_repair(found, plan, state, asked=True)
    raise typer.Exit(found.exit)
