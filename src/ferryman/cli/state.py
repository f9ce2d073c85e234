"""``ferryman state``: what keyed nodes hold."""

from __future__ import annotations

import json as json_text
from typing import Annotated, Any

import typer

from ferryman.cli.options import Json, PlanSpec, StateDir, Verbose
from ferryman.cli.terminal import json_line, say, table

app = typer.Typer(
    name="state",
    help="The states of keyed nodes: show, get.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Node = Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="The keyed node.")]


@app.command()
def show(
    plan: PlanSpec,
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", show_default=False, help="A keyed node. Default: how many keys each has."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="So many keys.")] = 20,
    state: StateDir = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Show how many keys each keyed node has, or the first keys of one with their states."""
    from ferryman.account.keyed import key_counts, key_states

    loaded, root = _plan_and_root(plan, state)
    if name is None:
        counts = key_counts(root, loaded)
        if json:
            json_line(counts)
        elif counts:
            table(["node", "keys"], list(counts.items()))
        else:
            say("no keyed nodes")
        return
    rows = key_states(root, loaded, name, limit)
    if json:
        json_line([{**row, "value": json_text.loads(row["value"])} for row in rows])
    else:
        table(["key", "state", "sequence", "wave"], [list(row.values()) for row in rows])


@app.command()
def get(
    plan: PlanSpec,
    name: Node,
    key: Annotated[str, typer.Argument(metavar="KEY", show_default=False, help="The key, exactly.")],
    state: StateDir = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Print the state of a key as JSON. Ends with 1 if it has none."""
    loaded, root = _plan_and_root(plan, state)
    found = loaded.state(name, root.parent).entry(key)
    if json:
        json_line(None if found is None else found._asdict())
    elif found is None:
        say(f"{key}: no state")
    else:
        say(json_text.dumps(found.value, ensure_ascii=False))
    if found is None:
        raise typer.Exit(1)


def _plan_and_root(plan: str, state: Any) -> tuple[Any, Any]:
    """The plan, and the folder of its state."""
    from ferryman.plan.load import load_plan, plan_file
    from ferryman.state.state import state_root

    loaded = load_plan(plan)
    return loaded, state_root(loaded, state, plan_file(plan))
